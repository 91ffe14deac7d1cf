"""Arrays that make a wrong order, a missing rounding or a missing flush visible.

`kinds(rng, shape)` stacks one array of each kind along a new first axis.
"""

from __future__ import annotations

import numpy as np


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal."""
    return rng.standard_normal(shape).astype(np.float32)


def cancelling(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Magnitudes from 2^-12 to 2^12: sums depend strongly on their order."""
    return normal(rng, shape) * np.exp2(rng.integers(-12, 13, shape)).astype(np.float32)


def wide(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Magnitudes from 2^-80 to 2^80: products overflow and underflow FP32."""
    return normal(rng, shape) * np.exp2(rng.integers(-80, 81, shape)).astype(np.float32)


def tiny(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """FP32 subnormals, small normals and numbers that bring them back, with signs."""
    bits = rng.integers(0, 2**24, shape, dtype=np.uint32)
    sign = rng.integers(0, 2, shape, dtype=np.uint32) << 31
    small = (bits | sign).view(np.float32)
    return np.where(rng.random(shape) < 0.6, small, normal(rng, shape))


def special(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A few infinities, NaNs and huge numbers among zeros of both signs and ones."""
    common = rng.choice(np.float32([0.0, -0.0, 1.0, -1.0]), shape)
    rare = rng.choice(np.float32([np.inf, -np.inf, np.nan, 3e38, -3e38]), shape)
    return np.where(rng.random(shape) < 1.0 / shape[-1], rare, common)


def signed_zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros of both signs."""
    return rng.choice(np.float32([0.0, -0.0]), shape)


KINDS = (normal, cancelling, wide, tiny, special, signed_zeros)


def kinds(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """[kind, *shape], in the order of `KINDS`."""
    return np.stack([kind(rng, shape) for kind in KINDS])
