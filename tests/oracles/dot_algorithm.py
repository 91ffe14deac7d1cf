"""`lax.DotAlgorithmPreset` on the array, term by term.

An algorithm rounds the operands to its format, or splits them into parts and multiplies
pairs of parts. Each pair is a pass of its own over every K tile, and PSUM adds the
passes of a tile one after another.
"""

from __future__ import annotations

import numpy as np

from tests.oracles import contraction, floats

#: Which parts meet, in order, by the number of operations.
PASSES = {
    1: ((0, 0),),
    3: ((0, 0), (0, 1), (1, 0)),
    6: ((0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0)),
    9: (
        *((0, 0), (0, 1), (1, 0), (0, 2), (1, 1), (2, 0)),
        *((1, 2), (2, 1), (2, 2)),
    ),
}
PLAIN = (((1,), (0,)), ((), ()))


def parts(x: np.ndarray, name: str, count: int) -> list[np.ndarray]:
    """x rounded, what is left rounded, ...; nothing is left of an Inf or NaN."""
    out = []
    for _ in range(count):
        part = floats.round_to(x, name)
        out.append(part)
        with np.errstate(invalid="ignore"):
            rest = np.where(np.isfinite(part), x.astype(np.float64) - part, 0)
        x = floats.flush(rest.astype(np.float32))
    return out


def dot(
    lhs: np.ndarray, rhs: np.ndarray, name: str, operations: int, psum: str = "fp32"
) -> np.ndarray:
    """[M, K] and [K, N] to what PSUM holds, in FP32.

    Args:
        lhs, rhs: FP32.
        name: the format of the parts, of `floats.FORMATS`.
        operations: 1, 3, 6 or 9.
        psum: "fp32", or the format that every addition is rounded to.
    """
    count = max(i for i, _ in PASSES[operations]) + 1
    lhs_parts, rhs_parts = (parts(x, name, count) for x in (lhs, rhs))
    array = contraction.Array(lhs=name, rhs=name)
    total = None
    for start in range(0, lhs.shape[1], contraction.ROWS):
        tile = slice(start, start + contraction.ROWS)
        for i, j in PASSES[operations]:
            a, b = lhs_parts[i][:, tile], rhs_parts[j][tile]
            one = contraction.dot_general(a, b, PLAIN, array)
            total = one if total is None else floats.add(total, one)
            total = total if psum == "fp32" else floats.round_to(total, psum)
    assert total is not None
    return floats.positive_zeros(total)
