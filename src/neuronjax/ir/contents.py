"""What an array holds, as part of a key: small, however large the array is."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

import numpy as np

#: Larger arrays are in a key by a digest; smaller ones are themselves no larger.
MOST_BYTES = 256


def contents(array: np.ndarray) -> Hashable:
    """Equal only for arrays of one dtype and shape that hold the same bits.

    What is broadcast is read once: the elements that are in memory count.
    """
    first = tuple(slice(1) if stride == 0 else slice(None) for stride in array.strides)
    held = array[first]
    about = (array.dtype.name, array.shape, held.shape)
    if held.nbytes <= MOST_BYTES:
        return (*about, held.tobytes())
    codes = np.ascontiguousarray(held).reshape(-1).view(np.uint8)
    return (*about, hashlib.blake2b(codes.data, digest_size=16).digest())
