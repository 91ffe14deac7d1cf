"""Texts of candidate files: one that is right, and what is done to it."""

from __future__ import annotations

from pathlib import Path

RIGHT = """
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, y):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    b = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=b, src=y)
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
    nisa.dma_copy(dst=out, src=a)
    return out
"""

REFERENCE = """
import numpy as np


def get_inputs():
    return [np.random.normal(size=(128, 64)).astype(np.float32) for _ in range(2)]


def forward(x, y):
    return x + y
"""


def changed(before: str, after: str) -> str:
    """The right kernel with one text for another."""
    assert before in RIGHT
    return RIGHT.replace(before, after)


def first(statement: str) -> str:
    """The right kernel whose body begins with a statement."""
    return changed("    out = nl.", f"    {statement}\n    out = nl.")


def written(folder: Path, text: str, name: str = "candidate.py") -> Path:
    """A file with a text."""
    path = folder / name
    path.write_text(text)
    return path


def reference(folder: Path) -> Path:
    """The reference's file."""
    return written(folder, REFERENCE, "reference.py")
