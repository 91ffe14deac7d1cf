"""OCP MX blocks in Python integers: quantized, and read back.

Inputs are FP32, BF16 or FP16 NumPy arrays, results element codes and E8M0 bytes, all
of dtype uint8; an FP4 code fills the low four bits. A value is held as an integer times
a power of two, so each quotient is exact and is rounded once, to nearest even, with
saturation. OCP MX 1.0, sections 5 and 6.3; section 5 of the design. Only the rule
`nki_golden` keeps FP32 subnormals: all others count them as zero.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

BLOCK = 32
BIAS = 127
NAN_SCALE = 0xFF
_NORMAL = 2.0**-126


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """An element format: field widths, exponent bias, and the special codes.

    `emax` is the exponent of the largest finite number `largest`, whose code is
    `largest_code`. FP4 has no `nan_code`, and only e5m2 has infinities.
    """

    mantissa_bits: int
    sign_bit: int
    bias: int
    emax: int
    largest: int
    largest_code: int
    nan_code: int | None
    infinity_code: int | None = None

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.bias


FORMATS = {
    "mxfp8_e4m3": Format(
        mantissa_bits=3,
        sign_bit=7,
        bias=7,
        emax=8,
        largest=448,
        largest_code=0x7E,
        nan_code=0x7F,
    ),
    "mxfp8_e5m2": Format(
        mantissa_bits=2,
        sign_bit=7,
        bias=15,
        emax=15,
        largest=57344,
        largest_code=0x7B,
        nan_code=0x7E,
        infinity_code=0x7C,
    ),
    "mxfp4_e2m1": Format(
        mantissa_bits=1,
        sign_bit=3,
        bias=1,
        emax=2,
        largest=6,
        largest_code=0x7,
        nan_code=None,
    ),
}


# ---- Scales: the exponent of X, before it is clamped into a byte.


def floor_log2(x: Fraction) -> int:
    """Largest e with 2^e <= x, for positive x."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def ceil_log2(x: Fraction) -> int:
    """Smallest e with x <= 2^e, for positive x."""
    return -floor_log2(1 / x)


def _ocp_floor(amax: Fraction, fmt: Format) -> int:
    """OCP MX 1.0, section 6.3."""
    return floor_log2(amax) - fmt.emax


def _neuron(amax: Fraction, fmt: Format) -> int:
    """`nki.isa.quantize_mx` since NKI 0.5.0: hardware facts, section 5.2."""
    return floor_log2(amax) - (fmt.emax - 1)


def _ceil(amax: Fraction, fmt: Format) -> int:
    """torchao `ScaleCalculationMode.CEIL`."""
    return ceil_log2(amax) - fmt.emax


def _rceil(amax: Fraction, fmt: Format) -> int:
    """torchao `ScaleCalculationMode.RCEIL`, with an exact quotient."""
    return ceil_log2(amax / fmt.largest)


def _even(amax: Fraction, fmt: Format) -> int:
    """torchao `ScaleCalculationMode.EVEN`: amax first rounded to the element's digits.

    torchao rounds halves up, which gives the same exponent: only a significand that
    becomes 2 counts, and from the number below 2, an odd one, both ways round up.
    """
    quantum = Fraction(2) ** (floor_log2(amax) - fmt.mantissa_bits)
    return floor_log2(round(amax / quantum) * quantum) - fmt.emax


def _alternative(rule: Callable[[Fraction, Format], int]) -> Any:
    """The compiler's mode: emax is 7 in E4M3, 14 in E5M2 and as ever in FP4."""
    emax = {15: 14, 8: 7, 2: 2}
    return lambda amax, fmt: rule(amax, fmt) + fmt.emax - emax[fmt.emax]


SCALE_RULES: dict[str, Callable[[Fraction, Format], int]] = {
    "ocp_floor": _ocp_floor,
    "neuron": _neuron,
    "ceil": _ceil,
    "rceil": _rceil,
    "even": _even,
}
ALTERNATIVES = {
    f"{name}:alternative": _alternative(r) for name, r in SCALE_RULES.items()
}
GOLDEN = "nki_golden"
RULES = (*SCALE_RULES, GOLDEN)


# ---- One block. FP32 numbers are their bits.


def quantize_block(
    block: Sequence[int], name: str, rule: str = "ocp_floor"
) -> tuple[list[int], int]:
    """(element codes, scale byte) of the FP32 bits of a block of any length."""
    fmt = FORMATS[name]
    if rule == GOLDEN:
        return _quantize_golden(block, fmt)
    if any(bits & 0x7F800000 == 0x7F800000 for bits in block):
        return [0] * len(block), NAN_SCALE
    block = [bits if bits & 0x7F800000 else bits & 0x80000000 for bits in block]
    significand, exponent = magnitude(max(bits & 0x7FFFFFFF for bits in block))
    byte = 0
    if significand:
        amax = significand * Fraction(2) ** exponent
        exponent = (SCALE_RULES | ALTERNATIVES)[rule](amax, fmt)
        byte = min(max(exponent + BIAS, 0), 254)
    return [encode(bits, byte - BIAS, fmt) for bits in block], byte


def _quantize_golden(block: Sequence[int], fmt: Format) -> tuple[list[int], int]:
    """The vendor's `quantize_mx_golden`: hardware facts, section 5.3.

    The largest exponent field less emax wraps around in 8 bits; the quotient is taken
    in float64, so that subnormals count; Inf saturates, and NaN stays NaN.
    """
    field = max(bits >> 23 & 0xFF for bits in block)
    byte = (field - fmt.emax) % 256
    return [_encode_any(bits, byte - BIAS, fmt) for bits in block], byte


def _encode_any(bits: int, scale: int, fmt: Format) -> int:
    """`encode` for infinities and NaNs too; a NaN becomes +0 in FP4."""
    if bits & 0x7F800000 != 0x7F800000:
        return encode(bits, scale, fmt)
    if bits & 0x007FFFFF:
        return fmt.nan_code or 0
    return fmt.largest_code | (bits >> 31 << fmt.sign_bit)


def magnitude(bits: int) -> tuple[int, int]:
    """(m, e) with |x| = m 2^e, of a finite FP32 number's bits."""
    field, fraction = bits >> 23 & 0xFF, bits & 0x007FFFFF
    return (fraction | 1 << 23, field - 150) if field else (fraction, -149)


def encode(bits: int, scale: int, fmt: Format) -> int:
    """Code of a finite FP32 number / 2^scale, to nearest even, saturating."""
    significand, exponent = magnitude(bits)
    exponent -= scale
    binade = max(significand.bit_length() - 1 + exponent, fmt.emin)
    count = round_shifted(significand, binade - fmt.mantissa_bits - exponent)
    # A count that reaches the next binade carries into the exponent field.
    code = (binade - fmt.emin << fmt.mantissa_bits) + count
    return min(code, fmt.largest_code) | (bits >> 31 << fmt.sign_bit)


def round_shifted(value: int, shift: int) -> int:
    """value / 2^shift, to nearest even, for value >= 0."""
    if shift <= 0:
        return value << -shift
    quotient, rest = value >> shift, value & ((1 << shift) - 1)
    half = 1 << (shift - 1)
    return quotient + (rest > half or (rest == half and quotient & 1))


def decode(code: int, name: str) -> float:
    """The number of an element code: a float that holds it exactly, or Inf or NaN."""
    fmt = FORMATS[name]
    sign, code = code >> fmt.sign_bit, code & ((1 << fmt.sign_bit) - 1)
    if fmt.infinity_code is not None and code >= fmt.infinity_code:
        value = math.inf if code == fmt.infinity_code else math.nan
    elif fmt.nan_code is not None and code >= fmt.nan_code:
        value = math.nan
    else:
        field, count = divmod(code, 1 << fmt.mantissa_bits)
        count += (field > 0) << fmt.mantissa_bits
        value = math.ldexp(count, max(field, 1) - fmt.bias - fmt.mantissa_bits)
    return -value if sign else value


def dequantize_element(code: int, byte: int, name: str) -> float:
    """Element times 2^(byte - 127) as an FP32 number, subnormals zero of their sign."""
    value = decode(code, name)
    if byte == NAN_SCALE or math.isnan(value):
        return math.nan
    value = math.ldexp(value, byte - BIAS)  # exact: at most 4 digits, far in range
    if abs(value) < _NORMAL:
        return math.copysign(0.0, value)
    # No scaled element lies between the largest FP32 number and 2^128.
    return math.copysign(math.inf, value) if abs(value) >= 2.0**128 else value


# ---- Arrays.


def to_bits(x: np.ndarray) -> np.ndarray:
    """The FP32 bits, as uint32, of an FP32, BF16 or FP16 array; exact for all three."""
    x = np.asarray(x)
    return np.ascontiguousarray(x.astype(np.float32)).view(np.uint32).reshape(x.shape)


def quantize(
    x: np.ndarray, name: str, *, axis: int = -1, rule: str = "ocp_floor"
) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of 32 along an axis; a last block may be shorter.

    Args:
        x: FP32, BF16 or FP16, of any rank >= 1.
        name: A key of `FORMATS`.
        axis: Along which 32 neighbours share a scale.
        rule: One of `RULES`.

    Returns:
        Element codes, uint8, of the shape of x; and scale bytes, uint8, of that shape
        with ceil(K / 32) in place of the axis' length K.
    """
    moved = np.moveaxis(to_bits(x), axis, -1)
    rows = moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])
    count = -(-moved.shape[-1] // BLOCK)
    codes, scales = np.zeros(rows.shape, np.uint8), np.zeros((len(rows), count))
    for r, row in enumerate(rows.tolist()):
        for b in range(count):
            at = slice(b * BLOCK, (b + 1) * BLOCK)
            codes[r, at], scales[r, b] = quantize_block(row[at], name, rule)
    scales = scales.astype(np.uint8).reshape(*moved.shape[:-1], count)
    return np.moveaxis(codes.reshape(moved.shape), -1, axis), np.moveaxis(
        scales, -1, axis
    )


def dequantize(
    codes: np.ndarray, scales: np.ndarray, name: str, *, axis: int = -1
) -> np.ndarray:
    """FP32 numbers of the shape of `codes`; the inverse of the layout of `quantize`."""
    codes = np.moveaxis(codes, axis, -1)
    spread = np.repeat(np.moveaxis(scales, axis, -1), BLOCK, -1)
    spread = spread[..., : codes.shape[-1]]
    return np.moveaxis(_table(name)[spread, codes], -1, axis)


def _table(name: str) -> np.ndarray:
    """[byte, code] -> FP32 number."""
    if name not in _TABLES:
        size = 2 << FORMATS[name].sign_bit
        entries = [
            [dequantize_element(code, byte, name) for code in range(size)]
            for byte in range(256)
        ]
        _TABLES[name] = np.array(entries, np.float32)
    return _TABLES[name]


_TABLES: dict[str, np.ndarray] = {}
