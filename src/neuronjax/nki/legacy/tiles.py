"""`Tile`: the older style's tensor, with block dimensions, index arrays and operators.

A tile of shape (blocks ..., nl.par_dim(128), free ...) is one storage with the
partitions first. Index arrays (`nl.arange`, `nl.mgrid`) stay as they are until an
instruction uses the tile, for a mask may leave out what lies beyond the tensor
(nki.api.shared of release 2.26, "NKI API Masking").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronjax.nki import layout
from neuronjax.nki.indexing import DynamicSlice, _strided
from neuronjax.nki.isa.assignment import assign
from neuronjax.nki.isa.dma import dma_copy
from neuronjax.nki.isa.matmul import nc_matmul
from neuronjax.nki.language.arithmetic import apply
from neuronjax.nki.language.creation import ndarray
from neuronjax.nki.language.movement import broadcast_to
from neuronjax.nki.layout import Layout
from neuronjax.nki.legacy.masks import Box
from neuronjax.nki.tensor import NkiTensor, refuse


class Tile:
    """A tensor of the older style.

    Attributes:
        tensor: all of it, partitions first.
        blocks: how many block dimensions come before the partitions in `shape`.
        grid: index arrays, one per dimension of `shape`, or None.
    """

    __iter__ = None

    def __init__(
        self,
        tensor: NkiTensor,
        blocks: int = 0,
        grid: tuple[np.ndarray, ...] | None = None,
    ) -> None:
        self.tensor, self.blocks, self.grid = tensor, blocks, grid

    @property
    def shape(self) -> tuple[int, ...]:
        """Block dimensions, partitions, free dimensions."""
        if self.grid is not None:
            return np.broadcast_shapes(*(g.shape for g in self.grid))
        return _logical(self.tensor.shape, self.blocks)

    @property
    def dtype(self) -> str:
        """nki name."""
        return self.tensor.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def buffer(self) -> Any:
        """Memory region."""
        return self.tensor.buffer

    @property
    def sizes(self) -> tuple[int, ...]:
        """What an instruction sees: without blocks of size one."""
        return self.shape if self.grid is not None else tuple(self.of().shape)

    def of(self, box: Box | None = None) -> NkiTensor:
        """The elements as a view, partitions first; of a mask's box alone."""
        if self.grid is not None:
            return self._of_grid(box)
        t = self.tensor
        for _ in range(self.blocks):
            if t.shape[1] != 1:
                refuse(
                    "tile", f"{self.blocks} block dimensions", "select a block first"
                )
            t = t.squeeze_dim(1)
        return box.of(t) if box is not None else t

    def _of_grid(self, box: Box | None) -> NkiTensor:
        assert self.grid is not None
        arrays = np.broadcast_arrays(*self.grid)
        if box is not None:
            arrays = [a[box.slices_of(a.shape)] for a in arrays]
        sizes = _logical(self.tensor.shape, self.blocks)
        for dim, (array, size) in enumerate(zip(arrays, sizes, strict=True)):
            if array.min() < 0 or array.max() >= size:
                refuse(
                    "index",
                    f"indices {array.min()} to {array.max()} of dimension {dim} of "
                    f"size {size}",
                    "leave them out by mask=, or shorten the index array",
                )
        strides = _logical(self.tensor.strides, self.blocks)
        flat = sum(a.astype(np.int64) * s for a, s in zip(arrays, strides, strict=True))
        return self.tensor._with(_strided(np.asarray(flat) + self.tensor.offset))

    # ---- Indexing.

    def __getitem__(self, key: Any) -> Tile:
        keys = list(key) if isinstance(key, tuple) else [key]
        whole = Tile(self.of()) if self.grid is not None else self
        if Ellipsis in [k for k in keys if not isinstance(k, np.ndarray | Tile)]:
            at = next(n for n, k in enumerate(keys) if k is Ellipsis)
            keys[at : at + 1] = [slice(None)] * (whole.ndim - len(keys) + 1)
        keys += [slice(None)] * (whole.ndim - len(keys))
        if any(isinstance(k, Tile) for k in keys):
            return _gathered(whole, keys)
        if any(isinstance(k, np.ndarray) and k.ndim for k in keys):
            return Tile(whole.tensor, whole.blocks, _grid(whole.shape, keys))
        return _sliced(whole, keys)

    def __setitem__(self, key: Any, value: Any) -> None:
        self[key].set(value)

    def set(self, value: Any, box: Box | None = None) -> None:
        """Copies a tile or a number into this one."""
        target = self.of(box)
        if isinstance(value, Deferred) and value.into(target):
            return
        if isinstance(value, Tile):
            value = value.of(box)
            if target.storage.on_chip or value.storage.on_chip:
                value = _alike(value, target)
        placed(target, value)

    def view(self, dtype: Any) -> Tile:
        """The same bits as another dtype."""
        return Tile(self.of().view(dtype))

    def reshape(self, shape: Sequence[int]) -> Tile:
        """The same elements in another shape."""
        return Tile(self.of().reshape(tuple(shape)))

    def expand_dims(self, axis: int) -> Tile:
        """With one more dimension."""
        t = self.of()
        return Tile(t.expand_dim(axis + t.ndim + 1 if axis < 0 else axis))

    def broadcast_to(self, shape: Sequence[int]) -> Tile:
        """Repeated to a shape."""
        return Tile(broadcast_to(self.of(), shape))

    def astype(self, dtype: Any) -> Tile:
        """A copy of another dtype."""
        return Tile(_copied(self.of(), dtype))

    # ---- Arithmetic, by nl functions.

    def __neg__(self) -> Tile:
        return Tile(apply("multiply", self.of(), -1.0))

    def __invert__(self) -> Tile:
        return Tile(apply("equal", self.of(), 0.0))

    def __iadd__(self, other: Any) -> Tile:
        return self._updated("add", other)

    def __isub__(self, other: Any) -> Tile:
        return self._updated("subtract", other)

    def __imul__(self, other: Any) -> Tile:
        return self._updated("multiply", other)

    def _updated(self, op: str, other: Any) -> Tile:
        target = self.of()
        if op == "add" and isinstance(other, Product) and other.added_to(target):
            return self
        result = combined(op, target, plain(other), self.dtype)
        assign(target, _alike(result, target))
        return self

    def __repr__(self) -> str:
        return f"Tile({self.dtype}{list(self.shape)} in {self.buffer})"


def _binary(op: str, *, reverse: bool = False) -> Callable[[Tile, Any], Tile]:
    def method(self: Tile, other: Any) -> Tile:
        x, y = self.of(), plain(other)
        return Tile(combined(op, y, x) if reverse else combined(op, x, y))

    return method


for _name, _op in {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "mod": "mod",
    "pow": "power",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
}.items():
    setattr(Tile, f"__{_name}__", _binary(_op))
    setattr(Tile, f"__r{_name}__", _binary(_op, reverse=True))
for _name, _op in {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}.items():
    setattr(Tile, f"__{_name}__", _binary(_op))


def plain(value: Any) -> Any:
    """A tile's view; everything else as it is."""
    return value.of() if isinstance(value, Tile) else value


def combined(op: str, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """x <op> y; a single partition is repeated by DMA where the other has more."""
    if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
        count = max(x.shape[0], y.shape[0])
        x, y = (
            t if t.shape[0] == count else broadcast_to(t, (count, *t.shape[1:]))
            for t in (x, y)
        )
    return apply(op, x, y, dtype)


def placed(target: NkiTensor, value: Any) -> None:
    """Copies a view or a number; by DMA to partitions where no engine may begin."""
    first = target.offset // target.storage.free_size
    if not target.storage.on_chip or first % 32 == 0:
        assign(target, value)
        return
    scratch = ndarray(target.shape, target.dtype)
    assign(scratch, value)
    dma_copy(target, scratch)


def part(value: Any, box: Box | None) -> Any:
    """What a mask leaves of an operand."""
    if isinstance(value, Tile):
        return value.of(box)
    return box.of(value) if box is not None and isinstance(value, NkiTensor) else value


def _copied(t: NkiTensor, dtype: Any) -> NkiTensor:
    out = ndarray(t.shape, dtype)
    assign(out, t)
    return out


def _alike(value: NkiTensor, target: NkiTensor) -> NkiTensor:
    """The value in the shape of the target, if only ones differ."""
    if value.shape == target.shape or value.size != target.size:
        return value
    return value.reshape(target.shape) if value.shape[0] == target.shape[0] else value


def _logical(physical: Sequence[int], blocks: int) -> tuple[int, ...]:
    """Partition-first sizes as (blocks ..., partitions, free ...)."""
    return (*physical[1 : 1 + blocks], physical[0], *physical[1 + blocks :])


# ---- Index expressions.


def _grid(shape: tuple[int, ...], keys: list[Any]) -> tuple[np.ndarray, ...]:
    """Index arrays for every dimension."""
    if len(keys) != len(shape):
        refuse("index", f"{len(keys)} indices of shape {shape}", "one per dimension")
    arrays = []
    for size, key in zip(shape, keys, strict=True):
        if isinstance(key, slice | DynamicSlice):
            if len(range(*_bounds(key, size))) != 1:
                refuse(
                    "index", "an index array beside a slice", "use index arrays for all"
                )
            key = _bounds(key, size)[0]
        array = np.asarray(key)
        arrays.append(array + size if array.ndim == 0 and array < 0 else array)
    return tuple(arrays)


def _bounds(key: Any, size: int) -> tuple[int, int, int]:
    if isinstance(key, DynamicSlice):
        return int(key.start), int(key.start) + key.size, 1
    return key.indices(size)


def _sliced(t: Tile, keys: list[Any]) -> Tile:
    """Numbers and slices; on chip the partition stays, and one free dimension."""
    tensor, blocks = t.tensor, t.blocks
    dropped: list[int] = []
    for dim, key in enumerate(keys):
        at = _physical(dim, t.blocks)
        if isinstance(key, slice | DynamicSlice):
            start, stop, step = _bounds(key, tensor.shape[at])
            tensor = tensor.slice(at, start, stop, step)
            continue
        index = int(key) + (tensor.shape[at] if key < 0 else 0)
        tensor = tensor.slice(at, index, index + 1)
        if at or not tensor.storage.on_chip:
            dropped.append(at)
    free = [d for d in range(1 + t.blocks, tensor.ndim)]
    on_chip = tensor.storage.on_chip
    if on_chip and free and set(free) <= set(dropped):
        dropped.remove(free[0])
    if not on_chip and len(dropped) == tensor.ndim:
        dropped = dropped[1:]
    view = tensor._layout
    for at in sorted(dropped, reverse=True):
        view = layout.drop_dim(view, at)
    blocks -= sum(1 <= at <= t.blocks for at in dropped)
    return Tile(tensor._with(view), blocks)


def _physical(dim: int, blocks: int) -> int:
    if dim < blocks:
        return dim + 1
    return 0 if dim == blocks else dim


def _gathered(t: Tile, keys: list[Any]) -> Tile:
    """data[indices[i_p, 0], i_f]: a row of HBM for every partition."""
    first, rest = keys[0], keys[1:]
    if not isinstance(first, Tile) or any(isinstance(k, Tile) for k in rest):
        refuse("index", "a tile of indices", "index the first dimension with it")
    index = first.of()
    arrays = [np.zeros((), np.int64)]
    for size, key in zip(t.shape[1:], rest, strict=True):
        if isinstance(key, slice | DynamicSlice):
            key = np.arange(*_bounds(key, size))
        arrays.append(np.asarray(key))
    row = np.broadcast_arrays(*arrays)
    flat = sum(
        a.astype(np.int64) * s for a, s in zip(row, t.tensor.strides, strict=True)
    )
    flat = np.asarray(flat)
    flat = flat[:1] if flat.ndim > 1 else flat.reshape(1, -1)
    view = _strided(flat + t.tensor.offset)
    strides = (t.tensor.strides[0], *view.strides[1:])
    shape = (t.tensor.shape[0], *view.shape[1:])
    rows = t.tensor._with(Layout(shape, strides, view.offset))
    return Tile(rows.vector_select(0, index))


# ---- Results that wait for their destination.


class Deferred(Tile):
    """A result whose destination may decide how it is computed."""

    def __init__(self) -> None:
        self.blocks, self.grid = 0, None

    def into(self, target: NkiTensor) -> bool:
        """Computes it into a destination, if it can."""
        raise NotImplementedError


class Product(Deferred):
    """`nisa.nc_matmul(...)`: added to PSUM where it is `+=`d, else a tile of its own.

    Args:
        emit: writes the product, or adds it, to a view.
        shape: of the result.
    """

    def __init__(
        self, stationary: NkiTensor, moving: NkiTensor, flags: dict[str, Any]
    ) -> None:
        super().__init__()
        self._operands, self._flags = (stationary, moving), flags
        self._made: NkiTensor | None = None

    @property
    def tensor(self) -> NkiTensor:  # type: ignore[override]
        """The product in PSUM, computed when it is first asked for."""
        if self._made is None:
            stationary, moving = self._operands
            shape = (stationary.size // stationary.shape[0], *moving.shape[1:])
            dtype = stationary.dtype if self._flags.get("is_transpose") else "float32"
            self._made = ndarray(shape, dtype, "psum")
            nc_matmul(self._made, *self._operands, accumulate=False, **self._flags)
        return self._made

    def added_to(self, target: NkiTensor) -> bool:
        """Adds it to what PSUM holds; False if that is not possible any more."""
        if target.storage.memory != "psum" or self._made is not None:
            return False
        nc_matmul(target, *self._operands, **self._flags)
        return True

    def into(self, target: NkiTensor) -> bool:
        """Writes it to PSUM."""
        fits = target.storage.memory == "psum" and target.dtype == "float32"
        if not fits or self._made is not None:
            return False
        nc_matmul(target, *self._operands, accumulate=False, **self._flags)
        return True


class LoopReduction(Deferred):
    """`nl.loop_reduce(x, op, ...)`: what it is assigned to is the other operand."""

    def __init__(self, value: NkiTensor, op: str) -> None:
        super().__init__()
        self._value, self._op = value, op

    @property
    def tensor(self) -> NkiTensor:  # type: ignore[override]
        """It has none."""
        refuse(
            "nl.loop_reduce",
            "a result that is not assigned to elements of a tile",
            "write tile[...] = nl.loop_reduce(...), or tile += value",
        )

    def into(self, target: NkiTensor) -> bool:
        """target = target <op> value."""
        value = _alike(self._value, target)
        assign(target, apply(self._op, target, value, target.dtype))
        return True
