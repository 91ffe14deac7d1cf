"""Figures of the time model that only kernels need; the others are in `assumptions`.

Keys of sources as there; DGE is nki/deep-dives/nki-dge.rst.
"""

from __future__ import annotations

from neuronjax.timing.constant import Constant, assumed, named

REORDER_WINDOW = assumed(
    16,
    "instructions",
    "of an engine's stream among which the one that can start first is issued: the"
    " compiler orders them; TensorE's are ordered in the older style only, where fused"
    " attention of one query tile after the other takes 21.3 ms on trn2, 31.4 in the"
    " kernel's order, 21.1 with this [KDA]",
)
REGISTER_CYCLES = assumed(
    16,
    "cycles",
    "an instruction of a sequencer (register, barrier); issue rates are unpublished",
)
PARTITIONS_OF_A_DMA_ENGINE = Constant(8, "partitions", "128 / 16, each its own [DM]")
LOOP_TURNS = assumed(
    16,
    "turns",
    "of a device loop that are scheduled one by one where all of them would be more"
    " than the limit of instructions; the others take as long as the last of these",
)
PRINT_COPIES = assumed(
    1,
    "transfers",
    "of a tensor to HBM, where the host finds what device_print shows; what it takes"
    " is not documented",
)

CONSTANTS = named(globals())
"""All of them, by name."""
