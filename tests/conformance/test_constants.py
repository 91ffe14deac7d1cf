"""Constants of every dtype, as the program declares them, bit by bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import neuronjax as nj
from tests.conformance import bits

FLOATS = (
    "float32",
    "bfloat16",
    "float16",
    "float8_e5m2",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e3m4",
)
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")


def codes(dtype: np.dtype, count: int) -> np.ndarray:
    """The first codes above zero, the last and what lies around them: NaNs too."""
    width = 8 * dtype.itemsize
    word = np.dtype(f"uint{width}")
    low = np.arange(count // 2, dtype=np.uint64)
    every = np.concatenate([low, (1 << width) - 1 - low]).astype(word)
    return every.view(dtype)


@pytest.mark.slow_cases("int8-many")
@pytest.mark.parametrize("count", [6, 240], ids=["few", "many"])
@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_every_dtype(name, count):
    """MLIR writes few elements and many in different ways."""
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    values = codes(dtype, count)
    target = "trn2" if name == "float8_e3m4" else "trn3"  # each lacks one
    lowered = nj.jit(lambda: jnp.asarray(values), target=target).lower()
    [decoded] = [
        op.attributes["value"]
        for op in lowered.program.walk()
        if op.name == "stablehlo.constant"
    ]
    assert decoded.dtype == dtype
    assert decoded.tobytes() == values.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float16", "int8"])
def test_arithmetic_with_a_constant(name):
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    table = np.arange(200).reshape(8, 25).astype(dtype)

    def scaled(x):
        return x @ jnp.asarray(table).astype(jnp.float32) + table[0].astype(jnp.float32)

    x = jnp.arange(24, dtype=jnp.float32).reshape(3, 8) / 8
    out = bits.same_both_ways(nj.jit(scaled, target="trn3", policy="fp32"), x)
    np.testing.assert_allclose(out, jax.jit(scaled)(x), rtol=1e-6)
