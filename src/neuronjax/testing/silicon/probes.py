"""Sizes and formats of the silicon kit's probes, by the kind of question.

A probe is a kernel of a few instructions that isolates one thing the vendor does not
document: one order, one rounding, one engine's subnormals. The source of the probes is
in docs/made, where the kit is made.
"""

from __future__ import annotations

from collections.abc import Mapping

from neuronjax.hardware.activation_functions import ACTIVATION_FUNCTIONS

CHIPS = ("trn1", "trn2", "trn3")
VECTOR_SUMS = (128, 513, 1000, 127, 512, 4096)
SCALAR_SUMS = (128, 1000)
TENSOR_SUMS = (128, 64)
TENSOR_TILES = (256, 512, 2048)
FUNCTIONS = tuple(f for f in ACTIVATION_FUNCTIONS if f != "prelu")
FLOATS = ("bfloat16", "float16", "float8_e4m3", "float8_e5m2")
_NARROWER = ("bfloat16", "float8_e4m3", "int32")
CASTS: Mapping[str, tuple[str, ...]] = {
    "vector": (*FLOATS, "int32", "int8", "uint8", "int16"),
    "scalar": _NARROWER,
    "gpsimd": _NARROWER,
    "dma": ("bfloat16", "float16", "float8_e4m3"),
}

INTEGERS = (("vector", "add", 31), ("gpsimd", "add", 31), ("gpsimd", "multiply", 15))
"""(engine, operator, number of bits of the operands)."""

REDUCTIONS: Mapping[str, tuple[int, str]] = {
    f"all_reduce_{ranks}_{dtype}": (ranks, dtype)
    for ranks in (2, 4, 8, 16)
    for dtype in ("float32", "bfloat16")
}
"""Name -> (number of ranks, dtype) of a sum over ranks, run by the kit's `ranks.py`."""
