"""`NkiTensor.ap` and `.indirect`: explicit access patterns, and offsets read at run
time.

The rules are those of nki/deep-dives/nki-aps.rst. On chip the first [stride, count] is
that of the partitions, and its stride is the free size of the storage. A pattern
addresses the whole storage, not the view. The unit of a runtime offset is the stride of
a dimension of the tensor on which `ap` is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import DynamicOffset
from neuronjax.nki.layout import Layout
from neuronjax.nki.refusing import refuse
from neuronjax.nki.tensor_view import TensorView, View, index_operand

# How many partitions share the offsets of `NkiTensor.indirect`: on most engines, and on
# TensorE (see `on_tensor_engine`).
LANE_GROUP = 16
TENSOR_GROUP = 32


def with_pattern(
    t: View,
    pattern: Sequence[Sequence[int]],
    offset: int | None,
    scalar_offset: Any,
    vector_offset: TensorView | None,
    indirect_dim: int,
    dtype: Any,
) -> View:
    """Return the view that `t.ap` returns for these arguments."""
    name = t.dtype if dtype is None else dtypes.as_dtype(dtype)
    pairs = [(int(stride), int(count)) for stride, count in pattern]
    if not pairs or any(count < 1 for _, count in pairs):
        refuse("ap", f"pattern {pattern}", "give [stride, count] pairs, counts >= 1")
    start = _offset(t, name, offset)
    dynamic = _dynamic(t, name, scalar_offset, vector_offset, indirect_dim)
    _check_partitions(t, name, pairs)
    strides, shape = zip(*pairs, strict=True)
    return t.with_layout(Layout(shape, strides, start), dtype=name, dynamic=dynamic)


def _offset(t: TensorView, dtype: str, offset: int | None) -> int:
    if offset is not None:
        return int(offset)
    nbytes = t.offset * dtypes.itemsize(t.dtype)
    if nbytes % dtypes.itemsize(dtype):
        refuse(
            "ap",
            f"the view starts at byte {nbytes}, within an element of {dtype}",
            f"give offset= as a number of elements of {dtype}",
        )
    return nbytes // dtypes.itemsize(dtype)


def _check_partitions(t: TensorView, dtype: str, pairs: list[tuple[int, int]]) -> None:
    if not t.storage.on_chip:
        return
    nbytes = t.storage.free_size * dtypes.itemsize(t.storage.dtype)
    expected = nbytes // dtypes.itemsize(dtype)
    stride, count = pairs[0]
    if stride != expected and count != 1:
        refuse(
            "ap",
            f"partition stride {stride} of a tensor with {expected} elements of "
            f"{dtype} per partition",
            f"the first pair must be [{expected}, count]",
        )


def _dynamic(
    t: TensorView, dtype: str, scalar: Any, vector: Any, indirect_dim: int
) -> DynamicOffset | None:
    if scalar is None and vector is None:
        return None
    if scalar is not None and vector is not None:
        refuse(
            "ap", "both scalar_offset and vector_offset", "give only one of the offsets"
        )
    dim = t.checked_dim("ap", indirect_dim)
    old, new = dtypes.itemsize(t.dtype), dtypes.itemsize(dtype)
    stride, limit = t.strides[dim] * old // new, t.shape[dim]
    if scalar is not None:
        index = index_operand("ap", scalar, 1)
        return DynamicOffset("scalar", index, stride, limit)
    assert vector is not None
    if dim != 0 or t.storage.on_chip:
        refuse(
            "ap",
            f"vector_offset on dimension {dim} of {t.describe()}",
            "indirect_dim must be 0 and the tensor in HBM",
        )
    index = index_operand("ap", vector, vector.size)
    return DynamicOffset("vector", index, stride, limit)


def with_tensor_indirection(t: View, index: TensorView, num_elem: int | None) -> View:
    """Return the view that `t.indirect` returns for these arguments."""
    t.check_direct("indirect")
    if not t.storage.on_chip or index.storage.memory != "sbuf":
        refuse(
            "indirect",
            f"{t.describe()} by {index.describe()}",
            "the tensor must be in SBUF or PSUM, and the index in SBUF",
        )
    if index.shape[0] != t.shape[0] or len(index.shape) != 2:
        refuse(
            "indirect",
            f"an index of shape {index.shape} for {t.shape[0]} partitions",
            f"give an index of shape ({t.shape[0]}, K)",
        )
    columns = index.shape[1]
    count = min(LANE_GROUP, t.shape[0]) * columns if num_elem is None else num_elem
    most = min(TENSOR_GROUP, t.shape[0]) * columns
    if not 1 <= count <= most:
        refuse("indirect", f"num_elem={num_elem}", f"use 1 to {most}")
    flat = t.reshape((t.shape[0], -1)) if t.ndim != 2 else t
    operand = index_operand("indirect", index, index.size)
    (rows, limit), (stride, step), start = flat.layout
    dynamic = DynamicOffset("indirect", operand, step, limit, LANE_GROUP)
    return t.with_layout(Layout((rows, count), (stride, 0), start), dynamic=dynamic)


def on_tensor_engine(t: View) -> View:
    """Return `t` as TensorE reads it: 32 partitions share `.indirect()` offsets."""
    if t.dynamic is None or t.dynamic.kind != "indirect":
        return t
    grouped = dataclasses.replace(t.dynamic, group=TENSOR_GROUP)
    return t.with_layout(t.layout, dynamic=grouped)
