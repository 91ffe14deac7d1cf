"""Reductions, scans, scatters and pooling against the oracle, bit for bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from tests.oracles import data, floats, reduction

LENGTHS = (1, 2, 511, 512, 513, 1030)
AXES = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True], ids=["jitted", "op by op"])
def test_sums_and_products_are_tiles_of_left_folds(eager):
    rng = np.random.default_rng(1)
    lengths = LENGTHS[-2:] if eager else LENGTHS
    arrays = [data.kinds(rng, (2, n)) for n in lengths]
    program = nj.jit(lambda xs: [(x.sum(-1), x.prod(-1)) for x in xs])
    with jax.disable_jit(eager):
        outputs = program(arrays)
    for x, (total, product) in zip(arrays, outputs, strict=True):
        floats.same_bits(total, reduction.reduce(x, (-1,)), f"sum {x.shape}")
        expected = reduction.reduce(x, (-1,), 1.0, floats.multiply)
        floats.same_bits(product, expected, f"product {x.shape}")


@pytest.mark.slow
def test_a_sequential_policy_folds_sums_of_any_length_from_the_left():
    rng = np.random.default_rng(1)
    x = data.kinds(rng, (2, 1030))
    image = data.normal(rng, (1, 1, 30, 30))
    policy = nj.Policy(accumulation="sequential")

    def program(x, image):
        window = ((1, 1, 25, 25), (1, 1, 1, 1), "VALID")
        pooled = lax.reduce_window(image, 0.0, lax.add, *window)
        return x.sum(-1), x.T.sum(0).T, x.prod(-1), pooled

    total, columns, product, pooled = nj.jit(program, policy=policy)(x, image)
    whole = x.shape[-1]
    expected = reduction.reduce(x, (-1,), size=whole)
    floats.same_bits(total, expected, "rows")
    floats.same_bits(columns, expected, "columns")
    expected = reduction.reduce(x, (-1,), 1.0, floats.multiply, whole)
    floats.same_bits(product, expected, "product")
    views = np.lib.stride_tricks.sliding_window_view(image, (25, 25), axis=(2, 3))
    expected = reduction.reduce(views, (-2, -1), size=625)
    floats.same_bits(pooled, expected, "windows")


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True], ids=["jitted", "op by op"])
def test_a_zero_sum_is_positive(eager):
    zeros = np.array([-0.0, -(2.0**-127), -(2.0**-140)], np.float32)
    arrays = [np.full((3, n), zeros[:, None], np.float32) for n in (1, 2, 40, 600)]
    program = nj.jit(lambda xs: [(x.sum(-1), x.cumsum(-1)[:, -1]) for x in xs])
    with jax.disable_jit(eager):
        outputs = program(arrays)
    for x, totals in zip(arrays, outputs, strict=True):
        for total in totals:
            floats.same_bits(total, np.zeros(3, np.float32), f"{x.shape}")


@pytest.mark.slow
def test_extrema():
    rng = np.random.default_rng(2)
    arrays = [data.kinds(rng, (2, n)) for n in LENGTHS[:-1]]
    program = nj.jit(lambda xs: [(x.max(-1), x.min(-1)) for x in xs])
    for x, (largest, smallest) in zip(arrays, program(arrays), strict=True):
        expected = reduction.reduce(x, (-1,), -np.inf, reduction.maximum)
        floats.same_bits(largest, expected, f"max {x.shape}")
        expected = reduction.reduce(x, (-1,), np.inf, reduction.minimum)
        floats.same_bits(smallest, expected, f"min {x.shape}")


def test_elementwise_extrema():
    rng = np.random.default_rng(12)
    x, y = data.kinds(rng, (300,)), data.kinds(rng, (300,))[::-1].copy()
    zeros = [data.signed_zeros(rng, x.shape) for _ in range(2)]
    program = nj.jit(lambda pairs: [(jnp.maximum(*p), jnp.minimum(*p)) for p in pairs])
    pairs = [(x, y), zeros]
    for pair, (largest, smallest) in zip(pairs, program(pairs), strict=True):
        floats.same_bits(largest, reduction.maximum(*pair), "maximum")
        floats.same_bits(smallest, reduction.minimum(*pair), "minimum")


@pytest.mark.slow_cases("1.0-*", "0.0-jitted")
@pytest.mark.parametrize("eager", [False, True], ids=["jitted", "op by op"])
@pytest.mark.parametrize("bound", [0.0, -0.0, 1.0, np.nan], ids=str)
def test_extrema_with_a_constant(bound, eager):
    x = data.kinds(np.random.default_rng(14), (60,))
    program = nj.jit(lambda x: (jnp.maximum(x, bound), jnp.minimum(x, bound)))
    with jax.disable_jit(eager):
        largest, smallest = program(x)
    bound = np.full_like(x, bound)
    floats.same_bits(largest, reduction.maximum(x, bound), "maximum")
    floats.same_bits(smallest, reduction.minimum(x, bound), "minimum")


@pytest.mark.slow_except("float32")
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_every_nan_that_leaves_is_the_canonical_one(dtype):
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    ones = np.iinfo(unsigned).max
    sign = ones // 2 + 1
    payloads = np.array([ones, ones - sign, ones - 1, ones - 5], unsigned)
    x = np.concatenate([payloads, payloads ^ (sign >> 9)]).view(dtype)
    assert np.all(np.isnan(x.astype(np.float32)))
    wide = np.float32([-np.nan, np.nan])
    program = nj.jit(
        lambda x, wide: [
            *(x, x[::-1], -x, abs(x), x + x, jnp.where(x > 0, x, x), x.max(), x.sum()),
            *(jnp.concatenate([x, x]), jnp.maximum(x, 1), wide.astype(dtype)),
        ]
    )
    for out in program(x, wide):
        floats.same_bits(out, np.full(out.shape, np.nan, dtype), "NaN")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 511), (16, 511), (2000, 9)], ids=str)
def test_extrema_keep_a_nan_whatever_the_size(shape):
    x = np.ones(shape, np.float32)
    x[:, shape[1] // 2] = np.nan
    program = nj.jit(lambda x, y: (x.max(-1), x.min(-1), y.max(0), x.max()))
    for out in program(x, x.T.copy()):
        assert np.all(np.isnan(out))


@pytest.mark.slow
def test_argmax_is_the_first_largest_and_the_first_nan():
    rng = np.random.default_rng(3)
    arrays = [data.kinds(rng, (3, n)) for n in (1, 9, 600)]
    outputs = nj.jit(lambda xs: [x.argmax(-1) for x in xs])(arrays)
    for x, out in zip(arrays, outputs, strict=True):
        expected = np.argmax(floats.flush(x), -1).astype(np.int32)
        floats.same_bits(out, expected, f"argmax {x.shape}")


@pytest.mark.slow
def test_several_axes_are_one_in_row_major_order_rounded_once():
    rng = np.random.default_rng(4)
    x = data.cancelling(rng, (6, 20, 40))
    narrow = x.astype(ml_dtypes.bfloat16)
    program = nj.jit(
        lambda x, n: [
            (x.sum(a), lax.reduce(n, np.zeros((), n.dtype), lax.add, a)) for a in AXES
        ]
    )
    for axes, (wide, rounded) in zip(AXES, program(x, narrow), strict=True):
        floats.same_bits(wide, reduction.reduce(x, axes), f"fp32 {axes}")
        total = reduction.reduce(narrow.astype(np.float32), axes)
        expected = floats.round_to(total, "bf16").astype(ml_dtypes.bfloat16)
        floats.same_bits(rounded, expected, f"bf16 {axes}")


def test_a_sum_starts_from_its_initial_value():
    rng = np.random.default_rng(5)
    x, init = data.cancelling(rng, (3, 600)), np.float32(1000.1)
    program = nj.jit(lambda x, init: lax.reduce(x, init, lax.add, (1,)))
    expected = reduction.reduce(x, (1,), init)
    assert np.any(expected != floats.add(reduction.reduce(x, (1,)), init))
    floats.same_bits(program(x, init), expected, "init")


@pytest.mark.slow_except("513")
@pytest.mark.parametrize("length", [5, 130, 512, 513, 1030])
def test_cumulative_sums(length):
    rng = np.random.default_rng(6)
    x = data.cancelling(rng, (2, length))
    i = rng.integers(-(2**31), 2**31, (2, length)).astype(np.int32)
    program = nj.jit(lambda x, i: (x.cumsum(-1), i.cumsum(-1)))
    floating, integer = program(x, i)
    floats.same_bits(floating, reduction.cumulative_sum(x), "float")
    floats.same_bits(integer, np.cumsum(i, -1, dtype=np.int32), "integer")


def test_integer_sums_are_exact():
    rng = np.random.default_rng(7)
    x = rng.integers(-(2**31), 2**31, (3, 700)).astype(np.int32)
    program = nj.jit(lambda x: (x.sum(-1), x.max(-1), x.prod(-1)))
    total, largest, product = program(x)
    floats.same_bits(total, np.sum(x, -1, dtype=np.int32), "sum")
    floats.same_bits(largest, x.max(-1), "max")
    floats.same_bits(product, np.prod(x, -1, dtype=np.int32), "product")


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True], ids=["jitted", "op by op"])
def test_scatter_adds_updates_in_order_of_their_indices(eager):
    rng = np.random.default_rng(8)
    table, updates = data.normal(rng, (5, 3)), data.cancelling(rng, (4, 11, 3))
    indices = rng.integers(0, 8, (4, 11)).astype(np.int32)

    def program(table, indices, updates):
        added = table.at[indices].add(updates, mode="drop")

        def loss(table):
            return (table.at[indices].get(mode="clip") * updates).sum()

        return added, jax.grad(loss)(table)

    with jax.disable_jit(eager):
        added, gradient = nj.jit(program)(table, indices, updates)
    expected = reduction.scatter_add_rows(table, indices, updates)
    backwards = reduction.scatter_add_rows(
        table, indices[::-1, ::-1], updates[::-1, ::-1]
    )
    assert np.any(expected != backwards)
    floats.same_bits(added, expected, "scatter, out of range dropped")
    zeros, clipped = np.zeros_like(table), np.minimum(indices, 4)
    expected = reduction.scatter_add_rows(zeros, clipped, updates)
    floats.same_bits(gradient, expected, "embedding gradient")


@pytest.mark.slow
def test_a_narrow_scatter_add_rounds_once_after_all_updates():
    rng = np.random.default_rng(13)
    table, updates = (data.normal(rng, s) for s in ((5, 3), (60, 3)))
    indices = rng.integers(0, 6, 60).astype(np.int32)
    narrow = [v.astype(ml_dtypes.bfloat16) for v in (table, updates)]
    table, updates = (v.astype(np.float32) for v in narrow)

    def program(table, updates):
        added = table.at[indices].add(updates, mode="drop")
        _, back = jax.vjp(lambda t: t.at[indices].get(mode="clip"), table)
        return added, back(updates)[0]

    added, gradient = nj.jit(program)(*narrow)
    expected = reduction.scatter_add_rows(table, indices, updates)
    every = table
    for i in range(60):
        every = reduction.scatter_add_rows(
            every, indices[i : i + 1], updates[i : i + 1]
        )
        every = floats.round_to(every, "bf16")
    expected = floats.round_to(expected, "bf16")
    assert np.any(every != expected)
    floats.same_bits(added, expected.astype(ml_dtypes.bfloat16), "scatter-add")
    expected = reduction.scatter_add_rows(
        np.zeros_like(table), np.minimum(indices, 4), updates
    )
    expected = floats.round_to(expected, "bf16").astype(ml_dtypes.bfloat16)
    floats.same_bits(gradient, expected, "embedding gradient")


WINDOWS = {
    "overlapping": ((1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (0, 1), (1, 1), (0, 0))),
    "dense": ((1, 2, 3, 1), (1, 1, 1, 1), ((0, 0), (1, 0), (0, 0), (0, 0))),
    "tiling": ((1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_pooling_and_its_gradients(window):
    rng = np.random.default_rng(9)
    ties = np.maximum(data.normal(rng, (2, 7, 6, 2)).round(), 0)
    x = data.cancelling(rng, (2, 7, 6, 2))

    def largest(x):
        return lax.reduce_window(x, -np.inf, lax.max, *window)

    def total(x):
        return lax.reduce_window(x, np.float32(0), lax.add, *window)

    shape = jax.eval_shape(total, x).shape
    cotangent = data.cancelling(rng, shape)

    def program(ties, x, cotangent):
        sums, back = jax.vjp(total, x)
        gradients = [jax.vjp(largest, v)[1](cotangent)[0] for v in (ties, x)]
        return largest(x), sums, back(cotangent)[0], *gradients

    best, sums, spread, *gradients = nj.jit(program)(ties, x, cotangent)
    pooled = reduction.reduce_window(x, -np.inf, reduction.maximum, *window)
    floats.same_bits(best, pooled, "max pool")
    floats.same_bits(sums, reduction.window_sum(x, *window), "sum pool")
    expected = reduction.window_sum_gradient(x.shape, cotangent, *window)
    floats.same_bits(spread, expected, "sum pool, gradient")
    for name, values, got in zip(("ties", "x"), (ties, x), gradients, strict=True):
        expected = reduction.max_pool_gradient(values, cotangent, *window)
        floats.same_bits(got, expected, f"max pool of {name}, gradient")


def test_average_pooling_divides_the_sum():
    rng = np.random.default_rng(10)
    window = WINDOWS["overlapping"]
    x = data.normal(rng, (2, 7, 6, 2))

    def average(x):
        return lax.reduce_window(x, np.float32(0), lax.add, *window) / 9

    expected = floats.divide(reduction.window_sum(x, *window), np.float32(9))
    assert np.any(expected != reduction.window_sum(x, *window) * np.float32(1 / 9))
    floats.same_bits(nj.jit(average)(x), expected, "average")


@pytest.mark.slow
def test_a_large_window_is_tiled_with_its_padding():
    rng = np.random.default_rng(11)
    x, init = data.cancelling(rng, (30, 40)), np.float32(100.1)
    signed = data.kinds(rng, (30, 40))[-1]
    window = ((25, 31), (3, 4), ((7, 2), (1, 9)))

    def program(x, signed, init):
        sums = [
            lax.reduce_window(v, np.float32(0), lax.add, *window) for v in (x, signed)
        ]
        return *sums, lax.reduce_window(x, init, lax.add, *window)

    plain, zeros, started = nj.jit(program)(x, signed, init)
    expected = reduction.window_sum(x, *window)
    unpadded = [
        [x[p] for p in places] for _, places in reduction.windows(x.shape, *window)
    ]
    folds = np.reshape([floats.left_fold(v) for v in unpadded], expected.shape)
    assert np.any(folds != expected)
    floats.same_bits(plain, expected, "from zero")
    floats.same_bits(zeros, reduction.window_sum(signed, *window), "signed zeros")
    expected = reduction.reduce_window(x, init, floats.add, *window)
    floats.same_bits(started, expected, "from an argument")
