"""A target's network for collectives: NeuronLink in a node, EFA, DMA engines.

To model another machine, replace a field of `Network` (`dataclasses.replace`). Rates
are the bytes per second that transfers reach, not nominal rates.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping

from neuronjax.errors import UnsupportedError
from neuronjax.hardware import INSTANCES, InstanceSpec, Target, Topology
from neuronjax.timing import assumptions as c
from neuronjax.timing.collective_steps import CollectiveStep, Flows
from neuronjax.timing.routes import routes_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A machine's network, as collectives use it.

    Attributes:
        topology: the NeuronLink topology of a node.
        ranks_per_chip: logical NeuronCores per chip.
        dma_bytes_per_second: the rate of one DMA channel of a rank (a logical core).
        efa_bytes_per_second: the rate of an EFA interface to other nodes; None if there
            is none.
        chips_per_interface: how many consecutive chips share an EFA interface.
        link_share: the fraction of NeuronLink's nominal rate that transfers reach.
        chip_start_seconds: from trigger to first step, if all ranks are on one chip.
        link_start_seconds: from trigger to first step, if ranks are on several chips.
        chip_hop_seconds: latency of a step within a node.
        efa_hop_seconds: latency of a step between nodes.
    """

    name: str
    topology: Topology
    ranks_per_chip: int
    dma_bytes_per_second: float
    efa_bytes_per_second: float | None
    chips_per_interface: int = 1
    link_share: float = c.LINK_SHARE.value
    chip_start_seconds: float = c.CHIP_START.value
    link_start_seconds: float = c.LINK_START.value
    chip_hop_seconds: float = c.CHIP_HOP.value
    efa_hop_seconds: float = c.EFA_HOP.value

    @property
    def chips_per_node(self) -> int:
        """Return the number of chips of a node, which NeuronLink joins."""
        return math.prod(self.topology.shape)

    def seconds_per_byte(self, step: CollectiveStep) -> Mapping[str, float]:
        """Return the seconds that NeuronLink ("link"), a rank's DMA engines ("dma") and
        EFA ("efa") need, per byte of the collective, for one of the equal steps that
        `step` describes. Refuse a step between nodes that no network joins."""
        inside, outside = self._divided(step)
        link = routes_of(self.topology)
        slowest = max((link.slowest(flows) for flows in inside.values()), default=0.0)
        return {
            "link": slowest / self.link_share,
            "dma": step.dma / (step.channels * self.dma_bytes_per_second),
            "efa": self._over_efa(step, outside) if outside else 0.0,
        }

    def hop_seconds(self, step: CollectiveStep) -> float:
        """Return the latency of a single step; `step` describes several equal steps."""
        is_between = any(self._node(a) != self._node(b) for a, b in step.flows)
        return self.efa_hop_seconds if is_between else self.chip_hop_seconds

    def _node(self, chip: int) -> int:
        return chip // self.chips_per_node

    def _divided(self, step: CollectiveStep) -> tuple[dict[int, Flows], Flows]:
        inside: dict[int, Flows] = {}
        outside: Flows = {}
        for (a, b), size in step.flows.items():
            if self._node(a) == self._node(b):
                ends = (a % self.chips_per_node, b % self.chips_per_node)
                inside.setdefault(self._node(a), {})[ends] = size
            else:
                outside[a, b] = size
        return inside, outside

    def _over_efa(self, step: CollectiveStep, flows: Flows) -> float:
        """Return the seconds in which the slowest EFA interface carries its part of
        `flows`, per byte of the collective. All ranks on `chips_per_interface`
        neighbouring chips share an interface, which sends and receives at the same
        time."""
        if self.efa_bytes_per_second is None:
            raise UnsupportedError(
                f"a collective over several nodes of {self.name}: no published network "
                "joins these nodes",
                remedy="keep a group within one instance, or use instances with EFA",
            )
        load: defaultdict[tuple[int, int], float] = defaultdict(float)
        for ends, size in flows.items():
            for direction, chip in enumerate(ends):
                load[chip, direction] += size
        sharing: Counter[int] = Counter()
        for chip, ranks in step.senders.items():
            sharing[chip // self.chips_per_interface] += ranks
        slowest = max(
            size / step.senders[chip] * sharing[chip // self.chips_per_interface]
            for (chip, _), size in load.items()
        )
        return slowest / self.efa_bytes_per_second


@functools.lru_cache(maxsize=64)
def network_of(target: Target, lnc: int | None = None) -> Network:
    """Return the network of a target.

    A target without an instance is assumed to be in the largest instance of one host
    with its chip or, if there is none, in one host of an UltraServer. Refuse an `lnc`
    that the chip does not have."""
    chip = target.chip
    ranks = target.logical_cores(lnc) // target.chips
    engines = chip.dma_engines / ranks
    instance = target.instance or _around(target)
    efa, shared = None, 1
    if instance is not None and instance.efa_bits_per_second:
        efa = instance.efa_bits_per_second / 8 / instance.efa_interfaces
        shared = instance.chips // instance.efa_interfaces
    return Network(
        name=target.name,
        topology=_topology(target, instance),
        ranks_per_chip=ranks,
        dma_bytes_per_second=engines
        * chip.dma_engine_bytes_per_second
        * c.CHANNEL_SHARE.value,
        efa_bytes_per_second=efa and efa * c.EFA_SHARE.value,
        chips_per_interface=shared,
    )


def _around(target: Target) -> InstanceSpec | None:
    """Return the largest instance with the target's chip, preferably of one host; None
    if no instance has the chip."""
    built = [i for i in INSTANCES.values() if i.chip == target.chip]
    single = [i for i in built if i.hosts == 1]
    if single:
        return max(single, key=lambda i: i.chips)
    return max(built, key=lambda i: i.chips / i.hosts, default=None)


def _topology(target: Target, instance: InstanceSpec | None) -> Topology:
    if instance is None:
        return target.topology
    if target.instance is not None or instance.hosts == 1:
        return instance.topology
    shape = (1, instance.chips // instance.hosts)
    return dataclasses.replace(instance.topology, shape=shape, racks=1)
