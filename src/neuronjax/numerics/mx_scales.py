"""Scale rules of MX blocks: from the largest magnitude of a block to its E8M0 byte.

A rule is a function of integers: the exponent field and the mantissa of the float32
bits of amax = max |x| over the block, and the element format, whose largest exponent is
emax. It needs no logarithm and no float operation: the scale is a power of two, so it
follows from the exponent field, an increment of zero or one, and emax. Bytes are biased
by 127 (OCP Microscaling (MX) 1.0, section 5.4.1). Multiplication and division by a
scale are here too; blocks and the rounding of elements are in `microscaling`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import FLOAT32, FloatFormat

ScaleRuleName = Literal["ocp_floor", "neuron", "ceil", "rceil", "even", "nki_golden"]
# (exponent field, mantissa, element format) -> scale byte; all arrays uint32.
ScaleRule = Callable[[jax.Array, jax.Array, FloatFormat], jax.Array]
# (mantissa, element format) -> 0 or 1, by which the OCP exponent is raised.
_Increment = Callable[[jax.Array, FloatFormat], jax.Array]

#: Suffix of rules in which emax is 7 for E4M3 and 14 for E5M2, instead of 8 and 15.
ALTERNATIVE = ":alternative"
NAN_SCALE = 255  # the E8M0 code of NaN
MAX_SCALE = 254  # 2^127
_NAN_FIELD = np.uint32(255)  # exponent field of Inf and NaN
_MANTISSA_BITS = np.uint32(FLOAT32.mantissa_bits)
_MANTISSA = np.uint32((1 << FLOAT32.mantissa_bits) - 1)
_IMPLICIT = np.uint32(1 << FLOAT32.mantissa_bits)  # also the smallest normal float32
_UNIT = np.uint32(FLOAT32.bias << FLOAT32.mantissa_bits)
_LOWEST = np.uint32(_UNIT + _IMPLICIT)  # the smallest normal, times 2^127
_INF = np.uint32(255 << FLOAT32.mantissa_bits)
_ZERO = np.uint32(0)


def scale_bytes(amax_bits: jax.Array, rule: str, element: FloatFormat) -> jax.Array:
    """Return the E8M0 byte of each block by a rule in `SCALE_RULES`, as uint32.
    `amax_bits` has the float32 bits of the largest magnitude of each block; a NaN
    counts as larger than Inf. Subnormal magnitudes are zeros (FTZ).

    Raises:
        InvalidProgramError: no such rule.
    """
    if rule not in SCALE_RULES:
        nearest = difflib.get_close_matches(rule, SCALE_RULES) or SCALE_RULES
        raise InvalidProgramError(
            f"scale_rule={rule!r}", remedy=f"use one of: {', '.join(nearest)}"
        )
    field, mantissa = amax_bits >> _MANTISSA_BITS, amax_bits & _MANTISSA
    return SCALE_RULES[rule](field, mantissa, element)


def largest_exponent(element: FloatFormat, rule: str) -> int:
    """Return an element format's emax; for FP8, one less under `ALTERNATIVE` rules."""
    return element.max_exponent - (rule.endswith(ALTERNATIVE) and element.width == 8)


def _bounded(increment: _Increment, rule: str) -> ScaleRule:
    """Return the rule 2^(floor(log2 amax) - emax + increment), NaN for a NaN or an Inf.

    A scale below 2^-127, the smallest one, becomes byte 0. So a block of zeros and
    subnormals has byte 0 with either increment, since emax is at least 2. No float32
    is large enough to need the other limit, byte 254. (torchao gives an Inf a finite
    scale, and divides a block with byte 0 by 2^-126, so its elements are half of ours.)
    """

    def scale(field: jax.Array, mantissa: jax.Array, element: FloatFormat) -> jax.Array:
        emax = np.uint32(largest_exponent(element, rule))
        raised = jnp.maximum(field + increment(mantissa, element), emax) - emax
        byte = jnp.minimum(raised, np.uint32(MAX_SCALE))
        return jnp.where(field == _NAN_FIELD, np.uint32(NAN_SCALE), byte)

    return scale


def _above_largest(mantissa: jax.Array, element: FloatFormat) -> jax.Array:
    """Return the increment of torchao's RCEIL, the rule of cuBLAS and arXiv 2506.08027.

    With max the format's largest number, the scale is 2^ceil(log2(amax / max)), the
    smallest with which nothing saturates. It is the OCP scale if the significand of
    amax is at most that of max, else twice that. (torchao first rounds amax / max to
    float32. This makes no difference: if amax is max times a power of two, plus one
    ulp, the quotient rounds to a number above this power.)
    """
    largest = np.float32(element.max_finite).view(np.uint32) & _MANTISSA
    return (mantissa > largest).astype(jnp.uint32)


def _if_rounded_up(mantissa: jax.Array, element: FloatFormat) -> jax.Array:
    """Return the increment of torchao's EVEN, which is OCP's rule for an amax rounded
    to the mantissa bits of the elements (`ScaleCalculationMode` and `to_mx` of
    torchao.prototype.mx_formats). Despite the name, ties go up: half a unit is added,
    and the exponent of the sum is taken."""
    half = np.uint32(1 << (FLOAT32.mantissa_bits - element.mantissa_bits - 1))
    return (mantissa + half) >> _MANTISSA_BITS


_INCREMENTS: dict[str, _Increment] = {
    # OCP MX 1.0, section 6.3, and torchao's FLOOR. The largest elements may saturate.
    "ocp_floor": lambda mantissa, _: jnp.zeros_like(mantissa),
    # Twice OCP's scale, as `nki.isa.quantize_mx` has it since NKI 0.5.0. The largest
    # element is then below 2^emax, so nothing saturates.
    "neuron": lambda mantissa, _: jnp.ones_like(mantissa),
    # torchao's CEIL, 2^ceil(log2 amax) / 2^emax.
    "ceil": lambda mantissa, _: (mantissa != _ZERO).astype(jnp.uint32),
    "rceil": _above_largest,
    "even": _if_rounded_up,
}
BOUNDED: dict[str, ScaleRule] = {
    rule + mode: _bounded(increment, rule + mode)
    for mode in ("", ALTERNATIVE)
    for rule, increment in _INCREMENTS.items()
}
SCALE_RULES: dict[str, ScaleRule] = {
    **BOUNDED,
    # The vendor's `quantize_mx_golden`: OCP's rule in uint8, which wraps around. A
    # block of zeros gets byte 256 - emax, a block with Inf or NaN 255 - emax, and a
    # block below 2^(emax - 127) a huge scale, which makes its elements zeros.
    "nki_golden": lambda field, _, element: (
        (field - np.uint32(element.max_exponent)) & np.uint32(0xFF)
    ),
}


def scale_magnitudes(magnitude: jax.Array, scale: jax.Array) -> jax.Array:
    """Multiply float32 magnitudes by 2^(scale - 127), by operations on their bits.

    The result is exact within the range of float32; below 2^-126 it is zero (FTZ), from
    2^128 on it is Inf. Inf and NaN stay. Scales are uint32, 0 to 254.
    """
    raised = magnitude + (scale << _MANTISSA_BITS)
    product = jnp.minimum(jnp.maximum(raised, _LOWEST) - _UNIT, _INF)
    is_zero = (magnitude < _IMPLICIT) | (raised < _LOWEST)
    product = jnp.where(is_zero, _ZERO, product)
    return jnp.where(magnitude >= _INF, magnitude, product)


def unscale_magnitudes(magnitude: jax.Array, scale: jax.Array) -> jax.Array:
    """Divide float32 magnitudes by 2^(scale - 127), by operations on their bits.

    A quotient from 2^-126 to 2^128 is exact; the rules of this file give no larger
    quotient. A smaller quotient becomes 2^-126, which rounds to the same result: in
    every element format it is less than 2^-32 of the smallest step.
    Subnormals are zeros (FTZ); Inf and NaN stay. Scales are uint32, 0 to 255.
    """
    divisor = scale << _MANTISSA_BITS
    quotient = jnp.maximum(magnitude + _UNIT, divisor + _IMPLICIT) - divisor
    quotient = jnp.where(magnitude < _IMPLICIT, _ZERO, quotient)
    return jnp.where(magnitude >= _INF, magnitude, quotient)
