"""The division of a region's rows into blocks of tiles.

*Whole operands* are those that every tile needs completely. If SBUF can hold all of
them and two tiles, they are loaded once. Otherwise every block loads them again, and
they take at most `PASSING_SHARE` of SBUF at a time. If a step processes several tiles
before the next step starts, these tiles are a block, and the next block is loaded after
this block is computed. Otherwise one tile is computed while the next is loaded, if SBUF
can hold both. If physical cores share the rows, each core has a copy of the whole
operands. Bytes are those of a logical core.
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
    """Return the bytes of two row tiles: one is computed while the next is loaded.

    The result is at most half of SBUF, except for matmuls of several rows. `turned` are
    the matmuls whose left operand is transposed first."""
    size = 2 * block_bytes(fused, region, core, turned)
    is_matmul = region.has_matmul and region.rows > 1
    return size if is_matmul else min(size, core.sbuf_bytes // 2)


def copies(fused: Fused, region: TiledRegion, core: Core) -> int:
    """Return the number of copies of `region.whole`: one per physical core if the cores
    divide the rows of a matmul, else one.

    A single matmul is divided by the columns of its whole operand if this operand is
    larger than the streamed operands. A chain is divided by rows, as in mlp_cte of
    nki-library; otherwise cores would exchange columns, which the next matmul needs."""
    if not region.has_matmul or region.rows < core.rows_per_tile:
        return 1
    is_chain = sum(step.form == "matmul" for step in region.steps) > 1
    whole = sum(fused.sizes[v] for v in region.whole)
    rows = sum(fused.sizes[v] for v in region.streamed)
    return core.lnc if is_chain or whole < rows else 1


def divide(
    fused: Fused, region: TiledRegion, core: Core, whole: int, tile: int, fits: bool
) -> tuple[int, int]:
    """Return how often the whole operands are loaded, and how many blocks run one after
    the other: 1 if each block is loaded while the previous block is computed.

    `whole` and `tile` are the bytes of the whole operands and of a row tile; `fits` is
    whether SBUF can hold all whole operands and two tiles."""
    tiles, together = region.tiles(core), tiles_at_a_time(fused, region, core)
    longest = together if together > 1 else tiles
    if fits:
        return 1, ceil(tiles / longest)
    room = core.sbuf_bytes - min(whole, core.sbuf_bytes * PASSING_SHARE.value)
    overlaps = together == 1 and room >= 2 * tile
    most = int(room // max(1, tile * (2 if overlaps else 1)))
    blocks = ceil(tiles / max(1, min(longest, most)))
    return blocks, 1 if overlaps else blocks
