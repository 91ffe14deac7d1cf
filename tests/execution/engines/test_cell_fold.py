"""Cells of several rows: against FP32 arithmetic in the stated order, in all ways."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from neuronjax.errors import InternalError
from neuronjax.execution.engines import array_fold, cell_fold, cells, tile_search
from neuronjax.execution.engines.array_fold import Matrix
from neuronjax.execution.engines.cell_fold import BLOCKINGS, ResultBlock, fold_cells
from neuronjax.execution.engines.cells import Cells
from neuronjax.numerics.host_kernels import choice
from tests.oracles import floats

MINUS_ZERO = np.float32(-0.0)
ROWS: dict[Callable[[Matrix], Cells], Callable[[int], np.ndarray]] = {
    cells.paired: lambda k: np.arange(k).reshape(2, -1).T,
    cells.quads: lambda k: np.arange(k).reshape(-1, 4),
}
LAYOUTS = pytest.mark.parametrize("layout", ROWS, ids=["paired", "quads"])
RANGES = pytest.mark.parametrize("in_range", [False, True])


@pytest.fixture(autouse=True, params=[True, False], ids=["kernels", "xla"])
def _no_search(request, monkeypatch):
    """By a kernel of the host's, where there is one, and by XLA."""
    monkeypatch.setattr(choice, "enabled", request.param)
    monkeypatch.setattr(tile_search, "enabled", False)


def expected(layout: Callable, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """[batch, M, N] of [batch, M, K] and [batch, K, N], operation by operation."""
    total = np.zeros((*lhs.shape[:2], rhs.shape[2]), np.float32)
    for cell in ROWS[layout](lhs.shape[2]):
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


def fold(layout: Callable, lhs: np.ndarray, rhs: np.ndarray, **options) -> jax.Array:
    """The fold in one compiled program."""

    def run(a: Matrix, b: Matrix, zero: jax.Array) -> jax.Array:
        return fold_cells(layout(a), layout(b), zero, **options)

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


@pytest.mark.slow_except("*-shape0-True-quads", "*-shape0-False-paired")
@LAYOUTS
@RANGES
@pytest.mark.parametrize("shape", SHAPES)
def test_fp8(layout, in_range, shape):
    """Activations by gradients."""
    lhs, _ = operands(codes_of(ml_dtypes.float8_e4m3fn, seed=0), shape)
    _, rhs = operands(codes_of(ml_dtypes.float8_e5m2, seed=0), shape)
    wanted = expected(layout, lhs, rhs)
    assert_same(fold(layout, lhs, rhs, in_range=in_range), wanted)


@pytest.mark.slow_cases("*-False-quads", "*-True-paired")
@LAYOUTS
@RANGES
def test_products_at_the_lower_end_of_the_range(layout, in_range):
    """Sums are subnormal, and flushed, with the sign that they had."""
    lhs, rhs = operands(limits_of_range(seed=1), (2, 20, 8, 50))
    wanted = expected(layout, lhs, rhs)
    assert 0.01 < np.mean(wanted == 0) < 0.99
    assert_same(fold(layout, lhs, rhs, in_range=in_range), wanted)


@pytest.mark.slow_cases("*-quads")
@LAYOUTS
def test_products_outside_the_range_are_rounded_before_they_are_added(layout):
    lhs, rhs = operands(all_exponents(seed=2), (2, 20, 128, 50))
    assert_same(fold(layout, lhs, rhs), expected(layout, lhs, rhs))


@pytest.mark.slow_cases("*-quads")
@LAYOUTS
def test_either_memory_order(layout):
    lhs, rhs = operands(codes_of(ml_dtypes.float8_e4m3fn, seed=3), (2, 6, 64, 9))
    a = Matrix(jnp.asarray(lhs.swapaxes(1, 2)), k_first=True)
    b = Matrix(jnp.asarray(rhs.swapaxes(1, 2)), k_first=False)
    got = fold_cells(layout(a), layout(b), MINUS_ZERO)
    assert_same(got, expected(layout, lhs, rhs))


def test_psum_adds_the_tiles_in_order():
    tiles, batch = 3, 2
    lhs, rhs = operands(all_exponents(seed=5), (tiles * batch, 5, 32, 30))
    parts = expected(cells.quads, lhs, rhs).reshape(tiles, batch, 5, 30)
    wanted = floats.add(floats.add(parts[0], parts[1]), parts[2])
    assert_same(fold(cells.quads, lhs, rhs, tiles=tiles), wanted)


@pytest.mark.parametrize(("layout", "k"), [(cells.paired, 7), (cells.quads, 10)])
def test_a_tile_that_does_not_fill_its_cells_is_refused(layout, k):
    with pytest.raises(InternalError, match="pad it with zeros"):
        layout(Matrix(jnp.ones((1, k, 3)), k_first=True))


# ---- What the run finds out about the range of the products.


@pytest.mark.slow_cases("*-exponents0-True")
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
    assert bool(cell_fold._in_range(a, b)) is inside


def test_an_accepted_range_has_normal_products():
    """Of all pairs of exponents, at both ends of each binade."""
    ends = np.float32([1, 2 - 2.0**-23])
    binades = np.ldexp(ends, np.arange(-126, 128)[:, None]).astype(np.float32)
    distances = np.asarray(jax.vmap(cell_fold._distance)(binades))
    accepted = distances[:, None] + distances <= 126 - 2 + 2 * 127
    products = binades.astype(np.float64)[:, None, :, None] * binades[None, :, None, :]
    inside = (2.0**-126 <= products) & (products < 2.0**128)
    assert inside[accepted].all()
    assert accepted.sum() > 0.6 * inside.all((2, 3)).sum()


def test_infinities_and_zeros_in_the_range_of_products():
    in_range = lambda *x: bool(cell_fold._in_range(*map(np.float32, x)))  # noqa: E731
    assert in_range([1.0], [-0.0, 2.0**-124, 2.0**124])
    assert in_range([0.0], [-0.0])
    assert not in_range([0.0], [np.inf])
    assert not in_range([np.nan, 1.0], [1.0])
    assert not in_range([-np.nan, 1.0], [1.0])


def accepted_limits(seed: int) -> Callable[[tuple[int, ...]], np.ndarray]:
    return limits_of_range(seed, lowest=-62)


@pytest.mark.slow_cases("*-accepted_limits")
@pytest.mark.parametrize("draw", [accepted_limits, all_exponents])
def test_a_large_fold_is_sealed_where_it_must_be(draw, monkeypatch):
    """Both branches, by data."""
    monkeypatch.setattr(cell_fold, "_is_large", lambda m, n: True)
    lhs, rhs = operands(draw(seed=9), (2, 20, 64, 50))
    inside = bool(cell_fold._in_range(lhs, rhs))
    assert inside == (draw is accepted_limits)
    assert_same(fold(cells.quads, lhs, rhs), expected(cells.quads, lhs, rhs))


def wide(seed: int) -> Callable[[tuple[int, ...]], np.ndarray]:
    """Twelve significant bits at all exponents, with products in range and outside."""
    generator = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        significand = generator.integers(-4095, 4096, shape)
        exponent = generator.choice([-85, -75, -66, -60, -12, 46, 50], shape)
        return np.ldexp(np.float32(significand), exponent).astype(np.float32)

    return draw


@pytest.mark.slow_except("*-shape1-wide")
@pytest.mark.parametrize("draw", [accepted_limits, wide])
@pytest.mark.parametrize("shape", [(2, 40, 130, 50), (2, 3, 40, 70)])
def test_rows_are_the_scan(draw, shape):
    lhs, rhs = operands(draw(seed=10), shape)
    a, b = matrices(lhs, rhs)
    assert bool(cell_fold._in_range(lhs, rhs)) == (draw is accepted_limits)
    wanted = jax.jit(array_fold.scanned)(a, b, MINUS_ZERO)
    assert_same(cell_fold.fold_rows(a, b, MINUS_ZERO), wanted)
    both = cell_fold.fold_rows(a, b, MINUS_ZERO, tiles=2)
    assert_same(both, floats.add(wanted[:1], wanted[1:]))


# ---- No bit depends on the blocks, or on the program around.


@pytest.mark.slow_except("*-block1-True")
@RANGES
@pytest.mark.parametrize(
    "block",
    [
        ResultBlock(batch=4, m=50, n=70, cells=20),  # all at once
        ResultBlock(batch=2, m=1, n=70, cells=1),
        ResultBlock(
            batch=3, m=50, n=16, cells=8
        ),  # the last overlaps; cells are left over
    ],
)
def test_the_block_changes_no_bit(in_range, block):
    draw = limits_of_range(seed=6) if in_range else all_exponents(seed=6)
    lhs, rhs = operands(draw, (8, 50, 80, 70))
    a, b = map(cells.quads, matrices(lhs, rhs))
    got = cell_fold._fold(a, b, MINUS_ZERO, block, in_range, 2)
    parts = expected(cells.quads, lhs, rhs)
    assert_same(got, floats.add(parts[:4], parts[4:]))


@pytest.mark.slow_cases("*-False")
@RANGES
def test_every_blocking_gives_the_same_bits(in_range):
    draw = limits_of_range(seed=7) if in_range else all_exponents(seed=7)
    lhs, rhs = operands(draw, (1, 1000, 16, 700))
    a, b = map(cells.paired, matrices(lhs, rhs))
    blocks = {blocking.fitted(a, b) for blocking in BLOCKINGS}
    assert len(blocks) == len(BLOCKINGS)
    first, *rest = (cell_fold._fold(a, b, MINUS_ZERO, x, in_range, 1) for x in blocks)
    for result in rest:
        assert_same(result, first)


@pytest.mark.parametrize("blocking", BLOCKINGS)
@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 5000), (1, 700, 704), (33, 9, 64)])
def test_a_block_fits_its_problem(blocking, rows, shape):
    batch, m, n = shape
    a, b = (Cells(jnp.zeros((batch, 24, rows, free)), False) for free in (m, n))
    block = blocking.fitted(a, b)
    sizes = zip(block, (*shape, 24), strict=True)
    assert all(1 <= part <= size for part, size in sizes)
    # Equal parts are rounded up to whole vectors.
    assert block.batch * block.m * block.n <= 1.2 * blocking.m * blocking.n
    assert block.cells * rows <= cell_fold.MOST_ROWS


@pytest.mark.slow_cases("*-False")
@pytest.mark.parametrize(
    ("layout", "in_range"), [(cells.paired, False), (cells.quads, True)]
)
def test_composed_programs_give_the_same_bits(layout, in_range):
    """Transposed neighbours, arithmetic before and behind, a scan and a vmap."""
    draw = limits_of_range(seed=8) if in_range else all_exponents(seed=8)
    lhs, rhs = operands(draw, (3, 6, 128, 20))

    def one(a: Matrix, b: Matrix, zero: jax.Array) -> jax.Array:
        return fold_cells(layout(a), layout(b), zero, in_range=in_range)

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


def test_equal_shapes_share_one_compilation():
    a, b = (cells.quads(Matrix(jnp.ones((1, 8, 3)), True)) for _ in range(2))
    before = cell_fold._fold._cache_size()
    for _ in range(2):
        fold_cells(a, b, MINUS_ZERO)
    assert cell_fold._fold._cache_size() <= before + 1


def test_a_large_fold_asks_for_the_fastest_blocking(monkeypatch):
    asked = []

    def fastest(problem, ways):
        asked.append(problem)
        assert list(ways) == [str(blocking) for blocking in BLOCKINGS]
        return list(ways)[-1]

    monkeypatch.setattr(tile_search, "fastest", fastest)
    assert cell_fold._best(2, 1024, 1024) == BLOCKINGS[-1]
    assert cell_fold._best(4, 128, 128) == BLOCKINGS[0]
    assert cell_fold._best(4, 4, 1 << 20) == BLOCKINGS[0]
    assert asked == ["cells-2"]
