"""MX blocks against hand-computed values and a model in exact float64 arithmetic.

The model shares no code with the implementation: scales from `np.frexp` and from the
inequality that defines a rule, elements from a sorted table of the format's values. In
float64 every quotient, product and midpoint that occurs here is exact.
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
from neuronjax.numerics.float_format import FLOAT8_E4M3FN, FLOAT8_E8M0FNU
from neuronjax.numerics.microscaling import (
    MX_FORMATS,
    MXArray,
    MXFormat,
    fake_quantize,
    from_codes,
    get_mx_format,
    on_device,
    quantize_mx,
    to_codes,
)
from neuronjax.numerics.mx_scales import ALTERNATIVE, SCALE_RULES

RULES = [rule for rule in SCALE_RULES if not rule.endswith(ALTERNATIVE)]
BOUNDED = [rule for rule in RULES if rule != "nki_golden"]
each_format = pytest.mark.parametrize("name", MX_FORMATS)
each_rule = pytest.mark.parametrize("rule", RULES)

pytestmark = pytest.mark.usefixtures("strict_promotion")


def block_of(*values: float, dtype: Any = np.float32) -> np.ndarray:
    """A block of 32: these values, then zeros."""
    return np.array([*values, *[0.0] * (32 - len(values))], dtype)


def codes(x: Any) -> np.ndarray:
    """The bits of an array of any dtype."""
    bits = np.asarray(x).view(f"uint{8 * x.dtype.itemsize}")
    if x.dtype != jnp.float8_e5m2:
        return bits
    # XLA's loops carry it as float16, which changes the payload of a NaN.
    return np.where(np.isnan(np.asarray(x).astype(np.float32)), bits | 3, bits)


def normal(*shape: int) -> np.ndarray:
    """Ordinary float32 data."""
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def quantized(*values: float, **options: Any) -> tuple[list[float], int]:
    """Elements, as many as given, and the scale byte of one block."""
    array = quantize_mx(block_of(*values), **options)
    elements = np.asarray(array.elements).astype(np.float32)[: len(values)]
    return elements.tolist(), int(codes(array.scales)[0])


def assert_same(found: Any, expected: Any) -> None:
    """Two pytrees of equal structure, and leaves equal code for code."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(codes(left), codes(right))


# ---- The model.


def model_exponents(amax: np.ndarray, rule: str, fmt: MXFormat) -> np.ndarray:
    """Unclamped exponents of the scales of finite, positive maxima."""
    emax, largest = fmt.element.max_exponent, fmt.element.max_finite
    fraction, above = np.frexp(amax)
    floor = above - 1
    if rule == "ceil":
        return np.where(fraction == 0.5, floor, above) - emax
    if rule == "rceil":
        fits = [amax <= np.ldexp(largest, floor - emax + more) for more in (-1, 0)]
        return floor - emax + np.select(fits, [-1, 0], 1)
    if rule == "even":
        unit = floor - fmt.element.mantissa_bits
        rounded = np.ldexp(np.floor(np.ldexp(amax, -unit) + 0.5), unit)
        return np.frexp(rounded)[1] - 1 - emax
    return floor - emax + (rule == "neuron")


def model_bytes(x: np.ndarray, rule: str, fmt: MXFormat) -> np.ndarray:
    """Scale bytes of blocks [n, 32] in float64, subnormals already zero."""
    amax = np.abs(x).max(axis=1)
    special = ~np.isfinite(amax)
    safe = np.where(special | (amax == 0), 1.0, amax)
    if rule == "nki_golden":
        field = np.where(special, 255, np.where(amax == 0, 0, np.frexp(safe)[1] + 126))
        return (field - fmt.element.max_exponent) % 256
    bytes_ = np.clip(model_exponents(safe, rule, fmt) + 127, 0, 254)
    return np.where(special, 255, np.where(amax == 0, 0, bytes_))


@functools.cache
def magnitudes(fmt: MXFormat) -> np.ndarray:
    """The finite values without sign; their index is their code."""
    return np.array([fmt.element.value(c) for c in range(fmt.element.max_code + 1)])


def nan_code(fmt: MXFormat) -> int:
    """As `codes` shows it; what a format without NaN does is ml_dtypes' choice."""
    return {"mxfp8_e5m2": 0x7F}.get(fmt.name, fmt.element.nan_code)


def model_codes(quotient: np.ndarray, fmt: MXFormat) -> np.ndarray:
    """Nearest element, ties to even, saturating, of float64 quotients."""
    table, size = magnitudes(fmt), np.abs(quotient)
    middles = (table[1:] + table[:-1]) / 2
    code = np.searchsorted(middles, size)  # the lower one at a tie
    tie = (code < len(middles)) & (np.append(middles, np.inf)[code] == size)
    code = code + (tie & (code % 2 == 1))
    sign = np.signbit(quotient).astype(int) << (fmt.element.width - 1)
    return np.where(np.isnan(quotient), nan_code(fmt), code) ^ sign


def model(x: np.ndarray, rule: str, fmt: MXFormat) -> tuple[np.ndarray, np.ndarray]:
    """Element codes and scale bytes of float32 blocks [n, 32]."""
    with np.errstate(invalid="ignore"):
        x = x.astype(np.float64)
        flushed = np.where(np.abs(x) < 2.0**-126, np.copysign(0.0, x), x)
        scales = model_bytes(flushed, rule, fmt)
        quotient = np.ldexp(flushed, (127 - scales)[:, None])
    code = model_codes(quotient, fmt)
    if rule != "nki_golden":
        code = np.where(scales[:, None] == 255, 0, code)
    return code, scales


def model_values(code: np.ndarray, scales: np.ndarray, fmt: MXFormat) -> np.ndarray:
    """float32 values of codes, results below 2^-126 flushed."""
    every = np.array([fmt.element.value(c) for c in range(1 << fmt.element.width)])
    exact = np.ldexp(every[code], scales[:, None] - 127)
    flushed = np.where(np.abs(exact) < 2.0**-126, np.copysign(0.0, exact), exact)
    flushed = np.where(scales[:, None] == 255, np.nan, flushed)
    with np.errstate(over="ignore"):
        return flushed.astype(np.float32)


@functools.cache
def all_kinds_of_blocks() -> np.ndarray:
    """float32 blocks of 8; every magnitude of bfloat16 is the largest of one."""
    magnitude = np.arange(1 << 15)[:, None] - [0, 1, 2, 7, 64, 300, 1300, 2100]
    sign = (np.arange(8) * 5 + np.arange(1 << 15)[:, None]) % 2 << 15
    narrow = (np.maximum(magnitude, 0) | sign).astype(np.uint16)
    rng = np.random.default_rng(3)
    fields = rng.integers(0, 256, (1024, 1)) - rng.integers(0, 24, (1024, 8))
    bits = np.maximum(fields, 0).astype(np.uint32) << 23
    bits |= rng.integers(0, 1 << 23, bits.shape, np.uint32)
    masks = np.array([0xFFFF_FFFF, 0xFFF0_0000, 0xFFFF_C000], np.uint32)
    bits &= rng.choice(masks, bits.shape)  # many ties
    bits |= rng.integers(0, 2, bits.shape, np.uint32) << 31
    blocks = narrow.view(ml_dtypes.bfloat16).astype(np.float32)
    return np.concatenate([blocks, bits.view(np.float32)])


@pytest.mark.slow_except(
    "mxfp8_e4m3-neuron",
    "mxfp8_e4m3-ceil",
    "mxfp8_e4m3-rceil",
    "mxfp8_e4m3-even",
)
@each_rule
@each_format
def test_every_bfloat16_as_the_largest_of_a_block(rule: str, name: str) -> None:
    fmt, x = MX_FORMATS[name], all_kinds_of_blocks()
    found = quantize_mx(x, name, scale_rule=rule, block_size=8)
    elements, scales = model(x, rule, fmt)
    np.testing.assert_array_equal(codes(found.scales)[:, 0], scales)
    np.testing.assert_array_equal(codes(found.elements), elements)
    np.testing.assert_array_equal(
        np.asarray(found.dequantize()), model_values(elements, scales, fmt)
    )


@pytest.mark.slow_cases("mxfp8_e5m2-nki_golden")
@pytest.mark.parametrize(
    ("name", "rule"), [*zip(MX_FORMATS, ("neuron", "nki_golden", "even"), strict=True)]
)
def test_fake_quantization_has_the_same_bits(name: str, rule: str) -> None:
    x = all_kinds_of_blocks()
    values, bytes_ = fake_quantize(x, name, scale_rule=rule, block_size=8)
    array = quantize_mx(x, name, scale_rule=rule, block_size=8)
    assert_same((values, bytes_), (array.dequantize(), to_codes(array.scales)))


@pytest.mark.slow
def test_the_model_against_fractions() -> None:
    """Nearest element by exact arithmetic on one binade and both ends."""
    fmt = MX_FORMATS["mxfp8_e4m3"]
    quotients = np.linspace(-500.0, 500.0, 81) / 16
    table = [Fraction(v) for v in magnitudes(fmt).tolist()]
    for quotient, code in zip(quotients.tolist(), model_codes(quotients, fmt)):
        distance = [abs(abs(Fraction(quotient)) - value) for value in table]
        near = [c for c, d in enumerate(distance) if d == min(distance)]
        assert code & 0x7F == min(near, key=lambda c: c % 2)


# ---- Hand-computed.

# Largest magnitude of the block -> exponent of its scale by rule, less -emax.
BELOW_TWO = 2 - 2.0**-23
RAISED = {
    # amax: (ocp_floor, neuron, ceil)
    1.0: (0, 1, 0),
    1 + 2.0**-23: (0, 1, 1),
    1.5: (0, 1, 1),
    BELOW_TWO: (0, 1, 1),
    2.0: (1, 2, 1),
}


@pytest.mark.slow_cases("1.0-mxfp8_e5m2", "1.0-mxfp4_e2m1")
@each_format
@pytest.mark.parametrize("amax", RAISED)
def test_floor_neuron_and_ceil(name: str, amax: float) -> None:
    emax = MX_FORMATS[name].element.max_exponent
    rules = ("ocp_floor", "neuron", "ceil")
    found = [quantized(-amax, format=name, scale_rule=rule)[1] for rule in rules]
    assert found == [127 - emax + raised for raised in RAISED[amax]]


@pytest.mark.slow_cases("mxfp8_e5m2-1.75-112-112", "mxfp4_e2m1-1.5-125-125")
@pytest.mark.parametrize(
    ("name", "amax", "rceil", "even"),
    [
        ("mxfp8_e4m3", 1.75, 119, 119),  # 448 = 1.75 * 2^8
        ("mxfp8_e4m3", 1.75 + 2.0**-23, 120, 119),
        ("mxfp8_e4m3", 1.9375 - 2.0**-23, 120, 119),  # 3 bits: 1.875
        ("mxfp8_e4m3", 1.9375, 120, 120),  # 3 bits: 2
        ("mxfp8_e5m2", 1.75, 112, 112),  # 57,344 = 1.75 * 2^15
        ("mxfp8_e5m2", 1.75 + 2.0**-23, 113, 112),
        ("mxfp8_e5m2", 1.875 - 2.0**-23, 113, 112),
        ("mxfp8_e5m2", 1.875, 113, 113),  # 2 bits: 2
        ("mxfp4_e2m1", 1.5, 125, 125),  # 6 = 1.5 * 2^2
        ("mxfp4_e2m1", 1.5 + 2.0**-23, 126, 125),
        ("mxfp4_e2m1", 1.75 - 2.0**-23, 126, 125),
        ("mxfp4_e2m1", 1.75, 126, 126),  # 1 bit: 2
    ],
)
def test_rceil_and_even(name: str, amax: float, rceil: int, even: int) -> None:
    assert quantized(amax, format=name, scale_rule="rceil")[1] == rceil
    assert quantized(amax, format=name, scale_rule="even")[1] == even


def test_the_example_of_the_two_vendor_rules() -> None:
    """1.96875 alone in a block: 504 saturates, 252 rounds to 256."""
    assert quantized(1.96875, scale_rule="ocp_floor") == ([448.0], 119)
    assert quantized(1.96875, scale_rule="nki_golden") == ([448.0], 119)
    assert quantized(1.96875, scale_rule="neuron") == ([256.0], 120)


def test_elements_round_to_nearest_even_once() -> None:
    # The scale is 2^-2: the quotients are 4, 2.5, 3.5, 5 * 2^-2 and 5 * 2^-4.
    values = (1.0, 0.625, 0.875, 0.3125, 0.078125, -0.0625)
    found = quantized(*values, format="mxfp4_e2m1")
    assert found == ([4.0, 2.0, 4.0, 1.0, 0.5, -0.0], 125)


@pytest.mark.parametrize("rule", BOUNDED)
@each_format
def test_blocks_of_zeros(rule: str, name: str) -> None:
    subnormal = float(np.float32(2.0**-127))
    zeros = quantize_mx(
        block_of(0.0, -0.0, subnormal, -subnormal), name, scale_rule=rule
    )
    sign = 1 << (MX_FORMATS[name].element.width - 1)
    assert codes(zeros.scales).tolist() == [0]
    assert codes(zeros.elements)[:5].tolist() == [0, sign, 0, sign, 0]
    assert codes(zeros.dequantize())[:4].tolist() == [0, 0x8000_0000] * 2


@pytest.mark.parametrize("rule", BOUNDED)
@each_format
def test_a_nan_or_an_inf_makes_the_block_nan(rule: str, name: str) -> None:
    for special in (np.nan, -np.nan, np.inf, -np.inf):
        found = quantize_mx(block_of(1.0, special, -2.0), name, scale_rule=rule)
        assert codes(found.scales).tolist() == [255]
        assert not codes(found.elements).any()
        assert codes(found.dequantize()).tolist() == [0x7FC0_0000] * 32


def test_a_nan_stays_in_its_block() -> None:
    x = np.concatenate([block_of(np.nan), block_of(-3.0)])
    assert np.asarray(quantize_mx(x).dequantize())[32:].tolist() == [-3.0, *[0.0] * 31]


def test_small_scales_stop_at_byte_zero() -> None:
    tiny = 2.0**-126
    assert quantized(tiny * 2**7) == ([256.0], 0)  # 2^-119: -119 - 8 = -127
    assert quantized(tiny * 2**6, -tiny) == ([128.0, -2.0], 0)
    assert quantized(tiny, scale_rule="neuron") == ([2.0], 0)
    assert quantized(tiny, format="mxfp4_e2m1") == ([2.0], 0)
    assert quantized(3 * tiny, format="mxfp4_e2m1") == ([6.0], 0)


def test_results_below_the_normals_are_zeros() -> None:
    x = block_of(2.0**-119, 2.0**-126, -(2.0**-126))
    smaller = MXArray(
        elements=quantize_mx(x).elements.at[3].set(jnp.float8_e4m3fn(-0.5)),
        scales=quantize_mx(x).scales,
        axis=-1,
        format=MX_FORMATS["mxfp8_e4m3"],
    )
    bits = codes(smaller.dequantize())[:4].tolist()
    assert bits == [8 << 23, 1 << 23, 0x8000_0000 | 1 << 23, 0x8000_0000]


def test_large_scales() -> None:
    largest = float(np.finfo(np.float32).max)
    assert quantized(largest) == ([448.0], 246)  # 127 - 8 + 127
    assert quantized(largest, scale_rule="neuron") == ([256.0], 247)
    assert quantized(largest, format="mxfp4_e2m1", scale_rule="neuron")[1] == 253
    array = quantize_mx(block_of(-largest), scale_rule="neuron")
    assert np.asarray(array.dequantize())[0] == -np.inf  # 256 * 2^120
    scales = from_codes(jnp.array([254], jnp.uint8), FLOAT8_E8M0FNU)
    top = MXArray(
        elements=array.elements.at[1].set(jnp.float8_e4m3fn(1.0)),
        scales=scales,
        axis=-1,
        format=array.format,
    )
    assert np.asarray(top.dequantize())[:3].tolist() == [-np.inf, 2.0**127, 0.0]


@pytest.mark.slow
def test_overflow_of_elements() -> None:
    def element(name: str, overflow: str) -> float:
        return quantized(-1.9999, format=name, overflow=overflow)[0][0]

    assert element("mxfp8_e4m3", "saturate") == -448
    assert np.isnan(element("mxfp8_e4m3", "ieee"))
    assert element("mxfp8_e5m2", "saturate") == -57344
    assert element("mxfp8_e5m2", "ieee") == -np.inf
    assert element("mxfp4_e2m1", "ieee") == -6  # it has neither Inf nor NaN


@pytest.mark.parametrize(
    ("name", "zeros", "inf", "largest"),
    [
        ("mxfp8_e4m3", 248, 247, 448),
        ("mxfp8_e5m2", 241, 240, 57344),
        ("mxfp4_e2m1", 254, 253, 6),
    ],
)
def test_the_golden_wraps_around(name: str, zeros: int, inf: int, largest: int) -> None:
    def golden(*values: float) -> tuple[list[float], int]:
        return quantized(*values, format=name, scale_rule="nki_golden")

    assert golden(0.0, -0.0) == ([0.0, 0.0], zeros)
    assert golden(-np.inf, 1.0) == ([-largest, 0.0], inf)
    # Finite members are divided like all others; only large ones remain.
    scale = 2.0 ** (inf - 127)
    assert golden(np.inf, 2.0**127)[0][1] == min(2.0**127 / scale, largest)
    # One binade below the smallest that does not wrap: byte 255, elements zero.
    emax = MX_FORMATS[name].element.max_exponent
    assert golden(2.0 ** (emax - 127), 0.0)[1] == 0
    assert golden(-(2.0 ** (emax - 128)), 0.0) == ([0.0, 0.0], 255)
    (nan, one), byte = golden(np.nan, 1.0)
    assert byte == inf
    assert one == 0
    assert np.isnan(nan) == (name != "mxfp4_e2m1")


def test_the_golden_saturates_only_when_asked() -> None:
    found = quantized(1.96875, scale_rule="nki_golden", overflow="ieee")
    assert np.isnan(found[0][0])
    assert found[1] == 119


# ---- Shapes and dtypes.


@pytest.mark.slow_cases("shape1--2")
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        *(((3, 64, 33), axis) for axis in (-3, -2, -1, 0, 1, 2)),
        *(((70, 1, 5), 0), ((2, 100, 7), -2)),
    ],
)
def test_any_axis_and_ragged_blocks(shape: tuple[int, ...], axis: int) -> None:
    x = normal(*shape)
    found = quantize_mx(x, axis=axis)
    moved = np.moveaxis(x, axis, -1)
    length = moved.shape[-1]
    rows = moved.reshape(-1, length)
    padded = np.pad(rows, [(0, 0), (0, -length % 32)])
    elements, scales = model(padded.reshape(-1, 32), "ocp_floor", found.format)
    elements = elements.reshape(padded.shape)[:, :length].reshape(moved.shape)
    scales = scales.reshape(*moved.shape[:-1], -1)
    assert found.axis == axis % 3 - 3
    assert found.shape == shape
    assert np.moveaxis(codes(found.elements), axis, -1).tolist() == elements.tolist()
    assert np.moveaxis(codes(found.scales), axis, -1).tolist() == scales.tolist()


@pytest.mark.parametrize("shape", [(0,), (5, 0), (0, 32)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    found = quantize_mx(np.zeros(shape, np.float32))
    assert found.dequantize().shape == shape
    assert found.scales.shape == (*shape[:-1], -(-shape[-1] // 32))
    assert found.bits_per_element == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@each_format
def test_16_bit_inputs_are_widened(dtype: Any, name: str) -> None:
    x = normal(8, 64).astype(dtype)
    x[0, 0] = jnp.finfo(dtype).smallest_subnormal
    wide = x.astype(np.float32)
    assert_same(quantize_mx(x, name), quantize_mx(wide, name))
    assert_same(fake_quantize(x, name), fake_quantize(wide, name))


def test_float16_subnormals_count() -> None:
    """They are normal numbers of float32, in which the engine computes."""
    x = block_of(2.0**-24, dtype=np.float16)
    assert quantize_mx(x).dequantize()[0] == 2.0**-24


@pytest.mark.slow_cases("mxfp4_e2m1")
@pytest.mark.parametrize("fmt", [*MX_FORMATS.values()], ids=lambda fmt: fmt.name)
def test_codes_of_elements(fmt: MXFormat) -> None:
    every = jnp.arange(1 << fmt.element.width, dtype=jnp.uint8)
    assert_same(to_codes(from_codes(every, fmt.element)), every)


@pytest.mark.slow
def test_bytes_and_bits() -> None:
    x = np.ones((64, 96), np.float32)
    assert quantize_mx(x).nbytes == 64 * 96 + 64 * 3
    assert quantize_mx(x).bits_per_element == 8.25
    assert quantize_mx(x, "mxfp4_e2m1").nbytes == 64 * 48 + 64 * 3
    assert quantize_mx(x, "mxfp4_e2m1").bits_per_element == 4.25
    assert quantize_mx(np.ones(3, np.float32), "mxfp4_e2m1").nbytes == 3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_dequantize_to_16_bits(dtype: Any) -> None:
    array = quantize_mx(100 * normal(4, 64), "mxfp8_e5m2")
    expected = np.asarray(array.dequantize()).astype(dtype)
    np.testing.assert_array_equal(np.asarray(array.dequantize(dtype)), expected)


@pytest.mark.slow
def test_other_block_sizes() -> None:
    x = normal(2, 40)
    found = quantize_mx(x, block_size=16)
    parts = [quantize_mx(x[:, i : i + 16], block_size=16) for i in (0, 16, 32)]
    assert found.scales.shape == (2, 3)
    np.testing.assert_array_equal(
        codes(found.dequantize()),
        np.concatenate([codes(part.dequantize()) for part in parts], axis=1),
    )


# ---- Transformations: always the same bits.


@pytest.fixture
def wild() -> np.ndarray:
    """[6, 64, 80] float32 over many binades, zeros, NaN, Inf and subnormals."""
    rng = np.random.default_rng(5)
    powers = (
        rng.integers(-12, 12, (6, 64, 80))
        + np.array([0, 0, 0, 100, -110, -126])[:, None, None]
    )
    x = np.ldexp(rng.standard_normal((6, 64, 80)), powers).astype(np.float32)
    x[0, :40], x[1, 3, 3], x[2, 5, 5] = 0, np.nan, -np.inf
    return x


CASES = [
    ("mxfp8_e4m3", "neuron", -1),
    ("mxfp8_e5m2", "nki_golden", -2),
    ("mxfp4_e2m1", "rceil", -2),
]


def case(name: str, rule: str, axis: int) -> Callable[[jax.Array], Any]:
    def function(x: jax.Array) -> Any:
        array = quantize_mx(x, name, axis=axis, scale_rule=rule)
        values = fake_quantize(x, name, axis=axis, scale_rule=rule)
        return array, array.dequantize(), values

    return function


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rule", "axis"), CASES)
def test_eager_jit_vmap_and_scan_agree(
    name: str, rule: str, axis: int, wild: np.ndarray
) -> None:
    function = case(name, rule, axis)
    eager = function(wild)

    def body(carry: jax.Array, row: jax.Array) -> Any:
        return carry, function(row)

    _, scanned = lax.scan(body, jnp.float32(0), jnp.asarray(wild))
    assert_same(jax.jit(function)(wild), eager)
    assert_same(jax.jit(jax.vmap(function))(wild), eager)
    assert_same(scanned, eager)


@pytest.mark.slow
def test_op_by_op(wild: np.ndarray) -> None:
    compiled = fake_quantize(wild[0])
    with jax.disable_jit():
        assert_same(fake_quantize(wild[0]), compiled)


@pytest.mark.slow
@each_format
def test_composed_with_other_arithmetic(name: str) -> None:
    """The input is a product and a sum; the result goes into a product and a sum."""

    def before(x: jax.Array) -> jax.Array:
        return x * jnp.float32(0.37)

    def between(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        array = quantize_mx(x, name, axis=0)
        return array.dequantize(), fake_quantize(x, name, axis=1)[0]

    def after(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.maximum(x, y) * jnp.float32(2)

    x = normal(96, 64)
    fused = jax.jit(lambda x: after(*between(before(x))))(x)
    assert_same(fused, after(*between(before(x))))


@pytest.mark.slow
def test_an_mxarray_is_a_pytree() -> None:
    x = normal(5, 64, 48)
    array = quantize_mx(x, "mxfp4_e2m1", axis=1)
    leaves, structure = jax.tree.flatten(array)
    assert len(leaves) == 2
    assert_same(jax.tree.unflatten(structure, leaves), array)
    assert_same(jax.jit(lambda a: a)(array), array)
    one_by_one = jax.vmap(lambda a: a.dequantize())(array)
    assert_same(one_by_one, array.dequantize())
    _, scanned = lax.scan(lambda c, a: (c, (a, a.dequantize())), 0, array)
    assert_same(scanned, (array, array.dequantize()))
    assert_same(jax.vmap(lambda a: quantize_mx(a, "mxfp4_e2m1", axis=-2))(x), array)


# ---- Stochastic rounding.


@pytest.mark.slow
def test_stochastic_rounding() -> None:
    x = np.tile(np.float32([1.0, 0.3]), (64, 512))
    options: dict[str, Any] = {"format": "mxfp4_e2m1", "rounding": "stochastic"}
    found = quantize_mx(x, **options, seed=7).dequantize()
    # 0.3 is 1.2 quarters: elements 1 and 1.5.
    ups = np.asarray(found[:, 1::2])
    assert set(np.unique(ups)) == {0.25, 0.375}
    assert abs(ups.mean() - 0.3) < 5 * 0.125 * np.sqrt(0.4 * 0.6 / ups.size)
    assert_same(fake_quantize(x, **options, seed=jnp.uint32(7))[0], found)
    seeded = jax.jit(lambda x, seed: quantize_mx(x, **options, seed=seed).dequantize())
    assert_same(seeded(x, jnp.uint32(7)), found)
    assert (np.asarray(seeded(x, jnp.uint32(8))) != np.asarray(found)).any()


def test_rounding_toward_zero() -> None:
    assert quantized(1.96875, rounding="rtz", scale_rule="neuron") == ([240.0], 120)


# ---- Gradients.


@pytest.mark.slow
def test_straight_through() -> None:
    x = normal(4, 64)
    x[0, 0], x[1, 1] = 1.9999, 1e-30

    def loss(x: jax.Array) -> jax.Array:
        values, _ = fake_quantize(x, "mxfp4_e2m1")
        return (values * jnp.arange(64, dtype=jnp.float32)[None]).sum()

    expected = np.broadcast_to(np.arange(64, dtype=np.float32), x.shape)
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        np.testing.assert_array_equal(np.asarray(gradient(x)), expected)
    np.testing.assert_array_equal(
        np.asarray(jax.vmap(jax.grad(lambda row: loss(row[None])))(x)), expected
    )
    values, tangent = jax.jvp(lambda x: fake_quantize(x)[0], (x,), (2 * x,))
    assert_same(values, fake_quantize(x)[0])
    assert_same(tangent, 2 * x)


@pytest.mark.slow
def test_straight_through_keeps_the_dtype_of_the_input() -> None:
    x = jnp.ones((2, 32), jnp.bfloat16)
    gradient = jax.grad(lambda x: fake_quantize(x)[0].sum())(x)
    assert gradient.dtype == jnp.bfloat16
    assert (gradient == 1).all()


# ---- Names and errors.


def test_formats_by_name() -> None:
    fmt = get_mx_format("mxfp8_e4m3")
    assert fmt.element is FLOAT8_E4M3FN
    assert get_mx_format(fmt) is fmt
    with pytest.raises(InvalidProgramError, match="mxfp8_e4m3"):
        get_mx_format("mxfp8_e4m3fn")


def test_what_the_device_quantizes() -> None:
    assert on_device("mxfp8_e5m2", jnp.bfloat16)
    assert on_device("mxfp8_e4m3", np.float16)
    assert not on_device("mxfp8_e4m3", jnp.float32)
    assert not on_device("mxfp4_e2m1", jnp.bfloat16)


BLOCK = np.ones(32, np.float32)


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (BLOCK.astype(np.float64), {}, "float64"),
        (BLOCK.astype(np.int32), {}, "int32"),
        (BLOCK, {"format": "mxfp6"}, "mxfp6"),
        (BLOCK, {"axis": 1}, r"axis=1 .* \(32,\)"),
        (BLOCK, {"axis": -2}, "axis=-2"),
        (np.float32(1), {}, "reshape"),
        (BLOCK, {"block_size": 0}, "block_size=0"),
        (BLOCK, {"scale_rule": "evn"}, "even"),
        (BLOCK, {"rounding": "up"}, "rounding='up'"),
        (BLOCK, {"overflow": "wrap"}, "overflow='wrap'"),
        (BLOCK, {"rounding": "stochastic"}, "seed=None"),
        (BLOCK, {"rounding": "stochastic", "seed": -1}, "seed=-1"),
        (BLOCK, {"rounding": "stochastic", "seed": np.int32(1)}, "uint32"),
    ],
)
@pytest.mark.parametrize("function", [quantize_mx, fake_quantize])
def test_errors(
    function: Callable[..., Any], x: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidProgramError, match=message):
        function(x, **options)


def test_arrays_that_do_not_fit() -> None:
    array = quantize_mx(np.ones((2, 64), np.float32))
    parts: dict[str, Any] = {
        "elements": array.elements,
        "scales": array.scales,
        "axis": -1,
        "format": array.format,
    }
    wrong: dict[str, dict[str, Any]] = {
        "scales' shape": {"axis": -2},
        "axis=1": {"axis": 1},
        "whose elements": {"format": MX_FORMATS["mxfp8_e5m2"]},
        "whose scales": {"scales": to_codes(array.scales)},
    }
    for message, change in wrong.items():
        with pytest.raises(InvalidProgramError, match=message):
            MXArray(**{**parts, **change}).dequantize()
    with pytest.raises(InvalidProgramError, match="int32"):
        array.dequantize(jnp.int32)
