"""Meshes and shardings of the sdy dialect, and groups of devices, as plain data.

What nobody here understands is kept as text and refused where it would be used: part of
an axis has the name that sdy prints, "x:(1)2".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from neuronjax.ir.program import AxisGroups, Mesh, Sharding

MESH = "sdy.mesh"


def meshes(operations: Iterable[Any]) -> dict[str, Mesh]:
    """The meshes among the operations of a module, by name."""
    return {
        op.attributes["sym_name"].value: _mesh_of(op.attributes["mesh"])
        for op in operations
        if op.operation.name == MESH
    }


def of_function(function: Any, attribute: str, count: int) -> tuple:
    """The sharding of each argument ("arg_attrs") or result ("res_attrs")."""
    if attribute not in function.attributes:
        return (None,) * count
    dictionaries = function.attributes[attribute]
    return tuple(
        sharding(d["sdy.sharding"]) if "sdy.sharding" in d else None
        for d in dictionaries
    )


def of_values(attribute: Any) -> tuple[Sharding, ...]:
    """`[<@mesh, [{"x"}, {}]>, ...]`, one for each value."""
    return tuple(map(sharding, sdy.TensorShardingPerValueAttr(attribute).shardings))


def sharding(attribute: Any) -> Sharding:
    """`#sdy.sharding<@mesh, [{"x"}, {}]>`; whether a dimension is open is dropped."""
    found = sdy.TensorShardingAttr(attribute)
    dimensions = map(sdy.DimensionShardingAttr, found.dimension_shardings)
    return Sharding(
        mesh=_mesh(found.mesh_or_ref),
        dimensions=tuple(_axes(d.axes) for d in dimensions),
        replicated=_axes(found.replicated_axes),
        unreduced=_axes(found.unreduced_axes),
    )


def manual_axes(attribute: Any) -> tuple[str, ...]:
    """`#sdy<manual_axes{"x", "y"}>`."""
    found: Any = sdy.ManualAxesAttr(attribute)
    return tuple(found)


def axis_groups(attribute: Any) -> AxisGroups:
    """`#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [...]>`."""
    found = stablehlo.ReplicaGroupMeshAxesAttr(attribute)
    return AxisGroups(_mesh(found.mesh, stablehlo), _axes(found.axes, stablehlo))


def is_axis_groups(attribute: Any) -> bool:
    """Whether groups are given by the axes of a mesh, and not one by one."""
    return stablehlo.ReplicaGroupMeshAxesAttr.isinstance(attribute)


def _mesh(attribute: Any, dialect: Any = sdy) -> str | Mesh:
    """A mesh written in place, or the name of one of the module."""
    found = attribute.maybe_downcast()
    if isinstance(found, ir.FlatSymbolRefAttr):
        return found.value
    return _mesh_of(attribute, dialect)


def _mesh_of(attribute: Any, dialect: Any = sdy) -> Mesh:
    found = dialect.MeshAttr(attribute)
    axes = map(dialect.MeshAxisAttr, found.axes)
    ids: Any = found.device_ids
    if isinstance(ids, ir.Attribute):
        ids = ir.DenseIntElementsAttr(ids)
    return Mesh(
        tuple((axis.name, axis.size) for axis in axes),
        tuple(map(int, () if ids is None else ids)),
    )


def _axes(references: Any, dialect: Any = sdy) -> tuple[str, ...]:
    """The names of axes, or of parts of them."""
    return tuple(_axis(dialect.AxisRefAttr(a), dialect) for a in references)


def _axis(reference: Any, dialect: Any) -> str:
    part = reference.sub_axis_info
    if part is None:
        return reference.name
    part = dialect.SubAxisInfoAttr(part)
    return f"{reference.name}:({part.pre_size}){part.size}"
