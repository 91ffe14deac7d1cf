"""The assumptions of fusion, memory plan and schedule, as a table to list and doubt.

None is published, none was fitted to a measurement. The values are where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from neuronjax.timing import (
    blocking,
    division,
    flattening,
    layout,
    pricing,
    sbuf_allocation,
    schedule,
    tiling,
)
from neuronjax.timing.constant import Constant

_TABLE: tuple[tuple[str, float, str, str], ...] = (
    (
        "INLINE_LIMIT",
        flattening.INLINE_LIMIT,
        "instructions",
        "a callee of no more is fused with its caller",
    ),
    (
        "RESIDENT_SHARE",
        tiling.RESIDENT_SHARE,
        "fraction",
        "of SBUF for what stays, the rest being tiles in flight",
    ),
    ("MOST_STEPS", tiling.MOST_STEPS, "steps", "passes of one loop over row tiles"),
    (
        "LOOK_BACK",
        tiling.LOOK_BACK,
        "regions",
        "back, which a step may join whose operands are all there",
    ),
    ("BLOCK_K", blocking.BLOCK_K, "rows", "contracted rows of a block in a matmul"),
    (
        "MOST_BLOCKS",
        blocking.MOST_BLOCKS,
        "blocks",
        "of a dimension that a blocked matmul is tried with",
    ),
    (
        "FEW_TILES",
        tiling.FEW_TILES,
        "tiles",
        "of rows; no step joins a region that would have fewer because of it",
    ),
    (
        "STAYING_SHARE",
        division.STAYING_SHARE,
        "fraction",
        "of what is left of SBUF for operands that stay, if not all fit",
    ),
    (
        "COLUMN_BLOCK_BYTES",
        layout.COLUMN_BLOCK_BYTES,
        "B/partition",
        "of a row that a matmul makes, in SBUF at a time (online softmax)",
    ),
    (
        "ROWS_AT_A_TIME",
        layout.ROWS_AT_A_TIME,
        "rows",
        "go through the steps of a region with matmuls together, as in nki-library's"
        " mlp_cte: the free size of a moving operand",
    ),
    (
        "PASSING_SHARE",
        division.PASSING_SHARE,
        "fraction",
        "of SBUF for the part of passing weights that is in use",
    ),
    (
        "CARRY_SHARE",
        sbuf_allocation.CARRY_SHARE,
        "fraction",
        "of SBUF for what a loop carries, smallest first",
    ),
    (
        "CAPTURED_BYTES",
        sbuf_allocation.CAPTURED_BYTES,
        "B",
        "what a block reads of its surroundings is in SBUF if it is no bigger",
    ),
    (
        "CAUSAL_BLOCK",
        pricing.CAUSAL_BLOCK,
        "columns",
        "blocks of scores hidden by a causal mask are not computed",
    ),
    (
        "MOST_PIECES",
        pricing.MOST_PIECES,
        "tiles",
        "into which the time of a region is divided at most",
    ),
    (
        "CHUNK_BYTES",
        pricing.CHUNK_BYTES,
        "B",
        "piece of a load that a consumer waits for: 4 KiB in each partition [DB]",
    ),
)

PLANNING_CONSTANTS: Mapping[str, Constant] = MappingProxyType(
    {
        name: Constant(name, value, unit, source, is_assumption=True)
        for name, value, unit, source in _TABLE
    }
    | dict(schedule.CONSTANTS)
)
"""All of them, by name."""
