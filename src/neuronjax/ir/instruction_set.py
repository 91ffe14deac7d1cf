"""The instructions of a NeuronCore, named after `nki.isa`; see `ir.instruction`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from neuronjax.ir.instruction import Block, Engine, Instruction, Label
from neuronjax.ir.program import Op
from neuronjax.ir.vector_sums import VECTOR_TILE, sum_label

#: The batch, lhs free, rhs free and contracted sizes of a contraction.
Sizes = tuple[int, int, int, int]

# -- TensorE ---------------------------------------------------------------------------


@dataclass(frozen=True)
class DotDimensions:
    """Dimension numbers of a contraction, as in `stablehlo.dot_general`."""

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contract: tuple[int, ...]
    rhs_contract: tuple[int, ...]

    def __str__(self) -> str:
        """Return `[batch|contract]x[batch|contract]`, as in "[0|2]x[0|1]"."""
        sides = (
            (self.lhs_batch, self.lhs_contract),
            (self.rhs_batch, self.rhs_contract),
        )
        join = lambda dims: ",".join(map(str, dims))  # noqa: E731
        return "x".join(f"[{join(b)}|{join(c)}]" for b, c in sides)

    def sizes(self, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> Sizes:
        """Return the sizes of a contraction of operands of these shapes."""
        batch = prod(lhs[d] for d in self.lhs_batch)
        k = prod(lhs[d] for d in self.lhs_contract)
        m, n = (prod(shape) // max(1, batch * k) for shape in (lhs, rhs))
        return batch, m, n, k

    def is_matmul(self, lhs: tuple[int, ...], rhs: tuple[int, ...], lanes: int) -> bool:
        """Return whether a contraction is a matmul for TensorE; VectorE takes all
        others.

        These are not matmuls: a contraction over nothing or over one element; one of
        vectors with vectors; and a batch of at least as many matrices as VectorE has
        lanes, each with at most as many products (reasons: `lowering.contraction`).
        """
        batch, m, n, k = self.sizes(lhs, rhs)
        if k == 1 or m == n == 1:
            return False
        return batch < lanes or m * n * k > lanes

    @classmethod
    def of(cls, op: Op) -> DotDimensions:
        """Return the dimension numbers of a `stablehlo.dot_general`."""
        numbers = op.attributes["dot_dimension_numbers"]
        return cls(
            *(numbers[f"{side}_batching_dimensions"] for side in ("lhs", "rhs")),
            *(numbers[f"{side}_contracting_dimensions"] for side in ("lhs", "rhs")),
        )


def _host_or_modelled(field: str) -> Any:
    return property(lambda i: "host" if getattr(i, field) == "host" else "modelled")


#: Rows of FP32 operands that the array adds up as one sum: a row group.
FP32_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class NcMatmul(Instruction):
    """A contraction on the systolic array, accumulated in PSUM.

    The result's dtype is the one in which PSUM adds the tiles: float32, or bfloat16
    with a rounding after each addition (NeuronCore-v4)."""

    dimensions: DotDimensions  # which axes are batched and contracted
    #: Contraction rows per pass of the array (128, 256 in double-row mode).
    k_tile: int = 128
    #: How many products a cell adds before they enter the column: 2, of rows k and
    #: k + 128, for double-row FP8, otherwise 1.
    rows_per_cell: int = 1
    passes: int = 1  # 1, or 4 for FP32 operands split into high and low halves
    #: The rows of a tile that are summed together, None for all; the sums of a tile are
    #: added in order before they reach PSUM.
    group_rows: int | None = None
    accumulation: str = "systolic"  # "host" if XLA chooses the order
    #: The sizes of the matmul that the array runs, if several batches lie side by side,
    #: as blocks on the diagonal of a matrix of zeros; None for the operands' sizes.
    held: Sizes | None = None
    label = _host_or_modelled("accumulation")


@dataclass(frozen=True, kw_only=True)
class NcTranspose(Instruction):
    """A transpose of the last two axes in the array's transpose mode.

    From NeuronCore-v3 on it keeps every bit; FP8 comes out in 16 bits whose upper byte
    is zero (the result is uint16). On v2 it is a matmul with the identity in FP32, in
    which an Inf or NaN makes its whole row of the result NaN."""

    exact: bool = True  # False for the matmul of v2


@dataclass(frozen=True, kw_only=True)
class QuantizeMx(Instruction):
    """A quantization to blocks of 32 along `axis`, each with a power-of-two scale (OCP
    MX 1.0).

    results: elements, of the operand's shape; scales, float8_e8m0fnu, whose axis is a
    32nd as long (rounded up). Elements saturate. VectorE quantizes BF16 or FP16 to
    MXFP8, as `nki.isa.quantize_mx`; "offline" quantizes any float to any MX format."""

    axis: int  # the blocked axis
    format: str  # "mxfp8_e4m3", "mxfp8_e5m2" or "mxfp4_e2m1"
    scale_rule: str  # a rule of `numerics.microscaling`


@dataclass(frozen=True, kw_only=True)
class NcMatmulMx(Instruction):
    """A contraction of MX operands: elements of both sides, then scales of both.

    A K tile is 512 rows; cell p of the array holds rows 4p to 4p+3 and adds its four
    scaled products, left to right, before they enter the column. The result is [batch,
    lhs free, rhs free], its free dimensions possibly split; its dtype as in NcMatmul.
    """

    #: The dimension numbers of the elements; each side has one axis of each kind.
    dimensions: DotDimensions
    k_tile: int = 512  # contraction rows per pass of the array
    accumulation: str = "systolic"  # as in NcMatmul
    label = _host_or_modelled("accumulation")


@dataclass(frozen=True, kw_only=True)
class Sparsify(Instruction):
    """A compression to the N elements of largest magnitude of every M along `axis`.

    results: values, the axis N/M as long; tags, uint8, their positions in the group. A
    tensor that has the pattern already loses nothing."""

    axis: int  # the axis of the groups
    pattern: str  # "N:M"


@dataclass(frozen=True, kw_only=True)
class NcMatmulSparse(Instruction):
    """A contraction with a compressed stationary operand.

    operands: values and tags of the stationary side, and the moving side. Every
    compressed value is multiplied by the moving row that its tag selects; a K tile is
    `k_tile` compressed rows. The result is [batch, lhs free, rhs free] as in
    NcMatmulMx."""

    #: The dimension numbers of the compressed values and of the moving side, each of
    #: which has one axis of each kind.
    dimensions: DotDimensions
    #: Whether the stationary operand is the "lhs" or the "rhs" of the result.
    stationary: str
    pattern: str  # "N:M"
    k_tile: int = 128  # compressed rows per pass of the array
    accumulation: str = "systolic"  # as in NcMatmul
    label = _host_or_modelled("accumulation")


# -- VectorE, ScalarE, GpSimdE ---------------------------------------------------------


#: Functions of two arguments that only GpSimdE has, which can be programmed freely.
SOFTWARE_FUNCTIONS = frozenset(
    {"power", "atan2", "zeta", "polygamma", "mulhi", "next_after"}
)


@dataclass(frozen=True, kw_only=True)
class TensorTensor(Instruction):
    """An operation by element on operands of one shape (StableHLO's op names)."""

    op: str
    #: "exact", or "fp32" if integers are read as FP32 and the result is rounded to an
    #: integer, as VectorE does it: exact to 2^24. "reciprocal" divides integers by
    #: multiplying with 1 / y in FP32 and truncating.
    integer_path: str = "exact"

    @property
    def label(self) -> Label:  # type: ignore[override]
        is_float = self.results[0].type.dtype.kind not in "iub"
        functions = ("power", "atan2", "polygamma", "zeta")
        return "modelled" if is_float and self.op in functions else "exact"

    @property
    def elsewhere(self) -> Engine | None:  # type: ignore[override]
        """VectorE, on a chip without `engine`; None if only software has the op."""
        return None if self.op in SOFTWARE_FUNCTIONS else "vector"


@dataclass(frozen=True, kw_only=True)
class Compare(Instruction):
    """A comparison of two tensors; `total` uses IEEE totalOrder on floats."""

    direction: str
    total: bool = False
    elsewhere: ClassVar[Engine | None] = "vector"


@dataclass(frozen=True, kw_only=True)
class TensorScalar(Instruction):
    """`operands[0] op operands[1]`, where the second is one element (a scale)."""

    op: str


@dataclass(frozen=True, kw_only=True)
class Activation(Instruction):
    """An elementary function (StableHLO's and CHLO's names)."""

    function: str  # the name without dialect
    #: "exact" for the project's own functions, "scalar_engine" for piecewise cubics if
    #: ScalarE has the function, "host" for XLA's.
    transcendentals: str = "exact"
    label = _host_or_modelled("transcendentals")


@dataclass(frozen=True, kw_only=True)
class TensorCopy(Instruction):
    """A copy that changes the dtype."""

    #: "truncate" as in StableHLO, "rne" as on an engine's write.
    float_to_int: str = "truncate"


@dataclass(frozen=True, kw_only=True)
class BitcastCopy(Instruction):
    """A copy that reinterprets the bits (`stablehlo.bitcast_convert`)."""


@dataclass(frozen=True, kw_only=True)
class ReducePrecision(Instruction):
    """A rounding to `exponent_bits` and `mantissa_bits` that keeps the dtype."""

    exponent_bits: int
    mantissa_bits: int


@dataclass(frozen=True, kw_only=True)
class Select(Instruction):
    """A selection by element; operands: predicate, on_true, on_false."""


@dataclass(frozen=True, kw_only=True)
class TensorReduce(Instruction):
    """A reduction of operands[0] over `axes`, starting from operands[1]. Each tile is a
    left fold from its own first element; the result is the left fold of (init, tile 0,
    tile 1, ...). Several axes count as one, in row-major order. `integer_path` is as in
    TensorTensor; a `tile` of None has all elements."""

    op: str
    axes: tuple[int, ...]
    integer_path: str = "exact"
    tile: int | None = VECTOR_TILE
    elsewhere: ClassVar[Engine | None] = "vector"

    @property
    def label(self) -> Label:  # type: ignore[override]
        return sum_label(self.op, self.operands[0].type, self.axes)


@dataclass(frozen=True)
class Window:
    """A sliding window, one entry per dimension (StableHLO's reduce_window)."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    base_dilations: tuple[int, ...]
    window_dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    @classmethod
    def of(
        cls,
        attributes: Mapping[str, Any],
        sizes: tuple[int, ...],
        base: str = "base_dilations",
        window: str = "window_dilations",
    ) -> Window:
        """Return the window of an op; `base` and `window` name its dilations."""
        ones = (1,) * len(sizes)
        padding = attributes.get("padding")
        pairs = tuple(map(tuple, padding.tolist())) if padding is not None else ()
        return cls(
            sizes=sizes,
            strides=attributes.get("window_strides", ones),
            base_dilations=attributes.get(base, ones),
            window_dilations=attributes.get(window, ones),
            padding=pairs or ((0, 0),) * len(sizes),
        )


@dataclass(frozen=True, kw_only=True)
class Pool(Instruction):
    """A reduction over sliding windows, folded as in TensorReduce."""

    op: str
    window: Window
    integer_path: str = "exact"
    tile: int | None = VECTOR_TILE
    label: ClassVar[Label] = "modelled"
    elsewhere: ClassVar[Engine | None] = "vector"


@dataclass(frozen=True, kw_only=True)
class TensorTensorScan(Instruction):
    """The running fold of operands[0] along `axis` from operands[1], the identity of
    `op`.

    Forwards r[i] = r[i - 1] op x[i]; backwards r[i] = x[i] op r[i + 1]; r is x where
    the fold starts. The state is FP32; every result is rounded once on its write. A
    cumulative sum is such a fold, not a reduction per element."""

    op: str  # as in TensorReduce
    axis: int  # the axis of the fold
    reverse: bool = False  # whether it runs from the last element to the first
    integer_path: str = "exact"  # as in TensorTensor
    label: ClassVar[Label] = "modelled"
    elsewhere: ClassVar[Engine | None] = "vector"


@dataclass(frozen=True, kw_only=True)
class SelectAndScatter(Instruction):
    """A scatter of operands[1] to the selected element of each window of operands[0].

    Contributions to one element are combined in row-major order of the windows, onto
    operands[2]. Of the elements of a window, in row-major order and without padding,
    each replaces the chosen one unless `chosen select element` holds."""

    select: str  # GE, GT, LE or LT
    op: str  # how contributions combine, as in TensorReduce
    window: Window
    integer_path: str = "exact"  # as in TensorTensor
    label: ClassVar[Label] = "modelled"


@dataclass(frozen=True, kw_only=True)
class ScaleFromAmax(Instruction):
    """The largest power of two with amax * scale <= the largest value of `format`.
    operands: amax, float32, no dimensions. results: scale and 1/scale, both float32. An
    amax of zero, Inf or NaN gives scale 1; the exponent is kept in -126..126."""

    format: str
    margin: int = 0
    label: ClassVar[Label] = "modelled"


@dataclass(frozen=True, kw_only=True)
class RecordAmax(Instruction):
    """Delayed scaling: records the amax of this step, operands[0], in a slot. A slot
    visited several times (in a loop) keeps the largest."""

    slot: int


@dataclass(frozen=True, kw_only=True)
class ReadAmax(Instruction):
    """Delayed scaling: reads the largest amax of earlier steps; 0 at first."""

    slot: int


@dataclass(frozen=True, kw_only=True)
class Memset(Instruction):
    """A constant, written to a buffer."""

    value: np.ndarray
    elsewhere: ClassVar[Engine | None] = "vector"


@dataclass(frozen=True, kw_only=True)
class Iota(Instruction):
    """The index along `dimension`."""

    dimension: int
    elsewhere: ClassVar[Engine | None] = "vector"


@dataclass(frozen=True, kw_only=True)
class Rng(Instruction):
    """Random bits from a state (`stablehlo.rng_bit_generator`)."""

    algorithm: str
    label: ClassVar[Label] = "modelled"


@dataclass(frozen=True, kw_only=True)
class LocalGather(Instruction):
    """`stablehlo.gather`; out-of-bounds starts are clamped."""

    dimension_numbers: tuple[tuple[str, Any], ...]
    slice_sizes: tuple[int, ...]
    indices_are_sorted: bool = False


@dataclass(frozen=True, kw_only=True)
class LocalScatter(Instruction):
    """`stablehlo.scatter` of one tensor; updates in row-major order of the indices.

    A window that is not wholly inside the tensor is dropped, as XLA does on every
    platform; StableHLO's text would keep the elements inside."""

    op: str  # the combiner: add, multiply, minimum, maximum or assign
    dimension_numbers: tuple[tuple[str, Any], ...]
    indices_are_sorted: bool = False
    unique_indices: bool = False
    integer_path: str = "exact"  # as in TensorTensor
    label: ClassVar[Label] = "modelled"


@dataclass(frozen=True, kw_only=True)
class Sort(Instruction):
    """A stable sort along `dimension`, lexicographic by keys.

    operands: the keys, the most significant first, then the tensors to sort."""

    dimension: int  # the sorted axis
    descending: tuple[bool, ...]  # for each key, whether the largest comes first
    #: For each key, whether floats are compared in IEEE totalOrder; else -0 equals +0,
    #: and NaNs equal each other and exceed all numbers.
    total: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class TopK(Instruction):
    """The k largest elements of the last axis, and their indices; ties by lower index.
    Floats are compared in IEEE totalOrder."""

    k: int


# -- DMA -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DmaCopy(Instruction):
    """A movement that changes no bit."""

    #: One of broadcast, reshape, transpose, slice, pad, concatenate, reverse,
    #: dynamic_slice, dynamic_update_slice.
    kind: str
    #: What the kind needs, as in StableHLO: broadcast: dimensions; transpose:
    #: permutation; slice: starts, limits, strides; pad: low, high, interior;
    #: concatenate and reverse: dimensions; dynamic_slice: sizes.
    parameters: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Im2col(Instruction):
    """The patches that a convolution contracts, [groups, batch * positions, K].

    K is the kernel positions in row-major order, then the input channel; padding zeros
    take part. operands: the input as [groups, batch, *spatial, channels]."""

    window: Window  # the window of the kernel
    side_by_side: int = 1  # the number of groups whose channels the array takes at once


# -- control ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Loop(Instruction):
    """`stablehlo.while`: the body runs while the condition of the carry holds."""

    condition: Block
    body: Block

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.condition, self.body)


@dataclass(frozen=True, kw_only=True)
class Branch(Instruction):
    """`stablehlo.case`: operands[0] selects a branch; out of range selects the last."""

    branches: tuple[Block, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.branches


@dataclass(frozen=True, kw_only=True)
class Call(Instruction):
    """A call of another function; identical layers stay calls."""

    callee: str
