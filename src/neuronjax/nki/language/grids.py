"""Index arrays and `par_dim`, which kernels of both styles use."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np

from neuronjax.nki.refusing import refuse


class IndexArray(np.ndarray):
    """Indices of a dimension; in the older style a comparison of two gives a mask."""

    def __bool__(self) -> bool:
        """Refuse `and` on masks, because Python would take only the second mask."""
        if self.size != 1:
            refuse(
                "mask",
                f"Python's `and`, `or`, `not` or `if` on a mask of shape {self.shape}",
                "write (i < 64) & (j < 32); | for `or`, ~ for `not`",
            )
        return bool(np.asarray(self))


def arange(*bounds: Any, **options: Any) -> IndexArray:
    """Return the indices of a dimension, as numpy.arange does."""
    return np.arange(*bounds, **options).view(IndexArray)


class _Axes(tuple[Any, ...]):
    """Index arrays of a grid, by position or name: `.p` indexes the partitions, `.x`,
    `.y`, `.z` and `.w` the free dimensions."""

    p, x, y, z, w = (property(itemgetter(n)) for n in range(5))


class _Grid:
    def __getitem__(self, key: Any) -> _Axes:
        arrays = np.ogrid[key if isinstance(key, tuple) else (key,)]
        return _Axes(a.view(IndexArray) for a in arrays)


mgrid = _Grid()


class par_dim(int):
    """A size that marks the partition dimension of a shape."""
