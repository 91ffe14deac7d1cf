"""Rounding between float32 and every other format, by arithmetic on uint32 bits.

This is the rounding step of an engine's write: `round_to_format` (values stay float32),
`cast` (an array of the target dtype), `encode` (integer codes) and `round_to_int`;
`widening` converts back. It uses no float operation that XLA could elide, contract or
flush, so the bits are the same eagerly, under `jax.jit`, and on every host.
`round_to_format` lists the rules. Scaling and MX blocks are in `microscaling`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.elementary_core import MANTISSA
from neuronjax.numerics.float_format import FLOAT32, FloatFormat
from neuronjax.numerics.widening import (
    SIGN,
    bits_of,
    decode_words,
    float_of,
    from_codes,
    require,
)

Rounding = Literal["rne", "rtz", "half_away", "stochastic"]
Overflow = Literal["ieee", "saturate"]
IntegerMode = Literal["rne", "truncate", "half_away"]

_INF = np.uint32(0x7F80_0000)
_IMPLICIT = np.uint32(0x0080_0000)  # also the smallest normal float32
_HALF = np.uint32(0x8000_0000)  # 1/2 in units of 2^-32
_MANTISSA_BITS = np.uint32(23)
# The most bits that are dropped: by rounding to nearest, and by stochastic rounding.
# With 25 bits dropped, a 24-bit significand is below half a step; with 56, it is below
# 2^-32 steps, the unit of fractions. To drop more would change nothing.
_DEEP, _DEEPEST = 31, 56
_ONE = np.uint32(1)
_ZERO = np.uint32(0)


class _Bracket(NamedTuple):
    """The position of a magnitude between two neighbouring codes; all fields are
    uint32. From `floor` to `floor + 1` is a step. The magnitude is `fraction` * 2^-32
    steps above `floor`; smaller parts of a step are dropped. `odd` is the parity of the
    significand of `floor`."""

    floor: jax.Array
    fraction: jax.Array
    odd: jax.Array


# Each function returns whether the result is `floor + 1` rather than `floor`, given the
# bracket and the random bits.
_ROUNDS_UP: dict[str, Callable[[_Bracket, jax.Array], jax.Array]] = {
    "rne": lambda bracket, _: bracket.fraction > _HALF - bracket.odd,
    "rtz": lambda bracket, _: jnp.zeros_like(bracket.fraction, jnp.bool_),
    "half_away": lambda bracket, _: bracket.fraction >= _HALF,
    # the carry out of 32 bits
    "stochastic": lambda bracket, random: bracket.fraction + random < random,
}
_INTEGER_ROUNDS_UP = {
    "rne": _ROUNDS_UP["rne"],
    "truncate": _ROUNDS_UP["rtz"],
    "half_away": _ROUNDS_UP["half_away"],
}
_SATURATES = {"ieee": False, "saturate": True}


def round_to_format(
    x: jax.Array,
    fmt: FloatFormat,
    *,
    rounding: Rounding = "rne",
    overflow: Overflow = "ieee",
    random_bits: jax.Array | None = None,
    random_bit_count: int = 32,
) -> jax.Array:
    """Round float32 values to those that `fmt` represents.

    - float32 subnormals are read as zeros of the same sign; subnormals of a narrower
      target are kept. So bfloat16 and tfloat32 results are never subnormal.
    - Every NaN becomes `fmt.nan_code`, the quiet NaN without payload, of the same sign
      (in a format without NaN, a zero of the other sign), as in ml_dtypes.
    - Overflow "ieee" goes to Inf, to NaN (e4m3fn, e8m0) or to the largest value (e2m1);
      with "rtz", finite values stop at the largest, as IEEE 754 says. "saturate" goes
      to the largest value, from Inf too (OCP OFP8 1.0).
    - In e8m0 zeros and negative numbers become NaN, and ties go up.

    Args:
        x: float32, any shape.
        fmt: the target format.
        rounding: "rne" (nearest, ties to even), "rtz" (toward zero), "half_away"
            (nearest, ties away from zero) or "stochastic" (up with the probability of
            the discarded fraction, in units of 2^-32).
        overflow: "ieee" or "saturate", as above.
        random_bits: uint32 of the shape of `x`; for "stochastic" only.
        random_bit_count: how many of the random bits, from the top, are used (1 to 32).
            Fewer make the rounding biased toward zero: discarded bits beyond the count
            are truncated. The hardware's count is not documented.

    Returns:
        float32 of the shape of `x`, each value exactly representable in `fmt`.

    Raises:
        InvalidProgramError: `x` is not float32, an option is unknown, or the random
            bits are missing, of another shape or dtype, or counted outside 1 to 32.
    """
    rounded = _round(x, fmt, rounding, overflow, random_bits, random_bit_count)
    if _keeps_exponent(fmt):  # the code is the top of a float32
        missing = 32 - fmt.width - fmt.padding_bits
        bits = rounded << np.uint32(missing) if missing else rounded
        return float_of(bits)
    return decode_words(rounded, fmt)


def round_to_codes(x: jax.Array, fmt: FloatFormat, **options: Any) -> jax.Array:
    """Round `x` to `fmt.code_dtype` codes, with the options of `round_to_format`."""
    return _round(x, fmt, **options).astype(fmt.code_dtype)


def cast(x: jax.Array, fmt: FloatFormat, **options: Any) -> jax.Array:
    """Round `x` to an array of `fmt.dtype`, with the options of `round_to_format`."""
    rounding = options.get("rounding", "rne"), options.get("overflow", "ieee")
    if fmt.dtype == jnp.float16 and rounding == ("rne", "ieee"):
        require(x, jnp.float32, "x")
        return _converted(x, fmt)
    return from_codes(_round(x, fmt, **options), fmt)


def encode(x: jax.Array, fmt: FloatFormat) -> jax.Array:
    """Return the codes of float32 values that `fmt` represents exactly.

    This inverts `decode`, except for NaN payloads. Subnormals are not flushed, because
    nothing is computed with them. Values that are not representable are truncated.

    Returns:
        Codes of dtype `fmt.code_dtype`, of the shape of `x`; tfloat32 codes are left
        aligned.

    Raises:
        InvalidProgramError: `x` is not float32.
    """
    require(x, jnp.float32, "x")
    magnitude, sign = _split(x)
    floor = _bracket(magnitude, fmt, ceiling(fmt)).floor
    codes = _specials(floor, magnitude, sign, fmt)
    return codes.astype(fmt.code_dtype)


def round_to_int(x: jax.Array, dtype: Any, *, mode: IntegerMode = "rne") -> jax.Array:
    """Convert float32 values to integers, saturating at the range of `dtype`.

    "rne" is the rounding of an engine's write, "truncate" that of `stablehlo.convert`,
    and "half_away" takes ties away from zero. NaN gives 0: StableHLO leaves it to the
    implementation, and XLA on CPU gives 0.

    Raises:
        InvalidProgramError: `x` is not float32, the mode is unknown, or a 64-bit dtype
            is requested while JAX has them disabled.
    """
    require(x, jnp.float32, "x")
    rounds_up = choose("mode", mode, _INTEGER_ROUNDS_UP)
    info = jnp.iinfo(dtype)
    word = _word_for(info)
    magnitude, sign = _split(x)
    exponent = magnitude >> _MANTISSA_BITS
    bracket, up_shift = _integer_bracket(magnitude, exponent)
    up = rounds_up(bracket, magnitude).astype(jnp.uint32)  # no mode here is random
    whole = (bracket.floor + up).astype(word)
    word_bits = np.uint32(jnp.iinfo(word).bits)
    whole <<= jnp.minimum(up_shift, word_bits - np.uint32(24)).astype(word)
    limit = jnp.where(sign == _ZERO, word(info.max), word(-int(info.min)))
    is_huge = exponent >= np.uint32(127) + word_bits
    whole = jnp.where(is_huge, limit, jnp.minimum(whole, limit))
    whole = jnp.where(magnitude > _INF, word(0), whole)
    return jnp.where(sign == _ZERO, whole, word(0) - whole).astype(dtype)


def _round(
    x: jax.Array,
    fmt: FloatFormat,
    rounding: Rounding = "rne",
    overflow: Overflow = "ieee",
    random_bits: jax.Array | None = None,
    random_bit_count: int = 32,
) -> jax.Array:
    require(x, jnp.float32, "x")
    rounds_up = choose("rounding", rounding, _ROUNDS_UP)
    saturates = choose("overflow", overflow, _SATURATES)
    random = _top_bits(x, rounding, random_bits, random_bit_count)
    if rounding == "rne" and not saturates and _keeps_exponent(fmt):
        return _nearest_even_same_exponent(x, fmt)
    magnitude, sign = _split(x)
    # Formats of fewer exponent bits round FP32 subnormals to zero anyway.
    if fmt.exponent_bits == FLOAT32.exponent_bits:
        magnitude = jnp.where(magnitude < _IMPLICIT, _ZERO, magnitude)  # FTZ
    stops = saturates or rounding == "rtz"
    most = ceiling(fmt, stops)
    if rounding == "rne" and fmt.exponent_bits < FLOAT32.exponent_bits:
        code = _nearest_even_narrow(jnp.minimum(magnitude, most), fmt)
        return _specials(code, magnitude, sign, fmt)
    deepest = _DEEPEST if rounding == "stochastic" else _DEEP
    bracket = _bracket(magnitude, fmt, most, deepest)
    code = bracket.floor + rounds_up(bracket, random).astype(jnp.uint32)
    if stops and not saturates:
        code = jnp.where(magnitude == _INF, np.uint32(fmt.overflow_code), code)
    return _specials(code, magnitude, sign, fmt)


def _converted(x: jax.Array, fmt: FloatFormat) -> jax.Array:
    """Return FP16 by the host's conversion, which rounds as `_nearest_even_narrow`
    except for NaN. XLA cannot drop the conversion, because its result is read as an
    integer."""
    code = lax.bitcast_convert_type(x.astype(fmt.dtype), jnp.uint16)
    nan = (code & np.uint16(0x8000)) | np.uint16(fmt.nan_code)
    return lax.bitcast_convert_type(lax.select(x != x, nan, code), fmt.dtype)


def ceiling(fmt: FloatFormat, stops_at_max: bool = False) -> np.uint32:
    """Return the float32 bits to which larger magnitudes are clamped before rounding:
    `fmt.max_finite` if overflows become this number, else the number one step above."""
    largest = np.float32(fmt.max_finite).view(np.uint32)
    if stops_at_max or fmt.overflow_code == fmt.max_code:
        return largest
    return largest + (_ONE << np.uint32(FLOAT32.mantissa_bits - fmt.mantissa_bits))


def _keeps_exponent(fmt: FloatFormat) -> bool:
    """Return whether a format (bfloat16, tfloat32) is float32 with fewer bits."""
    same = fmt.exponent_bits == FLOAT32.exponent_bits and fmt.signed and fmt.has_inf
    return same and fmt.mantissa_bits < FLOAT32.mantissa_bits


def _nearest_even_same_exponent(x: jax.Array, fmt: FloatFormat) -> jax.Array:
    """Return codes with signs, in a third of the operations of `_bracket`: add half a
    step, less one unit if the kept bits are even. A carry raises the exponent."""
    bits = bits_of(x)
    drop = np.uint32(FLOAT32.mantissa_bits - fmt.mantissa_bits)
    half = (_ONE << (drop - _ONE)) - _ONE
    high = bits >> drop
    sign = high & np.uint32(1 << (fmt.width - 1))
    code = (bits + ((high & _ONE) + half)) >> drop
    code = lax.select((bits & _INF) == _ZERO, sign, code)  # FTZ
    code = lax.select(x != x, sign | np.uint32(fmt.nan_code), code)
    return code << np.uint32(fmt.padding_bits) if fmt.padding_bits else code


def _nearest_even_narrow(magnitude: jax.Array, fmt: FloatFormat) -> jax.Array:
    """Return codes of magnitudes up to `ceiling`, in half of `_bracket`'s operations.

    One FP32 addition rounds: to the magnitude it adds the power of two whose last place
    is the step of `fmt` around the magnitude. The sum minus the power is the rounded
    significand in such steps; added to the exponent field (less one), it yields the
    code, as in `_bracket_narrow_exponent`. XLA can neither drop nor contract an
    addition between two bitcasts, and a magnitude that it flushes would round to zero
    anyway.
    """
    fewest = np.uint32(FLOAT32.mantissa_bits - fmt.mantissa_bits)
    lowest = np.uint32((FLOAT32.bias + fmt.min_exponent) << FLOAT32.mantissa_bits)
    binade = jnp.maximum(magnitude & _INF, lowest)
    power = binade + (fewest << _MANTISSA_BITS)
    significand = bits_of(float_of(magnitude) + float_of(power)) - power
    return (binade >> fewest) - (lowest >> fewest) + significand


def _split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    bits = bits_of(x)
    return bits & ~SIGN, bits & SIGN


def _bracket(
    magnitude: jax.Array, fmt: FloatFormat, most: np.uint32, deepest: int = _DEEP
) -> _Bracket:
    if fmt.exponent_bits == FLOAT32.exponent_bits:
        return _bracket_same_exponent(jnp.minimum(magnitude, most), fmt)
    return _bracket_narrow_exponent(magnitude, fmt, most, deepest)


def _bracket_same_exponent(magnitude: jax.Array, fmt: FloatFormat) -> _Bracket:
    drop = np.uint32(FLOAT32.mantissa_bits - fmt.mantissa_bits)
    if drop == 0:
        zeros = jnp.zeros_like(magnitude)
        return _Bracket(magnitude, zeros, zeros)
    return _Bracket(
        floor=magnitude >> drop,
        fraction=magnitude << (np.uint32(32) - drop),
        # With its implicit bit, a one-digit significand (e8m0) is always odd, so ties
        # go up (IEEE 754-2019, 4.3.1).
        odd=((magnitude | _IMPLICIT) >> drop) & _ONE,
    )


def _bracket_narrow_exponent(
    magnitude: jax.Array, fmt: FloatFormat, most: np.uint32, deepest: int
) -> _Bracket:
    """Return the bracket in a format with fewer exponent bits than float32. Each power
    of two below the smallest normal number of the format drops one more bit.

    The significand counts from 2^mantissa_bits in normal values, so adding it to the
    exponent field (less one) yields the code, and a carry runs into the exponent.
    Magnitudes so small that more than `deepest` bits would drop are raised until
    `deepest` bits drop. They still round to 0, and zero is no special case.
    """
    lowest = FLOAT32.bias + fmt.min_exponent
    fewest = FLOAT32.mantissa_bits - fmt.mantissa_bits
    bottom = np.uint32((lowest + fewest - deepest) << FLOAT32.mantissa_bits)
    magnitude = jnp.clip(magnitude, bottom, most)
    exponent = magnitude >> _MANTISSA_BITS
    clamped = jnp.maximum(exponent, np.uint32(lowest))
    drop = clamped - exponent + np.uint32(fewest)
    significand = (magnitude & MANTISSA) | _IMPLICIT
    # No shift may reach 32 bits; `fewest` is 13 or more.
    near = jnp.minimum(drop, np.uint32(31)) if deepest > _DEEP else drop
    whole = significand >> near
    fraction = significand << (np.uint32(32) - near)
    return _Bracket(
        floor=((clamped - np.uint32(lowest)) << np.uint32(fmt.mantissa_bits)) + whole,
        fraction=fraction >> (drop - near) if deepest > _DEEP else fraction,
        odd=whole & _ONE,
    )


def _specials(
    code: jax.Array, magnitude: jax.Array, sign: jax.Array, fmt: FloatFormat
) -> jax.Array:
    nan_code = np.uint32(fmt.nan_code)
    code = jnp.where(magnitude > _INF, nan_code, code)
    if not fmt.signed:
        is_positive = (sign == _ZERO) & (magnitude != _ZERO)
        return jnp.where(is_positive, code, nan_code)
    padding = np.uint32(fmt.padding_bits)
    if padding:
        code = code << padding
    return code ^ (sign >> (np.uint32(32 - fmt.width) - padding))


def _integer_bracket(
    magnitude: jax.Array, exponent: jax.Array
) -> tuple[_Bracket, jax.Array]:
    """Return the bracket of a magnitude between two integers, and the number of bits by
    which the rounded magnitude must be shifted left: 0 below 2^24."""
    unit = np.uint32(FLOAT32.bias + FLOAT32.mantissa_bits)  # where one ulp is 1
    drop = jnp.minimum(unit - jnp.minimum(exponent, unit), np.uint32(31))
    significand = (magnitude & MANTISSA) | _IMPLICIT
    whole = significand >> drop
    fraction = (significand << (np.uint32(31) - drop)) << _ONE
    up_shift = jnp.maximum(exponent, unit) - unit
    return _Bracket(whole, fraction, whole & _ONE), up_shift


def _word_for(info: Any) -> type[np.unsignedinteger[Any]]:
    if info.bits <= 32:
        return np.uint32
    if jax.dtypes.canonicalize_dtype(np.uint64) != np.uint64:
        raise InvalidProgramError(
            f"conversion to {info.dtype} while JAX has 64-bit types disabled",
            remedy='set jax.config.update("jax_enable_x64", True)',
        )
    return np.uint64


def _top_bits(
    x: jax.Array, rounding: str, random_bits: jax.Array | None, count: int
) -> jax.Array:
    """Return `random_bits` with only the top `count` bits, or 0 if none are used."""
    if rounding != "stochastic":
        return jnp.zeros((), jnp.uint32)
    if random_bits is None or random_bits.shape != x.shape:
        given = None if random_bits is None else random_bits.shape
        raise InvalidProgramError(
            f"the random bits have shape {given}, but x has shape {x.shape}",
            remedy="pass random_bits=neuronjax.numerics.random_bits.random_bits(...)",
        )
    require(random_bits, jnp.uint32, "random_bits")
    if not 1 <= count <= 32:
        raise InvalidProgramError(
            f"random_bit_count={count}", remedy="use a count from 1 to 32"
        )
    return random_bits & np.uint32(0xFFFF_FFFF << (32 - count) & 0xFFFF_FFFF)


def choose(option: str, value: str, table: dict[str, Any]) -> Any:
    """Return the entry of a table for an option's value, or refuse the value."""
    if value not in table:
        raise InvalidProgramError(
            f"{option}={value!r}", remedy=f"use one of: {', '.join(table)}"
        )
    return table[value]
