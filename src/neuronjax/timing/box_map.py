"""Entries by the box of a storage that they touch, found without looking at them all.

A kernel reads and writes a large tile piece by piece. The pieces of one size fall into
cells of that size along the dimension that is cut most, so that who meets a box is
looked for in a cell or two.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuronjax.timing.kernel_operands import Box, contains, overlap

#: A box over more cells than these is looked at by every question.
_MOST_CELLS = 4

_Found = list[tuple[Box, int]]


class BoxMap:
    """Boxes of one storage, each with an entry; a box may have several.

    `shape` is the storage's, () where the boxes are those of a whole memory. Those of
    all of it are kept apart: most tiles are written and read whole.
    """

    __slots__ = ("_axis", "_cells", "_shape", "_whole", "_wide", "_width")

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self._shape = shape
        self._whole: list[int] = []
        self._axis = -1  # and no cells before there is a box

    def __bool__(self) -> bool:
        return bool(self.entries())

    def add(self, b: Box, entry: int) -> None:
        """One more entry of a box."""
        if b is None:
            self._whole.append(entry)
            return
        if self._axis < 0:
            self._measure(b)
        cells = self._range(b)
        if cells is None:
            self._wide.append((b, entry))
            return
        for cell in cells:
            self._cells.setdefault(cell, []).append((b, entry))

    def entries(self) -> list[int]:
        """All entries."""
        found = self._whole.copy()
        if self._axis >= 0:
            for part in (self._wide, *self._cells.values()):
                found += [entry for _, entry in part]
        return found

    def taken(self) -> list[int]:
        """All entries, which are forgotten."""
        found = self.entries()
        self._whole.clear()
        if self._axis >= 0:
            self._wide, self._cells = [], {}
        return found

    def meeting(self, b: Box) -> list[int]:
        """Entries of boxes that have elements in common with this one."""
        if b is None:
            return self.entries()
        found = self._whole.copy()
        if self._axis < 0:
            return found
        found += [entry for other, entry in self._wide if overlap(other, b)]
        for cell in self._places(b, wide=False):
            found += [e for other, e in cell if other is b or overlap(other, b)]
        return found

    def drop_within(self, b: Box) -> None:
        """Forgets the boxes that this one contains."""
        if b is None:
            self.taken()
        if self._axis < 0:
            return
        for found in self._places(b):
            found[:] = [pair for pair in found if not contains(b, pair[0])]

    # -- cells -------------------------------------------------------------------------

    def _measure(self, b: tuple[tuple[int, int], ...]) -> None:
        """Cells are as long as the first box, along the axis with most of its like."""
        sizes = [last - first for first, last in b]
        axes = range(len(b))
        if self._shape:
            axis = max(axes, key=lambda n: self._shape[n] // sizes[n])
        else:
            axis = axes[-1]
        self._axis, self._width = axis, sizes[axis]
        self._cells: dict[int, _Found] = {}
        self._wide: _Found = []

    def _range(self, b: Box) -> range | None:
        """The cells of a box; None for all of them."""
        if b is None:
            return None
        first, last = b[self._axis]
        cells = range(first // self._width, (last - 1) // self._width + 1)
        return cells if len(cells) <= _MOST_CELLS else None

    def _places(self, b: Box, wide: bool = True) -> Iterator[_Found]:
        """Lists that may hold what has to do with a box."""
        if wide:
            yield self._wide
        cells = self._range(b)
        if cells is None:
            yield from self._cells.values()
            return
        for cell in cells:
            if cell in self._cells:
                yield self._cells[cell]
