"""Elementary functions: accuracy, special values, and the same bits in every context.

The oracle is float64 NumPy and SciPy, which `scripts.make_tables` holds to mpmath. Bits
are compared between the function alone under `jax.jit` and each context in which XLA
could fuse, fold or vectorise otherwise.
"""

# ruff: noqa: RUF005 (tables are laid out by hand, several entries to a line)
from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.numerics.elementary import BINARY, MAX_ULP, UNARY
from neuronjax.numerics.exact import opaque_zero, seal
from scripts.make_tables import floor_of, in_float64

INF, NAN, PI = math.inf, math.nan, math.pi
MIN_NORMAL, SUBNORMAL, MAX = 2.0**-126, 1e-39, float(np.finfo(np.float32).max)
FUNCTIONS: Mapping[str, Callable[..., jax.Array]] = {**UNARY, **BINARY}
ORACLES: Mapping[str, Callable[..., np.ndarray]] = {
    **{name: functools.partial(in_float64, name) for name in UNARY},
    "atan2": np.arctan2,
    "divide": np.divide,
    "power": np.power,
    "remainder": np.fmod,
}
EDGES = np.float32(
    [0, SUBNORMAL, MIN_NORMAL, 1e-30, 2.0**-25, 2.0**-13, 0.5, 0.625, 0.785398, 0.93]
    + [1, 1 + 2.0**-23, 1 - 2.0**-24, 1.5707964, 2, 3, 3.1415927, 9, 10, 87.3, 88.72]
    + [89, 100, 126, 127.5, 128, 129, 150, 2.0**23, 2.0**24 + 2, 2.0**31, 1e30, MAX]
    + [INF, NAN]
)
EDGES = np.concatenate([EDGES, -EDGES])


CHECKSUMS: Mapping[str, int] = {
    "acos": 3204912560,
    "acosh": 90486006,
    "asin": 2536569449,
    "asinh": 883943811,
    "atan": 2449339937,
    "atan2": 2027454950,
    "atanh": 2639953802,
    "bessel_i1e": 231746912,
    "cbrt": 860242807,
    "cosh": 595017627,
    "cosine": 3661216191,
    "digamma": 2510491087,
    "divide": 2381469798,
    "erf": 3080786382,
    "erf_inv": 2172977418,
    "erfc": 150405808,
    "exponential": 3968190549,
    "exponential_base2": 99556843,
    "exponential_minus_one": 2536618230,
    "lgamma": 2597901857,
    "log": 680865305,
    "log_plus_one": 2032966422,
    "logistic": 2310142012,
    "power": 3481650495,
    "reciprocal": 984314366,
    "remainder": 3506606438,
    "rsqrt": 3105935176,
    "sine": 3951806092,
    "sinh": 3429837900,
    "sqrt": 2914979518,
    "tan": 4009901728,
    "tanh": 3763294349,
}


# ---------------------------------------------------------------- running


@functools.cache
def compiled(name: str) -> Callable[..., jax.Array]:
    def call(*args: jax.Array) -> jax.Array:
        return FUNCTIONS[name](*args, opaque_zero())

    return jax.jit(call)


#: Numbers in one call of a compiled function.
PIECE = 20_000


def run(name: str, *args: np.ndarray) -> np.ndarray:
    """The function alone, in pieces of one size, to be compiled once."""
    count = args[0].size
    padded = [np.resize(x, (-(-count // PIECE), PIECE)) for x in args]
    pieces = [np.asarray(compiled(name)(*piece)) for piece in zip(*padded, strict=True)]
    return np.concatenate(pieces)[:count].reshape(args[0].shape)


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < MIN_NORMAL, np.copysign(0, x), x).astype(x.dtype)


def hashed(count: int, seed: int) -> np.ndarray:
    """Well mixed uint32 numbers, the same on every host and with every NumPy."""
    bits = np.arange(count, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(seed)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        bits = (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)
    return bits


def float32_sample(count: int, seed: int) -> np.ndarray:
    """A third each of all bit patterns, magnitudes 2^-20..2^8, and -1..1."""
    third = count // 3
    patterns = hashed(third, seed)
    exponent = np.uint32(107) + hashed(third, seed + 1) % np.uint32(28)
    middle = (patterns & np.uint32(0x807FFFFF)) | (exponent << np.uint32(23))
    unit = hashed(count - 2 * third, seed + 2).view(np.int32) / 2.0**31
    floats = (patterns.view(np.float32), middle.view(np.float32), np.float32(unit))
    return np.concatenate(floats)


def arguments(name: str, count: int) -> tuple[np.ndarray, ...]:
    """`count` arguments in all, the edges (every pair of them) included."""
    if name in UNARY:
        return (np.concatenate([EDGES, float32_sample(count - EDGES.size, seed=10)]),)
    x, y = (grid.ravel() for grid in np.meshgrid(EDGES, EDGES))
    if count < 2 * x.size:
        return x[:: x.size // count + 1], y[:: x.size // count + 1]
    x = np.concatenate([x, float32_sample(count - x.size, seed=20)])
    y = np.concatenate([y, float32_sample(count - y.size, seed=30)])
    return x, y


# ---------------------------------------------------------------- accuracy


def ulp_errors(
    got: np.ndarray, want: np.ndarray, floor: np.ndarray | float = 0.0
) -> np.ndarray:
    """Errors in ULPs of max(|want|, floor); infinite where a special value differs."""
    exact = want.astype(np.float32)
    normal = np.isfinite(exact) & (np.abs(want) >= MIN_NORMAL)
    size = np.maximum(np.where(normal, np.abs(want), 1), floor)
    ulp = np.ldexp(1.0, np.frexp(size)[1] - 24)
    error = np.abs(got.astype(np.float64) - want) / ulp
    expected = flushed(exact)
    same = np.where(np.isnan(expected), np.isnan(got), got == expected)
    return np.where(normal, error, np.where(same, 0, INF))


@pytest.mark.slow_except("asin", "erf", "logistic", "tanh")
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_error_is_within_the_stated_bound(name: str) -> None:
    args = tuple(flushed(x) for x in arguments(name, 400_000))
    want = ORACLES[name](*(x.astype(np.float64) for x in args))
    floor = floor_of(name, args[0]) if name in UNARY else 0.0
    errors = ulp_errors(run(name, *args), want, floor)
    worst = errors.argmax()
    assert errors[worst] <= MAX_ULP[name], [x[worst] for x in args]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(BINARY))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_error_is_within_the_stated_bound_over_many_pairs(name: str) -> None:
    """Of two arguments not all can be tried: 16 samples of 4 million pairs."""
    for seed in range(100, 132, 2):
        args = tuple(flushed(float32_sample(1 << 22, seed + i)) for i in range(2))
        want = ORACLES[name](*(x.astype(np.float64) for x in args))
        errors = ulp_errors(run(name, *args), want)
        worst = errors.argmax()
        assert errors[worst] <= MAX_ULP[name], [x[worst] for x in args]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("scale", [1e-3, 1e-1, 1.0])
def test_power_is_accurate_over_the_whole_range_of_results(scale: float) -> None:
    rng = np.random.default_rng(4)
    x = np.float32(np.exp2(rng.uniform(-126, 127, 200_000) * scale))
    y = np.float32(rng.uniform(-126, 128, x.size) / np.log2(x.astype(np.float64)))
    want = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulp_errors(run("power", x, y), want).max() <= MAX_ULP["power"]


def test_small_integer_powers_are_exact_where_representable() -> None:
    base, exponent = np.meshgrid(np.arange(-30, 31), np.arange(0, 9))
    want = base.astype(np.float64) ** exponent
    exact = want == want.astype(np.float32)
    got = run("power", np.float32(base), np.float32(exponent))
    np.testing.assert_array_equal(got[exact], want[exact].astype(np.float32))


@pytest.mark.parametrize("name", ["sine", "cosine", "tan"])
def test_trigonometric_functions_near_multiples_of_half_pi(name: str) -> None:
    """The nearest floats to k pi/2: the reduction cancels all leading bits."""
    x = np.float32(np.arange(1, 100_000) * (math.pi / 2))
    # 16367173 * 2^72 is the float32 nearest to a multiple of pi/2 (Muller et al.).
    x = np.concatenate([x, np.float32([16367173 * 2.0**72, 1e22, MAX])])
    want = ORACLES[name](x.astype(np.float64))
    assert ulp_errors(run(name, x), want).max() <= MAX_ULP[name]


# ---------------------------------------------------------------- special values

SPECIAL: Mapping[str, tuple[tuple[float, ...], ...]] = {
    "exponential": ((-INF, 0), (INF, INF), (-0.0, 1), (89, INF), (-87.4, 0)),
    "exponential_base2": ((-INF, 0), (INF, INF), (127, 2.0**127), (128, INF))
    + ((-126, MIN_NORMAL), (-127, 0), (3, 8)),
    "exponential_minus_one": ((-INF, -1), (INF, INF), (-0.0, -0.0), (0, 0)),
    "log": ((0, -INF), (-0.0, -INF), (SUBNORMAL, -INF), (-1, NAN), (INF, INF), (1, 0)),
    "log_plus_one": ((-1, -INF), (-2, NAN), (-0.0, -0.0), (INF, INF)),
    "tanh": ((-INF, -1), (INF, 1), (-0.0, -0.0), (SUBNORMAL, 0)),
    "logistic": ((-INF, 0), (INF, 1), (0, 0.5), (-88, 0)),
    "erf": ((-INF, -1), (INF, 1), (-0.0, -0.0), (-SUBNORMAL, -0.0)),
    "erfc": ((-INF, 2), (INF, 0), (0, 1), (11, 0)),
    "erf_inv": ((-1, -INF), (1, INF), (-0.0, -0.0), (1.5, NAN), (INF, NAN)),
    "sine": ((-0.0, -0.0), (INF, NAN), (-SUBNORMAL, -0.0)),
    "cosine": ((-0.0, 1), (-INF, NAN)),
    "tan": ((-0.0, -0.0), (INF, NAN)),
    "sqrt": ((-0.0, -0.0), (-1, NAN), (INF, INF), (SUBNORMAL, 0)),
    "rsqrt": ((0, INF), (-0.0, -INF), (-1, NAN), (INF, 0), (SUBNORMAL, INF)),
    "cbrt": ((-0.0, -0.0), (-INF, -INF), (27, 3), (-8, -2), (-SUBNORMAL, -0.0)),
    "reciprocal": ((0, INF), (-0.0, -INF), (-INF, -0.0), (SUBNORMAL, INF)),
    "acos": ((1, 0), (2, NAN), (-1, PI)),
    "asin": ((-0.0, -0.0), (-2, NAN), (1, PI / 2)),
    "atan": ((-0.0, -0.0), (INF, PI / 2)),
    "acosh": ((1, 0), (0.5, NAN), (INF, INF), (-INF, NAN)),
    "asinh": ((-0.0, -0.0), (-INF, -INF), (INF, INF)),
    "atanh": ((-0.0, -0.0), (1, INF), (-1, -INF), (2, NAN)),
    "bessel_i1e": ((0, 0), (-0.0, -0.0), (INF, 0), (-INF, -0.0), (-SUBNORMAL, -0.0)),
    "digamma": ((0, NAN), (-0.0, NAN), (-3, NAN), (-INF, NAN), (INF, INF))
    + ((SUBNORMAL, NAN), (-MAX, NAN)),
    "lgamma": ((0, INF), (-0.0, INF), (1, 0), (2, 0), (-1, INF), (-MAX, INF))
    + ((INF, INF), (-INF, INF), (MAX, INF), (SUBNORMAL, INF)),
    "sinh": ((-0.0, -0.0), (-INF, -INF), (89, math.sinh(89))),
    "cosh": ((-0.0, 1), (-INF, INF), (90, INF)),
    "power": ((NAN, 0, 1), (1, NAN, 1), (NAN, 1, NAN), (2, NAN, NAN), (0, -1, INF))
    + ((-0.0, -1, -INF), (-0.0, -2, INF), (-0.0, 3, -0.0), (-0.0, 2, 0))
    + ((-1, INF, 1), (-1, -INF, 1), (0.5, INF, 0), (0.5, -INF, INF), (-3, INF, INF))
    + ((INF, -1, 0), (-INF, 3, -INF), (-INF, -3, -0.0), (-8, 1 / 3, NAN), (-2, 3, -8))
    + ((2, 127, 2.0**127), (2, 128, INF), (2, -126, MIN_NORMAL), (2, -127, 0))
    + ((-2, 2.0**24, INF), (SUBNORMAL, -1, INF), (0, SUBNORMAL, 1)),
    "divide": ((1, 0, INF), (-1, 0, -INF), (0, 0, NAN), (INF, INF, NAN), (1, INF, 0)),
    "remainder": ((5, 3, 2), (-5, 3, -2), (5, -3, 2), (-6, 3, -0.0), (1, 0, NAN))
    + ((INF, 1, NAN), (1, INF, 1), (SUBNORMAL, 1, 0), (1, SUBNORMAL, NAN)),
    "atan2": ((0, 1, 0), (-0.0, 1, -0.0), (0, -1, PI))
    + ((-0.0, -0.0, -PI), (0, 0, 0), (INF, INF, PI / 4), (1, INF, 0), (1, -INF, PI))
    + ((1, 0, PI / 2), (INF, -INF, 0.75 * PI), (1, SUBNORMAL, PI / 2)),
}


@pytest.mark.slow_except(
    "tanh", "power", "tan", "logistic", "sine", "erf", "cosine", "asin"
)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_special_values(name: str) -> None:
    *args, want = np.array(SPECIAL[name], np.float32).T
    got = run(name, *args)
    exact = np.isin(np.abs(want), [0, 0.5, 1, INF]) | np.isnan(want)
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()
    np.testing.assert_array_equal(got[exact], want[exact])
    np.testing.assert_array_max_ulp(got[~exact], want[~exact], maxulp=1)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_nan_in_is_the_one_nan_out(name: str) -> None:
    patterns = np.uint32([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FC12345])
    x = patterns.view(np.float32)
    others = (np.full_like(x, 2),) if name in BINARY else ()
    for args in ((x, *others), (*others, x)):
        assert (run(name, *args).view(np.uint32) == 0x7FC00000).all()


# ---------------------------------------------------------------- the same bits
#
# A context computes fn of the arguments (each n x m) in surroundings of its own and
# returns an array of the same shape; the surroundings seal what they read and write, as
# engines do. Every context returns fn's values, so all must agree.

Context = Callable[..., jax.Array]
Function = Callable[..., jax.Array]


def among_neighbours(fn: Function, zero: jax.Array, *args: jax.Array) -> jax.Array:
    """Products before (exact ones) and after, sums around, all transposed."""
    args = tuple(seal(seal(x.T, zero) * 1.0, zero) for x in args)
    result = seal(fn(*args, zero), zero)
    after = result * np.float32(1.1) + np.float32(0.3)
    total = jnp.sum(after) + jnp.sum(result * args[0])
    return jnp.where(total == np.float32(12345.678), after, result).T


def in_scan(fn: Function, zero: jax.Array, *args: jax.Array) -> jax.Array:
    def step(carry: jax.Array, row: tuple[jax.Array, ...]):
        result = seal(fn(*row, zero), zero)
        return carry + jnp.sum(result) * np.float32(0.7), result

    return lax.scan(step, jnp.float32(0), args)[1]


def in_while(fn: Function, zero: jax.Array, *args: jax.Array) -> jax.Array:
    def step(state: tuple[jax.Array, jax.Array]):
        i, out = state
        row = fn(*(x[i] for x in args), zero)
        return i + 1, out.at[i].set(seal(row, zero))

    rows = args[0].shape[0]
    start = (jnp.int32(0), jnp.zeros_like(args[0]))
    return lax.while_loop(lambda state: state[0] < rows, step, start)[1]


def under_vmap(fn: Function, zero: jax.Array, *args: jax.Array) -> jax.Array:
    return jax.vmap(lambda *row: fn(*row, zero), in_axes=1, out_axes=1)(*args)


def of_broadcast_scalars(fn: Function, zero: jax.Array, *args: jax.Array) -> jax.Array:
    """Each element alone, as the one value of a broadcast array."""

    def row(elements: tuple[jax.Array, ...]) -> jax.Array:
        wide = tuple(jnp.broadcast_to(x, (9,)) for x in elements)
        return seal(fn(*wide, zero), zero)[4]

    flat = lax.map(row, tuple(x.ravel() for x in args))
    return flat.reshape(args[0].shape)


def in_pieces(fn: Function, zero: jax.Array, *args: jax.Array) -> jax.Array:
    """Lengths 1, 7 and the rest: vector loops, their remainders, scalar code."""
    flat, shape = [x.ravel() for x in args], args[0].shape
    bounds = (0, 1, 8, flat[0].size)
    pieces = [
        seal(fn(*(x[start:stop] for x in flat), zero), zero)
        for start, stop in itertools.pairwise(bounds)
    ]
    return jnp.concatenate(pieces).reshape(shape)


def twice(fn: Function, zero: jax.Array, *args: jax.Array) -> jax.Array:
    """Followed by itself, in one fusion."""
    result = seal(fn(*args, zero), zero)
    again = fn(*(result for _ in args), zero)
    return jnp.where(again == np.float32(12345.678), again, result)


CONTEXTS: tuple[Context, ...] = (
    among_neighbours,
    in_scan,
    in_while,
    under_vmap,
    of_broadcast_scalars,
    in_pieces,
    twice,
)
# Compilation is what this costs: the most used functions meet every context; the rest,
# made of the same parts, meet the one that exposes divisions, and op-by-op execution,
# which exposes multiply-adds.
EVERYWHERE = (
    "divide",
    "erf",
    "exponential",
    "log",
    "logistic",
    "power",
    "sine",
    "tanh",
)
SHAPE = (40, 25)


def context_arguments(name: str) -> tuple[jax.Array, ...]:
    size = SHAPE[0] * SHAPE[1]
    args = arguments(name, size)
    return tuple(jnp.asarray(np.resize(flushed(x), SHAPE)) for x in args)


def in_context(context: Context, name: str) -> np.ndarray:
    def call(*args: jax.Array) -> jax.Array:
        result = context(FUNCTIONS[name], opaque_zero(), *args)
        return lax.bitcast_convert_type(result, jnp.uint32)

    def outer(*args: jax.Array) -> jax.Array:
        return jax.jit(call)(*args)

    return np.asarray(jax.jit(outer)(*context_arguments(name)))


@pytest.fixture(scope="module")
def alone_bits() -> dict[str, np.ndarray]:
    args = {name: map(np.asarray, context_arguments(name)) for name in FUNCTIONS}
    return {name: run(name, *args[name]).view(np.uint32) for name in FUNCTIONS}


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS, ids=lambda context: context.__name__)
def test_bits_are_the_same_in_every_context(
    context: Context, alone_bits: dict[str, np.ndarray]
) -> None:
    names = FUNCTIONS if context is of_broadcast_scalars else EVERYWHERE
    differing = {
        name: int((in_context(context, name) != alone_bits[name]).sum())
        for name in names
    }
    assert not {name: count for name, count in differing.items() if count}


@pytest.mark.slow
def test_bits_are_the_same_op_by_op(alone_bits: dict[str, np.ndarray]) -> None:
    zero = opaque_zero()
    for name, bits in alone_bits.items():
        with jax.disable_jit():
            result = FUNCTIONS[name](*context_arguments(name), zero)
        np.testing.assert_array_equal(np.asarray(result).view(np.uint32), bits, name)


@pytest.mark.slow_cases("divide")
@pytest.mark.parametrize("name", sorted(BINARY))
def test_bits_are_the_same_with_one_operand_shared_by_a_batch(name: str) -> None:
    x, y = context_arguments(name)

    def shared(x: jax.Array, y: jax.Array) -> jax.Array:
        zero = opaque_zero()
        call = jax.vmap(lambda row: seal(BINARY[name](row, y, zero), zero))
        return call(x)

    got = np.asarray(jax.jit(shared)(x, y[0]))
    tiled = np.broadcast_to(np.asarray(y[0]), SHAPE)
    want = run(name, np.asarray(x), np.array(tiled))
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_bits_are_those_of_every_host(alone_bits: dict[str, np.ndarray]) -> None:
    """Checksums from jaxlib 0.10 on x86-64: a change of any bit is a visible change."""
    checksums = {name: zlib.crc32(bits.tobytes()) for name, bits in alone_bits.items()}
    assert checksums == CHECKSUMS


def test_an_unsealed_polynomial_depends_on_its_context() -> None:
    """The hazard itself. Once XLA contracts no multiply-adds, the seals may rest."""

    def horner(x: jax.Array, coefficients: tuple[float, ...]) -> jax.Array:
        result = jnp.full_like(x, coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = result * x + np.float32(coefficient)
        return result

    x = jnp.asarray(float32_sample(3000, seed=50)[-1000:])
    coefficients = (1.0, 0.7, 0.24, 0.0555, 0.0096, 0.0013)
    fused = jax.jit(horner, static_argnums=1)(x, coefficients)
    with jax.disable_jit():
        separate = horner(x, coefficients)
    assert (fused != separate).any()
