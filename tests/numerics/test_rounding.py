"""Rounding against ml_dtypes (RNE) and a table of neighbours (stochastic).

Every mode, on every code and boundary, is the business of `test_casts_exhaustive`.

The oracles share no code with the implementation: NumPy's `astype` with ml_dtypes, and
a sorted table of a format's values in float64, in which every difference and quotient
that occurs here is exact. The FTZ rule is applied to their input, explicitly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import FORMATS, FloatFormat
from neuronjax.numerics.random_bits import random_bits
from neuronjax.numerics.rounding import cast, encode, round_to_format, round_to_int
from neuronjax.numerics.widening import decode, widen
from tests import arrays

FLOAT32, TFLOAT32 = FORMATS["float32"], FORMATS["tfloat32"]
BFLOAT16, FLOAT16 = FORMATS["bfloat16"], FORMATS["float16"]
E4M3, E4M3FN = FORMATS["float8_e4m3"], FORMATS["float8_e4m3fn"]
E5M2, E2M1, E8M0 = (
    FORMATS[name] for name in ("float8_e5m2", "float4_e2m1fn", "float8_e8m0fnu")
)
ALL = list(FORMATS.values())
NARROW = [fmt for fmt in ALL if fmt.width <= 16]
WITH_TABLE = [fmt for fmt in ALL if fmt is not FLOAT32]
each = functools.partial(pytest.mark.parametrize, "fmt", ids=lambda fmt: fmt.name)
SPECIAL_BITS = [
    *(0x0000_0000, 0x0000_0001, 0x0040_0000, 0x007F_FFFF),  # zero, subnormals
    *(0x0080_0000, 0x0080_0001, 0x3F80_0000, 0x7F7F_FFFF),  # normals
    *(0x7F80_0000, 0x7F80_0001, 0x7FA0_0000, 0x7FC0_0000, 0x7FFF_FFFF),  # Inf, NaNs
]

pytestmark = pytest.mark.usefixtures("strict_promotion")


def _float32(bits: Any) -> np.ndarray:
    return np.asarray(bits, np.uint32).view(np.float32)


def _flushed(x: np.ndarray) -> np.ndarray:
    """float32 with subnormals replaced by zeros of the same sign."""
    bits = arrays.bits(x)
    return _float32(np.where(bits & 0x7F80_0000, bits, bits & 0x8000_0000))


@functools.cache
def _values(fmt: FloatFormat) -> np.ndarray:
    """The non-negative finite values of a format in ascending order, as float64.

    From ml_dtypes; TF32, which it lacks, as the float32 whose low 13 bits are zero.
    """
    if fmt is TFLOAT32:
        codes = np.arange(0x7F80_0000 >> 13, dtype=np.uint32) << 13
        return codes.view(np.float32).astype(np.float64)
    codes = np.arange(1 << (fmt.width - fmt.signed), dtype=fmt.code_dtype)
    with np.errstate(invalid="ignore"):
        values = codes.view(fmt.dtype).astype(np.float64)
    return values[np.isfinite(values)]


@functools.cache
def _inputs(fmt: FloatFormat) -> np.ndarray:
    """A million random float32, and all boundaries of a format +-1 ulp, both signs."""
    rng = np.random.default_rng(fmt.width)
    uniform = rng.integers(0, 2**32, 1 << 19, dtype=np.uint32)
    in_range = rng.normal(size=1 << 19) * 2.0 ** rng.integers(
        fmt.min_exponent - 12, fmt.max_exponent + 3, 1 << 19
    )
    with np.errstate(over="ignore"):
        in_range = in_range.astype(np.float32).view(np.uint32)
    magnitudes = [np.asarray(SPECIAL_BITS, np.uint32)]
    if fmt in WITH_TABLE:
        values = _values(fmt)[:: 8 if fmt is TFLOAT32 else 1]
        midpoints = (values[1:] + values[:-1]) / 2
        last_step = values[-1] - values[-2]
        beyond = values[-1] + last_step * np.array([0.5, 1.0, 2.0])
        edges = np.concatenate([values, midpoints, beyond])
        edges = edges[edges < 2.0**128].astype(np.float32).view(np.uint32)
        magnitudes += [edges, edges + np.uint32(1), np.maximum(edges, 1) - np.uint32(1)]
    both = np.concatenate(magnitudes)
    return _float32(
        np.concatenate([uniform, in_range, both, both | np.uint32(0x8000_0000)])
    )


def _nearest(x: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    """Codes by ml_dtypes; only NumPy's float16 keeps NaN payloads, so not there."""
    x = _flushed(x)
    if fmt is FLOAT16:
        x = np.where(np.isnan(x), np.copysign(np.float32(np.nan), x), x)
    with np.errstate(over="ignore", invalid="ignore"):
        return arrays.bits(x.astype(fmt.dtype))


@np.errstate(invalid="ignore")  # signalling NaNs
def _stochastic_by_neighbours(
    x: np.ndarray, fmt: FloatFormat, random: np.ndarray, count: int
) -> np.ndarray:
    """float32 results of the top `count` random bits; NaN where undefined.

    The overflow step is one more value above the largest; e2m1 stops at the largest.
    """
    values = _values(fmt)
    grid = np.append(values, 2 * values[-1] - values[-2])
    magnitude = np.abs(_flushed(x)).astype(np.float64)
    finite = np.minimum(np.where(np.isnan(magnitude), 0, magnitude), grid[-1])
    index = np.searchsorted(grid, finite, side="right") - 1
    above = np.minimum(index + 1, grid.size - 1)
    step = np.where(above > index, grid[above] - grid[index], 1)
    fraction = np.floor((finite - grid[index]) / step * 2.0**count)
    index = index + (fraction + (random >> np.uint32(32 - count)) >= 2.0**count)
    stands_for_inf = {"ieee": np.inf, "all_ones": np.nan, "none": values[-1]}[fmt.nan]
    result = np.append(values, stands_for_inf)[index]
    result = np.where(np.isinf(magnitude), stands_for_inf, result)
    if fmt.nan == "none":  # NaN becomes a zero of the other sign
        sign = np.where(np.isnan(x), -np.copysign(1, x), np.copysign(1, x))
        return np.copysign(result, sign).astype(np.float32)
    result = np.where(np.isnan(magnitude), np.nan, result)
    return np.copysign(result, x).astype(np.float32)


def _assert_same(actual: Any, expected: np.ndarray, x: np.ndarray) -> None:
    """Equal bits, reported with the inputs that differ."""
    actual, expected = arrays.bits(actual), arrays.bits(expected)
    wrong = np.flatnonzero(actual != expected)
    rows = [(arrays.bits(x)[i], actual[i], expected[i]) for i in wrong[:5]]
    shown = [" ".join(map(hex, map(int, row))) for row in rows]
    assert wrong.size == 0, f"{wrong.size} differ (input, actual, expected): {shown}"


@functools.cache
def _jit(function: Callable[..., jax.Array], **options: Any) -> Callable[..., Any]:
    """Compiled once for all tests."""
    return jax.jit(functools.partial(function, **options))


# -- Nearest even


@each(NARROW)
def test_cast_is_that_of_ml_dtypes(fmt: FloatFormat) -> None:
    x = _inputs(fmt)
    actual = _jit(cast, fmt=fmt)(x)
    assert actual.dtype == fmt.dtype
    _assert_same(actual, _nearest(x, fmt), x)


@each([fmt for fmt in NARROW if fmt.signed])
def test_round_to_format_gives_the_value_of_the_cast(fmt: FloatFormat) -> None:
    x = _inputs(fmt)
    expected = _nearest(x, fmt).view(fmt.dtype)
    with np.errstate(invalid="ignore"):
        expected = expected.astype(np.float32)
    _assert_same(_jit(round_to_format, fmt=fmt)(x), expected, x)


def test_tfloat32_against_integers() -> None:
    x = _flushed(_inputs(TFLOAT32))
    bits = arrays.bits(x).astype(np.uint64)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) >> 13 << 13
    quiet = bits & 0x8000_0000 | 0x7FC0_0000
    expected = _float32(np.where(np.isnan(x), quiet, rounded))
    _assert_same(_jit(cast, fmt=TFLOAT32)(x), expected, x)


def test_float32_flushes_and_quietens() -> None:
    x = _inputs(FLOAT32)
    bits = arrays.bits(_flushed(x))
    expected = np.where(np.isnan(x), bits & 0x8000_0000 | 0x7FC0_0000, bits)
    _assert_same(_jit(cast, fmt=FLOAT32)(x), _float32(expected), x)


HAND_COMPUTED = [  # format, input, RNE, RTZ, RNE saturating
    (BFLOAT16, 1 + 2**-8, 1.0, 1.0, 1.0),  # tie, to even
    (BFLOAT16, 1 + 3 * 2**-8, 1 + 2**-6, 1 + 2**-7, 1 + 2**-6),  # tie, to even
    (BFLOAT16, 3.4e38, np.inf, 3.3895314e38, 3.3895314e38),
    (FLOAT16, 65519.996, 65504.0, 65504.0, 65504.0),
    (FLOAT16, 65520.0, np.inf, 65504.0, 65504.0),
    (FLOAT16, 2**-25, 0.0, 0.0, 0.0),  # half of the smallest subnormal, to even
    (FLOAT16, 3 * 2**-25, 2**-23, 2**-24, 2**-23),
    (E4M3, 247.9, 240.0, 240.0, 240.0),
    (E4M3, 248.0, np.inf, 240.0, 240.0),
    (E4M3, np.inf, np.inf, np.inf, 240.0),
    (E4M3FN, 464.0, 448.0, 448.0, 448.0),  # tie between 448 and what would be 480
    (E4M3FN, 465.0, np.nan, 448.0, 448.0),
    (E4M3FN, np.inf, np.nan, np.nan, 448.0),
    (E5M2, -61440.0, -np.inf, -57344.0, -57344.0),
    (E2M1, 2.5, 2.0, 2.0, 2.0),
    (E2M1, 1e9, 6.0, 6.0, 6.0),
    (E2M1, np.nan, -0.0, -0.0, -0.0),
    (E8M0, 3.0, 4.0, 2.0, 4.0),  # a tie of one-digit significands goes up
    (E8M0, 0.0, np.nan, np.nan, np.nan),
    (E8M0, -1.0, np.nan, np.nan, np.nan),
    (E8M0, np.inf, np.nan, np.nan, 2.0**127),
    (BFLOAT16, -(2.0**-127), -0.0, -0.0, -0.0),  # a float32 subnormal
]


@pytest.mark.parametrize(("fmt", "value", "rne", "rtz", "saturated"), HAND_COMPUTED)
def test_hand_computed_values(
    fmt: FloatFormat, value: float, rne: float, rtz: float, saturated: float
) -> None:
    x = jnp.asarray(np.float32(value))
    for expected, actual in [
        (rne, round_to_format(x, fmt)),
        (rtz, round_to_format(x, fmt, rounding="rtz")),
        (saturated, round_to_format(x, fmt, overflow="saturate")),
    ]:
        assert arrays.bits(actual) == arrays.bits(np.float32(expected))


# -- Stochastic


def _stochastic(fmt: FloatFormat, **options: Any) -> Callable[..., jax.Array]:
    run = functools.partial(round_to_format, fmt=fmt, rounding="stochastic", **options)
    return lambda x, random: run(x, random_bits=random)


@each([fmt for fmt in WITH_TABLE if fmt.signed])
def test_stochastic_adds_the_top_random_bits_to_the_fraction(fmt: FloatFormat) -> None:
    x = _inputs(fmt)[::4]
    count = 8
    random = np.random.default_rng(1).integers(0, 2**32, x.shape, dtype=np.uint32)
    actual = jax.jit(_stochastic(fmt, random_bit_count=count))(x, random)
    _assert_same(actual, _stochastic_by_neighbours(x, fmt, random, count), x)


@pytest.mark.slow_except("bfloat16", "float16", "float8_e4m3fn")
@each(ALL)
def test_stochastic_keeps_representable_values(fmt: FloatFormat) -> None:
    x = _jit(round_to_format, fmt=fmt)(_inputs(fmt))[::4]
    most = jnp.full(x.shape, 0xFFFF_FFFF, jnp.uint32)
    actual = np.asarray(jax.jit(_stochastic(fmt))(x, most))
    flushed = _flushed(np.asarray(x))
    keeps = ~np.isnan(np.asarray(x)) & (fmt.signed | (flushed != 0))
    _assert_same(actual[keeps], flushed[keeps], np.asarray(x)[keeps])


@pytest.mark.slow_cases("float16", "float8_e5m2")
@each([FLOAT16, E5M2, E4M3, E4M3FN, E2M1])
def test_stochastic_counts_in_units_of_2_to_the_minus_32(fmt: FloatFormat) -> None:
    unit = np.float32(fmt.min_subnormal * 2.0**-32)
    x = np.array([0, unit / 2, np.nextafter(unit, np.float32(0)), unit, 2 * unit])
    most = jnp.full(5, 0xFFFF_FFFF, jnp.uint32)
    rounded = _stochastic(fmt)(jnp.asarray(x, jnp.float32), most)
    np.testing.assert_array_equal(
        rounded, fmt.min_subnormal * np.array([0, 0, 0, 1, 1])
    )
    one_less = _stochastic(fmt)(jnp.asarray(x, jnp.float32), most - jnp.uint32(1))
    np.testing.assert_array_equal(one_less, fmt.min_subnormal * (x == 2 * unit))


UNBIASED = [
    *((fmt, 1.0 + 2**-12 / 3) for fmt in (BFLOAT16, FLOAT16, TFLOAT32)),
    *((fmt, -1.3) for fmt in (BFLOAT16, E5M2, E4M3, E4M3FN, E2M1)),
    *((fmt, fmt.min_subnormal / 3) for fmt in (FLOAT16, E5M2, E4M3, E2M1)),
    *((fmt, fmt.min_subnormal * 1.9) for fmt in (FLOAT16, E5M2, E4M3)),
    (E4M3, 2.0**-9 / 200),  # 28 bits are discarded
    (E8M0, 1.2),
]


@pytest.mark.parametrize(("fmt", "value"), UNBIASED)
def test_stochastic_is_unbiased(fmt: FloatFormat, value: float) -> None:
    n = 1 << 18
    x = jnp.full(n, value, jnp.float32)
    rounded = jax.jit(_stochastic(fmt))(x, random_bits((n,), jnp.uint32(11)))
    actual = np.asarray(rounded).astype(np.float64)
    sides = np.abs(np.unique(actual))
    assert sides.size == 2
    step = Fraction(float(sides.max())) - Fraction(float(sides.min()))
    p = (Fraction(abs(float(x[0]))) - Fraction(float(sides.min()))) / step
    ups = np.count_nonzero(np.abs(actual) == sides.max())
    assert abs(ups - n * float(p)) < 4 * np.sqrt(n * float(p * (1 - p)))


def test_the_published_stochastic_sum() -> None:
    """FP16 1024 + 2048 x 0.5: RNE stays at 1024, stochastic rounding nears 2048."""

    def add(total: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        random = random_bits(total.shape, key)
        return _stochastic(FLOAT16)(total + jnp.float32(0.5), random), None

    start = jnp.full(256, 1024, jnp.float32)
    totals, _ = jax.jit(lambda keys: lax.scan(add, start, keys))(
        jnp.arange(2048, dtype=jnp.uint32)
    )
    # A walk of 2,048 steps of 0 or 1: the mean of 256 has a deviation of about 1.4.
    assert abs(float(np.mean(np.asarray(totals))) - 2048) < 4 * np.sqrt(512 / 256)
    assert float(round_to_format(jnp.float32(1024.5), FLOAT16)) == 1024


# -- Codes


@pytest.mark.slow_cases("float16", "float8_e5m2", "float8_e4m3", "float8_e3m4")
@each(NARROW)
def test_all_codes_decode_as_ml_dtypes_and_round_trip(fmt: FloatFormat) -> None:
    codes = np.arange(1 << fmt.width, dtype=fmt.code_dtype)
    values = _jit(decode, fmt=fmt)(codes)
    with np.errstate(invalid="ignore"):
        expected = codes.view(fmt.dtype).astype(np.float32)
    is_nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(np.asarray(values)), is_nan)
    values = np.asarray(values)
    _assert_same(values[~is_nan], expected[~is_nan], codes[~is_nan])
    encoded = np.asarray(_jit(encode, fmt=fmt)(values))
    sign = codes & (fmt.signed << (fmt.width - 1))
    np.testing.assert_array_equal(encoded, np.where(is_nan, sign | fmt.nan_code, codes))
    _assert_same(_jit(widen)(codes.view(fmt.dtype)), values, codes)


@each([FLOAT32, TFLOAT32])
def test_wide_codes_are_float32_bits(fmt: FloatFormat) -> None:
    x = np.asarray(_jit(round_to_format, fmt=fmt)(_inputs(fmt)))
    codes = _jit(encode, fmt=fmt)(x)
    _assert_same(codes, arrays.bits(x), x)
    _assert_same(_jit(decode, fmt=fmt)(codes), x, x)


# -- Transformations and composition


@pytest.mark.slow_except("stochastic-float32", "stochastic-float8_e4m3fn")
@each([FLOAT32, BFLOAT16, FLOAT16, E4M3FN, E2M1, E8M0])
@pytest.mark.parametrize("rounding", ["rne", "half_away", "stochastic"])
def test_compiled_is_op_by_op(fmt: FloatFormat, rounding: Any) -> None:
    x = jnp.asarray(_inputs(fmt)[-4096:])
    random = random_bits(x.shape, jnp.uint32(0))

    def run(x: jax.Array) -> tuple[jax.Array, ...]:
        low = cast(x, fmt, rounding=rounding, random_bits=random)
        return low, round_to_format(x, fmt, rounding=rounding, random_bits=random)

    compiled = jax.jit(run)(x)
    with jax.disable_jit():
        op_by_op = run(x)
    for actual, expected in zip(compiled, op_by_op, strict=True):
        _assert_same(actual, np.asarray(expected), np.asarray(x))


def _composed(x: jax.Array, y: jax.Array) -> jax.Array:
    """Every rounding feeds arithmetic that XLA would like to fuse with it."""
    product = widen(cast(x * y, BFLOAT16))
    total = widen(cast(product + x, FLOAT16))
    return cast(total * jnp.float32(0.5), E4M3FN, overflow="saturate")


@pytest.mark.slow
def test_composed_program_against_numpy() -> None:
    """jit, vmap and scan; the oracle rounds step by step with ml_dtypes."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 64, 256)).astype(np.float32)
    product = (x * y).astype(ml_dtypes.bfloat16).astype(np.float32)
    total = (product + x).astype(np.float16).astype(np.float32)
    expected = (total * np.float32(0.5)).astype(ml_dtypes.float8_e4m3fn)
    scanned = jax.jit(
        lambda x, y: lax.scan(lambda c, row: (c, _composed(*row)), 0, (x, y))[1]
    )
    for run in (jax.jit(_composed), jax.jit(jax.vmap(_composed)), scanned):
        actual = run(jnp.asarray(x), jnp.asarray(y))
        np.testing.assert_array_equal(arrays.bits(actual), arrays.bits(expected))


@pytest.mark.slow
def test_batched_stochastic_rounding_is_row_by_row() -> None:
    x = jnp.asarray(_inputs(E4M3)[:4096].reshape(16, 256))
    random = random_bits(x.shape, jnp.uint32(4))
    one = jax.jit(_stochastic(E4M3))
    rows = [one(*row) for row in zip(x, random, strict=True)]
    actual = jax.jit(jax.vmap(_stochastic(E4M3)))(x, random)
    np.testing.assert_array_equal(arrays.bits(actual), arrays.bits(jnp.stack(rows)))


# -- Integers

INTEGERS = [jnp.int8, jnp.uint8, jnp.int16, jnp.uint16, jnp.int32, jnp.uint32]
_ROUND = {
    "rne": np.rint,
    "truncate": np.trunc,
    "half_away": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


def _integer_inputs() -> np.ndarray:
    rng = np.random.default_rng(3)
    scaled = rng.normal(size=1 << 17) * 2.0 ** rng.integers(-3, 40, 1 << 17)
    powers = 2.0 ** np.arange(66)
    halves = np.arange(0, 70_000, 0.5)
    edges = np.concatenate([halves, powers]).astype(np.float32)
    edges = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, np.inf)])
    special = _float32(SPECIAL_BITS)
    positive = np.concatenate([scaled.astype(np.float32), edges, special])
    return np.concatenate([positive, -positive]).astype(np.float32)


@np.errstate(invalid="ignore")  # signalling NaNs
def _integers(x: np.ndarray, dtype: Any, mode: str) -> np.ndarray:
    info = jnp.iinfo(dtype)
    whole = _ROUND[mode](np.nan_to_num(x.astype(np.float64), nan=0.0))
    clipped = np.clip(whole, float(info.min), float(info.max))
    # 2^63 - 1 and 2^64 - 1 are no float64: saturate in integers.
    exact = np.where(clipped >= 2.0**62, 0, clipped).astype(np.int64).astype(info.dtype)
    large = np.minimum(clipped, 2.0**64 - 2048).astype(np.uint64)
    large = np.minimum(large, np.uint64(info.max)).astype(info.dtype)
    large = np.where(clipped >= float(info.max), info.dtype.type(info.max), large)
    return np.where(clipped >= 2.0**62, large, exact)


@pytest.mark.slow_except("truncate-int8", "half_away-int16")
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("mode", _ROUND)
def test_round_to_int_saturates(dtype: Any, mode: Any) -> None:
    x = _integer_inputs()
    run = functools.partial(round_to_int, dtype=dtype, mode=mode)
    actual = jax.jit(run)(x)
    assert actual.dtype == dtype
    np.testing.assert_array_equal(np.asarray(actual), _integers(x, dtype, mode))
    with jax.disable_jit():
        eager = run(jnp.asarray(x[-2048:]))
    np.testing.assert_array_equal(np.asarray(actual[-2048:]), np.asarray(eager))


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("mode", ["rne", "truncate"])
def test_round_to_64_bit_integers(x64: None, dtype: str, mode: Any) -> None:
    x = _integer_inputs()
    actual = _jit(round_to_int, dtype=dtype, mode=mode)(x)
    expected = _integers(x, np.dtype(dtype), mode)
    np.testing.assert_array_equal(np.asarray(actual), expected)


# -- Errors

X = np.ones(3, np.float32)
WRONG: list[tuple[str, Callable[[], Any]]] = [
    ("x is float16", lambda: cast(jnp.ones(3, jnp.float16), BFLOAT16)),
    ("rounding='up'", lambda: cast(jnp.asarray(X), BFLOAT16, rounding="up")),  # pyright: ignore[reportArgumentType]
    ("overflow='wrap'", lambda: cast(jnp.asarray(X), BFLOAT16, overflow="wrap")),  # pyright: ignore[reportArgumentType]
    ("bits have shape None", lambda: cast(jnp.asarray(X), E4M3, rounding="stochastic")),
    ("bits have shape \\(2,\\)", lambda: _stochastic(E4M3)(X, jnp.ones(2, jnp.uint32))),
    ("random_bits is int32", lambda: _stochastic(E4M3)(X, jnp.ones(3, jnp.int32))),
    (
        "random_bit_count=0",
        lambda: _stochastic(E4M3, random_bit_count=0)(X, jnp.ones(3, jnp.uint32)),
    ),
    ("codes is uint16", lambda: decode(jnp.ones(3, jnp.uint16), E4M3)),
    ("mode='floor'", lambda: round_to_int(jnp.asarray(X), jnp.int8, mode="floor")),  # pyright: ignore[reportArgumentType]
    ("64-bit types disabled", lambda: round_to_int(jnp.asarray(X), np.int64)),
    ("'int32' is not a float format", lambda: widen(jnp.ones(3, jnp.int32))),
]


@pytest.mark.parametrize(("message", "call"), WRONG)
def test_errors_name_the_problem_and_the_remedy(
    message: str, call: Callable[[], Any]
) -> None:
    with pytest.raises(InvalidProgramError, match=message) as caught:
        call()
    assert caught.value.remedy
