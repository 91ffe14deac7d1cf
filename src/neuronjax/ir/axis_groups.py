"""Groups of devices along axes of a mesh, or along parts of them, as device numbers."""

from __future__ import annotations

import re
from itertools import pairwise
from math import prod

import numpy as np

from neuronjax.ir.program import Mesh

#: Part of an axis, as sdy prints it: "x:(2)4" is the part of size 4 that comes after
#: one of size 2.
_PART = re.compile(r"(.*):\((\d+)\)(\d+)")


def groups_along(mesh: Mesh, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Devices that differ in their place along some axes alone.

    Args:
        mesh: the devices.
        axes: slowest first, which is the order of the ranks of a group; "x", "x:(2)4".

    Raises:
        KeyError: an axis that the mesh does not have, or a part that it cannot have.
    """
    pieces = _pieces(mesh, axes)
    size = prod(n for _, n in pieces)
    devices = np.array(mesh.device_ids or range(size)).reshape([n for _, n in pieces])
    order = {name: k for k, (name, _) in enumerate(pieces)}
    inner = [order[name] for name in axes]
    outer = [k for k in range(len(pieces)) if k not in inner]
    ranks = prod(pieces[k][1] for k in inner)
    table = devices.transpose(*outer, *inner).reshape(-1, ranks)
    return tuple(map(tuple, table.tolist()))


def _pieces(mesh: Mesh, axes: tuple[str, ...]) -> list[tuple[str, int]]:
    """The axes of the mesh, cut where parts of them are asked for."""
    parts = [match.groups() for match in map(_PART.fullmatch, axes) if match]
    pieces = []
    for name, size in mesh.axes:
        edges = {1, size}
        for axis, before, length in parts:
            if axis == name:
                edges |= {int(before), int(before) * int(length)}
        if edges == {1, size}:
            pieces.append((name, size))
            continue
        for low, high in pairwise(sorted(edges)):
            pieces.append((f"{name}:({low}){high // low}", high // low))
    return pieces
