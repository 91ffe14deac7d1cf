"""Arrays cut into tiles, one per device, as splits over the axes of a mesh.

XLA says which tile of an array every device has; a `Split` names mesh axes. Where whole
axes do not do (Shardy may use part of one), the axes are cut into prime factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from neuronjax.ir.program import Mesh

Split = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class DeviceTiling:
    """How an array is cut.

    Attributes:
        counts: tiles along every dimension.
        places: for every device, by its number, which tile it has.
    """

    counts: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, counts: Sequence[int], places: Sequence[Sequence[int]]) -> DeviceTiling:
        """Makes one from lists."""
        return cls(tuple(counts), tuple(map(tuple, places)))


def find_mesh(
    tilings: Sequence[DeviceTiling], meshes: Sequence[Mesh]
) -> tuple[Mesh, list[Split]] | None:
    """A mesh over whose axes all arrays are split, and how.

    Args:
        tilings: of every array.
        meshes: those of the program; one of them is chosen, its axes cut if need be.

    Returns:
        None where there is no such mesh.
    """
    for mesh in [*meshes, *(cut for mesh in meshes for cut in _cuts(mesh))]:
        splits = [split_over(mesh, tiling) for tiling in tilings]
        if None not in splits:
            return mesh, [split for split in splits if split is not None]
    return None


def split_over(mesh: Mesh, tiling: DeviceTiling) -> Split | None:
    """The axes that every dimension is split over, slowest first; None if none do."""
    sizes = [size for _, size in mesh.axes]
    devices = list(mesh.device_ids or range(prod(sizes)))
    grid = np.array(tiling.places)[devices].reshape(*sizes, len(tiling.counts))
    found = [
        _axes(mesh, grid[..., dimension], count)
        for dimension, count in enumerate(tiling.counts)
    ]
    return None if None in found else tuple(axes for axes in found if axes is not None)


def _axes(mesh: Mesh, places: np.ndarray, count: int) -> tuple[str, ...] | None:
    """The axes of one dimension.

    Args:
        mesh: the devices.
        places: which of the tiles along the dimension they have, [*sizes of axes].
        count: how many tiles there are.
    """
    rank = places.ndim
    start = places[(0,) * rank]
    ones = (tuple(int(k == axis) for k in range(rank)) for axis in range(rank))
    steps = [
        (int(places[one] - start), axis)
        for axis, one in enumerate(ones)
        if mesh.axes[axis][1] > 1
    ]
    order = sorted((step, axis) for step, axis in steps if step)
    strides = [step for step, _ in order]
    expected = np.cumprod([1, *[mesh.axes[axis][1] for _, axis in order]]).tolist()
    if [*strides, count] != expected:
        return None
    digits = np.indices(places.shape)
    rebuilt = sum((step * digits[axis] for step, axis in order), np.zeros_like(places))
    if not np.array_equal(rebuilt, places):
        return None
    return tuple(mesh.axes[axis][0] for _, axis in reversed(order))


def _cuts(mesh: Mesh) -> Iterator[Mesh]:
    """The mesh with its axes cut into prime factors, the small or the large first."""
    for reverse in (False, True):
        axes = []
        for name, size in mesh.axes:
            factors = sorted(_factors(size), reverse=reverse)
            steps = np.cumprod([1, *factors]).tolist()
            axes += [(f"{name}.{a}", b // a) for a, b in pairwise(steps)]
        yield Mesh(tuple(axes), mesh.device_ids)


def _factors(n: int) -> Iterator[int]:
    """The prime factors of n."""
    divisor = 2
    while n > 1:
        while n % divisor == 0:
            yield divisor
            n //= divisor
        divisor += 1
