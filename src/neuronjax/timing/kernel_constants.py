"""Figures of the time model that only kernels need; the others are in `assumptions`.

Keys of sources as there; DGE is nki/deep-dives/nki-dge.rst.
"""

from __future__ import annotations

from collections.abc import Mapping

from neuronjax.timing.constant import Constant

REORDER_WINDOW = Constant(
    "REORDER_WINDOW",
    16,
    "instructions",
    "of an engine's stream among which the one that can start first is issued: the"
    " compiler orders them; TensorE keeps the order of the kernel",
    is_assumption=True,
)
REGISTER_CYCLES = Constant(
    "REGISTER_CYCLES",
    16,
    "cycles",
    "an instruction of a sequencer (register, barrier); issue rates are unpublished",
    is_assumption=True,
)
PARTITIONS_OF_A_DMA_ENGINE = Constant(
    "PARTITIONS_OF_A_DMA_ENGINE", 8, "partitions", "128 / 16, each its own [DM]"
)
LOOP_TURNS = Constant(
    "LOOP_TURNS",
    16,
    "turns",
    "of a device loop that are scheduled one by one where all of them would be more"
    " than the limit of instructions; the others take as long as the last of these",
    is_assumption=True,
)
PRINT_COPIES = Constant(
    "PRINT_COPIES",
    1,
    "transfers",
    "of a tensor to HBM, where the host finds what device_print shows; what it takes"
    " is not documented",
    is_assumption=True,
)

CONSTANTS: Mapping[str, Constant] = {
    c.name: c
    for c in (
        REORDER_WINDOW,
        REGISTER_CYCLES,
        PARTITIONS_OF_A_DMA_ENGINE,
        LOOP_TURNS,
        PRINT_COPIES,
    )
}
"""All of them, by name."""
