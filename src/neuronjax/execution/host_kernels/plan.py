"""What a kernel is told: numbers known when its call is traced.

A plan travels as one array of int64, an attribute of the call: how many blocks there
are, how many threads are asked to help, the bytes of scratch that each needs, then the
kernel's own fields. These stand here once, for the code that fills them in and for the
code that reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

#: Rules of MX scales that bound the scale; the vendor's golden wraps around instead.
BOUNDED_RULES = ("ocp_floor", "neuron", "ceil", "rceil", "even")


@dataclass(frozen=True, kw_only=True)
class FoldBlocks:
    """A contraction [batch, m, k] x [batch, k, n], and how it is cut into blocks.

    Strides are in elements, those of the batch between matrices. Row j of cell p of a K
    tile is row `p * cell_stride + j * row_stride` of it.

    Attributes:
        k_tile: rows of a pass of the array; `tiles` passes there are.
        cells: of a pass, of which `group` make a sum.
        settles: whether the result is as a sum leaves PSUM: zeros are +0, NaNs have one
            bit pattern.
        block_m, block_n: rows and columns of a block of the result.
        blocks_m, blocks_n: how many there are.
    """

    m: int
    n: int
    k: int
    k_tile: int
    tiles: int
    cells: int
    group: int
    cell_stride: int
    row_stride: int
    settles: bool
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
FOLD_FIELDS = tuple(field.name for field in fields(FoldBlocks))
QUANTIZE_FIELDS = tuple(field.name for field in fields(QuantizeRows))
FACTOR_FIELDS = tuple(field.name for field in fields(ScaleFactors))
