"""`TensorView`: a strided view of a storage, and the methods that make other views.

A view has shape, strides and offset, in elements of its dtype, over one storage, and at
most one runtime offset. Nothing is copied. Constraints are those of the class
documentation of nki.language.NkiTensor and of nki/deep-dives/nki-aps.rst; each breach
is an InvalidProgramError with the kernel's line.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from math import prod
from typing import Any, Self, TypeVar

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import Access, DynamicOffset, Register, Storage
from neuronjax.nki import layout
from neuronjax.nki.layout import Layout, Reach
from neuronjax.nki.memory import MemoryRegion, NKIObject, region_name
from neuronjax.nki.refusing import refuse
from neuronjax.nki.registers import VirtualRegister

# The class of a view, and of every view made from it.
View = TypeVar("View", bound="TensorView")


class TensorView(NKIObject):
    """A strided view of a tensor in SBUF, PSUM or HBM.

    Attributes:
        shape: the sizes; on chip, partitions first.
        strides: elements of `dtype` from one index to the next.
        offset: of the first element, in elements of `dtype`.
        dtype: the NKI name of the elements' type.
        buffer: the memory region.
        name: the user's name for the tensor.
        storage: the memory itself.
        dynamic: the runtime offset, or None.
    """

    # A view equals only itself.
    __eq__ = object.__eq__  # type: ignore[assignment]
    __hash__ = object.__hash__
    __slots__ = ("dtype", "dynamic", "name", "offset", "shape", "storage", "strides")

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        storage: Any,
        buffer: Any = MemoryRegion.sbuf,
        name: str = "",
    ) -> None:
        self.shape = tuple(shape)
        self.strides = layout.row_major_strides(self.shape)
        self.offset = 0
        self.dtype = dtypes.as_dtype(dtype)
        if storage is None:  # the placeholder of a tensor in a signature
            storage = Storage(-1, region_name(buffer), self.shape, self.dtype, name)  # type: ignore[arg-type]
        self.storage: Storage = storage
        self.name = name
        self.dynamic: DynamicOffset | None = None

    @property
    def buffer(self) -> MemoryRegion:
        """The memory region."""
        return MemoryRegion(self.storage.memory)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def is_contiguous(self) -> bool:
        """Return whether the view (on chip, each partition) is dense and row-major."""
        first = 1 if self.storage.on_chip else 0
        return layout.is_dense(self.shape[first:], self.strides[first:])

    def get_pattern(self) -> list[list[int]]:
        """Return [[stride, count], ...] of the dimensions, in the form of `ap`."""
        return [[s, n] for s, n in zip(self.strides, self.shape, strict=True)]

    def is_indirect(self) -> bool:
        """Return whether the address depends on a runtime offset."""
        return self.dynamic is not None

    def access(self) -> Access:
        """Return this view as an operand."""
        reach = layout.reach(self.shape, self.strides)
        dynamic = self.dynamic
        if dynamic is None:
            _check_bounds(self, reach)
        else:
            dynamic = _within_storage(self, dynamic)
        return Access(self.storage, self.dtype, self.offset, reach.pattern, dynamic)

    @property
    def layout(self) -> Layout:
        """The shape, strides and offset together."""
        return Layout(self.shape, self.strides, self.offset)

    def with_layout(self, new: Layout, **changes: Any) -> Self:
        """Return a view of the storage with another layout, `dtype=` or `dynamic=`."""
        view = object.__new__(type(self))
        view.shape, view.strides, view.offset = new
        view.dtype, view.dynamic = self.dtype, self.dynamic
        view.storage, view.name = self.storage, self.name
        for name, value in changes.items():
            setattr(view, name, value)
        return view

    def checked_dim(self, op: str, dim: int, extra: int = 0) -> int:
        """Return `dim` counted from the front of ndim + `extra` dimensions, after a
        check."""
        index = dim + self.ndim + extra if dim < 0 else dim
        if not 0 <= index < self.ndim + extra:
            refuse(
                op,
                f"dimension {dim} of a tensor of shape {self.shape}",
                f"use 0 to {self.ndim + extra - 1}",
            )
        return index

    def _partition_guard(self, op: str, dim: int, what: str) -> None:
        if dim != 0:
            return
        if self.storage.on_chip:
            refuse(
                op,
                f"{what} dimension 0 of {self.describe()}, the partition dimension",
                "move data across partitions with nisa.nc_transpose or nisa.dma_copy",
            )
        if self.dynamic is not None and self.dynamic.kind == "vector":
            refuse(
                op,
                f"{what} dimension 0, which is indexed by vector_select",
                f"call {op} before vector_select",
            )

    def _indirection_guard(self, op: str, dim: int) -> None:
        kind = self.dynamic.kind if self.dynamic else None
        if kind == "indirect" or (kind == "vector" and dim == 0):
            refuse(
                op,
                f"dimension {dim} of {self.describe()} is indexed at run time",
                f"call {op} before vector_select or indirect",
            )

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> Self:
        """Return elements start, start + step, ... below `end` of one dimension."""
        dim = self.checked_dim("slice", dim)
        self._indirection_guard("slice", dim)
        count = sliced_count(dim, self.shape[dim], start, end, step)
        return self.with_layout(layout.slice_dim(self.layout, dim, start, count, step))

    def select(self, dim: int, index: Any) -> Self:
        """Return the view of one element of a dimension, which is removed.

        Args:
            index: an int, or at run time an integer tensor of one element or a
                VirtualRegister.
        """
        dim = self.checked_dim("select", dim)
        self._indirection_guard("select", dim)
        if isinstance(index, TensorView | VirtualRegister):
            return self._selected_by(dim, index)
        if not 0 <= index < self.shape[dim]:
            refuse(
                "select",
                f"index {index} of dimension {dim} of size {self.shape[dim]}",
                f"use 0 to {self.shape[dim] - 1}",
            )
        one = layout.slice_dim(self.layout, dim, index, 1, 1)
        if dim == 0 and self.storage.on_chip:
            return self.with_layout(one)
        return self.with_layout(layout.drop_dim(one, dim))

    def _selected_by(self, dim: int, index: Any) -> Self:
        if self.storage.on_chip and dim == 0:
            refuse(
                "select",
                "a runtime index of the partition dimension",
                "select a free dimension, or gather with nisa.dma_copy from HBM",
            )
        dynamic = self.runtime_offset(
            "select", index, self.strides[dim], self.shape[dim]
        )
        one = layout.slice_dim(self.layout, dim, 0, 1, 1)
        return self.with_layout(layout.drop_dim(one, dim), dynamic=dynamic)

    def dynamic_slice(self, dim: int, start: Any, size: int) -> Self:
        """Return `size` elements of a dimension from a runtime start (`nl.ds`)."""
        dim = self.checked_dim("ds", dim)
        self._indirection_guard("ds", dim)
        if not 1 <= size <= self.shape[dim]:
            refuse(
                "ds",
                f"{size} elements of dimension {dim} of size {self.shape[dim]}",
                f"use 1 to {self.shape[dim]}",
            )
        limit = self.shape[dim] - size + 1
        dynamic = self.runtime_offset("ds", start, self.strides[dim], limit)
        new = layout.slice_dim(self.layout, dim, 0, size, 1)
        return self.with_layout(new, dynamic=dynamic)

    def runtime_offset(
        self, op: str, index: Any, stride: int, limit: int
    ) -> DynamicOffset:
        """Return an offset of `stride` times a runtime index below `limit`."""
        self.check_direct(op)
        return DynamicOffset("scalar", index_operand(op, index, 1), stride, limit)

    def check_direct(self, op: str) -> None:
        """Refuse a view that already has a runtime offset."""
        if self.dynamic is not None:
            refuse(
                op,
                "a second runtime index of one view",
                "copy the result of the first runtime index to a tile",
            )

    def vector_select(self, dim: int, vector_offset: TensorView) -> Self:
        """Return the view of HBM with an index of dimension 0 for every partition."""
        dim = self.checked_dim("vector_select", dim)
        self.check_direct("vector_select")
        on_chip = self.storage.on_chip
        if dim != 0 or on_chip:
            where = "an on-chip tensor" if on_chip else f"dimension {dim}"
            refuse("vector_select", where, "select along dimension 0 of an HBM tensor")
        count = vector_offset.shape[0]
        index = index_operand("vector_select", vector_offset, count)
        dynamic = DynamicOffset("vector", index, self.strides[0], self.shape[0])
        shape = (count, *self.shape[1:])
        return self.with_layout(
            Layout(shape, self.strides, self.offset), dynamic=dynamic
        )

    def permute(self, dims: Sequence[int]) -> Self:
        """Return the view with dimensions in another order."""
        dims = tuple(dims)
        if sorted(dims) != list(range(self.ndim)):
            refuse(
                "permute",
                f"dims {dims} of a tensor of shape {self.shape}",
                f"name each of 0 to {self.ndim - 1} once",
            )
        if dims[0] != 0:
            self._partition_guard("permute", 0, "moving")
        self._no_tensor_indirection("permute")
        shape = tuple(self.shape[d] for d in dims)
        strides = tuple(self.strides[d] for d in dims)
        return self.with_layout(Layout(shape, strides, self.offset))

    def broadcast(self, dim: int, size: int) -> Self:
        """Return the view with a dimension of size one repeated `size` times."""
        dim = self.checked_dim("broadcast", dim)
        if self.storage.on_chip:
            self._partition_guard("broadcast", dim, "broadcasting")
        if self.shape[dim] != 1 or size < 1:
            refuse(
                "broadcast",
                f"dimension {dim} of size {self.shape[dim]} to {size}",
                "the dimension must have size 1",
            )
        dropped = layout.drop_dim(self.layout, dim)
        return self.with_layout(layout.insert_dim(dropped, dim, size, 0))

    def expand_dim(self, dim: int) -> Self:
        """Return the view with a new dimension of size one at position `dim`."""
        dim = self.checked_dim("expand_dim", dim, extra=1)
        self._partition_guard("expand_dim", dim, "inserting before")
        self._no_tensor_indirection("expand_dim")
        stride = self.shape[dim] * self.strides[dim] if dim < self.ndim else 1
        return self.with_layout(layout.insert_dim(self.layout, dim, 1, stride))

    def squeeze_dim(self, dim: int) -> Self:
        """Return the view without one of its dimensions, which has size one."""
        dim = self.checked_dim("squeeze_dim", dim)
        self._partition_guard("squeeze_dim", dim, "removing")
        if self.shape[dim] != 1:
            refuse(
                "squeeze_dim",
                f"dimension {dim} of size {self.shape[dim]}",
                "the dimension must have size 1",
            )
        return self.with_layout(layout.drop_dim(self.layout, dim))

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> Self:
        """Return the view with one dimension split into several; one size may be -1."""
        dim = self.checked_dim("reshape_dim", dim)
        sizes = _inferred("reshape_dim", tuple(shape), self.shape[dim])
        if len(sizes) != 1:
            self._partition_guard("reshape_dim", dim, "splitting")
        self._no_tensor_indirection("reshape_dim")
        return self.with_layout(layout.split_dim(self.layout, dim, sizes))

    def flatten_dims(self, start_dim: int, end_dim: int) -> Self:
        """Return the view with dimensions start_dim to end_dim, inclusive, merged."""
        first = self.checked_dim("flatten_dims", start_dim)
        last = self.checked_dim("flatten_dims", end_dim)
        if last > first:
            self._partition_guard("flatten_dims", first, "merging")
        merged = layout.merge_dims(self.layout, first, last) if first <= last else None
        if merged is None:
            refuse(
                "flatten_dims",
                f"dimensions {first} to {last} of shape {self.shape} with strides "
                f"{self.strides} do not follow one another in memory",
                "copy to a dense tile first (nisa.tensor_copy)",
            )
        return self.with_layout(merged)

    def reshape(self, shape: Sequence[int]) -> Self:
        """Return the same elements in another shape; one size may be -1."""
        sizes = _inferred("reshape", tuple(shape), self.size)
        if not sizes or sizes[0] != self.shape[0]:
            if self.storage.on_chip:
                refuse(
                    "reshape",
                    f"{self.shape} to {sizes} changes the partition dimension",
                    f"keep {self.shape[0]} as the first dimension",
                )
            self._partition_guard("reshape", 0, "changing")
        self._no_tensor_indirection("reshape")
        new = self._reshaped(sizes)
        if new is None:
            refuse(
                "reshape",
                f"no view {sizes} of shape {self.shape} with strides {self.strides}",
                "copy to a dense tile first (nisa.tensor_copy)",
            )
        return self.with_layout(new)

    def _reshaped(self, sizes: tuple[int, ...]) -> Layout | None:
        if not self.storage.on_chip:
            return layout.reshape(self.layout, sizes)
        free = Layout(self.shape[1:], self.strides[1:], self.offset)
        new = layout.reshape(free, sizes[1:])
        if new is None:
            return None
        return Layout(sizes, (self.strides[0], *new.strides), self.offset)

    def view(self, dtype: Any) -> Self:
        """Return the same bits as another dtype; the last size changes accordingly."""
        dtype = dtypes.as_dtype(dtype)
        if self.dynamic is not None:
            refuse("view", "an indirect view", "call view first, then select")
        old, new = dtypes.itemsize(self.dtype), dtypes.itemsize(dtype)
        if old == new:
            return self.with_layout(self.layout, dtype=dtype)
        if self.shape[-1] != 1 and self.strides[-1] != 1:
            refuse(
                "view",
                f"the last dimension has stride {self.strides[-1]}",
                "make this dimension contiguous: copy to a dense tile first",
            )
        nbytes = self.shape[-1] * old
        outer = [s * old for s in self.strides[:-1]]
        if nbytes % new or self.offset * old % new or any(s % new for s in outer):
            refuse(
                "view",
                f"a row of {self.shape} {self.dtype} does not hold whole {dtype}",
                f"make the last size and the offset multiples of {new // old}",
            )
        shape = (*self.shape[:-1], nbytes // new)
        strides = (*(s // new for s in outer), 1)
        return self.with_layout(
            Layout(shape, strides, self.offset * old // new), dtype=dtype
        )

    reinterpret_cast = view

    def _no_tensor_indirection(self, op: str) -> None:
        if self.dynamic is not None and self.dynamic.kind == "indirect":
            refuse(op, "a view made by .indirect()", f"call {op} before .indirect()")

    def describe(self) -> str:
        """Return dtype, shape and memory, for messages."""
        return f"{self.dtype}{list(self.shape)} in {self.buffer}"


@functools.lru_cache(1 << 16)
def _elements(shape: tuple[int, ...], dtype: str, read_as: str) -> int:
    """Return how many elements of type `read_as` fill memory of a shape and a dtype."""
    size = prod(shape)
    if read_as != dtype:
        size = size * dtypes.itemsize(dtype) // dtypes.itemsize(read_as)
    return size


def _check_bounds(t: TensorView, reach: Reach) -> None:
    """Refuse an operand that reaches beyond its storage. Making such a view is allowed:
    loops over uneven sizes make views that they do not use."""
    size = _elements(t.storage.shape, t.storage.dtype, t.dtype)
    lowest, last = t.offset + reach.lowest, t.offset + reach.highest
    if lowest < 0 or last >= size:
        refuse(
            "ap",
            f"elements {lowest} to {last} of a tensor of {size}",
            "keep offset + sum of stride * (count - 1) within the tensor",
        )


def _within_storage(t: TensorView, dynamic: DynamicOffset) -> DynamicOffset:
    """Return the offset with the limit that keeps all elements within the storage. On
    chip they must lie within the partition in which they begin."""
    if dynamic.kind == "indirect" or dynamic.stride <= 0:
        return dynamic
    first = 1 if dynamic.kind == "vector" or t.storage.on_chip else 0
    reach = layout.reach(t.shape[first:], t.strides[first:])
    size = _elements(t.storage.shape, t.storage.dtype, t.dtype)
    start = t.offset
    if t.storage.on_chip:
        size //= t.storage.shape[0]
        start %= size
    limit = (size - 1 - start - reach.highest) // dynamic.stride + 1
    if limit < 1:
        _check_bounds(t, reach)
    return dataclasses.replace(dynamic, limit=min(limit, dynamic.limit))


def _inferred(op: str, sizes: tuple[int, ...], total: int) -> tuple[int, ...]:
    """Return the sizes with -1 replaced; refuse them if their product is wrong."""
    sizes = tuple(int(s) for s in sizes)
    if sizes.count(-1) == 1:
        rest = prod(s for s in sizes if s != -1)
        if rest > 0 and total % rest == 0:
            sizes = tuple(total // rest if s == -1 else s for s in sizes)
    if prod(sizes) != total or any(s < 1 for s in sizes):
        refuse(op, f"{sizes} for {total} elements", f"the product must be {total}")
    return sizes


def sliced_count(dim: int, size: int, start: int, end: int, step: int) -> int:
    """Return how many elements a slice has; refuse an empty one or one out of range."""
    if not 0 <= start < end <= size or step < 1:
        refuse(
            "slice",
            f"[{start}:{end}:{step}] of dimension {dim} of size {size}",
            f"use 0 <= start < end <= {size} and step >= 1",
        )
    return -(-(end - start) // step)


def index_operand(op: str, index: Any, count: int) -> Register | Access:
    """Return a runtime index as a register, or as an access of `count` integers."""
    if isinstance(index, VirtualRegister):
        assert index.register is not None
        return index.register
    if not isinstance(index, TensorView) or not dtypes.info(index.dtype).is_integer:
        refuse(
            op, f"index {index}", "give an integer tensor in SBUF or a VirtualRegister"
        )
    if index.size != count:
        refuse(
            op, f"{index.size} indices, shape {index.shape}", f"give {count} indices"
        )
    return index.access()
