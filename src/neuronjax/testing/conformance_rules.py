"""The rules that the conformance vectors follow, for whoever implements them.

They are in the manifest, beside what each function takes: an implementation should need
nothing but the manifest and the arrays. `tests/testing/test_conformance_rules.py` reads
the published outputs by them alone.
"""

from __future__ import annotations

from collections.abc import Mapping

RULES: Mapping[str, str] = {
    "cast/overflow": (
        "overflow `ieee`: a rounded magnitude beyond the largest number becomes Inf; "
        "in a format without Inf, NaN (float8_e4m3fn, float8_e8m0fnu) or the largest "
        "number (float4_e2m1fn). `saturate`: it, and Inf, become the largest number"
    ),
    "cast/rtz": (
        "rtz never overflows: a finite number beyond the largest becomes the largest, "
        "under `ieee` too. Inf is as the overflow says"
    ),
    "cast/half_away": "ties away from zero; else the nearest",
    "cast/nan": (
        "a NaN becomes the quiet NaN without payload, with its sign: the first bit of "
        "the mantissa set, 0x7f | sign in float8_e4m3fn, 0xff in float8_e8m0fnu. "
        "float4_e2m1fn has none: NaN becomes a zero of the other sign, +NaN 0x8 and "
        "-NaN 0x0"
    ),
    "cast/e8m0": (
        "float8_e8m0fnu, the powers of two from 2^-127, has no sign and no zero: zeros "
        "of both signs and negative numbers become NaN, 0xff. Ties go up, for rne too"
    ),
    "cast/zero": "zeros keep their sign, also those that small numbers round to",
    "quantize_mx/scale": (
        "of a block whose largest magnitude is amax, with the float32 exponent field e "
        "and mantissa m: byte = max(e + r, emax) - emax, emax being that of the "
        "largest element (8 in mxfp8_e4m3, 15 in mxfp8_e5m2, 2 in mxfp4_e2m1). "
        "r is by rule: "
        "ocp_floor 0; neuron 1; ceil 1 if m != 0; rceil 1 if m > the mantissa of the "
        "largest element; even 1 if m + 2^(22 - mantissa bits of the element) >= 2^23; "
        "else 0"
    ),
    "quantize_mx/nki_golden": "byte = (e - emax) modulo 256, as uint8 wraps around",
    "quantize_mx/zero": (
        "float32 subnormals read as zeros. A block of zeros has byte 0, and zeros that "
        "keep their signs"
    ),
    "quantize_mx/nan": "a block with NaN or Inf has byte 255, and elements of code 0",
    "quantize_mx/elements": (
        "x / 2^(byte - 127) to nearest, ties to even; what is beyond the largest "
        "element becomes the largest"
    ),
}
