"""Reductions along the free axis, and the registers in which engines accumulate.

An accumulator is one FP32 per partition. An instruction folds its values into the
accumulators one after the other: register = op(register, value) (nki.isa, "Accumulator
behavior"). The folded values are in FP32, not yet rounded for the write. A reduction
without a register (`tensor_reduce`) uses VectorE's tiles of 512 if the order matters.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines import fold
from neuronjax.execution.engines.array_fold import Matrix
from neuronjax.execution.engines.fold import fold_axes, left_fold, sum_rows
from neuronjax.execution.tiles import alu
from neuronjax.execution.tiles.registry import Signature, TileContext
from neuronjax.execution.tiles.rounding import wide
from neuronjax.numerics.elementary_core import flush
from neuronjax.numerics.exact import opaque

#: The contents of the registers after a reset, per reduction.
IDENTITIES = {
    "add": np.float32(0),
    "subtract": np.float32(0),
    "multiply": np.float32(1),
    "maximum": np.float32(-np.inf),
    "minimum": np.float32(np.inf),
    "abs_max": np.float32(0),
    "abs_min": np.float32(np.inf),
}
# Operators that give the same bits in any order.
_ORDER_FREE = {"maximum": lax.reduce_max, "minimum": lax.reduce_min}


def flat(x: jax.Array) -> jax.Array:
    """Return the array as [partitions, elements]."""
    return x.reshape(x.shape[0], -1)


def lanes(value: Any, partitions: int, zero: jax.Array) -> jax.Array:
    """Return a number, or one per partition, as FP32 [partitions, 1]."""
    value = wide(jnp.asarray(value), zero)
    value = value.reshape(-1, 1) if value.size > 1 else value.reshape(1, 1)
    return jnp.broadcast_to(value, (partitions, 1))


def fold_from(op: str, start: jax.Array, values: jax.Array, zero: jax.Array) -> Any:
    """Return the left fold from `start` [P, 1] over `values` [P, N]: [P, 1]."""
    start = opaque(start, zero)
    if op in _ORDER_FREE:
        best = _ORDER_FREE[op](flush(values), (1,))
        return alu.arithmetic(op, start, best[:, None], zero)
    rows = jnp.concatenate([start, values], axis=1)
    if op == "add":
        return sum_rows(Matrix(rows[None], k_first=False), zero).reshape(-1, 1)
    combine = functools.partial(alu.arithmetic, op, zero=zero)
    return left_fold(opaque(rows.T, zero), combine)[:, None]


def accumulating(
    i: Signature, op: str, values: jax.Array, state: Sequence[Any], c: TileContext
) -> tuple[jax.Array, ...]:
    """Return as many of three arrays as the instruction has outputs: the values, FP32
    [P, N]; all accumulators after `reduce_cmd`; the accumulators of the used
    partitions. `state` is empty without accumulators; otherwise it has them and, for
    "load_reduce", the value from which the fold starts."""
    if not state:
        return (values,)
    registers, *init = state
    command, partitions = i.attributes["reduce_cmd"], values.shape[0]
    used = start(command, op, registers, partitions, c.zero, *init)
    if command not in ("idle", "reset"):
        used = fold_from(op, used, values, c.zero)
    after = jnp.concatenate([used, registers[partitions:]])
    return (values, after, used)[: len(i.outputs)]


def start(
    command: str,
    op: str,
    registers: jax.Array,
    partitions: int,
    zero: jax.Array,
    init: Any = None,
) -> jax.Array:
    """Return the value from which the fold starts, [P, 1]."""
    if command in ("reset", "reset_reduce"):
        return jnp.full((partitions, 1), IDENTITIES[op])
    if command == "load_reduce":
        return lanes(init, partitions, zero)
    return registers[:partitions]


def reduced(op: str, values: jax.Array, zero: jax.Array) -> jax.Array:
    """Return FP32 [rows, N] reduced along the second axis: [rows]."""
    if op in _ORDER_FREE:
        return _ORDER_FREE[op](flush(values), (1,))
    if op in fold.IDENTITIES:
        return fold_axes(values, (1,), jnp.float32(fold.IDENTITIES[op]), op, zero)
    combine = functools.partial(alu.arithmetic, op, zero=zero)
    return left_fold(opaque(values.T, zero), combine)


def reduced_bits(op: str, values: jax.Array) -> jax.Array:
    """Return integers [rows, N] reduced by a bit vector operator: [rows]."""
    return left_fold(values.T, functools.partial(alu.bitwise, op))
