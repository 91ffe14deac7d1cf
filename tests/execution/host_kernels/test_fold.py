"""Kernels of the host's processor: against FP32 arithmetic term by term."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neuronjax.execution.engines import tensor
from neuronjax.execution.engines.array_fold import FoldOrder, Matrix
from neuronjax.numerics.exact import opaque_zero
from neuronjax.numerics.host_kernels import choice
from tests.oracles import data, floats

pytestmark = pytest.mark.skipif(
    not tensor.has_host_kernels(), reason="no kernels for this processor"
)

DTYPES = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float8_e4m3": ml_dtypes.float8_e4m3,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
#: Rows per cell, passes, rows of a group.
WAYS = [(1, 1, None), (2, 1, None), (4, 1, None), (1, 4, None), (1, 4, 32)]


def cells_of(tile: np.ndarray, k_tile: int, rows: int) -> Iterator[np.ndarray]:
    """The rows in each cell, -1 for one that is not there."""
    whole = np.full(k_tile, -1)
    whole[: tile.size] = tile
    by_cell = whole.reshape(2, -1).T if rows == 2 else whole.reshape(-1, rows)
    yield from by_cell


def expected(
    lhs: np.ndarray,
    rhs: np.ndarray,
    k_tile: int,
    rows: int = 1,
    passes: int = 1,
    group: int | None = None,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """[batch, M, N] of [batch, M, K] and [batch, K, N], operation by operation."""
    k, total = lhs.shape[2], start
    left, right = ([x] for x in (lhs, rhs))
    if passes == 4:
        left, right = halves(lhs), halves(rhs)
    for first in range(0, k, k_tile):
        tile = np.arange(first, min(first + k_tile, k))
        for a in left:
            for b in right:
                groups = (
                    [tile[n : n + group] for n in range(0, len(tile), group)]
                    if (group)
                    else [tile]
                )
                sums = None
                for part in groups:
                    found = one_sum(a, b, part, k_tile if not group else group, rows)
                    sums = found if sums is None else floats.add(sums, found)
                total = sums if total is None else floats.add(total, sums)
    return floats.positive_zeros(total)


def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """High and low; Inf and NaN have no low half."""
    high, low = floats.split(x)
    return high, np.where(np.isfinite(x), low, np.float32(0))


def one_sum(
    a: np.ndarray, b: np.ndarray, tile: np.ndarray, k_tile: int, rows: int
) -> np.ndarray:
    total = np.zeros((a.shape[0], a.shape[1], b.shape[2]), np.float32)
    size = -(-k_tile // rows) * rows
    for cell in cells_of(tile, size, rows):
        there = [k for k in cell if k >= 0]
        if rows == 1:
            for k in there:
                total = floats.fma(a[:, :, [k]], b[:, [k]], total)
            continue
        if not there:
            continue
        products = [floats.multiply(a[:, :, [k]], b[:, [k]]) for k in there]
        total = floats.add(total, floats.left_fold(products))
    return total


def contracted(
    lhs: np.ndarray,
    rhs: np.ndarray,
    k_tile: int,
    orders=(False, True),
    start: np.ndarray | None = None,
    **options,
) -> np.ndarray:
    """By a kernel; `orders` say whether K comes before the free axis."""
    a = Matrix(jnp.asarray(lhs.swapaxes(1, 2) if orders[0] else lhs), orders[0])
    b = Matrix(jnp.asarray(rhs if orders[1] else rhs.swapaxes(1, 2)), orders[1])
    order = FoldOrder(k_tile, apart=options.get("rows_per_cell") == 2, **options)
    call = jax.jit(
        lambda x, y, held: tensor.contract(
            Matrix(x, orders[0]),
            Matrix(y, orders[1]),
            order,
            canonical=True,
            start=held,
        )
    )
    return np.asarray(call(a.array, b.array, start))


def draw(seed: int, shape: tuple[int, ...], kind: str, dtype: str) -> np.ndarray:
    """Numbers of 12 significant bits of a format."""
    x = getattr(data, kind)(np.random.default_rng(seed), shape).astype(np.float32)
    if dtype == "float32":
        return x
    return x.astype(DTYPES[dtype])


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 3), *[st.integers(1, 40)] * 2, st.integers(1, 90)),
    st.sampled_from(WAYS),
    st.sampled_from(sorted(DTYPES)),
    st.sampled_from(["cancelling", "wide", "tiny", "special", "signed_zeros"]),
    st.tuples(st.booleans(), st.booleans()),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_every_way_is_the_stated_sum(sizes, way, dtype, kind, orders, started, seed):
    batch, m, n, k = sizes
    rows, passes, group = way
    if passes == 1 and dtype == "float32":
        dtype = "bfloat16"  # one pass takes 12 significant bits
    lhs = draw(seed, (batch, m, k), kind, dtype)
    rhs = draw(seed + 1, (batch, k, n), "cancelling", dtype)
    options = dict(rows_per_cell=rows, passes=passes, group_rows=group)
    start = draw(seed + 2, (batch, m, n), kind, "float32") if started else None
    got = contracted(lhs, rhs, 64, orders, start, **options)
    wide = [floats.flush(x.astype(np.float32)) for x in (lhs, rhs)]
    held = None if start is None else floats.flush(start)
    with np.errstate(all="ignore"):
        wanted = expected(wide[0], wide[1], 64, rows, passes, group, held)
    floats.same_bits(got, wanted)


@pytest.mark.parametrize("kind", ["cancelling", "wide", "special", "signed_zeros"])
@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("shape", [(30, 40, 90), (40, 3, 90), (2, 60, 70)])
def test_a_tile_is_added_to_what_psum_holds(shape, passes, kind):
    """By a kernel and by XLA's loop; pass by pass, in the order of the passes."""
    m, n, k = shape
    dtype = "float32" if passes == 4 else "bfloat16"
    lhs, rhs = (draw(s, x, kind, dtype) for s, x in ((1, (1, m, k)), (2, (1, k, n))))
    start = draw(3, (1, m, n), kind, "float32")
    order = FoldOrder(k, passes=passes, group_rows=32 if passes == 4 else None)

    def looped(a, b, held):
        zero = opaque_zero()
        left, right = Matrix(a, False), Matrix(b, True)
        psum = tensor.Psum(zero, zero, "rne", None)
        return tensor.accumulate(left, right, order, psum, held)

    wide = [floats.flush(x.astype(np.float32)) for x in (lhs, rhs, start)]
    with np.errstate(all="ignore"):
        wanted = expected(wide[0], wide[1], k, 1, passes, order.group_rows, wide[2])
    options = dict(passes=passes, group_rows=order.group_rows)
    floats.same_bits(contracted(lhs, rhs, k, start=start, **options), wanted)
    with choice.exportable():
        loop = jax.jit(looped)(*wide)
    floats.same_bits(np.asarray(loop), wanted)


@pytest.mark.slow_except(
    "orders0-1-shape0",
    "orders0-2-shape3",
    "orders1-1-shape1",
    "orders1-4-shape2",
)
@pytest.mark.parametrize(
    "shape", [(1, 1, 700, 130), (2, 500, 9, 130), (1, 400, 530, 40), (1, 2, 2, 300)]
)
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("orders", [(False, True), (True, False)])
def test_blocks_and_threads_change_no_bit(shape, rows, orders):
    """Several blocks each way, a row alone, columns that are transposed to rows; K
    along the memory is turned in registers."""
    batch, m, n, k = shape
    lhs = draw(1, (batch, m, k), "cancelling", "bfloat16")
    rhs = draw(2, (batch, k, n), "cancelling", "bfloat16")
    wide = [x.astype(np.float32) for x in (lhs, rhs)]
    got = contracted(lhs, rhs, 128, orders, rows_per_cell=rows)
    floats.same_bits(got, expected(wide[0], wide[1], 128, rows))


@pytest.mark.parametrize("exponent", [-70, 0, 70])
@pytest.mark.parametrize("rows", [2, 4])
def test_products_out_of_range_are_rounded_first(exponent, rows):
    """Where a fused multiply-add would keep what a product loses."""
    lhs = draw(3, (1, 20, 64), "cancelling", "bfloat16")
    rhs = draw(4, (1, 64, 30), "cancelling", "bfloat16")
    lhs, rhs = (
        (x.astype(np.float32) * np.float32(2.0**exponent)).astype(x.dtype)
        for x in (lhs, rhs)
    )
    with np.errstate(all="ignore"):
        wanted = expected(
            *(floats.flush(x.astype(np.float32)) for x in (lhs, rhs)), 64, rows
        )
    floats.same_bits(contracted(lhs, rhs, 64, rows_per_cell=rows), wanted)


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 1)])
def test_a_batch_of_calls_is_one_call(mapped):
    lhs = draw(5, (2, 7, 50), "cancelling", "bfloat16")
    rhs = draw(6, (2, 50, 9), "cancelling", "bfloat16")
    many = [
        x if axis is None else np.stack([x, -2 * x, 3 * x], axis)
        for x, axis in zip((lhs, rhs), mapped, strict=True)
    ]

    def call(a, b):
        return tensor.contract(
            Matrix(a, False), Matrix(b, True), FoldOrder(16), canonical=True
        )

    got = np.asarray(jax.jit(jax.vmap(call, mapped))(*map(jnp.asarray, many)))
    for n in range(3):
        one = [
            x if axis is None else np.take(x, n, axis)
            for x, axis in zip(many, mapped, strict=True)
        ]
        wide = [x.astype(np.float32) for x in one]
        floats.same_bits(got[n], expected(wide[0], wide[1], 16))


@pytest.mark.parametrize(
    "sizes", [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)]
)
def test_nothing_is_contracted_to_zeros(sizes):
    batch, m, n, k = sizes
    lhs, rhs = np.ones((batch, m, k), np.float32), np.ones((batch, k, n), np.float32)
    got = contracted(lhs, rhs, 128)
    assert got.shape == (batch, m, n)
    assert not got.any()


def test_a_call_is_one_operation():
    """Compile time is what these kernels are for."""
    x = jnp.ones((1, 64, 64), jnp.float8_e4m3)

    def call(a, b):
        order = FoldOrder(256, rows_per_cell=2, apart=True, in_range=True)
        return tensor.contract(Matrix(a, False), Matrix(b, True), order)

    text = jax.jit(call).lower(x, x).as_text()
    assert text.count("stablehlo.custom_call") == 1
    assert text.count(" = stablehlo.") <= 4


@pytest.mark.slow
def test_many_threads_may_ask_for_one_kernel():
    from concurrent.futures import ThreadPoolExecutor

    lhs = draw(7, (1, 200, 300), "cancelling", "bfloat16")
    rhs = draw(8, (1, 300, 200), "cancelling", "bfloat16")
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(contracted, lhs, rhs, 128) for _ in range(24)]
        found = [call.result() for call in calls]
    for one in found[1:]:
        floats.same_bits(one, found[0])


@pytest.mark.slow
def test_long_passes_take_little_memory_or_another_way():
    lhs = draw(9, (1, 3, 9000), "cancelling", "bfloat16")
    rhs = draw(10, (1, 9000, 70), "cancelling", "bfloat16")
    wide = [x.astype(np.float32) for x in (lhs, rhs)]
    floats.same_bits(contracted(lhs, rhs, 9000), expected(wide[0], wide[1], 9000))
    assert tensor.has_host_kernels(tensor.MOST_ROWS)
    assert not tensor.has_host_kernels(tensor.MOST_ROWS + 1)


def test_without_llvmlite_there_are_none(monkeypatch):
    choice._has_kernels.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    try:
        assert not tensor.has_host_kernels()
    finally:
        choice._has_kernels.cache_clear()
