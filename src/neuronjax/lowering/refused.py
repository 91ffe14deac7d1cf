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
    """The reason why an op does not run."""

    reason: str  # completes "<op>: ..."
    remedy: str  # what the user can do
    #: UnimplementedError if the rule does not exist yet.
    error: type[NeuronJaxError] = UnsupportedError


#: The ops, of StableHLO unless they have a dialect -> why they are refused.
_REFUSALS: Mapping[str, RefusedOp] = {
    "rng": RefusedOp(
        reason="draws from a generator whose state is not in the program, so no run "
        "can be repeated",
        remedy="draw with jax.random and a key",
    ),
    "infeed outfeed send recv": RefusedOp(
        reason="exchanges data with the host while the program runs, which an "
        "emulated core does not",
        remedy="pass the values as arguments and return the results",
    ),
    "after_all create_token": RefusedOp(
        reason="orders side effects, and an emulated program has none",
        remedy="remove the effects (ordered callbacks, infeed, send) from the function",
    ),
    "tuple get_tuple_element": RefusedOp(
        reason="makes or opens a tuple; values of a program are tensors",
        remedy="let the function take and return its tensors one by one, as "
        "jax.export writes it",
    ),
    "uniform_quantize uniform_dequantize": RefusedOp(
        reason="uses StableHLO's quantized types, which no NeuronCore engine has",
        remedy="write out scale, round and clamp as ops on float32 and integer tensors",
    ),
    "dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota dynamic_pad "
    "dynamic_reshape real_dynamic_slice set_dimension_size": RefusedOp(
        reason="takes a shape that is known only at run time (neuronx-cc: EMOD025)",
        remedy="give every dimension a size before you save the program",
    ),
    "async_start async_done": RefusedOp(
        reason="only schedules another op; scheduling changes no value",
        remedy="save the program before XLA's scheduler has rewritten it",
    ),
    "einsum unary_einsum chlo.broadcast_complex": RefusedOp(
        reason="is superseded in StableHLO and CHLO; JAX has not written it for years",
        remedy="load the program with neuronjax.load, which rewrites what it can, or "
        "write it with dot_general, reduce or complex",
    ),
    "collective_reduce": RefusedOp(
        reason="reduces to one device of a group, which JAX has no function for",
        remedy="reduce to all devices (jax.lax.psum) and use one device's result",
        error=UnimplementedError,
    ),
    "cross-replica-sum replica_id": RefusedOp(
        reason="uses replicas of a program, but devices are partitions of one program",
        remedy="use jax.lax collectives inside jax.shard_map or neuronjax.pmap",
    ),
    "chlo.ragged_dot": RefusedOp(
        reason="is how JAX writes lax.ragged_dot, but only for TPUs",
        remedy='save the program for platform "neuron" or "cpu"',
    ),
    "chlo.scan chlo._asin_acos_kernel": RefusedOp(
        reason="exists only while XLA rewrites CHLO, and in no program that JAX writes",
        remedy="save the program as jax.export writes it",
    ),
}
REFUSED: Mapping[str, RefusedOp] = {
    name if "." in name else f"stablehlo.{name}": refusal
    for names, refusal in _REFUSALS.items()
    for name in names.split()
}


@lowers(*REFUSED)
def refused(op: Op, context: Context) -> NoReturn:
    refusal = REFUSED[op.name]
    raise op.error(refusal.error, refusal.reason, refusal.remedy)
