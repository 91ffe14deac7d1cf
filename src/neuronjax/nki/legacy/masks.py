"""Masks of the older style, which restrict an instruction to some elements.

A mask is a boolean array over the index arrays (`i_p < n`). The true elements must form
a box, as in every mask that only bounds single indices; other masks are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.nki.refusing import unsupported
from neuronjax.nki.tensor import NkiTensor


@dataclass(frozen=True)
class Box:
    """A range of indices in every dimension."""

    starts: tuple[int, ...]  # first indices
    stops: tuple[int, ...]  # one beyond the last indices
    sizes: tuple[int, ...]  # sizes of the masked dimensions

    @property
    def empty(self) -> bool:
        """Whether the box has no elements."""
        return any(a >= b for a, b in zip(self.starts, self.stops, strict=True))

    def is_whole(self, dim: int) -> bool:
        return self.starts[dim] == 0 and self.stops[dim] == self.sizes[dim]

    def slices_of(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the box's slices of an array, but all of any dimension of size 1."""
        pairs = list(zip(self.starts, self.stops, strict=True))[-len(shape) :]
        return tuple(
            slice(None) if size == 1 else slice(a, b)
            for size, (a, b) in zip(shape, pairs, strict=True)
        )

    def of(self, t: NkiTensor) -> NkiTensor:
        """Return a view of the box in a tensor; dimensions of size 1 are whole."""
        if t.ndim != len(self.sizes):
            if t.shape[0] == self.sizes[0] and t.shape[0] != 1:
                return t.slice(0, self.starts[0], self.stops[0])
            return t
        for dim, (size, a, b) in enumerate(
            zip(t.shape, self.starts, self.stops, strict=True)
        ):
            if size != 1:
                t = t.slice(dim, a, min(b, size))
        return t

    def without(self, axes: list[int], *, keep: bool) -> Box:
        """Return the box of a reduction's result; `keep` keeps `axes`, with size 1."""
        dims = [d for d in range(len(self.sizes)) if keep or d not in axes]
        at = lambda values, one: tuple(  # noqa: E731
            one if d in axes else values[d] for d in dims
        )
        return Box(at(self.starts, 0), at(self.stops, 1), at(self.sizes, 1))


def common_box(shapes: Sequence[tuple[int, ...]], boxes: Sequence[Box]) -> Box | None:
    """Return the box in which all operands of an elementwise instruction have values.

    Args:
        shapes: the operands' shapes. If one has fewer dimensions than the largest, its
            box restricts only the partitions.
        boxes: the boxes of operands that have values only in part.
    """
    if not boxes:
        return None
    rank = max(map(len, shapes))
    sizes = np.broadcast_shapes(*(s for s in shapes if len(s) == rank))
    starts, stops = [0] * rank, list(sizes)
    for box in boxes:
        for d in range(rank if len(box.sizes) == rank else 1):
            if box.sizes[d] == sizes[d]:
                starts[d] = max(starts[d], box.starts[d])
                stops[d] = min(stops[d], box.stops[d])
            elif box.empty:
                stops[d] = starts[d]
    return Box(tuple(starts), tuple(stops), sizes)


def _cut(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the mask without elements beyond the tensor if all of these are False."""
    pairs = zip(mask.shape, shape[len(shape) - mask.ndim :], strict=True)
    inside = tuple([slice(b) if 1 < b < a else slice(None) for a, b in pairs])
    if inside == (slice(None),) * mask.ndim:
        return mask
    return mask[inside] if mask[inside].sum() == mask.sum() else mask


def box_of(mask: Any, shape: tuple[int, ...]) -> Box | None:
    """Return the box of a mask over a shape; None if nothing is masked."""
    if mask is None or mask is True:
        return None
    full = np.broadcast_to(_cut(np.asarray(mask, bool), shape), shape)
    if full.all():
        return None
    where = np.argwhere(full)
    if where.size == 0:
        zeros = (0,) * len(shape)
        return Box(zeros, zeros, shape)
    starts, stops = where.min(0), where.max(0) + 1
    if not full[tuple(map(slice, starts, stops))].all():
        unsupported(
            "mask",
            f"a mask of {len(where)} of {full.size} elements that form no rectangle",
            "use nisa.affine_select or nl.where for masks such as i_p >= i_f",
        )
    return Box(tuple(map(int, starts)), tuple(map(int, stops)), shape)
