"""Proof of the casts: every code of 16-bit sources, every float32 where it is feasible.

Oracles that share no code with the implementation: gfloat for all modes; NumPy's
`astype` with ml_dtypes for RNE, on all 2^32 inputs; and, for 10^8 random inputs, what
follows from that RNE and a table of the format's values. Where oracles disagree (NaN to
FP4, ties and non-positive inputs of e8m0) the written rule of `round_to_format` holds.
The tests marked exhaustive belong to `make exhaustive`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import gfloat
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from gfloat import RoundMode
from gfloat.types import Domain, FormatInfo
from jax import lax

from neuronjax.numerics.float_format import FORMATS, FloatFormat
from neuronjax.numerics.rounding import cast
from neuronjax.numerics.widening import decode, widen

FLOAT16, TFLOAT32 = FORMATS["float16"], FORMATS["tfloat32"]
E2M1, E8M0 = FORMATS["float4_e2m1fn"], FORMATS["float8_e8m0fnu"]
NARROW = [fmt for fmt in FORMATS.values() if fmt.width <= 16]
TARGETS = [fmt for fmt in FORMATS.values() if fmt.width < 32]
MODES = {
    "rne": RoundMode.TiesToEven,
    "rtz": RoundMode.TowardZero,
    "half_away": RoundMode.TiesToAway,
    "stochastic": RoundMode.StochasticFastest,
}
OVERFLOWS = ("ieee", "saturate")
CASES = list(itertools.product(MODES, OVERFLOWS))
SIGN = np.uint32(0x8000_0000)
CHUNK = 1 << 24
each = functools.partial(pytest.mark.parametrize, "fmt", ids=lambda fmt: fmt.name)


def _flushed(bits: np.ndarray) -> np.ndarray:
    """float32 bits with subnormals replaced by zeros of the same sign."""
    return np.where(bits & 0x7F80_0000, bits, bits & SIGN)


def _differences(actual: Any, expected: np.ndarray, bits: np.ndarray) -> str:
    """Where codes differ: how many, and the first as (input, actual, expected)."""
    wrong = np.flatnonzero(np.asarray(actual) != expected)
    rows = [(bits[i], np.asarray(actual)[i], expected[i]) for i in wrong[:5]]
    shown = [" ".join(map(hex, map(int, row))) for row in rows]
    return f"{wrong.size} differ: {shown}" if wrong.size else ""


def _cast_codes(bits: jax.Array, fmt: FloatFormat, **options: Any) -> jax.Array:
    """Codes, as the format's code dtype."""
    low = cast(lax.bitcast_convert_type(bits, jnp.float32), fmt, **options)
    if fmt.width == 4:  # XLA bitcasts float4 to 4 bits only
        return lax.bitcast_convert_type(low, jnp.uint4).astype(jnp.uint8)
    return lax.bitcast_convert_type(low, fmt.code_dtype)


@functools.cache
def _all_modes(fmt: FloatFormat) -> Callable[..., list[jax.Array]]:
    """Codes of every mode and overflow, in the order of CASES, from bits."""
    return jax.jit(
        lambda bits, random: [
            _cast_codes(bits, fmt, rounding=mode, overflow=over, random_bits=random)
            for mode, over in CASES
        ]
    )


# -- All modes against gfloat


def _gfloat_info(fmt: FloatFormat) -> FormatInfo:
    """The format in gfloat's terms; it has neither the legacy E4M3 nor cFP8."""
    nans = {"ieee": (1 << fmt.mantissa_bits) - 1, "all_ones": 1, "none": 0}
    return FormatInfo(
        name=fmt.name,
        k=fmt.width,
        precision=fmt.mantissa_bits + 1,
        bias=fmt.bias,
        is_signed=fmt.signed,
        domain=Domain.Extended if fmt.has_inf else Domain.Finite,
        has_nz=fmt.signed,
        num_high_nans=nans[fmt.nan],
        has_subnormals=fmt.has_zero,
        is_twos_complement=False,
    )


@functools.cache
def _all_sources() -> np.ndarray:
    """float32 bits of every code of every format of 16 bits or fewer."""
    codes = [np.arange(fmt.code_count, dtype=fmt.code_dtype) for fmt in NARROW]
    pairs = zip(codes, NARROW, strict=True)
    values = [np.asarray(jax.jit(decode, static_argnums=1)(c, f)) for c, f in pairs]
    return np.unique(np.concatenate(values).view(np.uint32))


@functools.cache
def _boundaries(fmt: FloatFormat) -> np.ndarray:
    """Every value and midpoint of a format +-1 ulp, both signs, and the overflow.

    Of TF32, which has 2^18 positive values, every fourth.
    """
    if fmt is TFLOAT32:
        values = np.arange(0, 0x7F80_0000, 1 << 15, dtype=np.uint32).view(np.float32)
    else:
        codes = range(fmt.max_code + 1)
        values = np.array([fmt.value(code) for code in codes])
    values = values.astype(np.float64)
    step = values[-1] - values[-2]
    values = np.concatenate([values, values[-1] + step * np.array([1.0, 2.0, 8.0])])
    edges = np.concatenate([values, (values[1:] + values[:-1]) / 2])
    edges = edges[edges < 2.0**128].astype(np.float32).view(np.uint32)
    near = np.concatenate([edges, edges + 1, np.maximum(edges, 1) - 1])
    return np.unique(np.concatenate([near, near | SIGN])).astype(np.uint32)


def _samples(fmt: FloatFormat, thinned: bool) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and random bits: all 16-bit sources, all boundaries, and random ones.

    Of targets beyond 8 bits, thinned out to a seventh.
    """
    rng = np.random.default_rng(fmt.width + fmt.bias)
    low, high = max(fmt.min_exponent - 12, -126), min(fmt.max_exponent + 3, 128)
    exponents = rng.integers(low + 127, high + 127, 1 << 15)
    in_range = (exponents << 23 | rng.integers(0, 1 << 23, 1 << 15)).astype(np.uint32)
    uniform = rng.integers(0, 1 << 32, 1 << 14, dtype=np.uint32)
    every = 7 if thinned and fmt.width > 8 else 1
    parts = [_all_sources(), _boundaries(fmt), in_range, in_range | SIGN, uniform]
    bits = np.concatenate(parts)[::every]
    return bits, rng.integers(0, 1 << 32, bits.shape, dtype=np.uint32)


def _by_gfloat(
    bits: np.ndarray, fmt: FloatFormat, mode: str, saturates: bool, random: np.ndarray
) -> np.ndarray:
    """Codes where gfloat speaks; inputs must not hit a rule of our own."""
    info = _gfloat_info(fmt)
    x = _flushed(bits).view(np.float32).astype(np.float64)
    srbits = random.astype(np.int64)
    saturates = saturates or fmt.nan == "none"
    with np.errstate(all="ignore"):
        rounded = gfloat.round_ndarray(info, x, MODES[mode], saturates, srbits, 32)
        codes = gfloat.encode_ndarray(info, rounded).astype(np.int64)
    if fmt.has_inf or not fmt.signed:
        return codes
    # The NaN of an overflow: gfloat drops its sign, the rule keeps it.
    sign = (bits >> 31).astype(np.int64) << (fmt.width - 1)
    return np.where(np.isnan(rounded), fmt.nan_code | sign, codes)


def _gfloat_speaks(bits: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    """Not of NaNs (its NaN is another), nor of what e8m0 lacks, nor of its ties."""
    magnitude = bits & ~SIGN
    speaks = magnitude <= 0x7F80_0000
    if fmt is E8M0:
        speaks &= (bits < SIGN) & (magnitude >= 0x0080_0000)
        speaks &= magnitude & 0x007F_FFFF != 0x0040_0000
    return speaks


@pytest.mark.slow
@each(TARGETS)
def test_every_mode_is_that_of_gfloat(fmt: FloatFormat) -> None:
    _check_gfloat(fmt, *_samples(fmt, thinned=True))


@pytest.mark.exhaustive
@each([fmt for fmt in TARGETS if fmt.width > 8])
def test_every_mode_on_every_code_and_boundary(fmt: FloatFormat) -> None:
    _check_gfloat(fmt, *_samples(fmt, thinned=False))


def _check_gfloat(fmt: FloatFormat, bits: np.ndarray, random: np.ndarray) -> None:
    """Compares every mode where gfloat speaks, and NaNs with the written rule."""
    speaks = _gfloat_speaks(bits, fmt)
    is_nan = bits & ~SIGN > 0x7F80_0000
    for (mode, over), actual in zip(CASES, _all_modes(fmt)(bits, random), strict=True):
        codes = np.asarray(actual).astype(np.int64) >> fmt.padding_bits
        inputs = bits[speaks]
        expected = _by_gfloat(inputs, fmt, mode, over == "saturate", random[speaks])
        differences = _differences(codes[speaks], expected, inputs)
        differences += _differences(
            codes[is_nan], _nan_codes(bits[is_nan], fmt), bits[is_nan]
        )
        assert not differences, (mode, over, differences)


def _nan_codes(bits: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    """The quiet NaN of the same sign, without payload; in FP4 a zero of the other."""
    sign = (bits >> 31).astype(np.int64) << (fmt.width - 1) if fmt.signed else 0
    return sign ^ np.full(bits.shape, fmt.nan_code)


def test_e8m0_has_no_sign_and_no_zero_and_its_ties_go_up() -> None:
    nothing = np.array([0, 0x8000_0000, 0xBF80_0000], np.uint32)
    for actual in _all_modes(E8M0)(nothing, np.zeros_like(nothing)):
        np.testing.assert_array_equal(actual, 0xFF)
    ties = np.array([1.5, 3, 6], np.float32).view(np.uint32)
    results = _all_modes(E8M0)(ties, np.full_like(ties, 0xFFFF_FFFF))
    for (mode, _), actual in zip(CASES, results, strict=True):
        np.testing.assert_array_equal(
            actual, np.array([128, 129, 130]) - (mode == "rtz")
        )


# -- All float32 inputs


def _nearest_codes(bits: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    """RNE by ml_dtypes, under the rules that subnormals flush and NaNs are quiet."""
    bits = _flushed(bits) if (bits[:: CHUNK - 1] & ~SIGN < 0x0080_0000).any() else bits
    if fmt is TFLOAT32:
        rounded = (bits.astype(np.uint64) + 0xFFF + (bits >> 13 & 1)) >> 13 << 13
        is_nan = bits & ~SIGN > 0x7F80_0000
        return np.where(is_nan, bits & SIGN | 0x7FC0_0000, rounded).astype(np.uint32)
    x = bits.view(np.float32)
    if fmt is FLOAT16:  # the only one of the oracles that keeps NaN payloads
        x = np.where(np.isnan(x), np.copysign(np.float32(np.nan), x), x)
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(fmt.dtype).view(fmt.code_dtype)


@functools.cache
def _chunk_codes(fmt: FloatFormat) -> Callable[[np.uint32], jax.Array]:
    """RNE codes of the float32 whose bits follow `first`."""
    indices = functools.partial(lax.iota, jnp.uint32, CHUNK)
    return jax.jit(lambda first: _cast_codes(indices() + first, fmt))


@pytest.mark.exhaustive
@each(TARGETS)
def test_rne_of_every_float32(fmt: FloatFormat) -> None:
    """All 2^32 inputs; 15 to 60 seconds of one core per target."""
    offsets = np.arange(CHUNK, dtype=np.uint32)
    for first in range(0, 1 << 32, CHUNK):
        bits = offsets + np.uint32(first)
        actual = np.asarray(_chunk_codes(fmt)(np.uint32(first)))
        expected = _nearest_codes(bits, fmt)
        if not np.array_equal(actual, expected):
            pytest.fail(_differences(actual, expected, bits))


@pytest.mark.slow_except("bfloat16", "float16", "float8_e4m3fn", "float8_e8m0fnu")
@each(TARGETS)
def test_rne_of_a_part_of_every_float32(fmt: FloatFormat) -> None:
    """Each 4,093rd input (a prime), and every code of every narrow format."""
    part = np.arange(0, 1 << 32, 4093, dtype=np.uint32)
    bits = np.concatenate([part, _all_sources()])
    expected = _nearest_codes(_flushed(bits), fmt)
    actual = jax.jit(lambda bits: _cast_codes(bits, fmt))(bits)
    assert not _differences(actual, expected, bits)


class _Neighbours:
    """The other modes, from RNE by ml_dtypes and the format's non-negative values."""

    def __init__(self, fmt: FloatFormat) -> None:
        self.fmt = fmt
        self.mask = (1 << (fmt.width - 1)) - 1
        codes = np.arange(fmt.max_code + 1, dtype=fmt.code_dtype)
        values = codes.view(fmt.dtype).astype(np.float64)
        # Above the largest value: the step at which an overflow begins, and the end.
        step = values[-1] - values[-2]
        self.values = np.append(values, values[-1] + step * np.array([1.0, 2.0]))

    def codes(
        self, bits: np.ndarray, random: np.ndarray
    ) -> dict[tuple[str, str], np.ndarray]:
        """Codes by (mode, overflow) of finite inputs."""
        nearest = (_nearest_codes(bits, self.fmt) & self.mask).astype(np.int32)
        nearest = np.minimum(nearest, self.fmt.max_code)
        magnitude = np.abs(bits.view(np.float32)).astype(np.float64)
        magnitude = np.minimum(magnitude, self.values[-2])
        floor = nearest - (self.values[nearest] > magnitude)
        floor += magnitude == self.values[-2]
        fraction = (magnitude - self.values[floor]) / np.diff(self.values)[floor]
        carry = np.floor(fraction * 2.0**32) + random >= 2.0**32
        rounded = {
            "rne": floor + np.where(floor & 1, fraction >= 0.5, fraction > 0.5),
            "rtz": floor,
            "half_away": floor + (fraction >= 0.5),
            "stochastic": floor + carry,
        }
        return {
            (mode, over): self._signed(magnitude, mode, over, bits)
            for (mode, magnitude), over in itertools.product(rounded.items(), OVERFLOWS)
        }

    def _signed(
        self, magnitude: np.ndarray, mode: str, over: str, bits: np.ndarray
    ) -> np.ndarray:
        stops = mode == "rtz" or over == "saturate"
        top = self.fmt.max_code if stops else self.fmt.overflow_code
        code = np.where(magnitude > self.fmt.max_code, top, magnitude)
        sign = (bits >> 31).astype(np.int32) << (self.fmt.width - 1)
        return (code | sign).astype(self.fmt.code_dtype)


def _check_neighbours(fmt: FloatFormat, bits: np.ndarray, random: np.ndarray) -> None:
    expected = _Neighbours(fmt).codes(bits, random)
    results = _all_modes(fmt)(bits, random)
    for case, actual in zip(CASES, results, strict=True):
        differences = _differences(actual, expected[case], bits)
        assert not differences, (case, differences)


def _random_inputs(
    fmt: FloatFormat, rng: np.random.Generator, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finite normal float32 bits, half of them in the range of the format."""
    bits = rng.integers(0x0080_0000, 0x7F80_0000, count, dtype=np.uint32)
    low = np.uint32(max(127 + fmt.min_exponent - fmt.mantissa_bits - 9, 1) << 23)
    high = np.uint32(min(127 + fmt.max_exponent + 2, 255) << 23)
    bits[::2] = rng.integers(low, high, bits[::2].size, dtype=np.uint32)
    random = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    return bits | (random & 1) << 31, rng.permutation(random)


@pytest.mark.exhaustive
@each([fmt for fmt in NARROW if fmt.signed])
def test_other_modes_of_random_float32(fmt: FloatFormat) -> None:
    """10^8 inputs, every mode and overflow."""
    rng = np.random.default_rng(fmt.width)
    for _ in range(24):
        _check_neighbours(fmt, *_random_inputs(fmt, rng, 1 << 22))


@pytest.mark.slow_except("float16")
@each([fmt for fmt in NARROW if fmt.signed])
def test_other_modes_of_some_random_float32(fmt: FloatFormat) -> None:
    """What the exhaustive test does, on 2^17 inputs."""
    rng = np.random.default_rng(fmt.width)
    _check_neighbours(fmt, *_random_inputs(fmt, rng, 1 << 17))


# -- Products


def _integers(values: np.ndarray, scale: int) -> np.ndarray:
    """values * 2^scale as Python ints; fails if one is no integer."""
    scaled = [Fraction(float(v)) * 2**scale for v in values.ravel()]
    assert all(fraction.denominator == 1 for fraction in scaled)
    return np.array([int(fraction) for fraction in scaled], object)


PAIRS = [
    *itertools.combinations_with_replacement([f for f in NARROW if f.width == 8], 2),
    (E2M1, E2M1),
]


@pytest.mark.parametrize(
    ("a", "b"),
    [pair for pair in PAIRS if E8M0 not in pair],
    ids=lambda fmt: fmt.name,
)
def test_products_are_exact_in_float32(a: FloatFormat, b: FloatFormat) -> None:
    """All 256 x 256 of two FP8 formats, all 16 x 16 of FP4."""
    sides = [np.arange(f.code_count, dtype=f.code_dtype).view(f.dtype) for f in (a, b)]
    product = jax.jit(lambda x, y: widen(x)[:, None] * widen(y)[None, :])
    actual = np.asarray(product(*sides))
    x, y = (side.astype(ml_dtypes.bfloat16).astype(np.float32) for side in sides)
    finite = np.isfinite(x)[:, None] & np.isfinite(y)[None, :]
    np.testing.assert_array_equal(np.isfinite(actual), finite)
    # Every value is an integer in units of the smallest subnormal, 2^-16 at least.
    left = _integers(np.where(np.isfinite(x), x, 0), 16)
    right = _integers(np.where(np.isfinite(y), y, 0), 16)
    expected = np.outer(left, right)[finite]
    scaled = [int(v) for v in actual[finite].astype(np.float64) * 2.0**32]
    assert scaled == expected.tolist()
