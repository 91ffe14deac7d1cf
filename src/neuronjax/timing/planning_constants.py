"""The assumptions of fusion, memory plan and schedule.

None is published, and none was fitted to a measurement. Each moves a measured program,
or one of a dozen others, by a point or more when it is four times as large or small,
but for MOST_BLOCKS, which ends a search; what did not was removed.
"""

from __future__ import annotations

from neuronjax.timing.constant import assumed, named

INLINE_LIMIT = assumed(
    200, "instructions", "a callee of no more is fused with its caller"
)
RESIDENT_SHARE = assumed(
    0.85, "fraction", "of SBUF for what stays, the rest being tiles in flight"
)
MOST_STEPS = assumed(64, "steps", "passes of one loop over row tiles")
BLOCK_K = assumed(512, "rows", "contracted rows of a block in a matmul")
MOST_BLOCKS = assumed(
    64, "blocks", "of a dimension that a blocked matmul is tried with"
)
FEW_TILES = assumed(
    8, "tiles", "of rows; no step joins a region that would have fewer because of it"
)
COLUMN_BLOCK_BYTES = assumed(
    4096,
    "B/partition",
    "of a row that a matmul makes, in SBUF at a time (online softmax)",
)
ROWS_AT_A_TIME = assumed(
    512,
    "rows",
    "go through the steps of a region with matmuls together, as in nki-library's"
    " mlp_cte: the free size of a moving operand",
)
PASSING_SHARE = assumed(
    0.15, "fraction", "of SBUF for the part of passing weights that is in use"
)
CARRY_SHARE = assumed(
    0.5, "fraction", "of SBUF for what a loop carries, smallest first"
)
MASK_ROWS = assumed(
    128,
    "rows",
    "of queries go together, and as many keys are contracted, in nki-library's"
    " attention_cte; blocks of scores that a mask hides are not computed",
)
MASK_COLUMNS = assumed(
    512, "columns", "of such a block, as in nki-library's attention_cte"
)
MOST_PIECES = assumed(64, "tiles", "into which the time of a region is divided at most")
CHUNK_BYTES = assumed(
    4096 * 128,
    "B",
    "piece of a load that a consumer waits for: 4 KiB in each partition [DB]",
)
LOOP_TURN = assumed(
    0.1e-6, "s", "sequencers compare, branch and fetch between two turns of a loop"
)
PREFETCH_SHARE = assumed(
    0.5, "fraction", "of SBUF that loads for later regions may take"
)

PLANNING_CONSTANTS = named(globals())
"""All of them, by name."""
