"""The figures of the time of collectives, each with its source.

What a chip, link or instance can do is in `neuronjax.hardware`; here is what
collectives make of it. Some were chosen to meet a published measurement and say which
(`fitted_to`); `benchmarks/validate_collectives.py` prints the error of all
measurements. Keys of sources: IN, IX, CC, MC as in `hardware.topology`; T2, T12, T16
the measurements in that benchmark.
"""

from __future__ import annotations

from neuronjax.hardware import EFA
from neuronjax.timing.constant import Constant, assumed, named

CHIP_START = assumed(
    6e-07,
    "s",
    "from the trigger to the first step, all ranks on one chip",
    fitted_to="T12: 2 ranks, 1 KiB, 2.1 us, less one hop",
)
LINK_START = assumed(
    4.7e-06,
    "s",
    "the same, ranks on several chips; ASSUMPTION: and on several instances",
    fitted_to="T12: 8 ranks, 1 KiB, 6.3 us, less one hop",
)
CHIP_HOP = assumed(
    1.5e-06,
    "s",
    "middle of the 1-2 us of a step between chips [IN]; ASSUMPTION: on one too",
)
EFA_HOP = Constant(EFA.hop_seconds, "s", "[CC, IX]")
LINK_SHARE = assumed(
    0.7,
    "fraction",
    "of the rate of a NeuronLink that transfers reach; ASSUMPTION: on all chips",
    fitted_to="T12: 8 ranks, 512 KiB to 1 MiB, 16.8 GB/s more",
)
CHANNEL_SHARE = assumed(
    0.21,
    "fraction",
    "of a core's DMA rate that a channel of a collective has, of which there are two,"
    " or four where a group fills its node [nki.collectives]; ASSUMPTION: on all chips",
    fitted_to="T2: 2 ranks, 16 MiB to 1 GiB, 56.8 GB/s more",
)
SLICE_BYTES = assumed(
    2**20,
    "B",
    "of a collective that goes through the steps of rdh by itself, so that wires and"
    " DMA engines work beside each other; that there are slices is published of ring",
    fitted_to="T12: 8 ranks, 4 to 32 MiB",
)
EFA_SHARE = Constant(EFA.usable_share, "fraction", "279 of 400 GB/s [MC]")
NULL_EXECUTION = assumed(
    0.00012,
    "s",
    "launching a program without collectives",
    fitted_to="T16: mean of the null kernels, 0.086 to 0.154 ms",
)
TRN2_PAIR_BARRIER = assumed(
    6.4e-05,
    "s",
    "wait for 2 ranks, once per execution",
    fitted_to="T16: 2 ranks, 1 AR less null",
)
TRN2_FOUR_BARRIER = assumed(
    0.00089,
    "s",
    "wait for 4 ranks, once per execution",
    fitted_to="T16: 4 ranks, 1 AR less null",
)
TRN2_DOUBLING_BARRIER = assumed(
    0.000495,
    "s",
    "more for twice the ranks, once per execution",
    fitted_to="T16: 4 to 64 ranks, 1 AR less null",
)
TRN1_PAIR_BARRIER = assumed(
    1e-05,
    "s",
    "wait for 2 ranks, once per execution",
    fitted_to="T16: ranks 0 and 1 of trn1 less CC_NOP",
)
TRN1_FOUR_BARRIER = assumed(
    0.00099,
    "s",
    "wait for 4 ranks, extrapolated, once per execution",
    fitted_to="T16: 8 to 32 ranks of trn1, 1 AR",
)
TRN1_DOUBLING_BARRIER = assumed(
    0.00132,
    "s",
    "more for twice the ranks, once per execution",
    fitted_to="T16: 8 to 32 ranks of trn1, 1 AR",
)
HARDWARE_BARRIER_SHARE = assumed(
    0.55,
    "fraction",
    "of the wait that is left with the barrier on the device; 2.27: at least half",
    fitted_to="T16: 32 ranks of trn1, 2.80 of 5.07 ms",
)

CONSTANTS = named(globals())
"""All of them, by name."""
