"""Formats against the published tables and against ml_dtypes, code by code."""

from __future__ import annotations

import math

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import (
    BFLOAT16,
    FLOAT32,
    FORMATS,
    INTEGERS,
    TFLOAT32,
    FloatFormat,
    IntFormat,
    get_format,
    get_number_format,
)

# name: width, largest finite, smallest normal, smallest subnormal, emax. From IEEE 754,
# OCP OFP8 1.0 and OCP MX 1.0; 240 is the vendor's legacy E4M3.
PUBLISHED = {
    "float32": (32, (2 - 2**-23) * 2.0**127, 2.0**-126, 2.0**-149, 127),
    "tfloat32": (19, (2 - 2**-10) * 2.0**127, 2.0**-126, 2.0**-136, 127),
    "bfloat16": (16, (2 - 2**-7) * 2.0**127, 2.0**-126, 2.0**-133, 127),
    "float16": (16, 65504.0, 2.0**-14, 2.0**-24, 15),
    "float8_e5m2": (8, 57344.0, 2.0**-14, 2.0**-16, 15),
    "float8_e4m3": (8, 240.0, 2.0**-6, 2.0**-9, 7),
    "float8_e4m3fn": (8, 448.0, 2.0**-6, 2.0**-9, 8),
    "float8_e3m4": (8, 15.5, 2.0**-2, 2.0**-6, 3),
    "float4_e2m1fn": (4, 6.0, 1.0, 0.5, 2),
    "float8_e8m0fnu": (8, 2.0**127, 2.0**-127, 2.0**-127, 127),
}
SMALL = [fmt for fmt in FORMATS.values() if fmt.width <= 16]


@pytest.mark.parametrize("name", PUBLISHED)
def test_limits_are_the_published_ones(name: str) -> None:
    fmt = FORMATS[name]
    assert PUBLISHED[name] == (
        fmt.width,
        fmt.max_finite,
        fmt.min_normal,
        fmt.min_subnormal,
        fmt.max_exponent,
    )


def test_every_format_has_a_published_row() -> None:
    assert FORMATS.keys() == PUBLISHED.keys()


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_every_code_has_the_value_of_ml_dtypes(fmt: FloatFormat) -> None:
    codes = np.arange(fmt.code_count, dtype=fmt.code_dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected = codes.view(fmt.dtype).astype(np.float64)
    enumerated, values = zip(*fmt.codes(), strict=True)
    assert list(enumerated) == codes.tolist()
    actual = np.array(values)
    np.testing.assert_array_equal(actual, expected)
    zero = actual == 0
    np.testing.assert_array_equal(np.signbit(actual)[zero], codes[zero] > 0)


@pytest.mark.parametrize("fmt", SMALL, ids=lambda fmt: fmt.name)
def test_special_codes(fmt: FloatFormat) -> None:
    assert math.isfinite(fmt.value(fmt.max_code))
    if fmt.has_inf:
        assert fmt.value(fmt.overflow_code) == math.inf
    if fmt.nan != "none":
        assert math.isnan(fmt.value(fmt.nan_code))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_eps_is_that_of_finfo(fmt: FloatFormat) -> None:
    expected = 2.0**-10 if fmt is TFLOAT32 else float(ml_dtypes.finfo(fmt.dtype).eps)
    assert fmt.eps == expected


def test_wide_formats_are_not_enumerated() -> None:
    with pytest.raises(InvalidProgramError, match="float32 has 4294967296 codes"):
        FLOAT32.codes()


def test_storage() -> None:
    assert (FLOAT32.padding_bits, TFLOAT32.padding_bits) == (0, 13)
    assert TFLOAT32.dtype == np.float32
    assert FORMATS["float4_e2m1fn"].code_dtype == np.uint8
    assert BFLOAT16.code_dtype == np.uint16


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_get_format_by_name(fmt: FloatFormat) -> None:
    assert get_format(fmt.name) is fmt


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, jnp.bfloat16, np.dtype("bfloat16")]
)
def test_get_format_by_dtype(dtype: object) -> None:
    assert get_format(dtype) is BFLOAT16


# -- Integers


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_those_of_numpy(name: str) -> None:
    fmt, info = INTEGERS[name], np.iinfo(name)
    assert (fmt.name, fmt.dtype) == (name, np.dtype(name))
    assert (fmt.min, fmt.max, fmt.width) == (info.min, info.max, info.bits)
    for code in (
        0,
        1,
        fmt.code_count // 2 - 1,
        fmt.code_count // 2,
        fmt.code_count - 1,
    ):
        word = np.array(code, f"uint{fmt.width}").view(name)
        assert fmt.value(code) == int(word)


def test_number_formats_by_name_dtype_and_format() -> None:
    assert get_number_format("int8") is get_number_format(np.int8) is INTEGERS["int8"]
    assert get_number_format(jnp.bfloat16) is BFLOAT16
    for fmt in (BFLOAT16, IntFormat(16, False)):
        assert get_number_format(fmt) is fmt
    with pytest.raises(InvalidProgramError, match="remedy: use one of: int8, uint8"):
        get_number_format("int88")


# -- Errors


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("float8_e4m3fnuz", "float8_e4m3fn"),
        (np.float64, "float"),
        (3, "float16"),
        ("?", "float4_e2m1fn"),
    ],
)
def test_an_unknown_format_names_the_nearest(wrong: object, nearest: str) -> None:
    with pytest.raises(InvalidProgramError, match=f"remedy: use one of: .*{nearest}"):
        get_format(wrong)


def test_codes_of_e4m3_on_a_chip() -> None:
    """Of trn1 (foxl-ai/kiln): 0x78 to 0x7E and 0xF8 to 0xFE are Inf or NaN, 0x7F and
    0xFF are NaN on the host, too, and all other codes are the host's."""
    codes = np.arange(256, dtype=np.uint8)
    chip = codes.view(get_format("float8_e4m3").dtype).astype(np.float32)
    host = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    special = (codes & 0x7F) >= 0x78
    assert not np.isfinite(chip[special]).any()
    assert (chip[~special] == host[~special]).all()
    assert chip[~special].max() == 240
