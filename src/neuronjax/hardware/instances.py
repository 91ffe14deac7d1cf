"""EC2 instances and UltraServers as data: chips, hosts, network, list prices.

`efa_bits_per_second` is the published aggregate of the whole target; prices are US
dollars per hour for the whole target, dated, and never extrapolated: None where none
was found. The source keys are those of `chips.py` and `topology.py`, and:

    LIST  AWS's prices in US East at the launch of Trn1 (October 2022)
    VS    AWS's prices on instances.vantage.sh, 2026-08-26
    KP    AWS's prices in github.com/aws/karpenter-provider-aws (265ee0ba), 2026-02-09
    CB    aws.amazon.com/ec2/capacityblocks/pricing, 2026-01-31, no operating system
    T1B   the Trn1 page of SDK 2.9.1
    SDKR  release notes of the AWS SDK for Java, 2.38
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from neuronjax.hardware import chips, topology

_GBPS = 10**9  # [derived] bits per second
_KARPENTER = ("2026-02", "karpenter-provider-aws")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListPrice:
    """A published price.

    Attributes:
        usd_per_hour: the price of the whole instance.
        date: the month in which it was published or read, "YYYY-MM".
        region: the region in which it held.
        terms: "on demand", or "Capacity Block" (reserved for days, paid in advance).
        source: the publisher.
    """

    usd_per_hour: float
    date: str
    region: str
    terms: Literal["on demand", "Capacity Block"] = "on demand"
    source: str = "AWS"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceSpec:
    """An instance or UltraServer that can be rented.

    Attributes:
        name: EC2 type, or neuronjax's name of an UltraServer.
        chip: its chips, all alike.
        chips: the number of chips.
        hosts: servers that hold them; more than one only in an UltraServer.
        topology: the network between the chips.
        efa_bits_per_second: network to other instances, all interfaces together, or
            None if not published. Ranks share it equally: 50 Gb/s for each of the 64 of
            trn2.48xlarge [CC].
        efa_interfaces: the number of interfaces; the chips share them equally.
        price: list price on demand, or None if not known.
        block_price: the price of a Capacity Block, or None if not known.
    """

    name: str
    chip: chips.ChipSpec
    chips: int
    hosts: int = 1
    topology: topology.Topology
    efa_bits_per_second: int | None = None
    efa_interfaces: int = 0
    price: ListPrice | None = None
    block_price: ListPrice | None = None

    @property
    def lnc_default(self) -> int:
        """Physical cores per logical NeuronCore."""
        return self.chip.lnc_default


def _listed(
    usd_per_hour: float, date: str = "2026-08", by: str = "instances.vantage.sh"
) -> ListPrice:
    """Return a price on demand in US East, by default as VS lists it."""
    return ListPrice(
        usd_per_hour=usd_per_hour, date=date, region="us-east-1", source=f"AWS, by {by}"
    )


def _block(usd_per_hour: float, region: str) -> ListPrice:
    """Return the price of a Capacity Block, as CB lists it."""
    return ListPrice(
        usd_per_hour=usd_per_hour, date="2026-01", region=region, terms="Capacity Block"
    )


TRN1_2XLARGE = InstanceSpec(
    name="trn1.2xlarge",
    chip=chips.TRN1,
    chips=1,  # [T1]
    topology=topology.SINGLE_CHIP,
    efa_bits_per_second=25 * _GBPS,  # "up to" [T1B]
    efa_interfaces=1,  # ASSUMPTION
    price=ListPrice(usd_per_hour=1.34, date="2022-10", region="us-east-1"),  # [LIST]
)
TRN1_32XLARGE = InstanceSpec(
    name="trn1.32xlarge",
    chip=chips.TRN1,
    chips=16,  # [T1]
    topology=topology.TRN1_TORUS_4X4,
    efa_bits_per_second=800 * _GBPS,  # [T1]
    efa_interfaces=8,  # of 100 Gb/s [VS]
    price=ListPrice(usd_per_hour=21.50, date="2022-10", region="us-east-1"),  # [LIST]
    block_price=_block(9.532, "us-east-1"),  # [CB]
)
TRN1N_32XLARGE = dataclasses.replace(
    TRN1_32XLARGE,
    name="trn1n.32xlarge",
    efa_bits_per_second=1_600 * _GBPS,  # [T1]
    efa_interfaces=16,  # ASSUMPTION: of 100 Gb/s too
    price=ListPrice(usd_per_hour=24.78, date="2022-10", region="us-east-1"),  # [LIST]
    block_price=None,
)

INF2_XLARGE = InstanceSpec(
    name="inf2.xlarge",
    chip=chips.INF2,
    chips=1,  # [TI]
    topology=topology.SINGLE_CHIP,
    price=_listed(0.7582),  # [VS]
)
INF2_8XLARGE = dataclasses.replace(
    INF2_XLARGE,
    name="inf2.8xlarge",
    price=_listed(1.96786),  # [VS]
)
INF2_24XLARGE = dataclasses.replace(
    INF2_XLARGE,
    name="inf2.24xlarge",
    chips=6,  # [TI]
    topology=topology.INF2_CHAIN_6,
    price=_listed(6.49063),  # [VS]
)
INF2_48XLARGE = dataclasses.replace(
    INF2_XLARGE,
    name="inf2.48xlarge",
    chips=12,  # [TI]
    topology=topology.INF2_RING_12,
    price=_listed(12.98127),  # [VS]
)

INF1_XLARGE = InstanceSpec(
    name="inf1.xlarge",
    chip=chips.INF1,
    chips=1,  # [T0]
    topology=topology.SINGLE_CHIP,
    # "up to 25 Gb/s" is the network of the host; it carries no collectives.
    price=_listed(0.228, *_KARPENTER),  # [KP]
)
INF1_2XLARGE = dataclasses.replace(
    INF1_XLARGE,
    name="inf1.2xlarge",
    price=_listed(0.362, *_KARPENTER),  # [KP]
)
INF1_6XLARGE = dataclasses.replace(
    INF1_XLARGE,
    name="inf1.6xlarge",
    chips=4,  # [T0]
    topology=topology.INF1_CHAIN_4,
    price=_listed(1.18, *_KARPENTER),  # [KP]
)
INF1_24XLARGE = dataclasses.replace(
    INF1_XLARGE,
    name="inf1.24xlarge",
    chips=16,  # [T0]
    topology=topology.INF1_CHAIN_16,
    price=_listed(4.721, *_KARPENTER),  # [KP]
)

TRN2_3XLARGE = InstanceSpec(
    name="trn2.3xlarge",
    chip=chips.TRN2,
    chips=1,  # users report one; the name is from [SDKR]
    topology=topology.SINGLE_CHIP,
    block_price=_block(2.235, "ap-southeast-4"),  # [CB]
)
TRN2_48XLARGE = InstanceSpec(
    name="trn2.48xlarge",
    chip=chips.TRN2,
    chips=16,  # [T2]
    topology=topology.TRN2_TORUS_4X4,
    efa_bits_per_second=3_200 * _GBPS,  # [T2]
    efa_interfaces=16,  # of 200 Gb/s [CC]
    block_price=_block(35.7608, "us-east-2"),  # [CB]
)
TRN2U_48XLARGE = dataclasses.replace(
    TRN2_48XLARGE, name="trn2u.48xlarge", block_price=None
)
TRN2_ULTRASERVER = dataclasses.replace(
    TRN2_48XLARGE,
    name="trn2-ultraserver",
    chips=64,  # [T2]
    hosts=4,  # [T2]
    topology=topology.TRN2_TORUS_4X4X4,
    efa_bits_per_second=12_800 * _GBPS,  # 4 x 3,200 [derived]; see CONTRADICTIONS
    efa_interfaces=64,  # 4 x 16 [derived]
    block_price=None,
)

TRN3_ULTRASERVER_GEN1 = InstanceSpec(
    name="trn3-ultraserver-gen1",
    chip=chips.TRN3,
    chips=64,  # [T3]
    hosts=4,  # [T3]
    topology=topology.TRN3_SWITCH_4X16,
    efa_bits_per_second=12_800 * _GBPS,  # [T3]
    efa_interfaces=64,  # ASSUMPTION: one for each chip
)
TRN3_ULTRASERVER_GEN2 = dataclasses.replace(
    TRN3_ULTRASERVER_GEN1,
    name="trn3-ultraserver-gen2",
    chips=144,  # [T3]
    hosts=36,  # [T3]
    topology=topology.TRN3_SWITCH_36X4,
    efa_bits_per_second=28_800 * _GBPS,  # [T3]
    efa_interfaces=144,  # ASSUMPTION: one for each chip
)

INSTANCES: Mapping[str, InstanceSpec] = MappingProxyType(
    {x.name: x for x in tuple(globals().values()) if isinstance(x, InstanceSpec)}
)
"""The instances above, in the same order."""

INSTANCE_ALIASES: Mapping[str, str] = MappingProxyType(
    {"u-trn2x64": "trn2-ultraserver"}  # the name in T2 of SDK 2.21
)
