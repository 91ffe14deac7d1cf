"""The common shape and dtype of two operands of an nl function.

Dtypes promote as nki.api.shared documents it (release 2.26, "type promotion"): a float
with an integer gives the float, and two floats or two integers give the wider. float16
with bfloat16 gives float32, two different FP8 formats give bfloat16, int32 with uint32
gives float32. A number takes the dtype of the tile.
"""

from __future__ import annotations

from typing import Any

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.nki.refusing import refuse
from neuronjax.nki.tensor import NkiTensor
from neuronjax.numerics.float_format import FP8


def promoted(a: str, b: str) -> str:
    """Return the dtype of an operation on two tiles; a packed type has no operation."""
    if a == b:
        return a
    first, second = dtypes.info(a), dtypes.info(b)
    if "packed" in (first.kind, second.kind):
        refuse(None, f"{a} with {b}", "unpack x4 types first")
    if first.is_float != second.is_float:
        return a if first.is_float else b
    if not first.is_float:
        return _of_integers(first, second)
    if first.itemsize != second.itemsize:
        return a if first.itemsize > second.itemsize else b
    return "bfloat16" if {a, b} <= {*FP8} else "float32"


def _of_integers(a: dtypes.DTypeInfo, b: dtypes.DTypeInfo) -> str:
    if a.kind == "bool" or b.kind == "bool":
        return b.name if a.kind == "bool" else a.name
    if a.itemsize != b.itemsize:
        wide, narrow = (a, b) if a.itemsize > b.itemsize else (b, a)
        if wide.kind == "int" or narrow.kind == "uint":
            return wide.name
        return f"int{16 * wide.itemsize}" if wide.itemsize < 4 else "float32"
    return "float32" if a.itemsize == 4 else f"int{16 * a.itemsize}"


def common_shape(x: NkiTensor, y: NkiTensor, op: str) -> tuple[int, ...]:
    """Return NumPy's broadcast shape; the numbers of partitions must be equal."""
    shape = []
    rank = max(x.ndim, y.ndim)
    padded = [(*t.shape[:1], *[1] * (rank - t.ndim), *t.shape[1:]) for t in (x, y)]
    for axis, (a, b) in enumerate(zip(*padded, strict=True)):
        if a != b and (axis == 0 or 1 not in (a, b)):
            refuse(
                f"nl.{op}",
                f"shapes {x.shape} and {y.shape}",
                "partitions must be equal, free dimensions equal or 1; to "
                "repeat over partitions load the row with a stride of 0, or multiply "
                "by ones on TensorE",
            )
        shape.append(max(a, b))
    return tuple(shape)


def spread(x: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """Return a view of the broadcast shape; free dimensions of size 1 are repeated."""
    while x.ndim < len(shape):
        x = x.expand_dim(1)
    for axis, size in enumerate(shape):
        if axis and x.shape[axis] != size:
            x = x.broadcast(axis, size)
    return x


def is_column(x: Any, other: NkiTensor) -> bool:
    """Return whether x has one element per partition and the other tile is larger."""
    return isinstance(x, NkiTensor) and x.size == x.shape[0] < other.size
