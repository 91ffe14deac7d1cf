"""The machines, as data: chips, instances, networks; and the names of targets.

A *target* is what a user writes in `target=`: a chip ("trn2"), a NeuronCore generation
("gen3"), an EC2 instance ("trn2.48xlarge"), an UltraServer ("trn2-ultraserver"), or
several of the last two joined by EFA ("trn2.48xlarge:4"). Names are case-sensitive.
What a machine costs in time is in `timing`; this package knows no program. Source keys
are those of `chips.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from types import MappingProxyType

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware.chips import (
    CHIP_ALIASES,
    CHIPS,
    EMULATOR_ONLY_DTYPES,
    ByDtype,
    ChipSpec,
    CoreSpec,
    EngineSpec,
)
from neuronjax.hardware.instances import (
    INSTANCE_ALIASES,
    INSTANCES,
    InstanceSpec,
    ListPrice,
)
from neuronjax.hardware.topology import (
    EFA,
    EFA_HOP_SECONDS,
    SINGLE_CHIP,
    TOPOLOGIES,
    TRN2_ENGINE_NEIGHBOURS,
    TRN2_Z_ENGINES,
    Fabric,
    Link,
    Topology,
)

__all__ = [
    "CAPABILITIES",
    "CHIPS",
    "CHIP_ALIASES",
    "CONTRADICTIONS",
    "EFA",
    "EFA_HOP_SECONDS",
    "EMULATOR_ONLY_DTYPES",
    "INSTANCES",
    "INSTANCE_ALIASES",
    "TARGETS",
    "TOPOLOGIES",
    "TRN2_ENGINE_NEIGHBOURS",
    "TRN2_Z_ENGINES",
    "ByDtype",
    "ChipSpec",
    "Contradiction",
    "CoreSpec",
    "EngineSpec",
    "Fabric",
    "InstanceSpec",
    "Link",
    "ListPrice",
    "Target",
    "Topology",
    "chips_with",
    "resolve_target",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A resolved `target=`.

    Attributes:
        name: the canonical name; an alias is replaced by what it stands for.
        chip: the chip.
        instance: the instance or UltraServer, or None for a bare chip.
        instances: how many of them, joined by EFA; 1 for a bare chip.
    """

    name: str
    chip: ChipSpec
    instance: InstanceSpec | None
    instances: int = 1

    @property
    def core(self) -> CoreSpec:
        """The NeuronCore of the chip."""
        return self.chip.core

    @property
    def chips(self) -> int:
        """Number of chips of all instances; 1 for a bare chip."""
        return 1 if self.instance is None else self.instance.chips * self.instances

    @property
    def topology(self) -> Topology:
        """The network between the chips of one instance."""
        return SINGLE_CHIP if self.instance is None else self.instance.topology

    @property
    def lnc_default(self) -> int:
        """Physical cores in a logical NeuronCore unless the user says otherwise."""
        instance = self.instance
        return self.chip.lnc_default if instance is None else instance.lnc_default

    @property
    def physical_cores(self) -> int:
        """NeuronCores of all chips."""
        return self.chips * self.chip.cores_per_chip

    def logical_cores(self, lnc: int | None = None) -> int:
        """Devices that JAX sees: physical cores divided by the LNC size.

        Args:
            lnc: physical cores per logical NeuronCore; None means the default.

        Raises:
            InvalidProgramError: the chip does not have this LNC size.
        """
        lnc = self.lnc_default if lnc is None else lnc
        if lnc not in self.chip.lnc_options:
            options = ", ".join(map(str, self.chip.lnc_options))
            raise InvalidProgramError(
                f"logical NeuronCore size {lnc} on {self.name}",
                remedy=f"choose one of: {options}",
            )
        return self.physical_cores // lnc


TARGETS: Mapping[str, Target] = MappingProxyType(
    {name: Target(name=name, chip=chip, instance=None) for name, chip in CHIPS.items()}
    | {
        name: Target(name=name, chip=instance.chip, instance=instance)
        for name, instance in INSTANCES.items()
    }
)
"""Every target by its canonical name."""

_ALIASES: Mapping[str, str] = MappingProxyType({**CHIP_ALIASES, **INSTANCE_ALIASES})


def resolve_target(name: str) -> Target:
    """The machine that a name stands for.

    Args:
        name: a chip, instance, UltraServer or alias, exactly as listed; an instance or
            UltraServer also several times, "trn2.48xlarge:4".

    Raises:
        InvalidProgramError: unknown; the message gives the nearest and all names. Or
            several of what no network joins.
    """
    base, colon, count = str(name).partition(":")
    canonical = _ALIASES.get(base, base)
    if canonical not in TARGETS:
        raise _unknown_target(name)
    target = TARGETS[canonical]
    return _several(target, name, count) if colon else target


def _several(target: Target, name: str, count: str) -> Target:
    """So many instances of a target, joined by EFA."""
    instances = int(count) if count.isascii() and count.isdigit() else 0
    if instances < 1:
        raise InvalidProgramError(
            f"target {name!r}: {count!r} is no number of instances",
            remedy=f"write for example {target.name + ':4'!r}",
        )
    if instances == 1:
        return target
    if target.instance is None or target.instance.efa_bits_per_second is None:
        joined = (n for n, i in INSTANCES.items() if i.efa_bits_per_second)
        raise InvalidProgramError(
            f"target {name!r}: no published network joins several {target.name}",
            remedy=f"use several of: {', '.join(joined)}",
        )
    return dataclasses.replace(
        target, name=f"{target.name}:{instances}", instances=instances
    )


def chips_with(capability: str) -> tuple[str, ...]:
    """The chips, by name, that have a capability of `CAPABILITIES`."""
    found = (n for n, chip in CHIPS.items() if capability in chip.core.capabilities)
    return tuple(found)


def _unknown_target(name: str) -> InvalidProgramError:
    names = [*TARGETS, *_ALIASES]
    # Compare without case and blanks, so that "TRN2 " suggests "trn2"; never accept it.
    base = str(name).partition(":")[0].strip().lower()
    nearest = difflib.get_close_matches(base, names, cutoff=0.5)
    suggestion = f"did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
    return InvalidProgramError(
        f"unknown target {name!r}",
        remedy=f"{suggestion}legal targets: {', '.join(names)}",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Two published values for one thing, and which of them neuronjax uses."""

    topic: str
    chosen: str
    alternative: str
    sources: str


CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "stochastic_rounding": "FP32 results round stochastically on request [JE, RM]",
        "lfsr": "vector-engine random bits from an LFSR [A4]",
        "xorwow": "XORWOW generator, `rand2` [A4, ISA]",
        "float8_e4m3": "IEEE-like E4M3, largest finite 240 [ERR/EVRF052]",
        "float8_e4m3fn": "OCP E4M3, largest finite 448 [ERR/EVRF051, ISA]",
        "float8_e5m2": "IEEE-like E5M2 [SH]",
        "fp8_double_row": "two FP8 products per cell and cycle [A3, ISA]",
        "mx_matmul": "`nc_matmul_mx` [A4, ISA]",
        "quantize_mx": "`quantize_mx` on the vector engine [ISA]",
        "sparse_matmul": "compressed stationary operand, up to 4:16 [A3, C3, C4]",
        "bf16_psum": "PSUM accumulates in BF16, RNE or stochastic [A4]",
        "exact_transpose": "the array transposes bits, NaN and Inf included [A3]",
        "background_transpose": "a transpose overlaps another matmul [A4]",
        "quarter_tiling": "row and column tiles of 32 beside 64 [ISA]",
        "vector_perf_modes": "16-bit vector operations run at 2x or 4x [A3]",
        "scalar_perf_modes": "16-bit scalar-engine operations run at up to 2x [A4]",
        "scalar_engine_exact_copy": "scalar-engine copies keep the bits [A3, ISA]",
        "vector_exponential": "`exponential` on the vector engine [A4, ISA]",
        "parallel_sbuf_ports": "vector and GpSimd access SBUF at once [A3]",
        "dma_transpose": "the DMA engines transpose 2- and 4-byte elements [A3]",
        "hwdge": "descriptors generated in hardware [A3]",
        "dma_priority": "four classes of service [A4, ISA]",
        "gpsimd_dma": "DMA integrated into GpSimd [A3]",
        "sbuf_accumulate": "DMA adds into SBUF at full copy rate [A4]",
        "indirect": "`.indirect()` gather and scatter views [ISA]",
        "activate2": "`activate2` on the scalar engine [ISA]",
        "range_select": "`range_select` on the vector engine [ISA]",
        "core_barrier": "`core_barrier` and `sendrecv` inside a logical core [ISA]",
        "scalar_bias": "a number as the bias of `activation`, not only a vector [ISA]",
        "scalar_engine_alu": "`tensor_scalar` of any operators on the scalar engine "
        "[A4, ISA]",
        "accumulate_onto_values": "matmuls add to PSUM that other engines wrote [ISA]",
        "nonzero_with_count": "`nonzero_with_count` on GpSimd [ISA]",
        "gpsimd_random": "`rng` and generator states on GpSimd [ISA]",
        "native_int64": "64-bit integers by compiler flag [CLI, DT]",
    }
)
"""What a `CoreSpec` may be capable of, with the source."""

CONTRADICTIONS: tuple[Contradiction, ...] = (
    Contradiction(
        topic="DMA rate per engine",
        chosen="17 / 23 / 33 GB/s (trn1 / trn2 / trn3), which measurements reach",
        alternative="27.2 / 27.2 / 38.4 GB/s, kept as the peak",
        sources="DM, DB against DM, A2",
    ),
    Contradiction(
        topic="CC-cores of trn2 and trn3",
        chosen="16: two per physical core, as the driver exposes",
        alternative="20",
        sources="H2, H3, DRV against A3, A4",
    ),
    Contradiction(
        topic="HBM bandwidth of trn1",
        chosen="820 GB/s",
        alternative="820 GiB/s; 0.8 TB/s",
        sources="A2 against H1, HI; H2",
    ),
    Contradiction(
        topic="HBM bandwidth of trn2",
        chosen="2.9 TB/s, which 16 chips make 46.4 TB/s",
        alternative="3.0 TB/s",
        sources="H2, T2 against A3",
    ),
    Contradiction(
        topic="HBM bandwidth of trn3",
        chosen="4.9 TB/s, which 64 chips make 313.6 TB/s",
        alternative="4.7 TB/s",
        sources="H3, T3 against A4",
    ),
    Contradiction(
        topic="peak of the chip against its cores",
        chosen="a core's peak from its clock (trn2: 8 x 78.6 TFLOPS BF16)",
        alternative="the product page (trn2: 667 TFLOPS), kept as published_tflops",
        sources="A3, A4 against H2, H3",
    ),
    Contradiction(
        topic="double-row FP8 on NeuronCore-v4",
        chosen="available, at two products per cell and cycle",
        alternative="not in the width table (2 x 128 for all non-MX inputs)",
        sources="ISA against A4",
    ),
    Contradiction(
        topic="moving free size on NeuronCore-v4",
        chosen="4096 into FP32 PSUM, 8192 into BF16 PSUM",
        alternative="512",
        sources="ISA, release notes of NKI 0.5.0 against A4",
    ),
    Contradiction(
        topic="NeuronLink of trn3",
        chosen="2.56 TB/s per chip",
        alternative="2,048 GiB/s; 704 GB/s as the sum of the connectivity table",
        sources="H3 against T3",
    ),
    Contradiction(
        topic="INT8 matmul",
        chosen="absent: no dtype in nc_matmul, the compiler computes in FP32",
        alternative="380 TOPS on trn1",
        sources="ISA, A2, ERR/EVRF035 against C2, H1",
    ),
    Contradiction(
        topic="SBUF per partition and HBM per core of trn2",
        chosen="224 KiB and 12 GiB",
        alternative="256 KiB and 32 GB",
        sources="A3 against GL",
    ),
    Contradiction(
        topic="FP8 E4M3 beyond 240",
        chosen="Inf, as IEEE formats do",
        alternative="NaN",
        sources="ISA (range_select) against CQ",
    ),
    Contradiction(
        topic="NeuronLink per chip of trn1 against trn1n",
        chosen="384 GB/s for both: the chip is the same",
        alternative="768 GB/s on trn1n, in a column without a header",
        sources="H2 against T1",
    ),
    Contradiction(
        topic="direction of NeuronLink figures",
        chosen="both directions together (trn2: 128 GB/s per direction and link)",
        alternative="per direction",
        sources="derived from 160 PCIe lanes on trn2; T1 and TI do not say",
    ),
    Contradiction(
        topic="links of trn3",
        chosen="64 GB/s per direction and Gen6 x8 link, 11 links: 1,408 GB/s",
        alternative="the same figures as both directions: 704 GB/s; 2.56 TB/s",
        sources="derived from PCIe Gen6 x8 against T3; H3",
    ),
    Contradiction(
        topic="chips per server of trn3 Gen1",
        chosen="16",
        alternative="4",
        sources="T3, specification against T3, connectivity",
    ),
    Contradiction(
        topic="EFA of the Trn2 UltraServer",
        chosen="12,800 Gb/s: four instances of 3,200",
        alternative="3,200 Gb/s",
        sources="AWS product page against T2",
    ),
    Contradiction(
        topic="EFA of one chip of trn2",
        chosen="200 Gb/s: an equal share, of trn2.48xlarge and of the UltraServer",
        alternative="800 Gb/s, on the UltraServer 200",
        sources="T2, CC against SemiAnalysis",
    ),
    Contradiction(
        topic="latency of EFA",
        chosen="15 us from memory to memory (Fabric.hop_seconds)",
        alternative="6.5 us for a packet",
        sources="CC, IX against SemiAnalysis",
    ),
    Contradiction(
        topic="racks of trn3",
        chosen="two levels of switches in a rack, same-place chips joined between two",
        alternative="two levels of switches across all servers",
        sources="T3, figure and connectivity table against T3, text of Gen2",
    ),
    Contradiction(
        topic="pairs of collective_permute",
        chosen="any pairs",
        alternative="circular permutations only",
        sources="NKIC, nccom-test.rst against CC",
    ),
)
"""Every place where the sources disagree, and what was chosen."""
