"""Instructions of many devices: a block that all of them run, and the collectives in
it.

`Spmd` is a program within the program: its operands are global arrays, split over the
devices of a mesh, and its body is the program of one device. In the body, collectives
join the devices; CC-cores execute them. A device is one logical NeuronCore. Groups and
pairs name devices by their number in the mesh (StableHLO's partition ids); the order in
which a group lists them is the order of its ranks.
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

#: Groups of devices by number; the order in a group is that of its ranks.
Groups = tuple[tuple[int, ...], ...]


GROUPS_REMEDY = "name every device once, in groups of equal size (axis_index_groups)"
PAIRS_REMEDY = "name existing devices, at most once as a source and once as a target"


def fault_of_groups(groups: Groups, devices: int, *, complete: bool = True) -> str:
    """Return why devices cannot form these groups, or "". If `complete`, every device
    must be in a group, and all groups must have one size."""
    named = [device for group in groups for device in group]
    fault = _strangers(named, devices) or _twice(named, "named twice")
    if complete and not fault:
        missing = sorted(set(range(devices)) - set(named))
        sizes = sorted({len(group) for group in groups})
        if missing:
            fault = f"of {devices} devices, {missing} are in no group"
        elif len(sizes) > 1:
            fault = f"groups of unequal size, {' and '.join(map(str, sizes))} devices"
    return f"{fault}: {groups}" if fault else ""


def fault_of_pairs(pairs: Groups, devices: int) -> str:
    """Return why pairs (source, target) are not a permutation of devices, or ""."""
    named = [device for pair in pairs for device in pair]
    fault = _strangers(named, devices)
    for place, role in enumerate(("a source", "a target")):
        fault = fault or _twice([pair[place] for pair in pairs], f"{role} twice")
    return f"{fault}: {pairs}" if fault else ""


def _strangers(named: Iterable[int], devices: int) -> str:
    unknown = [device for device in named if not 0 <= device < devices]
    what = f"is not in the mesh of {devices} devices"
    return f"device {unknown[0]} {what}" if unknown else ""


def _twice(named: Iterable[int], what: str) -> str:
    repeated = [device for device, count in Counter(named).items() if count > 1]
    return f"device {repeated[0]} is {what}" if repeated else ""


@dataclass(frozen=True)
class DeviceMesh:
    """Devices along named axes."""

    #: (name, size), slowest first; a device's number is its row-major index.
    axes: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        return prod(size for _, size in self.axes)


#: For every dimension of an array, the mesh axes over which it is split, slowest first.
#: The array is replicated over all other axes.
Split = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Spmd(Instruction):
    """One block on every device of a mesh (`sdy.manual_computation`).

    If a result is replicated, the first device's copy is taken."""

    body: Block  # takes and returns the arrays of one device
    mesh: DeviceMesh
    splits: tuple[Split, ...]  # how each operand is split over them
    joins: tuple[Split, ...]  # how each result is split over them
    engine: Engine = "cc"
    elsewhere: ClassVar[Engine | None] = "sync"

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.body,)


@dataclass(frozen=True, kw_only=True)
class Collective(Instruction):
    """An instruction that joins devices; its operands are those of one device."""

    engine: Engine = "cc"


@dataclass(frozen=True, kw_only=True)
class PartitionId(Collective):
    """The number of the device, uint32."""

    elsewhere: ClassVar[Engine | None] = "sync"


@dataclass(frozen=True, kw_only=True)
class Reduction(Collective):
    """A reduction over devices; each operand has a result."""

    #: The operation: add, multiply, minimum or maximum, and for integers and booleans
    #: also and, or, xor.
    op: str
    #: The devices that reduce together. Every device is in one group, and all groups
    #: have the same size.
    groups: Groups
    plan: FoldPlan  # the order and the roundings of sums and products of floats
    #: The dtype in which operands and partial sums are sent, rounded to the operand's
    #: once at the end; None for the operand's own.
    reduce_dtype: str | None = None
    #: "exact", or "fp32" as the CC-cores do it: exact to 2^24.
    integer_path: str = "exact"
    label: ClassVar[Label] = "modelled"


@dataclass(frozen=True, kw_only=True)
class AllReduce(Reduction):
    """A reduction whose result every member of a group gets."""


@dataclass(frozen=True, kw_only=True)
class ReduceScatter(Reduction):
    """A reduction after which member r of a group gets the r-th part of the result."""

    #: The dimension along which the result is split into as many parts as members.
    dimension: int


@dataclass(frozen=True, kw_only=True)
class AllGather(Collective):
    """A concatenation of all members' operands in order; every member gets it."""

    dimension: int  # the dimension of the concatenation
    groups: Groups  # the devices that gather together, as in `Reduction`


@dataclass(frozen=True, kw_only=True)
class AllToAll(Collective):
    """An exchange: member r of a group gets the r-th part of every member's operand."""

    split_dimension: int  # the dimension along which an operand is split
    #: The dimension along which the parts are concatenated, in order of members.
    concat_dimension: int
    groups: Groups  # the devices that exchange, as in `Reduction`


@dataclass(frozen=True, kw_only=True)
class CollectivePermute(Collective):
    """A transfer from the first to the second device of each pair; others get zeros."""

    #: (source, target); no device is a source twice or a target twice.
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class CollectiveBroadcast(Collective):
    """A copy of the first member's operand to its group; other devices get zeros."""

    groups: Groups  # groups of any sizes; no device is in two


@dataclass(frozen=True, kw_only=True)
class RaggedAllToAll(Collective):
    """An exchange in a group of parts whose sizes are known only at run time.

    Operands are the data [n, ...] and the initial contents of the result [m, ...]. Four
    more operands describe the parts, k for each member in order: the start of each part
    in the data, its size, its start in the receiver's result, and the size of the part
    that arrives from each member. Each operand is int32 or int64 [k * members]."""

    groups: Groups  # the devices that exchange, as in `Reduction`


# -- groups along axes -----------------------------------------------------------------


#: Part of an axis, as sdy prints it: "x:(2)4" is the part of size 4 that comes after
#: one of size 2.
_PART = re.compile(r"(.*):\((\d+)\)(\d+)")


def groups_along(mesh: Mesh, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of devices that differ only in their position along some axes,
    such as ("x", "y:(2)4"). These are slowest first, the order of a group's ranks.

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
    """Return the axes of the mesh, cut where parts of them are used."""
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
