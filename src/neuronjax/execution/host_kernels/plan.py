"""What a kernel is told of a contraction: numbers known when it is traced.

A plan travels as one array of int64, an attribute of the call. Its fields stand here
once, for the code that fills them in and for the code that reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np


class Stored(NamedTuple):
    """How an operand lies in memory, row-major, the batch in front.

    Attributes:
        k, free: the strides of these axes, in elements.
        dtype: how an element is; of `fold_kernel.STORED`.
        format: of codes of 8 bits, its name.
    """

    k: int
    free: int
    dtype: str = "float32"
    format: str = ""


class FoldShape(NamedTuple):
    """A contraction in passes of the array.

    Attributes:
        batch, m, n, k: sizes.
        k_tile: rows of a pass; `cells` hold them, `group` of which make a sum.
        cell_stride, row_stride: between cells, and between the rows in one, in rows.
        rows_per_cell: J.
        passes: 1, or 4 of high and low halves.
        in_range: promises that every product is exact, where J > 1.
        settles: whether the result is as a sum leaves PSUM: zeros are +0, NaNs have one
            bit pattern.
    """

    batch: int
    m: int
    n: int
    k: int
    k_tile: int
    cells: int
    group: int
    cell_stride: int
    row_stride: int
    rows_per_cell: int
    passes: int
    in_range: bool
    settles: bool


@dataclass(frozen=True, kw_only=True)
class FoldBlocks:
    """A contraction [batch, m, k] x [batch, k, n], and how it is cut into blocks.

    Strides are in elements. Row j of cell p of a K tile is row `p * cell_stride + j *
    row_stride` of it.

    Attributes:
        k_tile: rows of one pass of the array; `cells` of them, and `group` cells to a
            sum.
        block_m, block_n: rows and columns of a block of the result.
        blocks_m, blocks_n, blocks: how many there are, in all `batch` times as many.
        settles: 1 where zeros of the result are +0 and NaNs have one bit pattern.
        helpers: threads that are asked to work along.
    """

    batch: int
    m: int
    n: int
    k: int
    k_tile: int
    tiles: int
    cells: int
    group: int
    cell_stride: int
    row_stride: int
    lhs_batch: int
    lhs_k: int
    lhs_free: int
    rhs_batch: int
    rhs_k: int
    rhs_free: int
    block_m: int
    block_n: int
    blocks_m: int
    blocks_n: int
    blocks: int
    settles: int
    helpers: int

    def array(self) -> np.ndarray:
        """As the kernel reads it."""
        return np.array([getattr(self, name) for name in FIELDS], np.int64)


FIELDS = tuple(field.name for field in fields(FoldBlocks))
