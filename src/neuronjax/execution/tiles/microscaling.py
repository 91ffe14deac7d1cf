"""`quantize_mx` on VectorE, `nc_matmul_mx` on TensorE.

The numbers are those of `numerics.microscaling` under the rule "neuron". The sum is
that of `engines.array_fold`: a cell adds its four scaled products from left to right in
FP32, the sums of the cells are added down the partitions, and then to PSUM.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.engines.array_fold import FoldOrder, Matrix
from neuronjax.execution.engines.tensor import dequantized
from neuronjax.execution.tiles.matmul import summed
from neuronjax.execution.tiles.registry import (
    Bits,
    Operands,
    OperandView,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.numerics.float_format import FLOAT8_E8M0FNU
from neuronjax.numerics.microscaling import (
    MX_FORMATS,
    from_codes,
    quantize_mx as quantized,
    to_codes,
)
from neuronjax.numerics.mx_layout import (
    GROUP,
    QUADRANT,
    SCALES,
    SLOTS,
    pack_x4,
    unpack_x4,
)

SCALE_RULE = "neuron"
_FORMATS = {f"{fmt.element.name}_x4": fmt for fmt in MX_FORMATS.values()}


@executes("quantize_mx")
def quantize_mx(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return the words, and the scales quadrant by quadrant."""
    words, *scales = i.outputs
    partitions, free = words.shape[0], prod(words.shape[1:])
    groups = x[0].reshape(partitions // GROUP, GROUP, free, SLOTS)
    blocks = jnp.swapaxes(groups, 1, 2).reshape(-1, free, GROUP * SLOTS)
    result = quantized(blocks, _FORMATS[words.dtype], scale_rule=SCALE_RULE)
    elements = to_codes(result.elements).reshape(-1, free, GROUP, SLOTS)
    rows = jnp.swapaxes(elements, 1, 2).reshape(partitions, free * SLOTS)
    packed = pack_x4(from_codes(rows, result.format.element))
    codes = to_codes(result.scales).reshape(partitions // GROUP, free)
    return (Bits(packed), *map(Bits, jnp.split(codes, len(scales))))


@executes("nc_matmul_mx")
def nc_matmul_mx(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return what PSUM holds after stationary.T @ moving of dequantized operands."""
    split = 2 + i.attributes["stationary_scales"]
    left = _operand(x[0], _view(i, 0), x[2:split])
    right = _operand(x[1], _view(i, 1), x[split:])
    return summed(i, left, right, FoldOrder(left.k, rows_per_cell=4), c)


def _view(i: Signature, operand: int) -> OperandView:
    view = i.inputs[operand]
    assert view is not None
    return view


def _operand(
    words: jax.Array, view: OperandView, scales: Sequence[jax.Array]
) -> Matrix:
    """Return the dequantized values; a cell holds the four values of its partition."""
    partitions, free = view.shape[0], prod(view.shape[1:])
    fmt = _FORMATS[view.dtype]
    # The scales become [P / 8, F], from one tensor or from a tensor per quadrant.
    codes = [lax.bitcast_convert_type(s, jnp.uint8) for s in scales]
    rows = [x.reshape(x.shape[0], free) for x in codes]
    quadrants = range(0, partitions, QUADRANT)
    if len(rows) == 1:
        rows = [rows[0][first : first + SCALES] for first in quadrants]
    packed = to_codes(unpack_x4(words.reshape(partitions, free), fmt.element))
    # The elements become [4 P, F] in order of position, 4 * partition + slot.
    slots = jnp.swapaxes(packed.reshape(partitions, free, SLOTS), 1, 2)
    elements = from_codes(slots.reshape(partitions * SLOTS, free), fmt.element)
    scale = from_codes(jnp.concatenate(rows), FLOAT8_E8M0FNU)
    return Matrix(dequantized(elements, scale, 0)[None], k_first=True)
