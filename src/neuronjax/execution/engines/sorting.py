"""GpSimdE: stable sorts, by integer keys or by any comparator, and the largest k."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines.bodies import on_elements
from neuronjax.execution.engines.dispatch import Arrays, Registers, execute, wide
from neuronjax.ir.block_set import SortBlock
from neuronjax.ir.instruction_set import Sort, TopK
from neuronjax.numerics.elementary_core import flush
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.microscaling import to_codes
from neuronjax.numerics.order_free import total_order
from neuronjax.numerics.widening import from_codes


@execute.register
def sort(i: Sort, x: Sequence[jax.Array], r: Registers) -> Arrays:
    orders = tuple(zip(i.total, i.descending, strict=True))
    keys = [_key(a, *order) for a, order in zip(x, orders, strict=False)]
    values = x[len(keys) :]
    moved = [_as_integers(a) for a in values]
    out = lax.sort([*keys, *moved], i.dimension, num_keys=len(keys))
    pairs = zip(out[len(keys) :], values, strict=True)
    return tuple(_as_dtype(a, value.dtype) for a, value in pairs)


def _key(x: jax.Array, total: bool, descending: bool) -> jax.Array:
    """Return integer keys whose ascending order is the required order of `x`."""
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    if x.dtype.kind not in "iu":
        # FP4 is compared as FP32, in the same order: no integers have its width.
        bits = wide(x) if get_format(x.dtype).width < 8 else x
        x = total_order(bits if total else _canonical(wide(x)))
    return ~x if descending else x


def _canonical(x: jax.Array) -> jax.Array:
    x = jnp.where(x != x, jnp.float32(np.nan), flush(x))
    return jnp.where(x == 0, jnp.float32(0), x)


def _as_integers(x: jax.Array) -> jax.Array:
    """Return 8-bit floats as bytes: XLA does not sort all formats of 8 bits."""
    return to_codes(x) if x.dtype.kind not in "iub" and x.dtype.itemsize == 1 else x


def _as_dtype(x: jax.Array, dtype: np.dtype) -> jax.Array:
    return x if x.dtype == dtype else from_codes(x, get_format(dtype))


@execute.register
def top_k(i: TopK, x: Sequence[jax.Array], r: Registers) -> Arrays:
    (operand,) = x
    last = operand.ndim - 1
    key = _key(operand, True, True)
    indices = lax.broadcasted_iota(jnp.int32, operand.shape, last)
    moved = _as_integers(operand)
    _, values, indices = lax.sort([key, moved, indices], last, num_keys=1)
    return (
        _as_dtype(lax.slice_in_dim(values, 0, i.k, axis=last), operand.dtype),
        lax.slice_in_dim(indices, 0, i.k, axis=last),
    )


@execute.register
def sort_block(i: SortBlock, x: Sequence[jax.Array], r: Registers) -> Arrays:
    """Sort by Batcher's bitonic network, all pairs of a stage at once. If a comparator
    calls two elements equal, or each less than the other, their order is kept. Only
    exchanges happen, so the result is a permutation for any comparator."""
    count = len(x) - i.captures
    tensors, captured = x[:count], x[count:]
    shape, n = tensors[0].shape, tensors[0].shape[i.dimension]
    if tensors[0].size == 0 or n == 1:
        return tuple(tensors)
    # [n, rest]: the sorted axis in front.
    front = (jnp.moveaxis(a, i.dimension, 0) for a in tensors)
    columns = [lax.reshape(a, (n, a.size // n)) for a in front]
    length = 1 << (n - 1).bit_length()
    padded = [jnp.pad(a, ((0, length - n), (0, 0))) for a in columns]
    places = lax.broadcasted_iota(jnp.int32, padded[0].shape, 0)
    body = on_elements(i.body, captured, r)

    def before(
        number: jax.Array, mine: Sequence, other: Sequence, partner: jax.Array
    ) -> jax.Array:
        pairs = [a for pair in zip(mine[1:], other[1:], strict=True) for a in pair]
        (is_less,) = body(number, *pairs)
        real = (mine[0] < n) & (other[0] < n)  # padding never moves forward
        differs = is_less != is_less[partner]
        return jnp.where(real & differs, is_less, mine[0] < other[0])

    def step(carry: tuple, stage: tuple) -> tuple[tuple, None]:
        number, run, distance = stage
        line = lax.iota(jnp.int32, length)
        partner = line ^ distance
        other = [a[partner] for a in carry]
        first = ((line & run) == 0) == (line < partner)
        keep = before(number, carry, other, partner) == first[:, None]
        return tuple(
            jnp.where(keep, a, b) for a, b in zip(carry, other, strict=True)
        ), None

    (_, *out), _ = lax.scan(step, (places, *padded), _stages(length))
    front = (n, *shape[: i.dimension], *shape[i.dimension + 1 :])
    rows = (lax.reshape(a[:n], front) for a in out)
    return tuple(jnp.moveaxis(a, 0, i.dimension) for a in rows)


def _stages(length: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the number, run length and pair distance of each stage of the network."""
    stages = [
        (1 << run, 1 << distance)
        for run in range(1, length.bit_length())
        for distance in reversed(range(run))
    ]
    runs, distances = np.array(stages, np.int32).T
    numbers = np.arange(len(stages), dtype=np.uint32)
    return jnp.asarray(numbers), jnp.asarray(runs), jnp.asarray(distances)
