"""What `scripts/make_tables.py` found out about the elementary functions.

`nearest` turns the FP32 result of a function of one narrow float into one that rounds
correctly. Rounded once, all but a few of the 65,536 results of each function already
are the correctly rounded ones that mpmath gives: none differs in bfloat16 and the 8-bit
formats, up to 20 in float16. `EXCEPTIONS` lists those; tables of all results are not
needed. bfloat16 subnormals count as zeros, and results below 2^-126 are zeros, as
everywhere (FTZ); float16's subnormals are normal numbers of FP32. `MEASURED` are the
errors of the FP32 functions. Functions of two arguments are in neither: their FP32
result is rounded once. Design section 5.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.numerics.elementary_core import bits_of
from neuronjax.numerics.float_format import get_format

# As (float32 of the input, float32 of the correctly rounded result).
Exceptions = tuple[tuple[np.float32, np.float32], ...]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The largest error that was seen of an FP32 function.

    Attributes:
        max_ulp: it, in ULPs of the exact result (see `elementary.ULP_FLOOR`).
        at: the input.
        inputs: how many float32 numbers were tried, NaNs not among them.
        stride: every how many-th float32 number that is; 1 is all of them.
        reference_ulp: the largest error of the float64 reference itself, against
            mpmath, at a sample that includes `at`, in the same unit.
    """

    max_ulp: float
    at: float
    inputs: int
    stride: int
    reference_ulp: float


def _read(name: str) -> dict[str, Any]:
    path = resources.files("neuronjax.numerics") / "tables" / name
    return json.loads(path.read_text())


def _values(codes: list[int], format_name: str) -> np.ndarray:
    fmt = get_format(format_name)
    return np.array(codes, fmt.code_dtype).view(fmt.dtype).astype(np.float32)


def _exceptions(rows: list[tuple[int, int]], format_name: str) -> Exceptions:
    inputs, outputs = (_values([*column], format_name) for column in zip(*rows))
    return tuple(zip(inputs, outputs, strict=True))


# Name of the format -> name of the function -> exceptions; absent where there are none.
EXCEPTIONS: Mapping[str, Mapping[str, Exceptions]] = MappingProxyType(
    {
        format_name: {
            name: _exceptions(rows, format_name) for name, rows in functions.items()
        }
        for format_name, functions in _read("exceptions.json").items()
    }
)

MEASURED: Mapping[str, Measurement] = MappingProxyType(
    {
        name: Measurement(**{**row, "at": float.fromhex(row["at"])})
        for name, row in _read("accuracy.json").items()
    }
)


def nearest(name: str, x: jax.Array, result: jax.Array, format_name: str) -> jax.Array:
    """The FP32 result, replaced where rounding it to the format is not correct.

    Only for rounding to nearest even (what overflows is no exception, so its handling
    is free) of inputs that the format represents: stochastic rounding is unbiased about
    the FP32 result and would be biased about this one.

    Args:
        name: of the function, in `elementary.UNARY`.
        x: its float32 argument.
        result: its float32 result, of the same shape.
        format_name: that of the argument and the result, in `float_format`.
    """
    bits = bits_of(x)
    for argument, correct in EXCEPTIONS.get(format_name, {}).get(name, ()):
        result = jnp.where(bits == argument.view(np.uint32), correct, result)
    return result
