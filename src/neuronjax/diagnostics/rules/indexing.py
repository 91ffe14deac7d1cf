"""Rules about gathers, scatters and slices at computed indices.

Indices that are constants, or computed from iotas and loop counters, are evaluated.
Other indices are only known to be within bounds, often only those of the dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from neuronjax.diagnostics.facts import unknown
from neuronjax.diagnostics.op_contexts import OpContext
from neuronjax.diagnostics.rule import Answer, read_rules
from neuronjax.ir.program import Op


def _limits(op: Op) -> list[int]:
    """Return the largest valid index for each element of an index vector of `op`."""
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
    """Return {axis of the operand: size of a scatter's window along this axis}."""
    rank = len(op.operands[0].type.shape)
    absent = {*numbers["inserted_window_dims"], *numbers["input_batching_dims"]}
    axes = [axis for axis in range(rank) if axis not in absent]
    sizes = [op.operands[-1].type.shape[d] for d in numbers["update_window_dims"]]
    return dict(zip(axes, sizes, strict=True))


def _vectors(op: Op, indices: np.ndarray) -> np.ndarray:
    prefix = "" if op.name == "stablehlo.gather" else "scatter_"
    axis = op.attributes[f"{prefix}dimension_numbers"]["index_vector_dim"]
    if axis == indices.ndim:
        indices = indices[..., None]
    return np.moveaxis(indices, axis, -1).reshape(-1, indices.shape[axis])


def _outside(context: OpContext) -> Answer:
    limits = _limits(context.op)
    fact = context.fact(context.op.operands[1])
    if not limits:
        return None
    if fact.value is None:
        sure = fact.low > max(limits) or fact.high < 0
        return sure and f"indices up to {fact.high:.0f}, outside 0 to {max(limits)}"
    vectors = _vectors(context.op, fact.value).astype(np.int64)
    bad = (vectors < 0) | (vectors > np.array(limits))
    if not bad.any():
        return None
    row, column = np.argwhere(bad)[0]
    return f"index {vectors[row, column]}, outside 0 to {limits[column]}"


def _unproven(context: OpContext) -> Answer:
    limits, fact = _limits(context.op), context.fact(context.op.operands[1])
    if fact.value is not None or not limits or fact.within(0, min(limits)):
        return False
    return not _outside(context)


def _remapped(context: OpContext) -> Answer:
    numbers = context.op.attributes["dimension_numbers"]
    absent = {*numbers["collapsed_slice_dims"], *numbers["operand_batching_dims"]}
    sizes = context.op.attributes["slice_sizes"]
    indexed = (a for a in numbers["start_index_map"] if a not in absent)
    return next((f"axis {a}" for a in indexed if sizes[a] > 1), None)


def _update_index(context: OpContext) -> Answer:
    """Return whether an index has no known bounds but those of its dtype."""
    pairs = ((context.fact(v), unknown(v.type)) for v in context.op.operands[2:])
    return any((a.low, a.high) == (b.low, b.high) for a, b in pairs)


RULES = read_rules(
    """
out-of-bounds: error in gather, scatter
a gather or scatter that is out of bounds
> correct the index: JAX clamps or drops it silently, the compiler refuses it
[ERR/EVRF031, EVRF056]

index-range: info in gather, scatter
a gather or scatter whose indices may be out of bounds, which is an error at run time
even in JAX's modes fill, clip and drop
> jnp.clip the indices unless the data guarantee that they are in bounds
[JK: out-of-bounds gather and scatter]

gather-window: warning in gather
a gather of slices along the axis that it indexes
> index single elements (x[i + arange(n)]), or lax.dynamic_slice
[RN-CC, Supported Operators, footnote 2]

update-slice-index: info in dynamic_update_slice
dynamic_update_slice at an index known only at run time; the list of operators allows
only constant indices
> jnp.where(iota == i, update, x) if the compiler refuses it
[RN-CC, Supported Operators, footnote 1]
""",
    {
        "out-of-bounds": _outside,
        "index-range": _unproven,
        "gather-window": _remapped,
        "update-slice-index": _update_index,
    },
)
