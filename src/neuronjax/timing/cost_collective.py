"""The seconds of a collective instruction, transfers included."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from neuronjax.errors import InternalError
from neuronjax.hardware import Target
from neuronjax.ir.collective_set import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    CollectiveBroadcast,
    CollectivePermute,
    Groups,
    PartitionId,
    RaggedAllToAll,
    ReduceScatter,
    Reduction,
)
from neuronjax.ir.collectives.placement import Placement
from neuronjax.timing.collectives import collective_time
from neuronjax.timing.work import Core

_OPS: dict[type[Collective], str] = {
    AllReduce: "all_reduce",
    ReduceScatter: "reduce_scatter",
    AllGather: "all_gather",
    AllToAll: "all_to_all",
    # ASSUMPTION: the parts, of sizes that only the run knows, are all the data.
    RaggedAllToAll: "all_to_all",
    CollectivePermute: "collective_permute",
    CollectiveBroadcast: "collective_broadcast",
}

_GROUPED = Reduction | AllGather | AllToAll | RaggedAllToAll | CollectiveBroadcast


def collective_seconds(
    i: Collective, core: Core, target: Target, placement: Sequence[int] = ()
) -> float:
    """The time of a collective instruction.

    Args:
        i: the instruction; `PartitionId` is free.
        core: of one device.
        target: the machine that the devices are in.
        placement: the logical core of each device; empty for the device's own number.

    Raises:
        InternalError: a class of collectives without a rule.
        InvalidProgramError: a device that the placement does not place.
    """
    if isinstance(i, PartitionId):
        return 0.0
    operands = sum(prod(v.type.shape) * v.type.dtype.itemsize for v in i.operands)
    results = sum(prod(b.type.shape) * b.type.dtype.itemsize for b in i.results)
    time = collective_time(
        _OPS[type(i)],
        max(operands, results),
        _groups(i),
        target,
        placement=Placement.of(target, lnc=core.lnc, cores=placement),
        plan=i.plan if isinstance(i, Reduction) else None,
        lnc=core.lnc,
    )
    return time.seconds


def _groups(i: Collective) -> Groups:
    if isinstance(i, CollectivePermute):
        return i.pairs
    if isinstance(
        i, Reduction | AllGather | AllToAll | RaggedAllToAll | CollectiveBroadcast
    ):
        return i.groups
    raise InternalError(f"no cost of {i.name}", op=i.name)
