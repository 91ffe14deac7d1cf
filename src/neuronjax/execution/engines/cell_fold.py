"""The systolic array's sum where a cell holds several rows, block by block.

    total = 0
    for p in cells:
        s = a[p, 0] * b[p, 0];  for j in 1 .. J-1: s = s + a[p, j] * b[p, j]
        total = total + s

in FP32: every product is rounded, then every sum, in this order. `paired` is the
double-row layout (J = 2), `quads` MX (J = 4); see design, section 5. No dot of XLA's
sums in this order, so the fold is a loop over a few cells at a time for one block of
the result, whose running sums stay in the cache; `Blocking` says how large, and a timed
search chooses it (`tile_search`). Quantization and scales are not done here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.engines import host_fold, tile_search
from neuronjax.execution.engines.array_fold import Matrix, scanned
from neuronjax.execution.engines.cells import Cells, Index, singles
from neuronjax.numerics.exact import kept_apart, seal


def fold_cells(
    lhs: Cells, rhs: Cells, zero: jax.Array, *, in_range: bool = False, tiles: int = 1
) -> jax.Array:
    """The fold of every cell's sum, float32 [batch, M, N].

    Args:
        lhs: [batch, M] in each row of each cell, of 12 significant bits or fewer.
        rhs: the same of N; batch, cells and J are those of `lhs`.
        zero: the scalar of `numerics.exact.opaque_zero`.
        in_range: promises that every product of two finite non-zero operands is a
            normal FP32 number, as those of unscaled FP8 are. Such a product is exact,
            and a fused multiply-add rounds as two operations do: no seal is needed.
            Not promised, it is found out by the run where that is worth it.
        tiles: of K, the outer part of the operands' batch, [tiles * batch]: their
            results are added in order, in FP32, as PSUM does.
    """
    if tiles == 1 and host_fold.usable():
        return host_fold.fold_cells(lhs, rhs, in_range=in_range)
    if lhs.free > rhs.free:
        # The longer side is the one that runs along the processor's vectors.
        swapped = fold_cells(rhs, lhs, zero, in_range=in_range, tiles=tiles)
        return jnp.swapaxes(swapped, 1, 2)
    block = _best(lhs.rows, lhs.free, rhs.free).fitted(lhs, rhs, tiles)
    if in_range or not _is_large(lhs.free, rhs.free):
        return kept_apart(_fold(lhs, rhs, zero, block, in_range, tiles))
    return kept_apart(_fold_by_range(lhs, rhs, zero, block, tiles))


@functools.partial(jax.jit, static_argnames=("block", "tiles"))
def _fold_by_range(
    lhs: Cells, rhs: Cells, zero: jax.Array, block: ResultBlock, tiles: int
) -> jax.Array:
    fast, slow = (
        functools.partial(_fold, block=block, in_range=in_range, tiles=tiles)
        for in_range in (True, False)
    )
    return lax.cond(_in_range(lhs.array, rhs.array), fast, slow, lhs, rhs, zero)


# Rows or columns for which finding out about the range takes longer than it saves.
FEW = 32


def fold_rows(
    lhs: Matrix, rhs: Matrix, zero: jax.Array, *, tiles: int = 1
) -> jax.Array:
    """`array_fold.scanned`, bit for bit, and fast where every product is in range.

    Such a product is exact, so that adding it is a fused multiply-add, contracted or
    not. Whether all are is found out by the run.

    Args:
        lhs: of 12 significant bits or fewer.
        rhs: the same; batch and K are those of `lhs`.
        zero: the scalar of `numerics.exact.opaque_zero`.
        tiles: of K, the outer part of the batch, as in `fold_cells`.
    """
    if min(lhs.free, rhs.free) < FEW:
        return kept_apart(_scan_rows(lhs, rhs, zero, tiles))
    return kept_apart(_fold_rows(lhs, rhs, zero, tiles))


@functools.partial(jax.jit, static_argnames="tiles")
def _fold_rows(lhs: Matrix, rhs: Matrix, zero: jax.Array, tiles: int) -> jax.Array:
    def fast(a: Matrix, b: Matrix) -> jax.Array:
        return fold_cells(singles(a), singles(b), zero, in_range=True, tiles=tiles)

    def slow(a: Matrix, b: Matrix) -> jax.Array:
        return _scan_rows(a, b, zero, tiles)

    return lax.cond(_in_range(lhs.array, rhs.array), fast, slow, lhs, rhs)


@functools.partial(jax.jit, static_argnames="tiles")
def _scan_rows(lhs: Matrix, rhs: Matrix, zero: jax.Array, tiles: int) -> jax.Array:
    every = scanned(lhs, rhs, zero)
    every = lax.reshape(every, (tiles, lhs.batch // tiles, lhs.free, rhs.free))
    return functools.reduce(_plus, every)


def _in_range(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Whether every product other than zero is surely finite and normal.

    Numbers of which none is 2^(d+1) or larger, nor smaller than 2^-(d+1), have products
    within 2^(d+d'+2) of one; the exponents are biased by 127 each.
    """
    return _distance(lhs) + _distance(rhs) <= 126 - 2 + 2 * 127


def _distance(x: jax.Array) -> jax.Array:
    """The biased exponent, int32, of the number or the reciprocal farthest from one."""
    smallest, one, infinity = map(jnp.int32, (0x00800000, 0x3F800000, 0x7F800000))
    bits = lax.bitcast_convert_type(jnp.abs(x), jnp.int32)
    # A NaN counts as infinite, a subnormal is a zero.
    bits = jnp.where(bits < smallest, one, jnp.minimum(bits, infinity))
    # The reciprocal, but for its significand. Floats have the faster maximum.
    larger = jnp.maximum(bits, 2 * one - bits)
    farthest = lax.bitcast_convert_type(larger, jnp.float32).max()
    return lax.bitcast_convert_type(farthest, jnp.int32) >> 23


class ResultBlock(NamedTuple):
    """What the inner loop works on: a part of the result, and cells at a time."""

    batch: int
    m: int
    n: int
    cells: int


class Blocking(NamedTuple):
    """How large blocks are. A choice of speed alone: no bit depends on it.

    Attributes:
        m, n: of the result. The larger, the seldomer its running sums leave the cache,
            if they fit: those of each thread in the second level.
        rows: of operands added by one pass over the block, `rows * n` of which the
            first level must hold, and of which each is a register.
    """

    m: int
    n: int
    rows: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    def fitted(self, lhs: Cells, rhs: Cells, tiles: int = 1) -> ResultBlock:
        """The block for these operands: equal parts, of about this area."""
        n = _equal_part(rhs.free, self.n)
        m = _equal_part(lhs.free, self.m * self.n // n)
        batch = lhs.batch // tiles
        group = _equal_part(batch, max(1, self.m * self.n // (m * n)), 1)
        rows = min(MOST_ROWS, self.rows * self.n // n)
        cells = _power_of_two(max(1, rows // lhs.rows))
        return ResultBlock(group, m, n, min(cells, lhs.cells))


# More would not stay in registers.
MOST_ROWS = 16

# The first is good where no search was made. On a Zen 4 (caches of 32 KiB and 1 MiB a
# core) they are within a quarter of each other; 16 rows of 512 take 3 times as long,
# for rows 2 KiB apart share two sets of the first-level cache, which has 8 ways.
BLOCKINGS = (
    Blocking(1024, 512, 8),
    Blocking(512, 512, 8),
    Blocking(256, 256, 16),
)


def _equal_part(size: int, limit: int, multiple: int = 16) -> int:
    """The length of the fewest equal parts of at most about `limit`."""
    part = -(-size // -(-size // limit))
    return min(size, -(-part // multiple) * multiple)


def _power_of_two(x: int) -> int:
    return 1 << (x.bit_length() - 1)


@functools.partial(jax.jit, static_argnames=("block", "in_range", "tiles"))
def _fold(
    lhs: Cells,
    rhs: Cells,
    zero: jax.Array,
    block: ResultBlock,
    in_range: bool,
    tiles: int,
) -> jax.Array:
    """The result, block by block; the last of a row of blocks may overlap another."""
    batch = lhs.batch // tiles
    whole = (batch, lhs.free, rhs.free)

    def sums(tile: Index, origin: list[jax.Array]) -> jax.Array:
        first = (tile * batch + origin[0], origin[1], origin[2])
        return _fold_block(lhs, rhs, zero, first, block, in_range)

    def store(i: Index, result: jax.Array) -> jax.Array:
        origin = _origin(i, block, whole)
        add = lambda tile, total: _plus(total, sums(tile, origin))  # noqa: E731
        total = lax.fori_loop(1, tiles, add, sums(0, origin))
        return lax.dynamic_update_slice(result, total, origin)

    blocks = prod(_blocks(block, whole))
    return lax.fori_loop(0, blocks, store, jnp.zeros(whole, jnp.float32))


def _blocks(block: ResultBlock, whole: tuple[int, ...]) -> tuple[int, ...]:
    """How many there are in each direction."""
    return tuple(-(-size // part) for size, part in zip(whole, block[:3], strict=True))


def _origin(i: Index, block: ResultBlock, whole: tuple[int, ...]) -> list[jax.Array]:
    """Where block `i` begins in (batch, m, n)."""
    indices = jnp.unravel_index(jnp.int32(i), _blocks(block, whole))
    directions = zip(indices, block[:3], whole, strict=True)
    return [jnp.minimum(j * part, size - part) for j, part, size in directions]


def _plus(total: jax.Array, tile: jax.Array) -> jax.Array:
    """Two stored results: nothing to contract with either."""
    return kept_apart(_add(total, tile))


_add = jax.jit(lax.add)


def _fold_block(
    lhs: Cells,
    rhs: Cells,
    zero: jax.Array,
    origin: tuple[Index, Index, Index],
    block: ResultBlock,
    in_range: bool,
) -> jax.Array:
    """One block of one K tile, [block.batch, block.m, block.n]."""
    batch, m, n = origin

    def step(i: Index, total: jax.Array, cells: int = block.cells) -> jax.Array:
        cell = i * block.cells
        a = lhs.part((batch, cell, m), (block.batch, cells, block.m))
        b = rhs.part((batch, cell, n), (block.batch, cells, block.n))
        # A call: were the slices fused with it, their indices would be read again for
        # every element and nothing vectorized, which takes 10 times as long.
        return kept_apart(_add_cells(total, a, b, zero, in_range))

    steps, left = divmod(lhs.cells, block.cells)
    total = jnp.zeros((block.batch, block.m, block.n), jnp.float32)
    total = lax.fori_loop(0, steps, step, total)
    return step(steps, total, left) if left else total


@functools.partial(jax.jit, static_argnames="in_range")
def _add_cells(
    total: jax.Array, a: Cells, b: Cells, zero: jax.Array, in_range: bool
) -> jax.Array:
    """total + the sums of a few cells: one expression, for one loop over the block."""
    for cell in range(a.cells):
        products = (
            a.row(cell, j)[:, :, None] * b.row(cell, j)[:, None, :]
            for j in range(a.rows)
        )
        first, *rest = (p if in_range else seal(p, zero) for p in products)
        total = total + functools.reduce(lax.add, rest, first)
    return total


# ---- The search.


def _best(rows: int, m: int, n: int) -> Blocking:
    """The blocking for results of this size, searched if it matters."""
    if not _is_large(m, n):
        return BLOCKINGS[0]
    ways = {str(blocking): _trial(rows, blocking) for blocking in BLOCKINGS}
    name = tile_search.fastest(f"cells-{rows}", ways)
    return next(blocking for blocking in BLOCKINGS if str(blocking) == name)


def _is_large(m: int, n: int) -> bool:
    """Whether a result takes several blocks, and is not just a few rows."""
    default = BLOCKINGS[0]
    return m * n > default.m * default.n and min(m, n) >= FEW


# The problem that stands for all large ones: 1024 x 1024 of as many cells, about 5 ms.
PROBE_SIZE, PROBE_CELLS = 1024, 64


def _trial(rows: int, blocking: Blocking) -> Callable[[], jax.Array]:
    def run() -> jax.Array:
        shape = (1, PROBE_CELLS, rows, PROBE_SIZE)
        ones = Cells(jnp.ones(shape, jnp.float32), rows_first=False)
        zero = jnp.float32(-0.0)
        return _fold(ones, ones, zero, blocking.fitted(ones, ones), True, 1)

    return run
