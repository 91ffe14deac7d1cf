"""Arrays that many tests ask for: seeded numbers, and the bits of any array."""

from __future__ import annotations

from typing import Any

import numpy as np


def normal(
    *shape: int, seed: int = 0, scale: float = 1.0, dtype: Any = np.float32
) -> np.ndarray:
    """Return normal numbers around zero."""
    values = np.random.default_rng(seed).normal(size=shape) * scale
    return values.astype(dtype)


def bits(x: Any) -> np.ndarray:
    """Return the bits of an array of any dtype, as unsigned integers."""
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")
