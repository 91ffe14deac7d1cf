"""What a kernel is told: numbers known when its call is traced.

A plan travels as one array of int64, an attribute of the call: how many blocks there
are, how many threads are asked to help, the bytes of scratch that each needs, then the
kernel's own fields. These stand here once, for the code that fills them in and for the
code that reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

#: Rules of MX scales that bound the scale; the vendor's golden wraps around instead.
BOUNDED_RULES = ("ocp_floor", "neuron", "ceil", "rceil", "even")


class Stored(NamedTuple):
    """How an operand lies in memory, row-major, the batch in front.

    Attributes:
        k, free: the strides of these axes, in elements.
        dtype: how an element is; of `elements.SIZES`.
        format: of codes of 8 bits, its name.
        scale_k, scale_free: strides of the scales of blocks along K, if there are any.
    """

    k: int
    free: int
    dtype: str = "float32"
    format: str = ""
    scale_k: int = 0
    scale_free: int = 0

    @property
    def is_scaled(self) -> bool:
        return self.scale_k != 0


class FoldShape(NamedTuple):
    """A contraction [batch, m, k] x [batch, k, n] in passes of the array.

    Row j of cell p of a K tile is row `p * cell_stride + j * row_stride` of it.

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
    """How a contraction is cut into blocks; its `FoldShape` follows in the plan.

    Strides are in elements.

    Attributes:
        tiles: passes of the array.
        block_m, block_n: rows and columns of a block of the result.
        blocks_m, blocks_n: how many there are.
    """

    tiles: int
    lhs_batch: int
    lhs_k: int
    lhs_free: int
    lhs_scale_batch: int
    lhs_scale_k: int
    lhs_scale_free: int
    rhs_batch: int
    rhs_k: int
    rhs_free: int
    rhs_scale_batch: int
    rhs_scale_k: int
    rhs_scale_free: int
    block_m: int
    block_n: int
    blocks_m: int
    blocks_n: int


@dataclass(frozen=True, kw_only=True)
class QuantizeRows:
    """An array [outer, k, inner] whose blocks of 32 along k get scales.

    Attributes:
        blocks: of k, the last one maybe shorter.
        rows: of `outer` that a thread takes at a time.
    """

    outer: int
    k: int
    inner: int
    blocks: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class ScaleFactors:
    """Scales of `count` largest magnitudes; see `engines.vector.scale_from_amax`.

    Attributes:
        carry: raises the exponent of what exceeds the format's largest significand.
        top: the sum of a magnitude's biased exponent and its scale's.
    """

    count: int
    carry: int
    top: int


#: The fields of a plan, in the order in which the kernel reads them.
FOLD_FIELDS = (*(x.name for x in fields(FoldBlocks)), *FoldShape.__annotations__)
QUANTIZE_FIELDS = tuple(field.name for field in fields(QuantizeRows))
FACTOR_FIELDS = tuple(field.name for field in fields(ScaleFactors))
