"""The published outputs, read by the manifest's rules alone: Fractions and integers."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

from neuronjax.testing import conformance
from neuronjax.testing.conformance import PUBLISHED
from tests.testing.vector_files import RULES

#: Largest number, smallest step, significant bits; what NaN and Inf are; emax.
FORMATS = {
    "float8_e5m2": (57344, Fraction(1, 2**16), 3, 0x7E, 0x7C),
    "float8_e4m3": (240, Fraction(1, 2**9), 4, 0x7C, 0x78),
    "float8_e4m3fn": (448, Fraction(1, 2**9), 4, 0x7F, 0x7F),
    "float8_e3m4": (Fraction(31, 2), Fraction(1, 2**6), 5, 0x78, 0x70),
    "float4_e2m1fn": (6, Fraction(1, 2), 2, None, None),
}
#: The largest element; its mantissa in float32; emax; mantissa bits.
ELEMENTS = {
    "mxfp8_e4m3": (0x600000, 8, 3),
    "mxfp8_e5m2": (0x600000, 15, 2),
    "mxfp4_e2m1": (0x400000, 2, 1),
}


@pytest.fixture(scope="module")
def published():
    return {case.name: case for case in conformance.read()}


def test_the_manifest_has_the_rules():
    manifest = json.loads((PUBLISHED / "manifest.json").read_bytes())
    assert manifest["rules"] == dict(RULES)


def value(code):
    """Of finite float32 patterns."""
    field, mantissa = code >> 23 & 0xFF, code & 0x7FFFFF
    assert field != 0xFF
    significand = mantissa | (bool(field) << 23)
    return Fraction(significand) * Fraction(2) ** (max(field, 1) - 150)


def toward_zero(code, name):
    """By the rules of rtz, NaN and overflow `ieee`."""
    largest, step, bits, nan, inf = FORMATS[name]
    width = 4 if name.startswith("float4") else 8
    sign = (code >> 31) << (width - 1)
    magnitude = code & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return (sign ^ (1 << (width - 1))) if nan is None else nan | sign
    if magnitude == 0x7F800000:
        return (encoded(largest, step, bits) if inf is None else inf) | sign
    return encoded(min(value(magnitude), largest), step, bits) | sign


def encoded(number, step, bits):
    """The code of a number rounded toward zero."""
    steps, exponent = int(number / step), 0
    while steps >= 1 << bits:
        steps, exponent = steps >> 1, exponent + 1
    return steps + (exponent << (bits - 1))


@pytest.mark.parametrize("name", FORMATS)
def test_rtz_never_overflows(published, name):
    case = published[f"cast/{name}/rtz/ieee"]
    pairs = zip(case.inputs["x"], case.outputs["result"], strict=True)
    beyond = 0
    for code, got in pairs:
        assert got == toward_zero(int(code), name), hex(code)
        finite = (int(code) & 0x7FFFFFFF) < 0x7F800000
        beyond += finite and value(int(code) & 0x7FFFFFFF) > FORMATS[name][0]
    assert beyond > 50


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
def test_nan_in_fp4_and_zero_in_e8m0(published, overflow):
    fp4 = published[f"cast/float4_e2m1fn/rne/{overflow}"]
    of = dict(zip(fp4.inputs["x"].tolist(), fp4.outputs["result"], strict=True))
    assert (of[0x7FC00000], of[0xFFC00000]) == (0x8, 0x0)
    e8m0 = published[f"cast/float8_e8m0fnu/rne/{overflow}"]
    x, codes = e8m0.inputs["x"], e8m0.outputs["result"]
    is_nan = ((x & 0x7FFFFFFF) == 0) | (x > 0x7F800000)
    assert is_nan.sum() > 100
    assert np.all(codes[is_nan] == 0xFF)
    up = x[~is_nan] >> 23  # powers of two: a mantissa of half or more goes up
    up = up + ((x[~is_nan] & 0x7FFFFF) >= 0x400000)
    largest = 0xFE if overflow == "saturate" else 0xFF
    assert np.array_equal(codes[~is_nan], np.where(up > 0xFE, largest, up))


def raised(rule, mantissa, largest, bits):
    return {
        "ocp_floor": 0,
        "neuron": 1,
        "ceil": mantissa != 0,
        "rceil": mantissa > largest,
        "even": mantissa + 2 ** (22 - bits) >= 2**23,
    }[rule]


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(
    "rule", ["ocp_floor", "neuron", "ceil", "rceil", "even", "nki_golden"]
)
def test_scale_rules(published, element, rule):
    case = published[f"quantize_mx/{element}/{rule}"]
    largest, emax, bits = ELEMENTS[element]
    x, scales = case.inputs["x"] & 0x7FFFFFFF, case.outputs["scales"]
    for row, column in np.ndindex(scales.shape):
        block = x[row, 32 * column : 32 * (column + 1)]
        amax = int(block.max())
        field, mantissa = (amax >> 23, amax & 0x7FFFFF) if amax >> 23 else (0, 0)
        if rule == "nki_golden":
            want = (field - emax) % 256
        elif field == 0xFF:
            want = 0xFF
            codes = case.outputs["elements"][row, 32 * column : 32 * (column + 1)]
            assert not codes.any()
        else:
            want = max(field + raised(rule, mantissa, largest, bits), emax) - emax
        assert scales[row, column] == want, (row, column)
