"""Samples of all ops: those of `operation_samples`, and of the ops that join devices.

Each of these is a manual computation on two devices that holds the one op.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from docs.made.operation_samples import LOCAL_SAMPLES, Build, combiner, op, value
from neuronjax.ir.program import Mesh, Op, Region, Sharding, Value

_DEVICES, _LOCAL = 2, 4
_MESH = Mesh((("x", _DEVICES),))
_SPLIT = Sharding(_MESH, (("x",),))
_GROUPS: Mapping[str, Any] = {
    "channel_handle": 1,
    "replica_groups": np.arange(_DEVICES).reshape(1, _DEVICES),
}
_GLOBAL: Mapping[str, Any] = {**_GROUPS, "use_global_device_ids": True}


def _sample(
    length: int, attributes: Mapping[str, Any], *, reduces: bool = False
) -> Build:
    """An op of one operand, whose result has `length` elements on each device."""

    def build(name: str, dtype: np.dtype) -> Op:
        part, result = value(dtype, _LOCAL), value(dtype, length)
        regions = [combiner(dtype)] if reduces else []
        inner = op(name, (part,), (result,), attributes, regions)
        return _manual(inner, value(dtype, _DEVICES * length), part)

    return build


def _manual(inner: Op, result: Value, *parts: Value) -> Op:
    """A manual computation that holds an op."""
    shapes = [(p.type.dtype, _DEVICES * _LOCAL) for p in parts]
    attributes = {
        "in_shardings": (_SPLIT,) * len(parts),
        "out_shardings": (_SPLIT,) * len(result.type.shape),
        "manual_axes": ("x",),
    }
    body = Region(parts, (inner,), inner.results)
    operands = [value(dtype, length) for dtype, length in shapes]
    return op("sdy.manual_computation", operands, (result,), attributes, [body])


def _partition_id(name: str, dtype: np.dtype) -> Op:
    number, one = value(np.dtype(np.uint32)), value(np.dtype(np.uint32), 1)
    inner = op(name, (), (number,), {}, ())
    reshape = op("stablehlo.reshape", (number,), (one,), {}, ())
    result = value(np.dtype(np.uint32), _DEVICES)
    manual = _manual(inner, result)
    body = Region((), (inner, reshape), (one,))
    return op(manual.name, (), (result,), manual.attributes, [body])


_SPLIT_AND_CONCATENATED = {
    "split_dimension": 0,
    "concat_dimension": 0,
    "split_count": _DEVICES,
}
_PAIRS = {"source_target_pairs": np.array([[0, 1]])}

SAMPLES: Mapping[str, tuple[str, Build]] = {
    **LOCAL_SAMPLES,
    "stablehlo.all_gather": (
        "fibc",
        _sample(_DEVICES * _LOCAL, {**_GLOBAL, "all_gather_dim": 0}),
    ),
    "stablehlo.all_reduce": ("fibc", _sample(_LOCAL, _GLOBAL, reduces=True)),
    "stablehlo.all_to_all": (
        "fibc",
        _sample(_LOCAL, {**_GROUPS, **_SPLIT_AND_CONCATENATED}),
    ),
    "stablehlo.collective_broadcast": ("fibc", _sample(_LOCAL, _GROUPS)),
    "stablehlo.collective_permute": ("fibc", _sample(_LOCAL, _PAIRS)),
    "stablehlo.partition_id": ("i", _partition_id),
    "stablehlo.reduce_scatter": (
        "fibc",
        _sample(_LOCAL // _DEVICES, {**_GLOBAL, "scatter_dimension": 0}, reduces=True),
    ),
}
"""`LOCAL_SAMPLES` and those of the collectives."""
