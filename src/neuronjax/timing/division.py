"""The division of a region's rows into blocks of tiles.

A region (steps that run tile by tile) has *whole operands*, such as weights: those that
every tile needs completely. If SBUF can hold all whole operands and two tiles, the
whole operands are loaded once. Otherwise they are loaded again for every block, in
parts that take at most `PASSING_SHARE` of SBUF.

If a step processes several tiles before the next step starts (`tiles_at_a_time`), a
block has these tiles, or as many of them as SBUF can hold, and each block is loaded
after the previous block is computed. Otherwise each tile is loaded while the previous
tile is computed, if SBUF can hold two tiles. Bytes are those of a logical core.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil

from neuronjax.timing.assumptions import PASSING_SHARE
from neuronjax.timing.fused import Fused, FusedStep, TiledRegion
from neuronjax.timing.layout import block_bytes, tiles_at_a_time
from neuronjax.timing.work import Core


def working_bytes(
    fused: Fused, region: TiledRegion, core: Core, turned: Collection[FusedStep] = ()
) -> int:
    """Return the SBUF bytes of two row tiles of a region, of which one is computed
    while the other is loaded.

    If the region has no matmul, or only one row, a larger number than half of SBUF is
    reduced to half of SBUF. `turned` has the matmuls whose left operand TensorE
    transposes first."""
    size = 2 * block_bytes(fused, region, core, turned)
    is_matmul = region.has_matmul and region.rows > 1
    return size if is_matmul else min(size, core.sbuf_bytes // 2)


def copies(fused: Fused, region: TiledRegion, core: Core) -> int:
    """Return how many copies of the operands in `region.whole` are in SBUF: one
    per physical core if the cores divide a matmul's rows among themselves, else one.

    The cores divide the rows in a chain of matmuls, as in nki-library's mlp_cte, since
    with divided columns they would have to exchange columns before the next matmul. In
    a single matmul they divide the columns, unless the whole operands are smaller than
    the streamed operands, of which each tile needs only its rows."""
    if not region.has_matmul or region.rows < core.rows_per_tile:
        return 1
    is_chain = sum(step.form == "matmul" for step in region.steps) > 1
    whole = sum(fused.sizes[v] for v in region.whole)
    rows = sum(fused.sizes[v] for v in region.streamed)
    return core.lnc if is_chain or whole < rows else 1


def divide(
    fused: Fused, region: TiledRegion, core: Core, whole: int, tile: int, fits: bool
) -> tuple[int, int]:
    """Return how often the operands that every tile needs completely are loaded, and
    the number of blocks. A block is several tiles that are loaded together, after the
    previous block is computed. If tiles are loaded one by one, they count as one block.

    `whole` is the size of these operands in bytes, `tile` that of a row tile. `fits`
    says whether SBUF can hold all these operands and two tiles."""
    tiles, together = region.tiles(core), tiles_at_a_time(fused, region, core)
    longest = together if together > 1 else tiles
    if fits:
        return 1, ceil(tiles / longest)
    room = core.sbuf_bytes - min(whole, core.sbuf_bytes * PASSING_SHARE.value)
    overlaps = together == 1 and room >= 2 * tile
    most = int(room // max(1, tile * (2 if overlaps else 1)))
    blocks = ceil(tiles / max(1, min(longest, most)))
    return blocks, 1 if overlaps else blocks
