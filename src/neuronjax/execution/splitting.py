"""Global arrays as the arrays of devices, and back: reshapes and transposes alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import numpy as np
from jax import lax

from neuronjax.ir.collective_set import DeviceMesh, Split


def is_replicated(split: Split, mesh: DeviceMesh) -> bool:
    """Whether every device has the whole array."""
    sizes = dict(mesh.axes)
    return all(sizes[name] == 1 for names in split for name in names)


def local_shape(
    shape: tuple[int, ...], split: Split, mesh: DeviceMesh
) -> tuple[int, ...]:
    """The shape of one device's part."""
    sizes = dict(mesh.axes)
    return tuple(
        n // prod(sizes[name] for name in names)
        for n, names in zip(shape, split, strict=True)
    )


def split_array(x: jax.Array, split: Split, mesh: DeviceMesh) -> jax.Array:
    """[devices, *local shape] of a global array."""
    sizes = dict(mesh.axes)
    local = local_shape(x.shape, split, mesh)
    shape: list[int] = []
    where: dict[str, int] = {}
    kept: list[int] = []
    for names, n in zip(split, local, strict=True):
        for name in names:
            where[name] = len(shape)
            shape.append(sizes[name])
        kept.append(len(shape))
        shape.append(n)
    named = [where[name] for name, _ in mesh.axes if name in where]
    x = lax.transpose(lax.reshape(x, shape), [*named, *kept])
    # The axes that the split does not name, in their places: copies.
    present = [d for d, (name, _) in enumerate(mesh.axes) if name in where]
    rank = len(mesh.axes)
    shape = [size for _, size in mesh.axes] + list(local)
    x = lax.broadcast_in_dim(x, shape, [*present, *range(rank, rank + len(local))])
    return lax.reshape(x, (mesh.size, *local))


def join_array(x: jax.Array, split: Split, mesh: DeviceMesh) -> jax.Array:
    """The global array of [devices, *local shape]; of copies the first device's."""
    local = x.shape[1:]
    x = lax.reshape(x, (*[size for _, size in mesh.axes], *local))
    named = {name for names in split for name in names}
    present: list[str] = []
    for name, _ in mesh.axes:
        position = len(present)
        if name in named:
            present.append(name)
        else:
            x = lax.index_in_dim(x, 0, position, keepdims=False)
    order: list[int] = []
    shape: list[int] = []
    sizes = dict(mesh.axes)
    for dimension, names in enumerate(split):
        order += [present.index(name) for name in names]
        order.append(len(present) + dimension)
        shape.append(prod(sizes[name] for name in names) * local[dimension])
    return lax.reshape(lax.transpose(x, order), shape)


# -- one device's part -----------------------------------------------------------------


def places_of(split: Split, mesh: DeviceMesh) -> list[tuple[int, ...]]:
    """Return for every device which part it has, by number along each dimension."""
    sizes = [size for _, size in mesh.axes]
    at = dict(zip((name for name, _ in mesh.axes), np.indices(sizes), strict=True))
    numbers = [np.zeros(mesh.size, int)]
    for names in split:
        along = np.zeros(sizes, int)
        for name in names:
            along = along * dict(mesh.axes)[name] + at[name]
        numbers.append(along.reshape(-1))
    return [tuple(map(int, place[1:])) for place in zip(*numbers, strict=True)]


def part_at(place: tuple[int, ...], local: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the index of a part of this shape in the global array."""
    return tuple(slice(k * n, (k + 1) * n) for k, n in zip(place, local, strict=True))


def join_parts(parts: Sequence[np.ndarray], last: tuple[int, ...]) -> np.ndarray:
    """Return the global array of its parts, which are in the order of their places.

    Args:
        parts: one of every place.
        last: the place of the last one.
    """
    joined = list(parts)
    for axis in reversed(range(len(last))):
        n = last[axis] + 1
        groups = [joined[k : k + n] for k in range(0, len(joined), n)]
        joined = [np.concatenate(g, axis) if n > 1 else g[0] for g in groups]
    [whole] = joined
    return whole


# -- parts of the devices --------------------------------------------------------------


def carrier(mesh: DeviceMesh, parts: int) -> str | None:
    """The axis that so many equal parts of the devices divide among themselves.

    Parts have consecutive device numbers, so it is the slowest axis of more than one
    device; None where its size is no multiple.
    """
    name, size = next((axis for axis in mesh.axes if axis[1] > 1), (None, 1))
    return name if size % parts == 0 else None


def part_of(mesh: DeviceMesh, parts: int) -> DeviceMesh:
    """The mesh of one of so many parts; there is a carrier."""
    axis = carrier(mesh, parts)
    sizes = [(n, size // parts if n == axis else size) for n, size in mesh.axes]
    return DeviceMesh(tuple(sizes))


def carried_dimension(split: Split, mesh: DeviceMesh, parts: int) -> int | None:
    """The dimension of which every part of the devices has a slice of its own.

    None where the parts' slices are not consecutive, or every part has the whole.
    """
    axis, sizes = carrier(mesh, parts), dict(mesh.axes)
    for dimension, names in enumerate(split):
        if axis in [name for name in names if sizes[name] > 1][:1]:
            return dimension
    return None


def is_spread(split: Split, mesh: DeviceMesh, parts: int) -> bool:
    """Whether an array is split over the carrier, but not in consecutive slices, or
    there is no carrier."""
    axis = carrier(mesh, parts)
    named = any(axis in names for names in split)
    return axis is None or (named and carried_dimension(split, mesh, parts) is None)
