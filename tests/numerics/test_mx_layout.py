"""x4 words of MX operands, against NumPy's own views of little-endian memory."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import (
    BFLOAT16,
    FLOAT4_E2M1FN,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
)
from neuronjax.numerics.microscaling import to_codes
from neuronjax.numerics.mx_layout import pack_x4, unpack_x4
from neuronjax.numerics.widening import from_codes

pytestmark = pytest.mark.usefixtures("strict_promotion")


@pytest.mark.slow_cases("float8_e4m3fn")
@pytest.mark.parametrize("fmt", [FLOAT8_E4M3FN, FLOAT8_E5M2], ids=lambda f: f.name)
def test_fp8_words_are_little_endian(fmt: Any) -> None:
    codes = np.random.default_rng(0).permutation(256).astype(np.uint8).reshape(2, 128)
    words = pack_x4(jnp.asarray(codes.view(fmt.dtype)))
    assert words.dtype == jnp.uint32
    np.testing.assert_array_equal(words, codes.view("<u4"))
    np.testing.assert_array_equal(to_codes(unpack_x4(words, fmt)), codes)


@pytest.mark.slow
def test_fp4_words_have_the_first_in_the_low_nibble() -> None:
    codes = jnp.array([[1, 2, 3, 4, 15, 0, 8, 7]], jnp.uint8)
    words = pack_x4(from_codes(codes, FLOAT4_E2M1FN))
    assert words.dtype == jnp.uint16
    assert words.tolist() == [[0x4321, 0x780F]]
    np.testing.assert_array_equal(to_codes(unpack_x4(words, FLOAT4_E2M1FN)), codes)


# ---- Errors.

ELEMENTS = from_codes(jnp.zeros((8, 6), jnp.uint8), FLOAT8_E4M3FN)
SCALES = jnp.zeros((6, 2), jnp.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pack_x4(ELEMENTS), "pad the axis to 8"),
        (lambda: pack_x4(jnp.zeros((4,), BFLOAT16.dtype)), "cannot hold bfloat16"),
        (lambda: unpack_x4(SCALES, FLOAT8_E4M3FN), "give words of uint32"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(InvalidProgramError, match=message):
        call()
