"""JAX's names for meshes as a scope of `emulated` has them: over emulated devices.

A mesh of `make_mesh` has no devices, so JAX can neither set it nor place an array on
it. To an emulation arrays are whole, and what a mesh says counts inside its programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import (
    AbstractMesh,
    AxisType,
    NamedSharding,
    PartitionSpec as P,
    use_abstract_mesh,
)

from neuronjax.api.pmap import make_mesh
from neuronjax.capture import mesh_refusals


def _make_mesh(
    native: Callable[..., Any],
    axis_shapes: Sequence[int],
    axis_names: Sequence[str],
    axis_types: Sequence[AxisType] | None = None,
    *,
    devices: Sequence[Any] | None = None,
) -> Any:
    """`jax.make_mesh`; devices that are named are the host's."""
    if devices is not None:
        return native(axis_shapes, axis_names, axis_types, devices=devices)
    mesh = make_mesh(axis_shapes, axis_names)
    return mesh if axis_types is None else mesh.update(axis_types=tuple(axis_types))


class _Set:
    """What `jax.set_mesh` returns: the mesh is set, and with `with` until its end."""

    def __init__(self, mesh: AbstractMesh) -> None:
        self._context = use_abstract_mesh(mesh)
        self._context.__enter__()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: Any) -> None:
        self._context.__exit__(*raised)


def _set_mesh(native: Callable[..., Any], mesh: Any) -> Any:
    """`jax.set_mesh`."""
    return _Set(mesh) if isinstance(mesh, AbstractMesh) else native(mesh)


def _device_put(
    native: Callable[..., Any], x: Any, device: Any = None, **options: Any
) -> Any:
    """`jax.device_put`: the array as it is, where no device of the host is meant."""
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(x))
    if traced or not any(map(_is_emulated, jax.tree.leaves(device))):
        return native(x, device, **options)
    return native(x)


def _is_emulated(device: Any) -> bool:
    mesh = jax.sharding.get_abstract_mesh()
    if isinstance(device, P) and not mesh.empty:
        with mesh_refusals.named():
            device = NamedSharding(mesh, device)
    over = getattr(device, "mesh", None)
    return isinstance(device, NamedSharding) and isinstance(over, AbstractMesh)


#: By the name in `jax`; each takes JAX's own function and the arguments of a call.
OURS: Mapping[str, Callable[..., Any]] = {
    "make_mesh": _make_mesh,
    "set_mesh": _set_mesh,
    "device_put": _device_put,
}
