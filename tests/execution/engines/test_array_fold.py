"""The array's fold, by XLA and by kernels: against FP32 arithmetic in its order."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from neuronjax.errors import InternalError
from neuronjax.execution.engines import array_fold
from neuronjax.execution.engines.array_fold import FoldOrder, Matrix
from neuronjax.execution.engines.tensor import one_pass
from neuronjax.numerics.host_kernels import choice
from tests.oracles import floats

MINUS_ZERO = np.float32(-0.0)
#: Which rows a cell holds, by layout.
ROWS: dict[str, Callable[[int], np.ndarray]] = {
    "singles": lambda k: np.arange(k).reshape(-1, 1),
    "double row": lambda k: np.arange(k).reshape(2, -1).T,
    "pairs": lambda k: np.arange(k).reshape(-1, 2),
    "quads": lambda k: np.arange(k).reshape(-1, 4),
}
LAYOUTS = pytest.mark.parametrize("layout", [n for n in ROWS if n != "singles"])
RANGES = pytest.mark.parametrize("in_range", [False, True])


def order(layout: str, k: int, in_range: bool = False) -> FoldOrder:
    rows = ROWS[layout](k).shape[1]
    return FoldOrder(k, rows, apart=layout == "double row", in_range=in_range)


@pytest.fixture(autouse=True, params=[True, False], ids=["kernels", "xla"])
def _by(request, monkeypatch):
    """By a kernel of the host's, where there is one, and by XLA."""
    monkeypatch.setattr(choice, "enabled", request.param)


def bf16_values(generator: np.random.Generator, count: int) -> np.ndarray:
    """Values of 8 significant bits over all of FP32's exponents, and special ones."""
    bits = generator.integers(0, 1 << 32, count, np.uint32) & np.uint32(0xFFFF0000)
    values = bits.view(np.float32)
    special = np.float32([0, -0.0, 1, -1, np.inf, -np.inf, 2.0**-126, 2.0**127])
    values[: special.size] = special
    return floats.flush(np.where(np.isnan(values), np.float32(1), values))


def test_fused_is_a_fused_multiply_add_over_the_whole_range():
    generator = np.random.default_rng(0)
    a, b = (bf16_values(generator, 200_000) for _ in range(2))
    total = floats.flush(generator.integers(0, 1 << 32, a.size, np.uint32).view("f4"))
    total = np.where(np.isnan(total), np.float32(0), total)
    # Half of the totals are near the product, so that sums cancel and underflow.
    with np.errstate(all="ignore"):
        near = floats.flush(-(a * b) * np.float32(1 + 2.0**-9))
    near = np.where(np.isfinite(near), near, np.float32(2.0**-120))
    total[::2] = near[::2]
    # Some have overflowed before, and meet products of either sign, up to 2^256.
    total[1::8], total[3::8] = np.inf, -np.inf
    got = np.asarray(jax.jit(array_fold.fused)(a, b, total, MINUS_ZERO))
    with np.errstate(all="ignore"):
        expected = floats.fma(a, b, total)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), (a[~same][:3], b[~same][:3], total[~same][:3])


def expected(layout: str, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """[batch, M, N] of [batch, M, K] and [batch, K, N], operation by operation."""
    total = np.zeros((*lhs.shape[:2], rhs.shape[2]), np.float32)
    for cell in ROWS[layout](lhs.shape[2]):
        if len(cell) == 1:
            total = floats.fma(lhs[:, :, cell], rhs[:, cell], total)
            continue
        products = (floats.multiply(lhs[:, :, [k]], rhs[:, [k]]) for k in cell)
        cell_sum = next(products)
        for product in products:
            cell_sum = floats.add(cell_sum, product)
        total = floats.add(total, cell_sum)
    return total


def assert_same(got: jax.Array, wanted: np.ndarray | jax.Array) -> None:
    """Bit for bit, the sign of a zero included and the bits of a NaN not."""
    a, b = np.asarray(got), np.asarray(wanted)
    same = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
    assert same.all(), (np.argwhere(~same)[:3], a[~same][:3], b[~same][:3])


def matrices(lhs: np.ndarray, rhs: np.ndarray) -> tuple[Matrix, Matrix]:
    return Matrix(jnp.asarray(lhs), False), Matrix(jnp.asarray(rhs), True)


def fold(layout: str, lhs: np.ndarray, rhs: np.ndarray, in_range=False) -> jax.Array:
    """The fold in one compiled program."""
    stated = order(layout, lhs.shape[2], in_range)

    def run(a: Matrix, b: Matrix, zero: jax.Array) -> jax.Array:
        return one_pass(a, b, stated, zero)

    return jax.jit(run)(*matrices(lhs, rhs), MINUS_ZERO)


# ---- Data on which another order, or another rounding, gives other bits.


def cancelling(x: np.ndarray, axis: int) -> np.ndarray:
    """Every third row is the one before, so that products cancel with flipped signs."""
    x = np.moveaxis(x, axis, 0)
    x[2::3] = x[1::3][: len(x[2::3])]
    return np.moveaxis(x, 0, axis)


def operands(
    draw: Callable[[tuple[int, ...]], np.ndarray], shape: tuple[int, int, int, int]
) -> tuple[np.ndarray, np.ndarray]:
    batch, m, k, n = shape
    lhs = cancelling(draw((batch, m, k)), axis=2)
    rhs = cancelling(draw((batch, k, n)), axis=1)
    rhs[:, 2::3] *= np.float32(-1)
    return lhs, rhs


def codes_of(dtype: type, seed: int) -> Callable[[tuple[int, ...]], np.ndarray]:
    """Every finite FP8 code and Inf, at random."""
    generator = np.random.default_rng(seed)
    values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    values = values[~np.isnan(values)]
    return lambda shape: generator.choice(values, shape)


def limits_of_range(
    seed: int, lowest: int = -63
) -> Callable[[tuple[int, ...]], np.ndarray]:
    """FP8 significands whose products are the smallest normal numbers, or so."""
    generator = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        sign = generator.choice([-1, 1], shape)
        significand = sign * generator.integers(8, 16, shape)
        exponent = lowest + generator.choice([0, 0, 1, 3], shape) - 3
        return np.ldexp(np.float32(significand), exponent).astype(np.float32)

    return draw


def all_exponents(seed: int) -> Callable[[tuple[int, ...]], np.ndarray]:
    """Four significant bits at exponents whose products underflow and overflow."""
    generator = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        significand = generator.integers(-15, 16, shape)
        exponent = generator.choice([-75, -66, -63, -60, 0, 58, 61], shape)
        return np.ldexp(np.float32(significand), exponent).astype(np.float32)

    return draw


SHAPES = [(1, 1, 4, 1), (2, 1, 36, 40), (1, 33, 512, 7)]


@pytest.mark.slow_except(
    "kernels-shape0-False-double row",
    "kernels-shape1-True-double row",
    "xla-shape0-False-quads",
    "xla-shape2-True-quads",
)
@LAYOUTS
@RANGES
@pytest.mark.parametrize("shape", SHAPES)
def test_fp8(layout, in_range, shape):
    """Activations by gradients."""
    lhs, _ = operands(codes_of(ml_dtypes.float8_e4m3fn, seed=0), shape)
    _, rhs = operands(codes_of(ml_dtypes.float8_e5m2, seed=0), shape)
    wanted = expected(layout, lhs, rhs)
    assert_same(fold(layout, lhs, rhs, in_range), wanted)


@LAYOUTS
@RANGES
def test_products_at_the_lower_end_of_the_range(layout, in_range):
    """Sums are subnormal, and flushed, with the sign that they had."""
    lhs, rhs = operands(limits_of_range(seed=1), (2, 20, 8, 50))
    wanted = expected(layout, lhs, rhs)
    assert 0.01 < np.mean(wanted == 0) < 0.99
    assert_same(fold(layout, lhs, rhs, in_range), wanted)


@LAYOUTS
def test_products_outside_the_range_are_rounded_before_they_are_added(layout):
    lhs, rhs = operands(all_exponents(seed=2), (2, 20, 128, 50))
    assert_same(fold(layout, lhs, rhs), expected(layout, lhs, rhs))


@LAYOUTS
def test_either_memory_order(layout):
    lhs, rhs = operands(codes_of(ml_dtypes.float8_e4m3fn, seed=3), (2, 6, 64, 9))
    a = Matrix(jnp.asarray(lhs.swapaxes(1, 2)), k_first=True)
    b = Matrix(jnp.asarray(rhs.swapaxes(1, 2)), k_first=False)
    got = one_pass(a, b, order(layout, 64), MINUS_ZERO)
    assert_same(got, expected(layout, lhs, rhs))


@pytest.mark.parametrize(("rows", "k"), [(2, 7), (4, 10)])
def test_a_tile_that_does_not_fill_its_cells_is_refused(rows, k):
    x = Matrix(jnp.ones((1, k, 3)), k_first=True)
    with pytest.raises(InternalError, match="pad K with zeros"):
        array_fold.folded(x, x, FoldOrder(k, rows), MINUS_ZERO)


# ---- What the run finds out about the range of the products.


@pytest.mark.parametrize(
    ("exponents", "inside"),
    [
        ((0, 0), True),
        ((-62, -62), True),
        ((-62, -64), True),
        ((-63, -64), False),
        ((62, 62), True),
        ((62, 63), False),
        ((-124, 0), True),
        ((-127, 124), True),  # zero, for subnormals are flushed
    ],
)
def test_the_range_of_products(exponents, inside):
    a, b = (np.float32([0, -1.875 * 2.0**exponent]) for exponent in exponents)
    assert bool(array_fold.in_range(a, b)) is inside


def test_an_accepted_range_has_normal_products():
    """Of all pairs of exponents, at both ends of each binade."""
    ends = np.float32([1, 2 - 2.0**-23])
    binades = np.ldexp(ends, np.arange(-126, 128)[:, None]).astype(np.float32)
    distances = np.asarray(jax.vmap(array_fold.distance)(binades))
    accepted = distances[:, None] + distances <= 126 - 2 + 2 * 127
    products = binades.astype(np.float64)[:, None, :, None] * binades[None, :, None, :]
    inside = (2.0**-126 <= products) & (products < 2.0**128)
    assert inside[accepted].all()
    assert accepted.sum() > 0.6 * inside.all((2, 3)).sum()


def test_infinities_and_zeros_in_the_range_of_products():
    in_range = lambda *x: bool(array_fold.in_range(*map(np.float32, x)))  # noqa: E731
    assert in_range([1.0], [-0.0, 2.0**-124, 2.0**124])
    assert in_range([0.0], [-0.0])
    assert not in_range([0.0], [np.inf])
    assert not in_range([np.nan, 1.0], [1.0])
    assert not in_range([-np.nan, 1.0], [1.0])


def accepted_limits(seed: int) -> Callable[[tuple[int, ...]], np.ndarray]:
    return limits_of_range(seed, lowest=-62)


def wide(seed: int) -> Callable[[tuple[int, ...]], np.ndarray]:
    """Twelve significant bits at all exponents, with products in range and outside."""
    generator = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        significand = generator.integers(-4095, 4096, shape)
        exponent = generator.choice([-85, -75, -66, -60, -12, 46, 50], shape)
        return np.ldexp(np.float32(significand), exponent).astype(np.float32)

    return draw


@pytest.mark.slow_except("kernels-shape0-wide")
@pytest.mark.parametrize("draw", [accepted_limits, wide])
@pytest.mark.parametrize("shape", [(2, 40, 130, 50), (2, 3, 40, 70), (1, 5, 3, 1)])
def test_rows_are_fused_multiply_adds(draw, shape):
    """In range, where products are exact, and outside; not all in whole loops."""
    lhs, rhs = operands(draw(seed=10), shape)
    assert bool(array_fold.in_range(lhs, rhs)) == (draw is accepted_limits)
    with np.errstate(all="ignore"):
        wanted = expected("singles", lhs, rhs)
    assert_same(fold("singles", lhs, rhs), wanted)


# ---- No bit depends on the program around.


@pytest.mark.slow_cases("xla-double row-False", "xla-quads-True")
@pytest.mark.parametrize(
    ("layout", "in_range"), [("double row", False), ("quads", True)]
)
def test_composed_programs_give_the_same_bits(layout, in_range):
    """Transposed neighbours, arithmetic before and behind, a scan and a vmap."""
    draw = limits_of_range(seed=8) if in_range else all_exponents(seed=8)
    lhs, rhs = operands(draw, (3, 6, 128, 20))

    def one(a: Matrix, b: Matrix, zero: jax.Array) -> jax.Array:
        return one_pass(a, b, order(layout, 128, in_range), zero)

    @jax.jit
    def between(x: jax.Array, y: jax.Array, zero: jax.Array) -> jax.Array:
        x, y = jnp.swapaxes(x * -1, 1, 2), jnp.swapaxes(y, 1, 2)
        return -one(Matrix(x, True), Matrix(y, False), zero) + zero

    @jax.jit
    def in_scan(x: jax.Array, y: jax.Array, zero: jax.Array) -> jax.Array:
        def step(i: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            a, b = Matrix(x[i][None], False), Matrix(y[i][None], True)
            return i + 1, one(a, b, zero)[0]

        return jax.lax.scan(step, jnp.int32(0), length=3)[1]

    def mapped(x: jax.Array, y: jax.Array, zero: jax.Array) -> jax.Array:
        return one(Matrix(x[None], False), Matrix(y[None], True), zero)[0]

    arguments = (jnp.asarray(lhs), jnp.asarray(rhs), MINUS_ZERO)
    wanted = expected(layout, lhs, rhs)
    assert_same(one(*matrices(lhs, rhs), MINUS_ZERO), wanted)
    assert_same(in_scan(*arguments), wanted)
    assert_same(jax.jit(jax.vmap(mapped, (0, 0, None)))(*arguments), wanted)
    # A sum of +0 has become -0, and every other has its sign back.
    np.testing.assert_array_equal(between(*arguments), wanted)


@pytest.mark.parametrize("lhs_is_column", [False, True])
def test_a_zero_row_takes_no_part_beside_huge_columns(lhs_is_column):
    """XLA moves a factor to the smaller operand, where it overflowed: 0 x inf."""
    zeros = np.full((1, 16, 20), -0.0, np.float32)
    huge = np.full((1, 1, 20), 2.0**80, np.float32)
    pair = (Matrix(jnp.asarray(zeros), False), Matrix(jnp.asarray(huge), False))
    lhs, rhs = pair if lhs_is_column else pair[::-1]
    got = np.asarray(
        jax.jit(one_pass, static_argnums=2)(lhs, rhs, FoldOrder(20), MINUS_ZERO)
    )
    np.testing.assert_array_equal(got, np.zeros(got.shape, np.float32))
