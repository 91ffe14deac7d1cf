"""Results of element-wise functions whose parts are computed when they are needed.

A softmax of [16, 4096, 4096] goes through five arrays of that shape, each with its
errors. Together these exceed the memory of most machines, and writing them takes longer
than computing them. Any part of a pending result can be computed alone. The whole
result is stored when `value`, `own` or `joint` is read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from neuronjax.diagnostics.tolerance.model import ErrorModel
from neuronjax.diagnostics.tolerance.tracked import (
    UNSETTLED,
    ErrorParts,
    Shared,
    Tracked,
    carrier_of,
    over_blocks,
)

#: Results with fewer elements than this are stored immediately.
PENDING_ELEMENTS = 1 << 22

#: A result is stored if more than `MOST_PASSES` passes are made over it, or if it takes
#: more than `MOST_FUNCTIONS` functions to compute.
MOST_PASSES = 2
MOST_FUNCTIONS = 8

_NOTHING = np.empty(0, np.float32)


class Pending(Tracked):
    """A tracked array whose parts can be computed without storing the whole.

    Args:
        shape, model, dtype, shared: see `Tracked`.
        compute: returns the values and errors of a block, see `tracked.blocks`.
        has: (whether the array has independent errors, whether correlated errors).
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        model: ErrorModel,
        dtype: Any,
        compute: Callable[[Any], ErrorParts],
        has: tuple[bool, bool],
        shared: Mapping[int, Shared],
    ) -> None:
        super().__init__(_NOTHING, model, dtype, shared=shared)
        for name in ("value", "own", "joint"):
            vars(self).pop(name)
        self._shape, self._compute, self._has = shape, compute, has
        self._passes = 0
        self.functions = 1
        UNSETTLED[self.source] = self

    shape = property(lambda self: self._shape)
    ndim = property(lambda self: len(self._shape))
    size = property(lambda self: math.prod(self._shape))
    carrier = property(lambda self: carrier_of(self._shape))
    has_own = property(lambda self: self._has[0])
    has_joint = property(lambda self: self._has[1])

    # Reading one of these calls `settle`, which replaces all three by arrays.
    value = functools.cached_property(lambda self: self.settle().value)
    own = functools.cached_property(lambda self: self.settle().own)
    joint = functools.cached_property(lambda self: self.settle().joint)

    @property
    def is_settled(self) -> bool:
        return "value" in self.__dict__

    def settle(self) -> ErrorParts:
        """Compute and store the whole array, and return it."""
        if not self.is_settled:
            self.value, self.own, self.joint = self._filled(..., self.shape)
            self.functions = 0
            UNSETTLED.pop(self.source, None)
        return ErrorParts(self.value, self.own, self.joint)

    def _filled(self, block: Any, shape: tuple[int, ...]) -> ErrorParts:
        """Return `block`, which has `shape`, computed in parts that fit the cache."""
        value = np.empty(shape, self.carrier)
        own, joint = (np.empty(shape, np.float32) if h else None for h in self._has)

        def fill(piece: Any) -> None:
            part = self._compute(_within(block, piece))
            value[piece] = part.value
            if own is not None:
                own[piece] = part.own
            if joint is not None:
                joint[piece] = part.joint

        over_blocks(fill, shape)
        return ErrorParts(value, own, joint)

    def passed(self) -> Tracked:
        self._passes += 1
        if self._passes > MOST_PASSES or self.functions > MOST_FUNCTIONS:
            self.settle()
        return self

    def part(self, block: Any) -> ErrorParts:
        if self.is_settled:
            return super().part(block)
        shape = np.broadcast_to(np.float32(0.0), self.shape)[block].shape
        return self._filled(block, shape)


def _within(block: Any, piece: Any) -> Any:
    """Return the index, in the whole array, of what `piece` indexes in `block`."""
    if block is ... or piece is ...:
        return piece if block is ... else block
    rest, places = list(piece), []
    for outer in block:
        if not isinstance(outer, slice) or not rest:
            places.append(outer)
            continue
        first, inner = outer.start or 0, rest.pop(0)
        if isinstance(inner, slice):
            stop = first + inner.stop
            stop = stop if outer.stop is None else min(stop, outer.stop)
            places.append(slice(first + inner.start, stop))
        else:
            places.append(first + inner)
    return (*places, *rest)
