"""Index arrays and marks of dimensions, which kernels of both styles write."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np


class _Axes(tuple[Any, ...]):
    """Index arrays of a grid, by position or name: `.p` is that of the partitions,
    `.x`, `.y`, `.z` and `.w` are those of the free dimensions."""

    p, x, y, z, w = (property(itemgetter(n)) for n in range(5))


class _Grid:
    def __getitem__(self, key: Any) -> _Axes:
        return _Axes(np.ogrid[key if isinstance(key, tuple) else (key,)])


mgrid = _Grid()


class par_dim(int):
    """Marks the partition dimension of a shape."""
