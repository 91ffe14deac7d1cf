"""Arguments drawn from a seed, which a golden stores in place of large arrays.

They are uniform in [-1, 1), in steps of 2^-23, which are exact in float32. They are
made from 64-bit words of NumPy's Philox generator, a stream that NumPy promises never
to change. `numerics.rounding` rounds narrower floats. Integers are refused, because
they have no natural range.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.casting import cast

_STEPS = 24


def drawn(kind: jax.ShapeDtypeStruct, path: str, seed: int, number: int) -> Any:
    """Return a random array of the shape and dtype of argument `number`."""
    if not jax.numpy.issubdtype(kind.dtype, np.floating) or kind.dtype.itemsize > 4:
        raise InvalidProgramError(
            f"argument {path} is a ShapeDtypeStruct of {kind.dtype}: only floats are "
            "drawn from a seed",
            remedy="pass an array",
        )
    words = raw_words(int(np.prod(kind.shape)), seed, number) >> np.uint64(64 - _STEPS)
    steps = words.astype(np.int64) - (1 << (_STEPS - 1))
    values = (steps / (1 << (_STEPS - 1))).astype(np.float32).reshape(kind.shape)
    return values if kind.dtype == np.float32 else np.asarray(cast(values, kind.dtype))


def raw_words(count: int, seed: int, stream: int = 0) -> np.ndarray:
    """Return `count` 64-bit words, the same on every host for a seed and a stream."""
    key = np.array([seed, stream], np.uint64)
    return np.random.Philox(key=key).random_raw(count)
