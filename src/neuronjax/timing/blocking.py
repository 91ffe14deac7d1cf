"""What a matmul moves whose operands do not fit SBUF, in the best blocks. Bytes."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, inf

from neuronjax.timing.planning_constants import BLOCK_K, MOST_BLOCKS


@lru_cache(maxsize=1 << 12)
def blocked_bytes(lhs: int, rhs: int, m: int, n: int, room: float, item: int) -> int:
    """The least HBM traffic of a matmul whose operands do not fit.

    A block of the result, in FP32, stays in SBUF while blocks of both operands, BLOCK_K
    deep, stream by twice buffered; or one operand stays and the other streams once.

    Args:
        lhs: bytes of the left operand, [m, k].
        rhs: bytes of the right one, [k, n].
        m: rows of the result.
        n: columns of the result.
        room: bytes of SBUF.
        item: bytes of an operand's element.

    Returns:
        Bytes read.
    """
    if min(lhs, rhs) <= room:
        return lhs + rhs
    best = inf
    for over_n in range(1, int(MOST_BLOCKS.value) + 1):
        columns = ceil(n / over_n)
        # rows * (4 * columns + 2 * item * BLOCK_K) + 2 * item * BLOCK_K * columns
        free = room - 2 * item * BLOCK_K.value * columns
        block = int(free // (4 * columns + 2 * item * BLOCK_K.value))
        if block < 1:
            continue
        best = min(best, lhs * over_n + rhs * ceil(m / min(m, block)))
    return int(best) if best < inf else (lhs + rhs) * int(MOST_BLOCKS.value)
