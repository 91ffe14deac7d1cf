"""Instructions of many devices: a block that all of them run, and what joins them.

`Spmd` is a program within the program: its operands are global arrays, split over the
devices of a mesh, and its body is what one device executes. Inside it collectives join
the devices; CC-cores execute them. A device is one logical NeuronCore. Groups and pairs
name devices by their number in the mesh (StableHLO's partition ids); the order in which
a group lists them is the order of its ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar

import numpy as np

from neuronjax.ir.fold_plan import FoldPlan
from neuronjax.ir.instruction import Block, Engine, Instruction, Label
from neuronjax.ir.program import Mesh

#: Who does what with whom: devices by number, the order in a group being that of ranks.
Groups = tuple[tuple[int, ...], ...]


GROUPS_REMEDY = "name every device once, in groups of one size (axis_index_groups)"
PAIRS_REMEDY = "name existing devices, each once as a source and once as a target"


def fault_of_groups(groups: Groups, devices: int, *, complete: bool = True) -> str:
    """Why devices cannot form these groups, or "".

    Args:
        groups: devices by number.
        devices: how many there are.
        complete: whether every device must be in one, and all must have one size.
    """
    named = [device for group in groups for device in group]
    fault = _strangers(named, devices) or _twice(named, "named twice")
    if complete and not fault:
        missing = sorted(set(range(devices)) - set(named))
        sizes = sorted({len(group) for group in groups})
        if missing:
            fault = f"{missing} of {devices} devices are in no group"
        elif len(sizes) > 1:
            fault = f"groups of {' and '.join(map(str, sizes))} devices"
    return f"{fault}: {groups}" if fault else ""


def fault_of_pairs(pairs: Groups, devices: int) -> str:
    """Why pairs (source, target) are no permutation of some devices, or ""."""
    named = [device for pair in pairs for device in pair]
    fault = _strangers(named, devices)
    for place, role in enumerate(("a source", "a target")):
        fault = fault or _twice([pair[place] for pair in pairs], f"{role} twice")
    return f"{fault}: {pairs}" if fault else ""


def _strangers(named: Iterable[int], devices: int) -> str:
    found = [device for device in named if not 0 <= device < devices]
    return f"device {found[0]} is none of the {devices} of the mesh" if found else ""


def _twice(named: Iterable[int], what: str) -> str:
    found = [device for device, count in Counter(named).items() if count > 1]
    return f"device {found[0]} is {what}" if found else ""


@dataclass(frozen=True)
class DeviceMesh:
    """Devices along named axes.

    Attributes:
        axes: (name, size), slowest first; a device's number is its row-major index.
    """

    axes: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(size for _, size in self.axes)


#: For every dimension of an array the mesh axes that it is split over, slowest first.
#: Over the axes that it does not name, the array is replicated.
Split = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Spmd(Instruction):
    """One block on every device of a mesh (`sdy.manual_computation`).

    Where a result is replicated, that of the first device is taken.

    Attributes:
        body: takes and gives the arrays of one device.
        mesh: the devices.
        splits: how each operand is split over them.
        joins: how each result is.
    """

    body: Block
    mesh: DeviceMesh
    splits: tuple[Split, ...]
    joins: tuple[Split, ...]
    engine: Engine = "cc"
    elsewhere: ClassVar[Engine | None] = "sync"

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.body,)


@dataclass(frozen=True, kw_only=True)
class Collective(Instruction):
    """What joins devices; operands and results are those of one device."""

    engine: Engine = "cc"


@dataclass(frozen=True, kw_only=True)
class PartitionId(Collective):
    """The number of the device, uint32."""

    elsewhere: ClassVar[Engine | None] = "sync"


@dataclass(frozen=True, kw_only=True)
class Reduction(Collective):
    """What reductions over devices have in common; each operand has its result.

    Attributes:
        op: add, multiply, minimum, maximum; of integers and booleans also and, or, xor.
        groups: who reduces with whom; every device in one, all groups of one size.
        plan: order and roundings of the sums and products of floats.
        reduce_dtype: the dtype that operands and partial sums travel in, rounded to the
            operand's once at the end; None for the operand's own.
        integer_path: "exact", or "fp32" as the CC-cores do it: exact to 2^24.
    """

    op: str
    groups: Groups
    plan: FoldPlan
    reduce_dtype: str | None = None
    integer_path: str = "exact"
    label: ClassVar[Label] = "modelled"


@dataclass(frozen=True, kw_only=True)
class AllReduce(Reduction):
    """Every member of a group gets the reduction of all."""


@dataclass(frozen=True, kw_only=True)
class ReduceScatter(Reduction):
    """The r-th member of a group gets the r-th part of the reduction.

    Attributes:
        dimension: along which the result is split into as many parts as members.
    """

    dimension: int


@dataclass(frozen=True, kw_only=True)
class AllGather(Collective):
    """Every member of a group gets the operands of all, concatenated in their order.

    Attributes:
        dimension: along which.
        groups: who gathers with whom; every device in one, all groups of one size.
    """

    dimension: int
    groups: Groups


@dataclass(frozen=True, kw_only=True)
class AllToAll(Collective):
    """The r-th member of a group gets the r-th part of every member's operand.

    Attributes:
        split_dimension: along which an operand is split.
        concat_dimension: along which the parts are concatenated, in order of members.
        groups: who exchanges with whom; every device in one, all groups of one size.
    """

    split_dimension: int
    concat_dimension: int
    groups: Groups


@dataclass(frozen=True, kw_only=True)
class CollectivePermute(Collective):
    """The second of each pair gets the operand of the first; who gets none has zeros.

    Attributes:
        pairs: (source, target); nobody twice a source, nobody twice a target.
    """

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class CollectiveBroadcast(Collective):
    """The first of each group sends to all of it; who is in none has zeros.

    Attributes:
        groups: of any sizes; nobody is in two.
    """

    groups: Groups


@dataclass(frozen=True, kw_only=True)
class RaggedAllToAll(Collective):
    """Members of a group send each other parts of sizes that only the run knows.

    Operands are data [n, ...], what the result has where nothing arrives [m, ...], and
    of every part, k of them to each member in their order, where it starts in the data,
    how long it is, where it goes in the receiver's result, and how long is what arrives
    at this place from each member: int32 or int64 [k * members] each.

    Attributes:
        groups: who exchanges with whom; every device in one, all groups of one size.
    """

    groups: Groups


# -- groups along axes -----------------------------------------------------------------


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
