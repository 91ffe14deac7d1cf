"""Ops that have no rule by decision, and ops whose rule does not exist yet.

`REFUSED` holds as data, for each op, the reason and what the user can do. Every entry
is registered as a rule that raises its error with the op and the user's line; the table
of operations that `neuronjax ops` prints also reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from neuronjax.errors import NeuronJaxError, UnimplementedError, UnsupportedError
from neuronjax.ir.program import Op
from neuronjax.lowering.context import Context
from neuronjax.lowering.registry import lowers


@dataclass(frozen=True, kw_only=True)
class RefusedOp:
    """The reason why an op does not run.

    Attributes:
        reason: completes "<op>: ...".
        remedy: what the user can do.
        error: the category; UnimplementedError if the rule does not exist yet.
    """

    reason: str
    remedy: str
    error: type[NeuronJaxError] = UnsupportedError


_STATEFUL_RNG = RefusedOp(
    reason="draws from a generator whose state is not in the program, so no run can "
    "be repeated",
    remedy="draw with jax.random and a key",
)
_HOST_TRANSFER = RefusedOp(
    reason="exchanges data with the host while the program runs, which an emulated "
    "core does not",
    remedy="pass the values as arguments and return the results",
)
_TOKEN = RefusedOp(
    reason="orders side effects, and an emulated program has none",
    remedy="remove the effects (ordered callbacks, infeed, send) from the function",
)
_TUPLE = RefusedOp(
    reason="makes or opens a tuple; values of a program are tensors",
    remedy="let the function take and return its tensors one by one, as jax.export "
    "writes it",
)
_QUANTIZED = RefusedOp(
    reason="uses StableHLO's quantized types, which no NeuronCore engine has",
    remedy="write out scale, round and clamp as ops on float32 and integer tensors",
)
_DYNAMIC = RefusedOp(
    reason="takes a shape that is known only at run time (neuronx-cc: EMOD025)",
    remedy="give every dimension a size before you save the program",
)
_ASYNC = RefusedOp(
    reason="only schedules another op; scheduling changes no value",
    remedy="save the program before XLA's scheduler has rewritten it",
)
_REPLICAS = RefusedOp(
    reason="uses replicas of a program, but devices are partitions of one program",
    remedy="use jax.lax collectives inside jax.shard_map or neuronjax.pmap",
)
_ONE_RECEIVES = RefusedOp(
    reason="reduces to one device of a group, which JAX has no function for",
    remedy="reduce to all devices (jax.lax.psum) and use one device's result",
    error=UnimplementedError,
)

_RAGGED_DOT = RefusedOp(
    reason="is how JAX writes lax.ragged_dot, but only for TPUs",
    remedy='save the program for platform "neuron" or "cpu"',
)
_SUPERSEDED = RefusedOp(
    reason="is superseded in StableHLO and CHLO; JAX has not written it for years",
    remedy="load the program with neuronjax.load, which rewrites what it can, or write "
    "it with dot_general, reduce or complex",
)
_INTERMEDIATE = RefusedOp(
    reason="exists only while XLA rewrites CHLO, and in no program that JAX writes",
    remedy="save the program as jax.export writes it",
)

_BY_REFUSAL: tuple[tuple[RefusedOp, str], ...] = (
    (_STATEFUL_RNG, "rng"),
    (_HOST_TRANSFER, "infeed outfeed send recv"),
    (_TOKEN, "after_all create_token"),
    (_TUPLE, "tuple get_tuple_element"),
    (_QUANTIZED, "uniform_quantize uniform_dequantize"),
    (
        _DYNAMIC,
        "dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota dynamic_pad "
        "dynamic_reshape real_dynamic_slice set_dimension_size",
    ),
    (_ASYNC, "async_start async_done"),
    (_SUPERSEDED, "einsum unary_einsum"),
    (_ONE_RECEIVES, "collective_reduce"),
    (_REPLICAS, "cross-replica-sum replica_id"),
)
REFUSED: Mapping[str, RefusedOp] = {
    **{
        f"stablehlo.{name}": refusal
        for refusal, names in _BY_REFUSAL
        for name in names.split()
    },
    "chlo.broadcast_complex": _SUPERSEDED,
    "chlo.ragged_dot": _RAGGED_DOT,
    "chlo.scan": _INTERMEDIATE,
    "chlo._asin_acos_kernel": _INTERMEDIATE,
}


@lowers(*REFUSED)
def refused(op: Op, context: Context) -> NoReturn:
    refusal = REFUSED[op.name]
    raise op.error(refusal.error, refusal.reason, refusal.remedy)
