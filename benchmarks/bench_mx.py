"""MX quantization of a matrix, against the cheapest conversion, to bfloat16.

Both axes of a [1024, 1024] float32 operand are quantized: along one, the elements of a
block are adjacent in memory; along the other, they are a row apart. Details give the
time of a native 1024^3 matmul, to which the quantization of its two operands would be
added, and of `fake_quantize`, which stores no narrow elements. Only the run time of a
cached call is measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Effort, Result, interleave, ratio, row
from neuronjax.numerics.microscaling import fake_quantize, quantize_mx

SHAPE = (1024, 1024)
FORMATS = {"mxfp8": "mxfp8_e4m3", "mxfp4": "mxfp4_e2m1"}


def both_axes(function: Callable[..., Any], name: str) -> Callable[[jax.Array], Any]:
    """Return a function that makes one call for each axis, compiled separately."""
    along = [jax.jit(functools.partial(function, format=name, axis=a)) for a in (0, 1)]
    return lambda x: [call(x) for call in along]


def compare(name: str, effort: Effort) -> Result:
    """Measure quantization over `astype(bfloat16)`, two calls of each."""
    values = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    x = jnp.asarray(values)
    cast = jax.jit(lambda x: x.astype(jnp.bfloat16))
    matmul = jax.jit(lambda x: x @ x)
    quantize, fake = (both_axes(f, name) for f in (quantize_mx, fake_quantize))
    thunks = (
        lambda: [cast(x), cast(x)],
        lambda: quantize(x),
        lambda: fake(x),
        lambda: matmul(x),
    )
    native, emulated, fakes, matmuls = interleave(thunks, effort)
    details = {
        "fake_quantize_seconds": fakes.median,
        "native_matmul_seconds": matmuls.median,
    }
    sizes = {"shape": SHAPE, "dtype": "float32", "axes": 2}
    return ratio(native, emulated, sizes=sizes, details=details)


for _name, _format in FORMATS.items():
    row(f"mx/quantize_{_name}", target=3.0)(functools.partial(compare, _format))
