"""MX blocks against the oracle, code by code: rules, formats, corners, layouts."""

from __future__ import annotations

import functools
import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.numerics import microscaling
from tests.oracles import microscaling as oracle

FORMATS = tuple(oracle.FORMATS)
DTYPES = ("float32", "bfloat16", "float16")
COMBINATIONS = tuple(itertools.product(FORMATS, oracle.RULES))


def quantize(x: jax.Array, name: str, rule: str, axis: int = -1) -> tuple:
    """(elements, scales, dequantized)."""
    blocks = microscaling.quantize_mx(x, name, axis=axis, scale_rule=rule)
    return blocks.elements, blocks.scales, blocks.dequantize()


@jax.jit
def quantize_all_jit(x: jax.Array) -> dict:
    """What `quantize` returns for all `COMBINATIONS`, along the last axis."""
    return {pair: quantize(x, *pair) for pair in COMBINATIONS}


@functools.cache
def quantizer(name: str, rule: str, axis: int):
    """One combination, compiled."""
    return jax.jit(functools.partial(quantize, name=name, rule=rule, axis=axis))


def check(x: np.ndarray, out: tuple, name: str, rule: str, axis: int = -1) -> None:
    """Codes, bytes and numbers of (elements, scales, dequantized).

    What the vendor's golden makes of FP32 subnormals has a test of its own.
    """
    codes, scales = oracle.quantize(x, name, axis=axis, rule=rule)
    numbers = oracle.dequantize(codes, scales, name, axis=axis)
    label = f"{name} {rule} {x.dtype} {x.shape} axis {axis}"
    elements, bytes_ = (np.asarray(part).view(np.uint8) for part in out[:2])
    assert (elements.shape, bytes_.shape) == (codes.shape, scales.shape), label
    got = np.asarray(out[2])
    assert (got.dtype, got.shape) == (np.float32, x.shape), label
    wide = np.asarray(x, np.float32)
    if rule == oracle.GOLDEN:
        subnormal = (np.abs(wide) < 2.0**-126) & (wide != 0)
        elements = np.where(subnormal, codes, elements)
        got = np.where(subnormal, numbers, got)
    elements, codes = (_one_nan(part, wide, name) for part in (elements, codes))
    for part, want in ((bytes_, scales), (elements, codes)):
        _same(*(np.moveaxis(a, axis, -1) for a in (part, want, wide)), label)
    np.testing.assert_array_equal(got, numbers, label)
    signed = ~np.isnan(numbers) & ~np.isnan(wide)
    assert np.array_equal(np.signbit(got[signed]), np.signbit(numbers[signed])), label


def _one_nan(codes: np.ndarray, x: np.ndarray, name: str) -> np.ndarray:
    """A single code for NaN; a NaN in FP4 is a zero whose sign nobody promises."""
    fmt = oracle.FORMATS[name]
    magnitude = codes & ((1 << fmt.sign_bit) - 1)
    if fmt.nan_code is None:
        return np.where(np.isnan(x), magnitude, codes)
    first = (fmt.infinity_code or fmt.largest_code) + 1
    return np.where(magnitude >= first, fmt.nan_code, codes)


def _same(got: np.ndarray, want: np.ndarray, x: np.ndarray, label: str) -> None:
    """Equal bytes; the message shows the first block that differs."""
    wrong = np.argwhere(got != want)
    if not len(wrong):
        return
    *row, last = wrong[0]
    block = last if got.shape != x.shape else last // oracle.BLOCK
    values = x[(*row, slice(block * oracle.BLOCK, (block + 1) * oracle.BLOCK))]
    at = tuple(wrong[0])
    raise AssertionError(
        f"{label}: {len(wrong)} of {got.size} differ; at {at} expected "
        f"{want[at]:#04x}, got {got[at]:#04x}; block {values.tolist()}"
    )


# ---- Corners.


def significands() -> np.ndarray:
    """Fractions at which some rule turns, and their neighbours, as FP32 field bits."""
    turns = [int(t * 2**23) for t in (0, 0.5, 0.75, 0.875, 0.9375, 0.96875)]
    near = {t + d & 0x7FFFFF for t in turns for d in (-1, 0, 1)}
    # BF16 and FP16 keep only 7 and 10 digits of the fraction.
    near |= {t + d & 0x7FFFFF for t in turns for d in (-(1 << 16), 1 << 13, 1 << 16)}
    return np.array(sorted(near), np.uint32)


def largest_of_blocks(exponents: list[int]) -> np.ndarray:
    """Every significand with every exponent."""
    fields = np.array([e + 127 for e in exponents], np.uint32) << 23
    return (fields[:, None] | significands()).ravel().view(np.float32)


def around(rng: np.random.Generator, amax: np.ndarray, length: int) -> np.ndarray:
    """Blocks with amax at a random place among smaller numbers of all sizes."""
    shape = (len(amax), length)
    shrink = rng.random(shape) * np.exp2(-rng.integers(0, 24, shape))
    blocks = amax[:, None].astype(np.float64) * shrink
    blocks[np.arange(len(amax)), rng.integers(0, length, len(amax))] = amax
    signs = rng.choice([-1.0, 1.0], shape)
    return (blocks * signs).astype(np.float32)


def ties(name: str, digits: int) -> np.ndarray:
    """Elements between all pairs of neighbours of a format, below a fixed amax."""
    fmt = oracle.FORMATS[name]
    numbers = np.array([oracle.decode(c, name) for c in range(fmt.largest_code + 1)])
    middle = (numbers[1:] + numbers[:-1]) / 2
    beside = [middle * (1 + d * 2.0**-digits) for d in (-1, 0, 1)]
    beside = np.concatenate([*beside, [fmt.largest * 1.03, fmt.largest * 1.14]])
    beside = np.resize(beside, (-(-len(beside) // 31), 31))
    amax = np.full((len(beside), 1), 2.0**fmt.emax)
    return np.concatenate([amax, -beside], 1).astype(np.float32)


def special_blocks() -> np.ndarray:
    rows = [
        [0.0] * 32,
        [-0.0] * 32,
        [0.0, -0.0] * 16,
        [np.nan] + [1.0] * 31,
        [-1.0] * 31 + [np.nan],
        [1.0, -2.0] * 15 + [np.inf, 0.0],
        [-np.inf] * 32,
        [np.inf, np.nan] * 16,
        [np.nan, -0.0] * 16,
        [np.finfo(np.float32).max, -1.0] * 16,
        [np.finfo(np.float32).tiny, -np.finfo(np.float32).tiny] * 16,
    ]
    return np.array(rows, np.float32)


def subnormal_blocks(rng: np.random.Generator) -> np.ndarray:
    """FP32 subnormals, alone and beside small normal numbers."""
    small = rng.integers(1, 2**23, (8, 32)).astype(np.uint32)
    small |= rng.integers(0, 2, small.shape).astype(np.uint32) << 31
    alone = small.view(np.float32)
    mixed = alone.copy()
    mixed[:, 5] = np.exp2(-np.arange(126.0, 110.0, -2.0))
    return np.concatenate([alone, mixed])


def corners(dtype: str) -> np.ndarray:
    """[blocks, 32] of a dtype."""
    rng = np.random.default_rng(0)
    if dtype == "float16":
        exponents = [-24, -20, -15, -14, -10, -1, 0, 7, 14, 15]
    else:
        ends = [-126, -125, -124, -120, -119, -118, -117, -112, -111, 120, 126, 127]
        exponents = [*ends, -9, -1, 0, 8]
    parts = [special_blocks(), around(rng, largest_of_blocks(exponents), 32)]
    parts += [ties(name, 9 if dtype == "float16" else 6) for name in FORMATS]
    if dtype != "float16":
        parts.append(subnormal_blocks(rng))
    with np.errstate(over="ignore"):
        return np.concatenate(parts).astype(jnp.dtype(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_corners_of_every_rule_and_format(dtype):
    x = corners(dtype)
    compiled = quantize_all_jit(jnp.asarray(x))
    for name, rule in COMBINATIONS:
        check(x, compiled[name, rule], name, rule)


@pytest.mark.slow_except("neuron:alternative")
@pytest.mark.parametrize("rule", oracle.ALTERNATIVES)
def test_alternative_largest_exponents(rule):
    """Scales are twice those of the standard mode in FP8, and the same in FP4."""
    exponents = [-126, -120, -118, -112, -1, 0, 8, 126, 127]
    x = around(np.random.default_rng(3), largest_of_blocks(exponents), 32)
    for name in FORMATS:
        found = quantizer(name, rule, -1)(jnp.asarray(x))
        check(x, found, name, rule)


def assert_same_bits(got, want, label) -> None:
    """Of (elements, scales, dequantized), whose NaNs have one code by now."""
    for part, expected in zip(got, want, strict=True):
        assert (part.dtype, part.shape) == (expected.dtype, expected.shape), label
        assert np.asarray(part).tobytes() == np.asarray(expected).tobytes(), label


@pytest.mark.slow_except("bfloat16")
@pytest.mark.parametrize("dtype", DTYPES)
def test_eager_equals_compiled(dtype):
    x = jnp.asarray(corners(dtype))
    compiled = quantize_all_jit(x)
    for name, rule in COMBINATIONS[:: 1 if dtype == "float32" else 9]:
        eager = quantize(x, name, rule)
        assert_same_bits(eager, compiled[name, rule], (name, rule))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rule"), COMBINATIONS[1::10])
def test_op_by_op_and_vmap_equal_compiled(name, rule):
    x = jnp.asarray(corners("float32")[::40])
    compiled = quantizer(name, rule, -1)(x)
    with jax.disable_jit():
        assert_same_bits(quantize(x, name, rule), compiled, "op by op")
    batched = jax.vmap(functools.partial(quantize, name=name, rule=rule))(x)
    assert_same_bits(batched, compiled, "vmap")


# ---- Lengths, axes and ranks.


LENGTHS = (1, 31, 33, 63, 64, 100)


@pytest.mark.slow_cases("2-33", "3-63", "4-64")
@pytest.mark.parametrize(("first", "length"), [*enumerate(LENGTHS)])
def test_ragged_blocks(first, length):
    rng = np.random.default_rng(length)
    x = around(rng, largest_of_blocks([-126, -118, -3, 2, 127]), length)
    name, rule = COMBINATIONS[first * 3 + first % 3]
    check(x, quantizer(name, rule, -1)(x), name, rule)


SHAPES = [
    ((40,), (0,)),
    ((33, 5), (0, -1)),
    ((3, 70, 2), (1, -1, 0)),
    ((2, 3, 4, 34), (3,)),
    ((34, 2, 1, 3), (-4, 2)),
]


@pytest.mark.slow_except("(2, 3, 4, 34)-(3,)")
@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_axes_and_ranks(shape, axes):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-9, 10, shape))
    x = x.astype(np.float32)
    pairs = itertools.cycle(COMBINATIONS[::4])
    for axis, (name, rule) in zip(axes, pairs, strict=False):
        check(x, quantizer(name, rule, axis)(x), name, rule, axis)


@st.composite
def arrays(draw):
    """Three rows of FP32 bits: any numbers, finite ones, or ones of two binades."""
    shape = (3, 40)
    kind = draw(st.sampled_from(["any", "finite", "near"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bits = rng.integers(0, 2**32, shape, dtype=np.uint32)
    if kind == "near":
        field = draw(st.integers(1, 253))
        wide = rng.integers(field, field + 2, shape, dtype=np.uint32)
        bits = bits & np.uint32(0x807FFFFF) | wide << 23
    x = bits.view(np.float32)
    if kind == "finite":
        x = np.where(np.isfinite(x), x, np.float32(1))
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(jnp.dtype(draw(st.sampled_from(("float32", "bfloat16")))))


@pytest.mark.slow
@hypothesis.settings(max_examples=40)
@hypothesis.given(x=arrays())
def test_arbitrary_bits(x):
    compiled = quantize_all_jit(jnp.asarray(x))
    for name, rule in COMBINATIONS:
        check(x, compiled[name, rule], name, rule)


# ---- Every 16-bit number as the largest of a block.


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_largest_number(dtype):
    """Of 16-bit formats all; of FP32 those of BF16 with random digits behind."""
    rng = np.random.default_rng(2)
    codes = np.arange(2**15, dtype=np.uint16)
    if dtype == "float32":
        low = rng.integers(0, 2**16, len(codes), dtype=np.uint32)
        amax = (codes.astype(np.uint32) << 16 | low).view(np.float32)
    else:
        amax = codes.view(jnp.dtype(dtype)).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        x = around(rng, amax, 32).astype(jnp.dtype(dtype))
    compiled = quantize_all_jit(jnp.asarray(x))
    for name, rule in COMBINATIONS:
        check(x, compiled[name, rule], name, rule)
