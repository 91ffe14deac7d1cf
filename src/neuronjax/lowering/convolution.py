"""Convolution as a matmul whose K is the kernel positions, then the input channel.

Positions are in row-major order; zeros of the padding are multiplied like all others.
Groups become a batch dimension. The input is laid out once as [groups, batch, *spatial,
channels], its patches are gathered (`Im2col`), and the kernel becomes [groups, K,
outputs]. Gradients of convolutions are convolutions with dilations and take the same
path. Integers use `contraction.integer_matmul`. If nothing is multiplied (no window
fits, or the kernel is empty), the result is zeros.

Groups of few channels share the array, as XLA's `convolution_group_converter` arranges
them: side by side, as blocks on the diagonal of one stationary matrix, whose other
blocks are zeros. This affects the time and no bit, because zeros add nothing to a sum.
That the vendor's compiler arranges them so is an ASSUMPTION.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from neuronjax.ir.instruction import Buffer, View
from neuronjax.ir.instruction_set import DotDimensions, Im2col, Sizes, Window
from neuronjax.ir.program import Op
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.contraction import integer_matmul, matmul
from neuronjax.lowering.elementwise import constant_result
from neuronjax.lowering.moves import into, reshaped, reversed_along, transposed
from neuronjax.lowering.operand_casts import prepare_operands
from neuronjax.lowering.psum import MatmulOperand
from neuronjax.lowering.registry import lowers


@lowers("stablehlo.convolution")
def convolution(op: Op, context: Context) -> Instructions:
    conv = _Convolution.of(op)
    (result,) = context.results(op)
    is_integer = result.type.dtype.kind in "iub"
    groups = conv.feature_groups * conv.batch_groups
    positions = prod(conv.output_spatial)
    k = prod(conv.window.sizes) * conv.group_channels
    if k == 0 or 0 in result.type.shape:
        yield constant_result(context, result, 0)
        return
    if is_integer:
        lhs, rhs = (MatmulOperand(v, v.type.dtype.name) for v in context.operands(op))
    else:
        lhs, rhs = prepare_operands(op, context)

    grouped = context.temporary(conv.grouped_input_shape, lhs.view.type.dtype)
    yield from _group_input(context, conv, lhs.view, grouped)
    rows = (groups, conv.group_batch * positions)
    patches = context.temporary((*rows, k), lhs.view.type.dtype)
    side_by_side = conv.groups_side_by_side(context.core.partitions)
    yield context.make(
        Im2col,
        (View(grouped),),
        (patches,),
        engine="dma",
        window=conv.window,
        side_by_side=side_by_side if conv.batch_groups == 1 else 1,
    )
    kernel = context.temporary((groups, k, conv.group_outputs), rhs.view.type.dtype)
    yield from _group_kernel(context, conv, rhs.view, kernel)

    product = context.temporary((*rows, conv.group_outputs), result.type.dtype)
    dimensions = DotDimensions((0,), (0,), (2,), (1,))
    lhs, rhs = (o._replace(view=View(b)) for o, b in ((lhs, patches), (rhs, kernel)))
    if is_integer:
        yield integer_matmul(op, context, (lhs.view, rhs.view), dimensions, product)
    else:
        sizes = dimensions.sizes(patches.type.shape, kernel.type.shape)
        held = conv.sizes_side_by_side(sizes, side_by_side)
        yield from matmul(context, lhs, rhs, dimensions, product, held=held)
    yield from _ungroup(context, conv, product, result)


class _Convolution(NamedTuple):
    numbers: dict[str, Any]
    input_shape: tuple[int, ...]
    kernel_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    feature_groups: int
    batch_groups: int
    window: Window
    reversal: tuple[int, ...]

    @classmethod
    def of(cls, op: Op) -> _Convolution:
        a = op.attributes
        numbers = a["dimension_numbers"]
        kernel = op.operands[1].type.shape
        spatial = numbers["kernel_spatial_dimensions"]
        sizes = tuple(kernel[d] for d in spatial)
        reversal = a.get("window_reversal") or ()
        return cls(
            numbers,
            op.operands[0].type.shape,
            kernel,
            op.results[0].type.shape,
            a["feature_group_count"],
            a["batch_group_count"],
            Window.of(a, sizes, "lhs_dilation", "rhs_dilation"),
            tuple(d for d, r in zip(spatial, reversal, strict=False) if r),
        )

    def groups_side_by_side(self, lanes: int) -> int:
        """Return how many groups fit on the array's diagonal."""
        rows = self.group_batch if self.batch_groups > 1 else self.group_channels
        groups = self.feature_groups * self.batch_groups
        return max(1, min(groups, lanes // max(rows, self.group_outputs)))

    def sizes_side_by_side(self, sizes: Sizes, count: int) -> Sizes:
        """Return the sizes of the matmul that has `count` groups on its diagonal."""
        batch, m, n, k = sizes
        batch = -(-batch // count)
        if self.batch_groups > 1:
            return batch, m * count, n * count, k
        return batch, m, n * count, k * count

    @property
    def group_batch(self) -> int:
        batch = self.input_shape[self.numbers["input_batch_dimension"]]
        return batch // self.batch_groups

    @property
    def group_channels(self) -> int:
        channels = self.input_shape[self.numbers["input_feature_dimension"]]
        return channels // self.feature_groups

    @property
    def group_outputs(self) -> int:
        outputs = self.kernel_shape[self.numbers["kernel_output_feature_dimension"]]
        return outputs // (self.feature_groups * self.batch_groups)

    @property
    def output_spatial(self) -> tuple[int, ...]:
        dims = self.numbers["output_spatial_dimensions"]
        return tuple(self.output_shape[d] for d in dims)

    @property
    def grouped_input_shape(self) -> tuple[int, ...]:
        dims = self.numbers["input_spatial_dimensions"]
        spatial = tuple(self.input_shape[d] for d in dims)
        groups = self.feature_groups * self.batch_groups
        return (groups, self.group_batch, *spatial, self.group_channels)


def _group_input(
    context: Context, conv: _Convolution, source: View, target: Buffer
) -> Instructions:
    """Lay out the input as [groups, batch, *spatial, channels], batch groups first."""
    n = conv.numbers
    spatial = n["input_spatial_dimensions"]
    order = (n["input_batch_dimension"], *spatial, n["input_feature_dimension"])
    view = transposed(context, source, order)
    sizes = view.type.shape
    split = (
        conv.batch_groups,
        conv.group_batch,
        *sizes[1:-1],
        conv.feature_groups,
        conv.group_channels,
    )
    view = reshaped(context, view, split)
    rank = len(split)
    order = (0, rank - 2, *range(1, rank - 2), rank - 1)
    view = transposed(context, view, order)
    yield into(context, view, target)


def _group_kernel(
    context: Context, conv: _Convolution, source: View, target: Buffer
) -> Instructions:
    """Lay out the kernel as [groups, kernel positions * channels, outputs]."""
    source = reversed_along(context, source, conv.reversal)
    n = conv.numbers
    order = (
        *n["kernel_spatial_dimensions"],
        n["kernel_input_feature_dimension"],
        n["kernel_output_feature_dimension"],
    )
    groups, k, outputs = target.type.shape
    view = transposed(context, source, order)
    view = transposed(context, reshaped(context, view, (k, groups, outputs)), (1, 0, 2))
    yield into(context, view, target)


def _ungroup(
    context: Context, conv: _Convolution, product: Buffer, result: Buffer
) -> Instructions:
    """Bring [groups, batch * positions, outputs] into the declared layout. The output
    channel is group-major, both with feature groups and with batch groups."""
    groups, outputs = product.type.shape[0], conv.group_outputs
    split = (groups, conv.group_batch, *conv.output_spatial, outputs)
    view = reshaped(context, View(product), split)
    rank = len(split)
    view = transposed(context, view, (*range(1, rank - 1), 0, rank - 1))
    canonical = (conv.group_batch, *conv.output_spatial, groups * outputs)
    view = reshaped(context, view, canonical)
    n = conv.numbers
    places = (
        n["output_batch_dimension"],
        *n["output_spatial_dimensions"],
        n["output_feature_dimension"],
    )
    order = tuple(int(i) for i in np.argsort(places))
    view = transposed(context, view, order)
    yield into(context, view, result)
