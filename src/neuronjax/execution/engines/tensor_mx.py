"""TensorE and VectorE on microscaled operands: `quantize_mx` and `nc_matmul_mx`.

A cell takes its four elements of each side dequantized to FP32 (exact in FP32's range,
below it zero, above it Inf; a scale of 0xFF is NaN), rounds each product to FP32, adds
the four from left to right in FP32, and passes the sum down the column. What the cells
do with the scales is not documented: model of design, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from neuronjax.execution.engines import host_fold
from neuronjax.execution.engines.array_fold import FoldOrder, Matrix
from neuronjax.execution.engines.dispatch import Arrays, Registers, execute, wide
from neuronjax.execution.engines.psum import Psum, as_psum
from neuronjax.execution.engines.tensor import accumulate, by_kernel, host_dot
from neuronjax.ir.instruction_set import NcMatmulMx, QuantizeMx
from neuronjax.numerics.microscaling import MX_FORMATS, MXArray, quantize_mx


@execute.register
def quantize(i: QuantizeMx, x: Sequence[jax.Array], r: Registers) -> Arrays:
    if host_fold.usable() and host_fold.quantizes(i):
        return host_fold.quantize(i, x[0])
    out = quantize_mx(
        wide(x[0]),
        i.format,
        axis=i.axis,
        scale_rule=i.scale_rule,  # type: ignore[arg-type]
        rounding=i.rounding,
        seed=r.key if i.rounding == "stochastic" else None,
    )
    return out.elements, out.scales


@execute.register
def nc_matmul_mx(i: NcMatmulMx, x: Sequence[jax.Array], r: Registers) -> Arrays:
    d, psum = i.dimensions, Psum.of(i, r)
    lhs_k, rhs_k = d.lhs_contract[0], d.rhs_contract[0]
    if i.accumulation != "host" and by_kernel(psum):
        left, right = Matrix(x[0], lhs_k == 1, x[2]), Matrix(x[1], rhs_k == 1, x[3])
    else:
        lhs, rhs = dequantized(x[0], x[2], lhs_k), dequantized(x[1], x[3], rhs_k)
        if i.accumulation == "host":
            return (as_psum(host_dot(lhs, rhs, d), i),)
        left, right = Matrix(lhs, lhs_k == 1), Matrix(rhs, rhs_k == 1)
    total = accumulate(left, right, FoldOrder(i.k_tile, rows_per_cell=4), psum)
    return (as_psum(lax.reshape(total, i.results[0].type.shape), i),)


def dequantized(elements: jax.Array, scales: jax.Array, axis: int) -> jax.Array:
    """What the cells multiply, float32."""
    array = MXArray(
        elements=elements,
        scales=scales,
        axis=axis - elements.ndim,
        format=_FORMATS[elements.dtype.name],
    )
    return array.dequantize()


_FORMATS = {fmt.element.name: fmt for fmt in MX_FORMATS.values()}
