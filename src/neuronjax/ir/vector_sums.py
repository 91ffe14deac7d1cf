"""The order of long sums on VectorE, and the measurements of a chip that confirm it.

On trn1 `nisa.tensor_reduce` of 127 and of 128 FP32 numbers along the free axis is one
left fold, bit for bit, in each of 16,384 published sums (kernel-grader, see
docs/exactness.md). Nothing public describes longer sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from neuronjax.ir.instruction import Label
from neuronjax.ir.program import TensorType

#: ASSUMPTION: number of elements after which the fold starts anew.
VECTOR_TILE = 512
#: Number of elements of the longest published sum.
LONGEST_KNOWN_SUM = 128


def sum_label(op: str, operand: TensorType, axes: Sequence[int]) -> Label:
    """Return the label of a reduction: how far its order of additions is confirmed."""
    length = prod(operand.shape[d] for d in axes)
    was_measured = op == "add" and operand.dtype == np.float32
    is_known = was_measured and length <= LONGEST_KNOWN_SUM
    return "checked on silicon" if is_known else "modelled"
