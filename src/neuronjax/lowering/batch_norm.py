"""Rules of batch normalization, as StableHLO's specification defines it.

The vendor supports the three ops but does not document the order of the computation.
Here it is the specification's, one instruction per operation, with all intermediate
results in FP32 and the last one rounded to the declared dtype:

    centred = x - mean;  deviation = sqrt(variance + epsilon)
    inference = centred / deviation * scale + offset
    mean = sum(x) / n;  variance = sum(centred * centred) / n           (training)
    d_offset = sum(g);  d_scale = sum(g * (centred / deviation))            (grad)
    d_x = scale / deviation / n * (g n - sum(g) - sum(g centred) centred / (variance
          + epsilon))

n is the number of elements of a feature. Sums run in VectorE's order over all other
axes, which count as one axis in row-major order.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from neuronjax.ir.instruction import View
from neuronjax.ir.instruction_set import (
    Activation,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)
from neuronjax.ir.program import Op
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.elementwise import vector_tile
from neuronjax.lowering.moves import converted, filled, spread
from neuronjax.lowering.registry import lowers


class _Features:
    """FP32 arithmetic on temporaries with the shape and features of an operand."""

    def __init__(self, op: Op, context: Context) -> None:
        self.context = context
        self.shape = op.operands[0].type.shape
        self.axis = op.attributes["feature_index"]
        self.axes = tuple(d for d in range(len(self.shape)) if d != self.axis)
        self.count = float(prod(self.shape[d] for d in self.axes))
        self.epsilon = op.attributes["epsilon"]

    def apply(self, name: str, x: View, y: View) -> View:
        return self._fp32(TensorTensor, (x, y), x.type.shape, op=name)

    def _fp32(
        self, cls: type, operands: tuple[View, ...], shape: Any, **fields: Any
    ) -> View:
        options = {"engine": "vector", **fields}
        return self.context.computed(cls, operands, shape, np.float32, **options)

    def by(self, name: str, x: View, value: float) -> View:
        scalar = filled(self.context, (), np.float32, value)
        return self._fp32(TensorScalar, (x, scalar), x.type.shape, op=name)

    def root(self, x: View) -> View:
        transcendentals = self.context.policy.transcendentals
        fields = dict(function="sqrt", transcendentals=transcendentals)
        return self._fp32(Activation, (x,), x.type.shape, engine="scalar", **fields)

    def per_feature(self, x: View) -> View:
        """Return one value per feature, repeated for each of its elements."""
        return spread(self.context, x, self.shape, (self.axis,))

    def total(self, x: View) -> View:
        init = filled(self.context, (), np.float32, 0)
        shape = (self.shape[self.axis],)
        fields = dict(op="add", axes=self.axes, tile=vector_tile(self.context.policy))
        return self._fp32(TensorReduce, (x, init), shape, **fields)

    def wide(self, x: View) -> View:
        return converted(self.context, x, np.float32)

    def written(self, op: Op, *values: View) -> Instructions:
        """Yield the instructions that round results to their declared dtypes."""
        write = self.context.arithmetic
        for x, result in zip(values, self.context.results(op), strict=True):
            yield write(TensorCopy, (x,), (result,), engine="vector")

    def normalised(self, centred: View, variance: View) -> View:
        deviation = self.root(self.by("add", variance, self.epsilon))
        return self.apply("divide", centred, self.per_feature(deviation))

    def affine(self, x: View, scale: View, offset: View) -> View:
        scaled = self.apply("multiply", x, self.per_feature(scale))
        return self.apply("add", scaled, self.per_feature(offset))


@lowers("stablehlo.batch_norm_inference")
def inference(op: Op, context: Context) -> Instructions:
    b = _Features(op, context)
    x, scale, offset, mean, variance = map(b.wide, context.operands(op))
    centred = b.apply("subtract", x, b.per_feature(mean))
    normalised = b.normalised(centred, variance)
    return b.written(op, b.affine(normalised, scale, offset))


@lowers("stablehlo.batch_norm_training")
def training(op: Op, context: Context) -> Instructions:
    b = _Features(op, context)
    x, scale, offset = map(b.wide, context.operands(op))
    mean = b.by("divide", b.total(x), b.count)
    centred = b.apply("subtract", x, b.per_feature(mean))
    squares = b.apply("multiply", centred, centred)
    variance = b.by("divide", b.total(squares), b.count)
    output = b.affine(b.normalised(centred, variance), scale, offset)
    return b.written(op, output, mean, variance)


@lowers("stablehlo.batch_norm_grad")
def gradients(op: Op, context: Context) -> Instructions:
    b = _Features(op, context)
    x, scale, mean, variance, g = map(b.wide, context.operands(op))
    centred = b.apply("subtract", x, b.per_feature(mean))
    shifted = b.by("add", variance, b.epsilon)
    deviation = b.root(shifted)
    d_offset = b.total(g)
    normalised = b.apply("divide", centred, b.per_feature(deviation))
    d_scale = b.total(b.apply("multiply", g, normalised))
    d_x = b.apply(
        "multiply",
        b.per_feature(b.by("divide", b.apply("divide", scale, deviation), b.count)),
        _inner(b, g, centred, d_offset, shifted),
    )
    return b.written(op, d_x, d_scale, d_offset)


def _inner(b: _Features, g: View, centred: View, total: View, shifted: View) -> View:
    """Return g n - sum(g) - sum(g centred) centred / (variance + epsilon)."""
    moment = b.total(b.apply("multiply", g, centred))
    along = b.apply("multiply", b.per_feature(moment), centred)
    along = b.apply("divide", along, b.per_feature(shifted))
    whole = b.by("multiply", g, b.count)
    return b.apply("subtract", b.apply("subtract", whole, b.per_feature(total)), along)
