"""Divides a region's rows if its operands do not fit in SBUF at once.

A tile is computed while the next is loaded, so that both are in SBUF, beside the
operands that every tile needs whole. If tiles and operands do not fit together, either
the whole operands are loaded again for every block of rows, or blocks run without
overlap, each with all of SBUF. Physical cores that share the rows have separate SBUFs,
each with its own copy of the whole operands. Bytes are those of a logical core.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, prod

from neuronjax.ir.instruction_set import NcMatmul
from neuronjax.timing.assumptions import PASSING_SHARE
from neuronjax.timing.engines.dma import hbm_bytes_per_second
from neuronjax.timing.engines.tensor import peak_flops_per_second
from neuronjax.timing.fused import Fused, FusedStep, TiledRegion
from neuronjax.timing.layout import block_bytes, tiles_at_a_time
from neuronjax.timing.work import Core


def working_bytes(
    fused: Fused, region: TiledRegion, core: Core, turned: Collection[FusedStep] = ()
) -> int:
    """Return the bytes of tiles in flight: one is computed while the next is loaded.

    A region without matmul loads more tiles in advance, up to half of SBUF."""
    size = 2 * block_bytes(fused, region, core, turned)
    is_matmul = region.has_matmul and region.rows > 1
    return size if is_matmul else min(size, core.sbuf_bytes // 2)


def copies(fused: Fused, region: TiledRegion, core: Core) -> int:
    """Return the number of copies of whole operands, one per core with its own rows.

    A lone matmul is divided by the columns of its whole operand if this operand is the
    larger one. In a chain the next matmul contracts the columns, which would have to be
    exchanged, so the chain is divided by rows, as in nki-library's mlp_cte."""
    if not region.has_matmul or region.rows < core.rows_per_tile:
        return 1
    is_chain = sum(step.form == "matmul" for step in region.steps) > 1
    whole = sum(fused.sizes[v] for v in region.whole)
    rows = sum(fused.sizes[v] for v in region.streamed)
    return core.lnc if is_chain or whole < rows else 1


def divide(
    fused: Fused, region: TiledRegion, core: Core, whole: int, tile: int
) -> tuple[int, int]:
    """Return how often whole operands are loaded, and how many blocks do not overlap.

    Whole operands and two tiles do not fit together. Either blocks overlap and operands
    are loaded once per block (the second result is 1), or each block has all of SBUF.
    Blocks overlap only if SBUF has room for two batches of the tiles that a step
    processes before the next step, as in nki-library's mlp_cte. The quicker option by
    bytes and operations is chosen. `whole` and `tile` are the bytes of whole operands
    and of a row tile."""
    capacity, tiles = core.sbuf_bytes, region.tiles(core)
    batch = min(tiles, tiles_at_a_time(fused, region, core))
    window = min(whole, capacity * PASSING_SHARE.value)
    bandwidth = hbm_bytes_per_second(core)
    streamed = sum(fused.sizes[v] for v in region.streamed) / bandwidth
    array = sum(_array_seconds(core, step) for step in region.steps)
    start = 2 * core.chip.dma_start_seconds  # load and store, not overlapped
    options = []
    for buffers in (1, 2):
        most = int((capacity - window) // max(1, buffers * tile))
        blocks = ceil(tiles / max(1, most))
        weights = blocks * whole / bandwidth
        if buffers == 1:
            seconds = max(array, weights) + streamed + blocks * start
            options.append((seconds, blocks, blocks))
        elif most >= batch:
            options.append((max(array, streamed + weights), blocks, 1))
    return min(options)[1:]


def _array_seconds(core: Core, step: FusedStep) -> float:
    i = step.instruction
    if not isinstance(i, NcMatmul):
        return 0.0
    d = i.dimensions
    left, right = i.operands[0].type.shape, i.operands[1].type.shape
    shared = [left[x] for x in (*d.lhs_batch, *d.lhs_contract)]
    flops = 2 * prod(left) * prod(right) / max(1, prod(shared))
    peak = peak_flops_per_second(core, "bf16")
    return flops * i.passes / peak if peak else 0.0
