"""Global arrays as the arrays of devices, and back: reshapes and transposes alone."""

from __future__ import annotations

from math import prod

import jax
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
