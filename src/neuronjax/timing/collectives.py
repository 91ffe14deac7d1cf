"""The time of collectives: the latency of their steps, and the transfer of their bytes.

    seconds = start + sum over steps of (hop + bytes / rate)

`hop` is the latency of a step, and `rate` is that of NeuronLink, DMA or EFA, whichever
is slowest in the step. Steps follow each other, except that algorithm rdh within a node
runs its steps at the same time, on different slices of the data. The messages of all
groups share the links of the node. `ir.collectives.selection` chooses the algorithm,
for numerics and time alike. An all-gather runs the algorithm of a reduce-scatter of the
same size (ASSUMPTION). In an all-to-all, each rank sends directly to every other rank.
A collective-broadcast runs as an all-gather (compiler 2.29). Contention with compute
for HBM and DMA rings is not modelled. Once per launch, a program with collectives also
waits for all ranks of its groups: 1 to 5 ms with more than two ranks, in the only
published measurement (T16 of `benchmarks/validate_collectives.py`). The previous launch
may run during this wait.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.hardware import Target, chips_with_engine
from neuronjax.ir.collectives.placement import Group, Placement
from neuronjax.ir.collectives.selection import select
from neuronjax.ir.fold_plan import FoldPlan
from neuronjax.timing import assumptions as c
from neuronjax.timing.collective_steps import (
    CollectiveStep,
    at_once,
    permute_steps,
    steps_of,
    steps_over_nodes,
)
from neuronjax.timing.network import Network, network_of
from neuronjax.timing.work import Core

Bottleneck = Literal["latency", "link", "dma", "efa"]
BOTTLENECKS: tuple[Bottleneck, ...] = get_args(Bottleneck)
OPS = (
    *("all_reduce", "reduce_scatter", "all_gather"),
    *("all_to_all", "collective_permute", "collective_broadcast"),
)


@dataclass(frozen=True, kw_only=True)
class CollectiveTime:
    """The time of one collective.

    Attributes:
        seconds: from the trigger until the last rank has its result.
        steps: the number of consecutive steps.
        latency_seconds: the time that the same collective of 0 bytes takes.
        transfer_seconds: the time that the bytes add to `latency_seconds`.
        bytes_per_rank: the bytes that one rank sends to other ranks.
        algorithm: the name of the algorithm, as in `ir.collectives.algorithms`.
        bottleneck: what takes most of the time: "link" (NeuronLink), "dma", "efa", or
            "latency".
        algbw_bytes_per_second: the size of the collective divided by `seconds`.
        busbw_bytes_per_second: `algbw_bytes_per_second` multiplied by `bus_factor`.
    """

    seconds: float
    steps: int
    latency_seconds: float
    transfer_seconds: float
    bytes_per_rank: float
    algorithm: str
    bottleneck: Bottleneck
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float


def collective_time(
    op: str,
    size_bytes: float,
    groups: Sequence[Sequence[int]],
    target: Target,
    *,
    placement: Placement | None = None,
    algorithm: str | None = None,
    plan: FoldPlan | None = None,
    lnc: int | None = None,
    network: Network | None = None,
) -> CollectiveTime:
    """Return the time of one collective instruction.

    Args:
        op: one of `OPS`.
        size_bytes: bytes of a rank's operand or result, whichever are more, as in
            nccom-test: the result of an all-gather, the operand of a reduce-scatter.
        groups: the device numbers of each group; for a collective_permute, pairs of
            device numbers (source, destination).
        target: the machine.
        placement: the location of each device; None for the target's default.
        algorithm: a name in `ir.collectives.algorithms`; None to select an algorithm by
            size and groups.
        plan: the instruction's fold plan (which rank adds what); None if it has no
            plan. The algorithm of a plan replaces `algorithm`.
        lnc: physical cores per logical core; None for the target's default.
        network: the network that joins the devices; None for the target's network.

    Raises:
        InvalidProgramError: the op or the algorithm is unknown, or the groups cannot
            run the algorithm.
        UnsupportedError: no network joins the nodes of the ranks, or the chip has no
            CC-cores.
    """
    if "cc" in target.chip.lacks:
        raise UnsupportedError(
            f"{op}: {target.name} has no CC-cores, which let ranks exchange data",
            remedy="use one rank, or a target that has CC-cores: "
            f"{', '.join(chips_with_engine('cc'))}",
        )
    placement = placement or Placement.of(target, lnc=lnc)
    network = network or network_of(target, lnc)
    executed = _executed(op, size_bytes, groups)
    if op == "collective_permute":
        name = "permute"
        time = priced(_permute(groups, placement), size_bytes, network)
    else:
        name = _algorithm(executed, plan, algorithm, placement)
        like, size, listed = executed
        located = tuple(placement.group(group) for group in listed)
        time = _sized(_rates_of(like, name, located, network), size)
    return _rated(time, name, op, size_bytes, max(map(len, groups), default=1))


def time_over_nodes(
    op: str,
    size_bytes: float,
    groups: Sequence[Sequence[int]],
    nodes: int,
    target: Target,
    *,
    algorithm: str | None = None,
) -> CollectiveTime:
    """Return the time of a collective whose groups extend over `nodes` nodes, with the
    same layout on each node.

    The time is that of `collective_time`, computed without a list of every rank.
    `groups` has, for each group, the devices on the first node; `target` may have one
    node or several. ASSUMPTION: the algorithm depends only on the size and on whether
    the number of nodes is a power of two, so it is chosen as for 2 nodes (if it is a
    power of two) or as for 3.

    Raises:
        InvalidProgramError: the groups cannot run the algorithm.
        UnsupportedError: no network joins the nodes.
    """
    placement = Placement.of(target)
    per_node = placement.ranks_per_chip * placement.chips_per_node
    is_power = nodes & (nodes - 1) == 0
    few = min(nodes, 2 if is_power else 3)
    listed = [
        [device + node * per_node for node in range(few) for device in group]
        for group in groups
    ]
    if nodes == few:
        return collective_time(op, size_bytes, listed, target, algorithm=algorithm)
    executed = _executed(op, size_bytes, listed)
    name = _algorithm(executed, None, algorithm, placement)
    inner = [placement.group(group) for group in groups]
    network = network_of(target)
    steps = steps_over_nodes(op, name, inner, nodes, network.topology)
    time = priced(steps, size_bytes, network)
    return _rated(time, name, op, size_bytes, len(groups[0]) * nodes)


_Executed = tuple[str, float, tuple[tuple[int, ...], ...]]


def _executed(op: str, size_bytes: float, groups: Sequence[Sequence[int]]) -> _Executed:
    """Return the op, bytes and groups of the collective that the hardware runs: an
    all-gather for a broadcast, otherwise the given collective."""
    if op not in OPS:
        raise InvalidProgramError(
            f"there is no collective {op!r}", remedy=f"use one of: {', '.join(OPS)}"
        )
    if size_bytes < 0:
        raise InvalidProgramError(
            f"{op} of {size_bytes} bytes", remedy="use a size of 0 or more"
        )
    named = tuple(map(tuple, groups))
    if op != "collective_broadcast":
        return op, size_bytes, named
    # ASSUMPTION: if groups differ in size, only the largest groups count.
    largest = max(map(len, named), default=1)
    whole = tuple(group for group in named if len(group) == largest)
    return "all_gather", size_bytes * largest, whole


def _permute(
    pairs: Sequence[Sequence[int]], placement: Placement
) -> tuple[CollectiveStep, ...]:
    devices = sorted({device for pair in pairs for device in pair})
    if not devices:
        return ()
    rank = {device: r for r, device in enumerate(devices)}
    named = [(rank[source], rank[destination]) for source, destination in pairs]
    return permute_steps(named, placement.group(devices))


def _algorithm(
    executed: _Executed,
    plan: FoldPlan | None,
    algorithm: str | None,
    placement: Placement,
) -> str:
    op, size, groups = executed
    if plan is not None:
        return plan.algorithm
    if op == "all_to_all":
        if algorithm not in (None, "auto", "mesh"):
            raise InvalidProgramError(
                f"there is no algorithm {algorithm!r} of {op}", remedy="use 'mesh'"
            )
        return "mesh"
    like = "all_reduce" if op == "all_reduce" else "reduce_scatter"
    return select(like, int(size), groups, placement, override=algorithm).algorithm


@dataclass(frozen=True)
class CollectivePrice:
    """The time of a collective's steps. If `_rates` returns it, three fields are per
    byte of the collective: `by_resource`, `sent_bytes` and `filling`.

    Attributes:
        steps: the number of steps.
        latency_seconds: the time of the steps for 0 bytes.
        by_resource: for "link", "dma" and "efa", the seconds of the steps in which this
            resource is the slowest.
        sent_bytes: the bytes that one rank sends to other ranks.
        filling: for each resource, seconds to add for the first slice of the data: it
            passes all steps one after the other, before steps of different slices run
            at the same time. Empty if `by_resource` includes these seconds.
    """

    steps: int
    latency_seconds: float
    by_resource: Mapping[str, float]
    sent_bytes: float
    filling: Mapping[str, float] = field(default_factory=dict)

    @property
    def transfer_seconds(self) -> float:
        """Return the seconds that the bytes add to the latency."""
        return sum(self.by_resource.values())

    @property
    def bottleneck(self) -> Bottleneck:
        """Return what takes most of the time: "link", "dma", "efa" or "latency"."""
        spent = {"latency": self.latency_seconds, **self.by_resource}
        return max(BOTTLENECKS, key=lambda name: spent.get(name, 0.0))


def priced(
    steps: Sequence[CollectiveStep], size_bytes: float, network: Network
) -> CollectivePrice:
    """Return the time of a collective of `size_bytes` that consists of `steps`."""
    return _sized(_rates(steps, network), size_bytes)


def _rates(steps: Sequence[CollectiveStep], network: Network) -> CollectivePrice:
    latency = network.chip_start_seconds if steps else 0.0
    if any(step.flows for step in steps):
        latency = network.link_start_seconds
    latency += sum(step.count * network.hop_seconds(step) for step in steps)
    sliced = [step for step in steps if step.is_sliced]
    others = [step for step in steps if not step.is_sliced]
    together = [at_once(sliced)] if sliced else []
    spent = _slowest([*others, *together], network)
    alone = _slowest(steps, network)
    sent = sum(step.count * step.sent for step in steps)
    count = sum(step.count for step in steps)
    filling = {name: alone[name] - spent[name] for name in spent}
    return CollectivePrice(count, latency, spent, sent, filling)


def _slowest(steps: Sequence[CollectiveStep], network: Network) -> dict[str, float]:
    """Return, for "link", "dma" and "efa", the total time of the steps in which this
    resource is the slowest, in seconds per byte of the collective."""
    spent = {"link": 0.0, "dma": 0.0, "efa": 0.0}
    for step in steps:
        each = network.seconds_per_byte(step)
        slowest = max(each, key=lambda name: each[name])
        spent[slowest] += step.count * each[slowest]
    return spent


@functools.lru_cache(maxsize=256)
def _rates_of(
    op: str, algorithm: str, groups: tuple[Group, ...], network: Network
) -> CollectivePrice:
    return _rates(steps_of(op, algorithm, groups, network.topology), network)


def _sized(rates: CollectivePrice, size_bytes: float) -> CollectivePrice:
    first = min(size_bytes, c.SLICE_BYTES.value)
    spent = {
        name: s * size_bytes + rates.filling[name] * first
        for name, s in rates.by_resource.items()
    }
    sent = rates.sent_bytes * size_bytes
    return CollectivePrice(rates.steps, rates.latency_seconds, spent, sent)


def bus_factor(op: str, ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth, as in nccl-tests."""
    if op in ("collective_permute", "collective_broadcast"):
        return 1.0
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


def _rated(
    time: CollectivePrice, algorithm: str, op: str, size_bytes: float, ranks: int
) -> CollectiveTime:
    seconds = time.latency_seconds + time.transfer_seconds
    algbw = size_bytes / seconds if seconds else 0.0
    return CollectiveTime(
        seconds=seconds,
        steps=time.steps,
        latency_seconds=time.latency_seconds,
        transfer_seconds=time.transfer_seconds,
        bytes_per_rank=time.sent_bytes,
        algorithm=algorithm,
        bottleneck=time.bottleneck,
        algbw_bytes_per_second=algbw,
        busbw_bytes_per_second=algbw * bus_factor(op, ranks),
    )


def barrier_seconds(target: Target, ranks: int) -> float:
    """Return the seconds that an execution waits for all `ranks` of the largest group.

    A single rank does not wait. `ChipSpec.barrier_seconds` has the wait of 2 and of 4
    ranks, and the seconds that every doubling beyond 4 ranks adds."""
    if ranks < 2:
        return 0.0
    two, four, doubling = target.chip.barrier_seconds
    return two if ranks == 2 else four + doubling * max(0.0, math.log2(ranks / 4))


def launch_seconds(core: Core, target: Target, ranks: int) -> float:
    """Return the seconds that a launch adds to the time of a program.

    `core.around_seconds` is subtracted, since a program's time already includes it."""
    return queued_launch_seconds(target, ranks, 0.0) - core.around_seconds


def queued_launch_seconds(target: Target, ranks: int, program_seconds: float) -> float:
    """Return the seconds that each launch adds to a program that takes
    `program_seconds`, if calls of the program follow each other, as training steps do.

    The runtime prepares the next launch, with its wait for all ranks, while the program
    runs. A launch therefore adds only the time by which it is longer than the program
    [T16]."""
    launch = c.NULL_EXECUTION.value + barrier_seconds(target, ranks)
    return max(0.0, launch - program_seconds)
