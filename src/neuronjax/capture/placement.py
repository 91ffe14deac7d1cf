"""Where the results of an emulated function belong: on the devices that `jax.jit` would
place them on, and in its shardings."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

from neuronjax.capture.refusals import equations
from neuronjax.ir.program import Program, Sharding


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["whole"], meta_fields=["shardings"]
)
@dataclass(frozen=True)
class Results:
    """What the emulation returns where its results belong somewhere.

    Attributes:
        whole: the results, and behind them what else a call returns.
        shardings: of each flat result.
    """

    whole: Any
    shardings: tuple[NamedSharding, ...]

    def placed(self) -> Any:
        """Return the results where they belong, and the rest as it is."""
        leaves, tree = jax.tree.flatten(self.whole)
        count = len(self.shardings)
        moved = map(_moved, leaves[:count], self.shardings)
        return jax.tree.unflatten(tree, [*moved, *leaves[count:]])


def placements(
    stage: Any, program: Program, devices: Mesh | AbstractMesh | None
) -> tuple[NamedSharding, ...]:
    """Return the sharding of each flat result; () where no devices are named.

    The function may name it, or the type of the result, where axes are Explicit; the
    partitioner decides it where axes are Auto. A result without any of these lies whole
    on every device.

    Args:
        stage: the function, traced, which may name devices itself.
        program: captured of it.
        devices: those that the call names.
    """
    jaxpr, types = stage.jaxpr.jaxpr, jax.tree.leaves(stage.out_info)
    if devices is None:
        devices = next(_devices(jaxpr), None)
    if devices is None:
        return ()
    decided = program.result_shardings or [None] * len(types)
    rows = zip(jaxpr.outvars, types, decided, strict=True)
    specs = [
        _said(jaxpr, variable) or _of_type(result) or _of_partitioner(split, devices)
        for variable, result, split in rows
    ]
    return tuple(NamedSharding(devices, spec) for spec in specs)


def _said(jaxpr: Any, variable: Any) -> P | None:
    """Return the sharding that the operation which makes a result gives it."""
    for equation in jaxpr.eqns:
        if variable not in equation.outvars:
            continue
        number, given = equation.outvars.index(variable), equation.params
        if equation.primitive.name == "sharding_constraint":
            return _without_end(given["sharding"].spec)
        if equation.primitive.name == "shard_map":
            return _without_end(given["out_specs"][number])
        if equation.primitive.name == "jit":
            sharding, inner = given["out_shardings"][number], given["jaxpr"].jaxpr
            if isinstance(sharding, NamedSharding):
                return sharding.spec
            return _said(inner, inner.outvars[number])
    return None


def _of_type(result: Any) -> P | None:
    over = result.sharding
    return over.spec if over and AxisType.Explicit in over.mesh.axis_types else None


def _of_partitioner(decided: Sharding | None, devices: Mesh | AbstractMesh) -> P:
    axes = () if decided is None else decided.dimensions
    # The partitioner may split along a part of an axis, which has no name.
    known = all(name in devices.axis_names for names in axes for name in names)
    return _without_end(P(*(names or None for names in axes))) if known else P()


def _without_end(spec: P) -> P:
    """Return a spec without its last entries that are None, as XLA gives it back."""
    axes = [*spec]
    while axes and axes[-1] is None:
        axes.pop()
    return P(*axes)


def _devices(jaxpr: Any) -> Iterator[Mesh]:
    """Yield the meshes of devices that the shardings in a function are over."""
    for equation, _ in equations(jaxpr):
        for value in jax.tree.leaves(list(equation.params.values())):
            mesh = getattr(value, "mesh", value)
            if isinstance(mesh, Mesh) and not mesh.empty:
                yield mesh


def _moved(array: Any, sharding: NamedSharding) -> Any:
    """Return an array in a sharding, a traced one where its type has to say it."""
    if not isinstance(array, Tracer):
        has_devices = isinstance(sharding.mesh, Mesh)
        return jax.device_put(array, sharding) if has_devices else array
    explicit = AxisType.Explicit in sharding.mesh.axis_types
    return jax.reshard(array, sharding) if explicit else array
