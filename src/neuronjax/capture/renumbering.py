"""A program whose devices get other numbers: their places in a mesh of their own order.

Groups and pairs name the new numbers; where a device asks for its number, the old one
is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from neuronjax.ir.axis_groups import groups_along
from neuronjax.ir.program import (
    AxisGroups,
    Function,
    Mesh,
    Op,
    Program,
    Region,
    TensorType,
    Value,
)

_TABLES = ("replica_groups", "source_target_pairs")


def renumbered(program: Program, devices: Sequence[int]) -> Program:
    """The program with the device `devices[k]` as number k."""
    renumbering = _Renumbering(program, devices)
    functions = {
        name: Function(name, renumbering.region(function.body))
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)


class _Renumbering:
    def __init__(self, program: Program, devices: Sequence[int]) -> None:
        self._program = program
        self._old = np.array(devices, np.uint32)
        # Groups of different sizes are filled up with -1, which stays.
        self._new = np.append(np.argsort(devices), -1)

    def region(self, region: Region) -> Region:
        ops = tuple(new for op in region.ops for new in self._ops(op))
        return replace(region, ops=ops)

    def _ops(self, op: Op) -> Iterator[Op]:
        if op.name == "stablehlo.partition_id":
            yield from self._lookup(op)
            return
        attributes = dict(op.attributes)
        for name in attributes.keys() & set(_TABLES):
            attributes[name] = self._new[self._table(attributes[name])]
        regions = tuple(map(self.region, op.regions))
        yield replace(op, attributes=attributes, regions=regions)

    def _table(self, found: Any) -> np.ndarray:
        if not isinstance(found, AxisGroups):
            return found
        mesh = found.mesh
        if not isinstance(mesh, Mesh):
            mesh = self._program.meshes[mesh]
        return np.array(groups_along(mesh, found.axes))

    def _lookup(self, op: Op) -> Iterator[Op]:
        """The old number of the device: partition_id is a place in a table."""
        (result,) = op.results
        scalar, word = result.type, result.type.dtype
        count = len(self._old)
        table, place, entry = (
            Value(result.number, kind)
            for kind in (TensorType((count,), word), scalar, TensorType((1,), word))
        )

        def made(name: str, operands: tuple, out: Value, **attributes: Any) -> Op:
            return Op(name, operands, (out,), attributes, (), op.location)

        yield made("stablehlo.constant", (), table, value=self._old)
        yield made(op.name, (), place)
        yield made("stablehlo.dynamic_slice", (table, place), entry, slice_sizes=(1,))
        yield made("stablehlo.reshape", (entry,), result)
