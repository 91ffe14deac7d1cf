"""The order of sums that a policy asks for, as attributes of instructions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from neuronjax.ir.vector_sums import VECTOR_TILE
from neuronjax.policy import Policy

#: `Policy.fp32_model` -> rows of a K tile that make one sum, None for all of them.
_GROUP_ROWS: Mapping[str, int | None] = MappingProxyType(
    {"fp32_4pass": None, "fp32_4pass_rows32": 32}
)


def group_rows(policy: Policy) -> int | None:
    """Rows of a K tile of FP32 operands that TensorE adds up as one sum."""
    return _GROUP_ROWS[policy.fp32_model]


def vector_tile(policy: Policy) -> int | None:
    """Elements that VectorE folds before it starts anew, None for all."""
    return None if policy.accumulation == "sequential" else VECTOR_TILE
