"""The power of two that scales a largest magnitude into a format, and its inverse.

What `engines.vector.scale_from_amax` says in XLA's operations: two kernels of XLA's for
every tensor that is scaled, where this is one operation.
"""

from __future__ import annotations

from llvmlite import ir

from neuronjax.execution.host_kernels.plan import FACTOR_FIELDS
from neuronjax.numerics.host_kernels import handler
from neuronjax.numerics.host_kernels.code import I32, I64, POINTER, Code
from neuronjax.numerics.host_kernels.elements import (
    BIAS,
    IMPLICIT,
    INFINITY,
    MANTISSA_BITS,
    larger,
)

NAME = "neuronjax_scale_factors"


def write(module: ir.Module) -> str:
    """The module, as text."""
    function = handler.block(module, NAME)
    _, operands, plan, _ = function.args
    c = Code.of(function)
    count, carry, top = (c.read(I64, c.at(plan, n, 8), 8) for n in range(3))
    amaxes, scales, inverses = (
        c.read(POINTER, c.at(operands, n, 8), 8) for n in range(3)
    )
    with c.loop(count) as n:
        bits = c.read(I32, c.at(amaxes, n, 4))
        raised = c.lshr(c.add(bits, c.trunc(carry, I32)), I32(MANTISSA_BITS))
        biased = larger(c, c.sub(c.trunc(top, I32), raised), I32(1))
        high = c.icmp_signed(">", biased, I32(2 * BIAS - 1))
        biased = c.select(high, I32(2 * BIAS - 1), biased)
        # Not of zeros, subnormals, Inf and NaN.
        normal = c.sub(bits, I32(IMPLICIT))
        usable = c.icmp_unsigned("<", normal, I32(INFINITY - IMPLICIT))
        biased = c.select(usable, biased, I32(BIAS))
        for exponent, result in (
            (biased, scales),
            (c.sub(I32(2 * BIAS), biased), inverses),
        ):
            c.write(c.shl(exponent, I32(MANTISSA_BITS)), c.at(result, n, 4))
    c.ret_void()
    return handler.build(module, NAME, function, 1, 2, len(FACTOR_FIELDS))
