"""`algorithm` of `dot_general`: an explicit choice of the roundings of a contraction.

A user who writes `lax.DotAlgorithm` wants those roundings, so it overrides the policy's
auto-cast, its scaling and its PSUM format. (The vendor's compiler computes some
algorithms in the operands' own dtype.)

- Operands are rounded to the algorithm's formats.
- Algorithms of several primitive operations (BF16_BF16_F32_X3, X6, X9,
  TF32_TF32_F32_X3) split both operands into parts: p0 = round(x), p1 = round(x - p0),
  p2 = round(x - p0 - p1). After a part that is not finite the next ones are zero. One
  operation multiplies two parts. Operations are ordered by i + j of lhs part i and rhs
  part j, then by i, as many as the algorithm has: hi.hi, hi.lo, lo.hi, ...
- PSUM adds tile by tile of K, and in each tile operation by operation, as with the four
  passes of FP32 operands. A pass multiplies rows of K of both matrices, so the parts
  are laid side by side along K.
- The accumulation format is PSUM's: float32, or bfloat16 on chips that add in it.
  `allow_imprecise_accumulation` has no effect on TensorE.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.ir.instruction import View
from neuronjax.ir.instruction_set import DotDimensions, Select, TensorTensor
from neuronjax.ir.program import Op
from neuronjax.lowering import moves
from neuronjax.lowering.context import Context
from neuronjax.lowering.operand_casts import as_float, compatible, rounded
from neuronjax.lowering.psum import MatmulOperand, check_psum
from neuronjax.numerics.float_format import FORMATS as EVERY

# Formats by the name that MLIR prints; no NeuronCore has float64.
FORMATS = {f.mlir_name: f.name for f in EVERY.values() if f.width >= 8 and f.signed}


class DotAlgorithm(NamedTuple):
    """A `#stablehlo.dot_algorithm`."""

    formats: tuple[str, str]  # to which lhs and rhs are rounded
    psum: str  # the format of the sums
    parts: tuple[int, int]  # the numbers of parts into which lhs and rhs are split
    operations: int  # the number of pairs of parts that are multiplied

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of parts that are multiplied, in order."""
        lhs, rhs = self.parts
        every = ((i, j) for i in range(lhs) for j in range(rhs))
        return sorted(every, key=lambda p: (sum(p), p[0]))[: self.operations]


class Prepared(NamedTuple):
    """A contraction in the form that an algorithm needs."""

    lhs: MatmulOperand
    rhs: MatmulOperand
    dimensions: DotDimensions  # of these operands
    psum: np.dtype  # of the sums
    k_tile: int | None = None  # the rows of a K tile, or None for the array's own


def parsed(op: Op, text: str) -> DotAlgorithm:
    """Return the algorithm of an op from the text of its attribute, if a NeuronCore has
    its formats."""
    fields = dict(re.findall(r"(\w+) = ([\w]+)", text))
    names = [
        fields[f"{name}_type"]
        for name in ("lhs_precision", "rhs_precision", "accumulation")
    ]
    for name in names:
        if name not in FORMATS:
            raise op.error(
                UnsupportedError,
                f"a dot algorithm with {name}, which no NeuronCore has",
                "use F32_F32_F32, or BF16_BF16_F32_X9",
            )
    operations = int(fields["num_primitive_operations"])
    parts = tuple(int(fields[f"{s}_component_count"]) for s in ("lhs", "rhs"))
    if parts == (1, 1):  # JAX's presets give only the number of operations
        parts = (int(np.ceil(np.sqrt(operations))),) * 2
    if not 1 <= operations <= parts[0] * parts[1]:
        raise op.error(
            InvalidProgramError,
            f"a dot algorithm of {operations} operations on operands of {parts[0]} and "
            f"{parts[1]} parts",
            f"use 1 to {parts[0] * parts[1]} operations",
        )
    lhs, rhs, psum = (FORMATS[name] for name in names)
    return DotAlgorithm((lhs, rhs), psum, (parts[0], parts[1]), operations)


def prepare(op: Op, context: Context, dimensions: DotDimensions, text: str) -> Prepared:
    """Return the operands in an algorithm's formats."""
    algorithm = parsed(op, text)
    instead = 'an algorithm with accumulation "f32"'
    psum = check_psum(context, algorithm.psum, instead)
    views = [as_float(context, value) for value in op.operands]
    if algorithm.operations > 1:
        if context.policy.sparsity is not None:
            raise op.error(
                UnsupportedError,
                "a dot algorithm of several operations under a policy with sparsity",
                "use an algorithm of one operation, or a Rule with sparsity=None",
            )
        return _in_parts(context, views, dimensions, algorithm, psum)
    lhs, rhs = (
        MatmulOperand(rounded(context, view, wanted), wanted)
        for view, wanted in zip(views, algorithm.formats, strict=True)
    )
    lhs, rhs = compatible(op, context, lhs, rhs)
    return Prepared(lhs, rhs, dimensions, psum)


def _in_parts(
    context: Context,
    views: list[View],
    dimensions: DotDimensions,
    algorithm: DotAlgorithm,
    psum: np.dtype,
) -> Prepared:
    """Return both operands as matrices whose K holds the multiplied parts by tile."""
    lhs, rhs = moves.both_matrices(context, views[0], views[1], dimensions)
    k = lhs.view.type.shape[lhs.axis]
    k_tile = min(context.core.k_tile, k) or context.core.k_tile
    operands = []
    for side, matrix in enumerate((lhs, rhs)):
        wanted = algorithm.formats[side]
        parts = _parts(context, matrix.view, wanted, algorithm.parts[side])
        chosen = [parts[pair[side]] for pair in algorithm.pairs]
        view = _side_by_side(context, chosen, matrix.axis, k_tile)
        operands.append(MatmulOperand(view, wanted))
    axes = DotDimensions((0,), (0,), (lhs.axis,), (rhs.axis,))
    return Prepared(operands[0], operands[1], axes, psum, k_tile)


def _parts(context: Context, view: View, wanted: str, count: int) -> list[View]:
    parts = [rounded(context, view, wanted)]
    for _ in range(count - 1):
        view = _rest(context, view, parts[-1])
        parts.append(rounded(context, view, wanted))
    return parts


def _rest(context: Context, view: View, part: View) -> View:
    """Return `view` minus its rounding `part`, exactly; 0 where that is Inf or NaN."""
    shape = view.type.shape
    rest, kept = (context.temporary(shape, np.float32) for _ in range(2))
    finite = context.temporary(shape, np.bool_)
    emit, make = context.emit, context.make
    emit(make(TensorTensor, (view, part), (rest,), engine="vector", op="subtract"))
    emit(make(TensorTensor, (part,), (finite,), engine="vector", op="is_finite"))
    zeros = moves.filled(context, shape, np.float32, 0)
    emit(make(Select, (View(finite), View(rest), zeros), (kept,), engine="vector"))
    return View(kept)


def _side_by_side(context: Context, parts: list[View], axis: int, k_tile: int) -> View:
    """Join parts [.., K, ..] along K: the first tile of each part, then the second."""
    tiled = []
    for part in parts:
        tiles = -(-part.type.shape[axis] // k_tile)
        padded = moves.zero_padded(context, part, axis, tiles * k_tile)
        shape = padded.type.shape
        split = (*shape[:axis], tiles, k_tile, *shape[axis + 1 :])
        tiled.append(moves.reshaped(context, padded, split))
    shape = list(tiled[0].type.shape)
    shape[axis + 1] *= len(parts)
    first, *others = tiled
    joined = moves.moved(
        context, "concatenate", first, tuple(shape), (axis + 1,), others=others
    )
    flat = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    return moves.reshaped(context, joined, flat)
