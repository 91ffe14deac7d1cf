"""The places of devices: which of them share a chip or a node.

A device is one logical NeuronCore. Devices fill one chip after another; a placement may
say otherwise. A *node* is joined by NeuronLink, "a single physical node or tightly
coupled nodes" (intranode-collective-comm.rst): an instance, or an UltraServer as a
whole. Devices beyond one node are in further nodes of the same kind, joined by EFA.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import INSTANCES, Target, Topology


@dataclass(frozen=True)
class Group:
    """The places of the ranks of one group; entry r belongs to rank r."""

    chips: tuple[int, ...]  # the chip's number, counted over all nodes
    nodes: tuple[int, ...]  # the node
    locals: tuple[int, ...]  # the logical core's number within its node
    ranks_per_chip: int  # the logical cores of a chip
    #: The sides of the torus of a node's chips, which are numbered in row-major order;
    #: () if they are joined otherwise.
    torus: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return len(self.chips)

    @property
    def by_chip(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each chip; chips in the order of their first ranks."""
        return _classes(self.chips)

    @property
    def by_node(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node; nodes in the order of their first ranks."""
        return _classes(self.nodes)

    @property
    def fault(self) -> str:
        """The reason why no network joins the group, or "". A group on several nodes
        must have one rank on each, or ranks on the same logical cores of each
        (internode-collective-comm.rst). Chips need not be neighbours (ASSUMPTION:
        messages pass through other chips)."""
        cores = {tuple(self.locals[r] for r in ranks) for ranks in self.by_node}
        if len(self.by_node) in (1, self.size) or len(cores) == 1:
            return ""
        return "the group uses different logical cores on different nodes"

    def among(self, ranks: Iterable[int]) -> Group:
        """Return the group of some of the ranks, renumbered from 0 in their order."""
        ranks = tuple(ranks)
        return Group(
            chips=tuple(self.chips[r] for r in ranks),
            nodes=tuple(self.nodes[r] for r in ranks),
            locals=tuple(self.locals[r] for r in ranks),
            ranks_per_chip=self.ranks_per_chip,
            torus=self.torus,
        )


@dataclass(frozen=True)
class Placement:
    """The logical cores of devices."""

    ranks_per_chip: int  # the logical cores of a chip
    chips_per_node: int  # the chips that NeuronLink joins
    #: The logical core of each device, counted over all nodes; None for the device's
    #: own number.
    cores: tuple[int, ...] | None = None
    torus: tuple[int, ...] = ()  # as in `Group`

    @classmethod
    def of(
        cls, target: Target, *, lnc: int | None = None, cores: Sequence[int] = ()
    ) -> Placement:
        """Return the devices of a target, in order unless `cores` says otherwise.

        A bare chip is taken to be part of the largest single-host instance with such
        chips (ASSUMPTION), so that a mesh of many devices has a network.

        Args:
            target: the machine.
            lnc: physical cores per logical core; None for the target's default.
            cores: the logical core of each device; empty for the device's own number.

        Raises:
            InvalidProgramError: an LNC size that the chip does not have, or two devices
                on one logical core.
        """
        if len(set(cores)) != len(cores) or any(core < 0 for core in cores):
            raise InvalidProgramError(
                f"{tuple(cores)} is no placement of devices on logical cores",
                remedy="give every device its own logical core, a number from 0",
            )
        chips, torus = _node(target)
        return cls(
            ranks_per_chip=target.logical_cores(lnc) // target.chips,
            chips_per_node=chips,
            cores=tuple(cores) or None,
            torus=torus,
        )

    def group(self, devices: Sequence[int]) -> Group:
        """Return the places of a group of devices; their order is that of its ranks.
        Refuse a device that `cores` does not place."""
        if self.cores is not None and max(devices) >= len(self.cores):
            raise InvalidProgramError(
                f"the placement gives no logical core to device {max(devices)}",
                remedy="give a placement that names a logical core for every device",
            )
        cores = tuple(d if self.cores is None else self.cores[d] for d in devices)
        chips = tuple(core // self.ranks_per_chip for core in cores)
        per_node = self.ranks_per_chip * self.chips_per_node
        return Group(
            chips=chips,
            nodes=tuple(core // per_node for core in cores),
            locals=tuple(core % per_node for core in cores),
            ranks_per_chip=self.ranks_per_chip,
            torus=self.torus,
        )


def _node(target: Target) -> tuple[int, tuple[int, ...]]:
    """Return the number of chips of a node, and the sides of their torus, if any."""
    if target.instance is not None:
        return target.instance.chips, _torus(target.topology)
    like = [i for i in INSTANCES.values() if i.chip == target.chip]
    built = [(i.chips, _torus(i.topology)) for i in like if i.hosts == 1]
    servers = [(i.chips // i.hosts, ()) for i in like]  # chips of UltraServers
    return max(built, default=max(servers, default=(1, ())))


def _torus(topology: Topology) -> tuple[int, ...]:
    return topology.shape if topology.kind == "torus" else ()


def _classes(labels: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the positions of each label; labels in order of first appearance."""
    positions: dict[int, list[int]] = {}
    for position, label in enumerate(labels):
        positions.setdefault(label, []).append(position)
    return tuple(map(tuple, positions.values()))
