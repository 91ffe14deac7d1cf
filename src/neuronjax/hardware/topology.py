"""Networks between chips as data: shapes, links, rates and latencies.

Rates are bytes per second in **one direction of one link**; latencies are seconds per
hop. Which algorithm runs over a network, and how long it takes, is decided in
`collectives` and `timing`. Source keys as in `chips.py`, and beside them:

    TI    also images/inf2-topology.png
    IN    neuron-runtime/explore/intranode-collective-comm.rst
    IX    neuron-runtime/explore/internode-collective-comm.rst
    CC    neuron-runtime/about/collectives.rst
    NKIC  nki/api/nki/collectives/__init__.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from neuronjax.hardware.chips import GIB

_HOP_SECONDS = 1.5e-6  # middle of the published 1-2 us per hop [IN]

EFA_HOP_SECONDS = 15e-6  # HBM to HBM, smallest packet [CC, IX]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """The links of one chip along one axis of a topology.

    Attributes:
        axis: the axis of `Topology.shape` that they join, an index from 0.
        per_chip: links of one chip on this axis (a ring or torus axis has two).
        bytes_per_second: one link, one direction.
        hop_seconds: latency of one hop.
    """

    axis: int
    per_chip: int
    bytes_per_second: int
    hop_seconds: float = _HOP_SECONDS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """How the chips of an instance or UltraServer are joined.

    Attributes:
        name: unique name.
        kind: "single", "chain", "ring", "torus" or "switch". A chain, ring or torus
            joins neighbours along each axis; a switch joins all chips of an axis.
        shape: chips along each axis, slowest first: the device id is the row-major
            index.
        closed: whether the axis is closed to a ring; always False for a switch.
        links: one entry per axis and kind of cable.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    closed: tuple[bool, ...]
    links: tuple[Link, ...]


SINGLE_CHIP = Topology(
    name="single",
    kind="single",
    shape=(1,),  # [derived] one chip
    closed=(False,),
    links=(),
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
)

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

# PCIe Gen6 x8 carries 64 GB/s per direction [derived]; T3 gives the counts of links.
# T3 does not say over which hops its hierarchy is 16 or 4 chips wide in Gen1.
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
)

TRN3_SWITCH_36X4 = dataclasses.replace(
    TRN3_SWITCH_4X16,
    name="trn3-switch-36x4",
    shape=(36, 4),  # server, chip [T3]
)

TOPOLOGIES: Mapping[str, Topology] = MappingProxyType(
    {
        topology.name: topology
        for topology in (
            SINGLE_CHIP,
            INF2_CHAIN_6,
            INF2_RING_12,
            TRN1_TORUS_4X4,
            TRN2_TORUS_4X4,
            TRN2_TORUS_4X4X4,
            TRN3_SWITCH_4X16,
            TRN3_SWITCH_36X4,
        )
    }
)
