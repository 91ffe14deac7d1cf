"""A kernel that multiplies FP64 numbers by one plus a small hash of the magnitude."""

from __future__ import annotations

from llvmlite import ir

from neuronjax.numerics.host_kernels.compiled import F64, I64, array_function, shaped
from neuronjax.numerics.host_kernels.figures import FACTORS, SHIFTS

ARRAYS, IS_WIDE = 3, True
_MAGNITUDE = 2**63 - 1


def write(module: ir.Module, lanes: int) -> str:
    """Return the module, as text. The arrays of its function are the numbers, the
    results, and the largest relative change (FP64) followed by a seed (64 bits)."""
    c, (numbers, results, about, count) = array_function(module, ARRAYS)
    given = c.read(F64, about, 8), c.read(I64, c.at(about, 1, 8), 8)
    for n, width in c.strips(count, lanes):
        unit, seed = (c.splat(x, width) for x in given)
        x = c.element(numbers, n, F64, width)
        bits = c.and_(c.bitcast(x, shaped(I64, width)), c.like(x, _MAGNITUDE))
        bits = c.add(c.mul(bits, c.like(x, FACTORS[0])), seed)
        bits = c.xor(bits, c.lshr(bits, c.like(x, SHIFTS[0])))
        bits = c.mul(bits, c.like(x, FACTORS[1]))
        bits = c.xor(bits, c.lshr(bits, c.like(x, SHIFTS[1])))
        share = c.uitofp(c.lshr(bits, c.like(x, SHIFTS[2])), x.type)
        share, one = c.fmul(share, c.number(x, 2.0**-52)), c.number(x, 1.0)
        change = c.fadd(one, c.fmul(unit, c.fsub(share, one)))
        c.write(c.fmul(x, change), c.at(results, n, 8), 8)
    c.ret_void()
    return str(module)
