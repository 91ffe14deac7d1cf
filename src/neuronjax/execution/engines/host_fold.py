"""The systolic array's sums by kernels compiled for the host's processor.

The same sums as `array_fold.folded`, bit for bit, for a CPU that `host_kernels` has
code for: in the order that design, section 5 states by construction, and as one
operation of the program where XLA's loop is many. They read BF16 and FP8 as stored, and
operands in any memory order. Elsewhere, on an accelerator, without llvmlite, in
`exportable` or with NEURONJAX_HOST_KERNELS=0 in the environment, XLA's loop is used.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from neuronjax.execution.engines.array_fold import FoldOrder, Matrix
from neuronjax.execution.host_kernels.plan import BOUNDED_RULES
from neuronjax.ir.instruction_set import QuantizeMx
from neuronjax.numerics.float_format import FLOAT8_E8M0FNU
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.microscaling import get_mx_format
from neuronjax.numerics.widening import from_codes, widen_finite

# Columns from which on a result is not worth transposing to have more.
FEW_COLUMNS = 32
#: Rows of a pass, of which a kernel has panels in memory; longer sums are rare.
MOST_ROWS = 1 << 14


def usable(rows: int = 0) -> bool:
    """Whether programs traced now run where there are kernels, for passes so long."""
    on_cpu = jax.default_backend() == "cpu"
    return rows <= MOST_ROWS and on_cpu and choice.usable()


def contract(
    lhs: Matrix, rhs: Matrix, order: FoldOrder, *, settles: bool = False
) -> jax.Array:
    """Return the tiles' sums, added in order, float32 [batch, M, N].

    Args:
        lhs: of any float format, with or without scales; of 12 significant bits or
            fewer but for four passes.
        rhs: the same; batch and K are those of `lhs`.
        order: in which products are added.
        settles: whether zeros are +0 and NaNs have one bit pattern, as from PSUM.
    """
    from neuronjax.execution.host_kernels.fold import fold  # it needs llvmlite

    if 0 in (lhs.batch, lhs.free, rhs.free, lhs.k):
        return jnp.zeros((lhs.batch, lhs.free, rhs.free), jnp.float32)
    if lhs.free > rhs.free and rhs.free < FEW_COLUMNS and order.passes == 1:
        return jnp.swapaxes(fold(rhs, lhs, order, settles), 1, 2)
    return fold(lhs, rhs, order, settles)


def quantizes(i: QuantizeMx) -> bool:
    """Whether a kernel does what an instruction says."""
    return i.scale_rule in BOUNDED_RULES and i.rounding == "rne"


def quantize(i: QuantizeMx, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return elements and scales of an array of any float format."""
    from neuronjax.execution.host_kernels.quantize import quantize  # it needs llvmlite

    if x.dtype not in (jnp.float32, jnp.bfloat16):
        x = widen_finite(x)
    element = get_mx_format(i.format).element
    codes, scales = quantize(x, i.axis, element.name, i.scale_rule)
    return from_codes(codes, element), from_codes(scales, FLOAT8_E8M0FNU)
