"""Random arrays of every dtype, tame or wild, and the Python that makes them."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

#: Codes of formats that are not whole bytes.
_CODES = {"float4_e2m1fn": 16}
_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0)


def random_array(
    random: np.random.Generator, dtype: str, shape: Sequence[int], wild: bool
) -> np.ndarray:
    """Floats on a grid of eighths in [-2, 2), integers of any bits.

    Args:
        random: where they come from.
        dtype: NumPy's name, or ml_dtypes'.
        shape: sizes.
        wild: floats of any bits, too, one in three of them special.
    """
    kind = jnp.dtype(dtype)
    if kind.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if jnp.issubdtype(kind, jnp.floating):
        if wild:
            return _any_bits(random, kind, shape)
        return (random.integers(-16, 16, shape) / 8).astype(kind)
    info = np.iinfo(dtype)
    values = random.integers(info.min, info.max, shape, dtype, endpoint=True)
    small = random.integers(0, 9, shape).astype(dtype)
    return np.where(random.random(shape) < 0.5, values, small)


def _any_bits(
    random: np.random.Generator, dtype: np.dtype, shape: Sequence[int]
) -> np.ndarray:
    words = np.dtype(f"uint{8 * dtype.itemsize}")
    most = _CODES.get(dtype.name, 1 << 8 * dtype.itemsize)
    values = random.integers(0, most, shape, words).view(dtype)
    with np.errstate(all="ignore"):
        # A NaN's payload is nobody's promise.
        values = np.where(np.isnan(values), np.float32(np.nan).astype(dtype), values)
        special = np.array(_SPECIAL, np.float32).astype(dtype)
    drawn = special[random.integers(0, len(special), shape)]
    return np.where(random.random(shape) < 1 / 3, drawn, values).astype(dtype)


def literal(array: np.ndarray) -> str:
    """Python that makes the array, bit by bit but for NaNs."""
    name = array.dtype.name
    if array.dtype.kind in "iub":
        return f"np.array({array.tolist()}, np.{name})"
    values = array.astype(np.float32).tolist()
    return f"np.array({values}, np.float32).astype(jnp.{name})"
