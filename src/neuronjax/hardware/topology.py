"""Networks between chips as data: shapes, links, wiring, rates and latencies.

Rates are bytes per second in **one direction of one link**; latencies are seconds per
hop. Which algorithm runs over a network, and how long it takes, is decided in
`collectives` and `timing`. Source keys as in `chips.py`, and beside them:

    TI    also images/inf2-topology.png
    IN    neuron-runtime/explore/intranode-collective-comm.rst
    IX    neuron-runtime/explore/internode-collective-comm.rst
    CC    neuron-runtime/about/collectives.rst
    NKIC  nki/api/nki/collectives/__init__.py
    NEC   src/libnrt/include/nrt/nec.h, a public header
    MC    github.com/kvcache-ai/Mooncake, pull request 3888: measured on trn2.48xlarge
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from neuronjax.hardware.chips import GIB

_HOP_SECONDS = 1.5e-6  # middle of the published 1-2 us per hop [IN]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fabric:
    """The network between the instances of an UltraCluster.

    Attributes:
        name: unique name.
        hop_seconds: memory to memory of two instances, smallest packet.
        usable_share: the share of the published rate that transfers have reached.
    """

    name: str
    hop_seconds: float
    usable_share: float


EFA = Fabric(
    name="efa",
    # ASSUMPTION: the same for any two instances, however far apart, and no link is
    # oversubscribed: the tiers of an UltraCluster are not published.
    hop_seconds=15e-6,  # HBM to HBM, smallest packet [CC, IX]; see CONTRADICTIONS
    usable_share=0.7,  # 279 of 400 GB/s [MC]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """The links of one chip along one axis of a topology.

    Attributes:
        axis: the axis of `Topology.shape` that they join, an index from 0.
        per_chip: links of one chip on this axis (a ring or torus axis has two).
        bytes_per_second: one link, one direction: total rate / links / directions.
        hop_seconds: latency of one hop.
    """

    axis: int
    per_chip: int
    bytes_per_second: int
    hop_seconds: float = _HOP_SECONDS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """The network that joins the chips of an instance or UltraServer.

    Attributes:
        name: unique name.
        kind: "single", "chain", "ring", "torus" or "switch". A chain, ring or torus
            joins neighbours along each axis; a switch joins all chips of an axis.
        shape: chips along each axis, slowest first: the device id is the row-major
            index.
        closed: whether the axis is closed to a ring; always False for a switch.
        links: one entry per axis and kind of cable. On the slower axis of a switch the
            first is within a rack, the second between chips at the same position in two
            racks.
        mesh: the transfers of the algorithm "mesh" [NEC]. "full": each rank sends every
            chunk to its owner. "two_step": the ranks of a chip add up or share chunks,
            and chips exchange each chunk once.
        racks: the number of equal parts into which the slowest axis is divided.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    closed: tuple[bool, ...]
    links: tuple[Link, ...]
    mesh: str = "two_step"
    racks: int = 1


SINGLE_CHIP = Topology(
    name="single",
    kind="single",
    shape=(1,),  # [derived] one chip
    closed=(False,),
    links=(),
)

# The driver knows a link to the east and one to the west [DRV]; no page shows a wiring.
# ASSUMPTION: a chain, whose published rate covers all directions of both links.
INF1_CHAIN_4 = Topology(
    name="inf1-chain-4",
    kind="chain",
    shape=(4,),  # inf1.6xlarge [T0]
    closed=(False,),
    links=(Link(axis=0, per_chip=2, bytes_per_second=8 * GIB),),  # 32 / 2 / 2 [T0]
)

INF1_CHAIN_16 = dataclasses.replace(
    INF1_CHAIN_4,
    name="inf1-chain-16",
    shape=(16,),  # inf1.24xlarge [T0]
)

INF2_CHAIN_6 = Topology(
    name="inf2-chain-6",
    kind="chain",
    shape=(6,),  # inf2.24xlarge [TI]
    closed=(False,),
    # 96 GiB/s per link [TI]; ASSUMPTION: both directions together, as on trn2
    links=(Link(axis=0, per_chip=2, bytes_per_second=48 * GIB),),  # [TI]
)

INF2_RING_12 = dataclasses.replace(
    INF2_CHAIN_6,
    name="inf2-ring-12",
    kind="ring",
    shape=(12,),  # inf2.48xlarge [TI]
    closed=(True,),
)

TRN1_TORUS_4X4 = Topology(
    name="trn1-torus-4x4",
    kind="torus",
    shape=(4, 4),  # [T1]
    closed=(True, True),
    # 384 GB/s over four links [H2]; ASSUMPTION: both directions together, as on trn2
    links=(
        Link(axis=0, per_chip=2, bytes_per_second=48 * 10**9),  # 384 / 4 / 2 [H2]
        Link(axis=1, per_chip=2, bytes_per_second=48 * 10**9),  # 384 / 4 / 2 [H2]
    ),
    # ASSUMPTION: of the meshes in [NEC], "full" is trn1's, because "TRN2" and "GROUPED"
    # (inf2) are other chips'; its times for 8 and 32 ranks agree with nccom-test's.
    mesh="full",
)

# Each of the four links of a torus ends on an S-engine of its own, a quarter of a chip:
# two physical cores, one HBM stack [DRV]. Data of another S-engine is first routed on
# the chip. ASSUMPTION: that costs nothing, because nobody has published its rate.
TRN2_TORUS_4X4 = Topology(
    name="trn2-torus-4x4",
    kind="torus",
    shape=(4, 4),  # device id = 4 row + column [T2]
    closed=(True, True),
    links=(
        Link(axis=0, per_chip=2, bytes_per_second=128 * 10**9),  # 1024 / 4 / 2 [T2]
        Link(axis=1, per_chip=2, bytes_per_second=128 * 10**9),  # 1024 / 4 / 2 [T2]
    ),
)

TRN2_TORUS_4X4X4 = Topology(
    name="trn2-torus-4x4x4",
    kind="torus",
    shape=(4, 4, 4),  # instance, row, column [T2]
    closed=(True, True, True),
    links=(
        Link(axis=0, per_chip=2, bytes_per_second=64 * 10**9),  # 256 / 2 / 2 [T2]
        Link(axis=1, per_chip=2, bytes_per_second=128 * 10**9),  # 1024 / 4 / 2 [T2]
        Link(axis=2, per_chip=2, bytes_per_second=128 * 10**9),  # 1024 / 4 / 2 [T2]
    ),
)

# PCIe Gen6 x8 carries 64 GB/s per direction [derived]; [T3] gives the counts of links.
# [T3] says that Gen1 has 16 chips per server, but 4 where it describes the connections.
TRN3_SWITCH_4X16 = Topology(
    name="trn3-switch-4x16",
    kind="switch",
    shape=(4, 16),  # server, chip [T3]
    closed=(False, False),
    links=(
        Link(axis=0, per_chip=5, bytes_per_second=64 * 10**9),  # inter-server [T3]
        Link(axis=0, per_chip=2, bytes_per_second=64 * 10**9),  # inter-rack [T3]
        Link(axis=1, per_chip=4, bytes_per_second=64 * 10**9),  # intra-server [T3]
    ),
    racks=2,  # ASSUMPTION: as Gen2
)

TRN3_SWITCH_36X4 = dataclasses.replace(
    TRN3_SWITCH_4X16,
    name="trn3-switch-36x4",
    shape=(36, 4),  # server, chip [T3]
    racks=2,  # in the figure i and i + 18 are joined [T3]
)

TOPOLOGIES: Mapping[str, Topology] = MappingProxyType(
    {x.name: x for x in tuple(globals().values()) if isinstance(x, Topology)}
)
"""The topologies above, in the same order."""
