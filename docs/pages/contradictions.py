"""Where published sources disagree about the hardware, and what was chosen.

Source keys are those of `chips.py`, `topology.py` and `instances.py` in
`neuronjax.hardware`.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Two published values for one thing, and which of them neuronjax uses."""

    topic: str
    chosen: str
    alternative: str
    sources: str


CONTRADICTIONS: tuple[Contradiction, ...] = (
    Contradiction(
        topic="DMA rate per engine",
        chosen="17 / 23 / 33 GB/s (trn1 / trn2 / trn3), the practical rate; on trn2,"
        " the measured 25.6 GB/s for transfers that follow each other without a pause",
        alternative="27.2 / 27.2 / 38.4 GB/s, the theoretical rate, kept as the peak",
        sources="DM (practical rate) and DB against DM (theoretical rate) and A2",
    ),
    Contradiction(
        topic="CC-cores of trn2 and trn3",
        chosen="16: two per physical core, as the driver exposes",
        alternative="20",
        sources="H2, H3, DRV against A3, A4",
    ),
    Contradiction(
        topic="DRAM of inf1",
        chosen="8 GiB at 50 GiB/s",
        alternative="8 GB at 50 GB/s",
        sources="H0, T0 against the same pages of SDK 2.9.1",
    ),
    Contradiction(
        topic="integer sums of inf1's TensorE",
        chosen="FP32, as those of NeuronCore-v2",
        alternative="INT32",
        sources="derived from A2 against C1",
    ),
    Contradiction(
        topic="HBM bandwidth of trn1",
        chosen="820 GB/s",
        alternative="820 GiB/s; 0.8 TB/s",
        sources="A2 against H1, HI; H2",
    ),
    Contradiction(
        topic="HBM bandwidth of trn2",
        chosen="2.9 TB/s; 16 chips together 46.4 TB/s",
        alternative="3.0 TB/s",
        sources="H2, T2 against A3",
    ),
    Contradiction(
        topic="HBM bandwidth of trn3",
        chosen="4.9 TB/s; 64 chips together 313.6 TB/s",
        alternative="4.7 TB/s",
        sources="H3, T3 against A4",
    ),
    Contradiction(
        topic="peak of a chip",
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
        topic="largest number of columns (free size) of the operand that passes through"
        " TensorE (the moving operand), on NeuronCore-v4",
        chosen="4096 into FP32 PSUM, 8192 into BF16 PSUM",
        alternative="512",
        sources="ISA, release notes of NKI 0.5.0 against A4",
    ),
    Contradiction(
        topic="NeuronLink of trn3, per chip",
        chosen="2.56 TB/s, as the published total; the time model uses the sum of the"
        " links instead (see links of trn3)",
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
        topic="NeuronLink of trn1 and trn1n, per chip",
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
        chosen="in the time model, 64 GB/s per direction and Gen6 x8 link: 11 links in"
        " both directions have 1,408 GB/s",
        alternative="64 GB/s per link in both directions together: 704 GB/s; the total"
        " of 2.56 TB/s",
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
        alternative="800 Gb/s on trn2.48xlarge, 200 Gb/s on the UltraServer",
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
        chosen="two levels of switches in each rack; each chip is also joined to the"
        " chip at the same place in the other rack",
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
