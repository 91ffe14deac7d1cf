"""Rules about gathers, scatters and slices at computed indices.

Indices that are constants, or made from iotas and loop counters, are evaluated; of
others only the bounds are known, often those of the dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.facts import Fact, unknown
from neuronjax.diagnostics.op_contexts import OpContext
from neuronjax.diagnostics.rule import YES, PortabilityRule, Verdict, ops
from neuronjax.ir.program import Op


def _limits(op: Op) -> list[int]:
    """The largest legal index along each indexed axis, in the order of the vector."""
    shape = op.operands[0].type.shape
    if op.name == "stablehlo.gather":
        numbers = op.attributes["dimension_numbers"]
        sizes = op.attributes["slice_sizes"]
        return [shape[a] - sizes[a] for a in numbers["start_index_map"]]
    numbers = op.attributes["scatter_dimension_numbers"]
    windows = _window_sizes(op, numbers)
    axes = numbers["scattered_dims_to_operand_dims"]
    return [shape[a] - windows.get(a, 1) for a in axes]


def _window_sizes(op: Op, numbers: Mapping[str, Any]) -> dict[int, int]:
    """Extent of a scatter's window along each operand axis that it spans."""
    rank = len(op.operands[0].type.shape)
    absent = {*numbers["inserted_window_dims"], *numbers["input_batching_dims"]}
    axes = [axis for axis in range(rank) if axis not in absent]
    update = op.operands[-1].type.shape
    sizes = [update[d] for d in numbers["update_window_dims"]]
    return dict(zip(axes, sizes, strict=True))


def _vectors(op: Op, indices: np.ndarray) -> np.ndarray:
    """Index vectors as rows."""
    key = "dimension_numbers" if op.name == "stablehlo.gather" else None
    numbers = op.attributes[key or "scatter_dimension_numbers"]
    axis = numbers["index_vector_dim"]
    if axis == indices.ndim:
        indices = indices[..., None]
    return np.moveaxis(indices, axis, -1).reshape(-1, indices.shape[axis])


def _outside(context: OpContext) -> Verdict | None:
    """An index that is out of bounds for certain."""
    limits = _limits(context.op)
    fact = context.fact(context.op.operands[1])
    if not limits:
        return None
    if fact.value is None:
        sure = fact.low > max(limits) or fact.high < 0
        return (
            Verdict(f"up to {fact.high:.0f}, legal to {max(limits)}") if sure else None
        )
    vectors = _vectors(context.op, fact.value).astype(np.int64)
    bad = (vectors < 0) | (vectors > np.array(limits))
    if not bad.any():
        return None
    row, column = np.argwhere(bad)[0]
    return Verdict(f"index {vectors[row, column]}, legal 0 to {limits[column]}")


def _unproven(context: OpContext) -> Verdict | None:
    """An index that may be out of bounds."""
    limits, fact = _limits(context.op), context.fact(context.op.operands[1])
    if fact.value is not None or not limits or fact.within(0, min(limits)):
        return None
    return None if _outside(context) else YES


def _remapped(context: OpContext) -> Verdict | None:
    """A gather that indexes an axis which its slices also span."""
    numbers = context.op.attributes["dimension_numbers"]
    absent = {*numbers["collapsed_slice_dims"], *numbers["operand_batching_dims"]}
    sizes = context.op.attributes["slice_sizes"]
    indexed = (a for a in numbers["start_index_map"] if a not in absent)
    both = [a for a in indexed if sizes[a] > 1]
    return Verdict(f"axis {both[0]}") if both else None


def _unbounded(context: OpContext, indices: Sequence[Any]) -> bool:
    """Whether an index is neither a constant nor a loop counter."""

    def open_(fact: Fact, widest: Fact) -> bool:
        return (fact.low, fact.high) == (widest.low, widest.high)

    return any(open_(context.fact(v), unknown(v.type)) for v in indices)


def _update_index(context: OpContext) -> Verdict | None:
    return YES if _unbounded(context, context.op.operands[2:]) else None


RULES = (
    PortabilityRule(
        id="out-of-bounds",
        severity="error",
        title="a gather or scatter that is out of bounds",
        remedy="correct the index: JAX clamps or drops it silently, the compiler "
        "refuses it",
        source="ERR/EVRF031, EVRF056",
        ops=ops("gather", "scatter"),
        check=_outside,
    ),
    PortabilityRule(
        id="index-range",
        severity="info",
        title="a gather or scatter whose indices may be out of bounds: an error at run "
        "time, where JAX's modes (fill, clip, drop) go on",
        remedy="jnp.clip the indices where the data do not guarantee them",
        source="JK: out-of-bounds gather and scatter",
        ops=ops("gather", "scatter"),
        check=_unproven,
    ),
    PortabilityRule(
        id="gather-window",
        severity="warning",
        title="a gather of slices along the axis that it indexes",
        remedy="index single elements (x[i + arange(n)]), or lax.dynamic_slice",
        source="RN-CC, Supported Operators, footnote 2",
        ops=ops("gather"),
        check=_remapped,
    ),
    PortabilityRule(
        id="update-slice-index",
        severity="info",
        title="dynamic_update_slice at an index known only at run time; the list of "
        "operators has it for constant indices",
        remedy="jnp.where(iota == i, update, x) where the compiler refuses it",
        source="RN-CC, Supported Operators, footnote 1",
        ops=ops("dynamic_update_slice"),
        check=_update_index,
    ),
)
