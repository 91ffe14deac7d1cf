"""`Tile`: the older style's tensor, with index arrays and operators.

Partitions come first; `blocks` has lists of tiles. Index arrays (`nl.arange`,
`nl.mgrid`) are kept until an instruction uses the tile, because its mask may exclude
indices beyond the tensor (nki.api.shared of release 2.26, "NKI API Masking").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod
from math import prod
from typing import Any

import numpy as np

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.nki import layout, trace as tracing
from neuronjax.nki.indexing import DynamicSlice, as_array, common_shape, layout_at
from neuronjax.nki.isa import dma_copy
from neuronjax.nki.isa.assignment import assign
from neuronjax.nki.isa.constants import engine
from neuronjax.nki.language import movement
from neuronjax.nki.language.arithmetic import apply
from neuronjax.nki.language.creation import ndarray
from neuronjax.nki.legacy.dynamic import Offset, Rows, bounds, selected
from neuronjax.nki.legacy.masks import Box, common_box
from neuronjax.nki.mistakes import WithoutValue
from neuronjax.nki.refusing import refuse
from neuronjax.nki.tensor import NkiTensor

# An instruction's operand has the partition dimension and at most four free dimensions.
MOST_DIMENSIONS = 5


class Tile(WithoutValue):
    """A tensor of the older style.

    Attributes:
        tensor: the whole tensor, partitions first.
        grid: index arrays, one per dimension of `tensor`, or None.
        box: the box of the mask of the instruction that made the tile; elements outside
            have no value, and reading them is an error. None if there was no mask.
    """

    __iter__ = None
    __array_ufunc__ = None  # array + tile is Tile.__radd__
    box: Box | None = None

    def __init__(
        self,
        tensor: NkiTensor,
        grid: tuple[np.ndarray, ...] | None = None,
        box: Box | None = None,
    ) -> None:
        self.tensor, self.grid, self.box = tensor, grid, box

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes: the partitions, then the free dimensions."""
        if self.grid is not None:
            return common_shape(self.grid)
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        """The NKI name of the elements' type."""
        return self.tensor.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def buffer(self) -> Any:
        """The memory region."""
        return self.tensor.buffer

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape that an instruction sees."""
        return self.shape

    def of(self, box: Box | None = None) -> NkiTensor:
        """Return the elements as a view, partitions first, or those in a mask's box."""
        if self.grid is not None:
            arrays: Sequence[np.ndarray] = self.grid
            if box is not None:
                whole = np.broadcast_arrays(*arrays)
                arrays = [a[box.slices_of(a.shape)] for a in whole]
            remedy = "exclude these indices by mask=, or shorten the index array"
            return self.tensor.with_layout(layout_at(self.tensor, arrays, remedy))
        t = self.tensor
        return box.of(t) if box is not None else t

    def __getitem__(self, key: Any) -> Tile:
        whole = self.of()
        keys = expanded(key, whole.ndim)
        if any([isinstance(k, _CHOSEN) for k in keys]):
            keys = [_offset(k) if isinstance(k, Tile) else k for k in keys]
            chosen = selected(whole, keys)
            return Tile(chosen) if isinstance(chosen, NkiTensor) else ChosenTile(chosen)
        if any([isinstance(k, np.ndarray) and k.ndim for k in keys]):
            return self._keeps_box(Tile(whole, _grid(whole.shape, keys)))
        return self._keeps_box(_sliced(whole, keys))

    def _keeps_box(self, other: Tile) -> Tile:
        """Give this tile's box to `other` if `other` selects all elements in order."""
        if self.box is not None and other.shape == self.shape:
            numbers = np.arange(prod(self.shape)).reshape(self.shape)
            same = other.grid is None or np.array_equal(numbers[other.grid], numbers)
            other.box = self.box if same else None
        return other

    def __setitem__(self, key: Any, value: Any) -> None:
        self[key].set(value)

    def set(self, value: Any, box: Box | None = None) -> None:
        """Copy a number, or a tile's elements in its mask's box, into this tile."""
        if isinstance(value, Tile) and box is None and value.box is not None:
            self._set_box(value, value.box)
            return
        target = self.of(box)
        if isinstance(value, Tile) and value.into(target):
            return
        if isinstance(value, Tile):
            value = value.of(box)
            if target.storage.on_chip or value.storage.on_chip:
                value = alike(value, target)
        with tracing.assigning():
            placed(target, value)

    def _set_box(self, value: Tile, box: Box) -> None:
        if box.empty:
            return
        target = self.of()
        if target.shape != value.shape:
            target = target.reshape(value.shape)
        with tracing.assigning():
            placed(box.of(target), value.of(box))

    def __bool__(self) -> bool:
        """Return True for several elements in HBM: `if x:` asks whether x is given."""
        if not self.tensor.storage.on_chip and prod(self.shape) > 1:
            return True
        return super().__bool__()

    def as_tile(self) -> Tile:
        """Return this tile; kernels of early releases call this."""
        return self

    def view(self, dtype: Any) -> Tile:
        """Return the same bits as another dtype."""
        return Tile(self.of().view(dtype))

    def reshape(self, shape: Sequence[int]) -> Tile:
        """Return the same elements in another shape."""
        return Tile(self.of().reshape(tuple(shape)))

    def expand_dims(self, axis: int) -> Tile:
        """Return the same elements with one more dimension, of size one."""
        t = self.of()
        return Tile(t.expand_dim(axis + t.ndim + 1 if axis < 0 else axis))

    def broadcast_to(self, shape: Sequence[int]) -> Tile:
        """Return the tile repeated to a shape."""
        return Tile(
            movement.broadcast_to(over_partitions(self.of(), int(shape[0])), shape)
        )

    def astype(self, dtype: Any) -> Tile:
        """Return a copy with another dtype."""
        return elementwise(lambda x: _copied(x, dtype), self)

    def into(self, target: NkiTensor) -> bool:
        """Compute a deferred value into a tile; return False if there is none."""
        return False

    def added_to(self, target: NkiTensor) -> bool:
        """Add a deferred product to a tile; return False if there is none."""
        return False

    def __neg__(self) -> Tile:
        return elementwise(lambda x: apply("multiply", x, -1.0), self)

    def __invert__(self) -> Tile:
        return elementwise(lambda x: apply("equal", x, 0.0), self)

    def _updated(self, op: str, other: Any) -> Tile:
        target = self.of()
        if op == "add" and isinstance(other, Tile) and other.added_to(target):
            return self
        result = combined(op, target, part(other), self.dtype)
        with tracing.assigning():
            assign(target, alike(result, target))
        return self

    __iadd__ = partialmethod(_updated, "add")
    __isub__ = partialmethod(_updated, "subtract")
    __imul__ = partialmethod(_updated, "multiply")

    def __repr__(self) -> str:
        return f"Tile({self.dtype}{list(self.shape)} in {self.buffer})"


def _binary(op: str, *, reverse: bool = False) -> Callable[[Tile, Any], Any]:
    def method(self: Tile, other: Any) -> Any:
        if op == "add" and isinstance(other, np.ndarray):
            return _offset(self) + other
        operands = (other, self) if reverse else (self, other)
        dtype = quotient_dtype(op, *operands)
        return elementwise(lambda x, y: combined(op, x, y, dtype), *operands)

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


def quotient_dtype(op: str, *operands: Any) -> str | None:
    """Return float32, the dtype of nl.divide of integers; None for any other op."""
    names = [v.dtype for v in operands if isinstance(v, Tile)]
    whole = all(dtypes.info(name).is_integer for name in names)
    return "float32" if op == "divide" and whole else None


def defined(*operands: Any, mask: Box | None = None) -> Box | None:
    """Return the box where all tiles have values; None if that is everywhere."""
    tiles = [t for t in operands if isinstance(t, Tile)]
    boxes = [t.box for t in tiles if t.box is not None]
    shapes = [t.sizes for t in tiles]
    if mask is not None:
        boxes, shapes = [*boxes, mask], [*shapes, mask.sizes]
    return common_box(shapes, boxes)


def elementwise(
    compute: Callable[..., NkiTensor], *operands: Any, mask: Box | None = None
) -> Tile:
    """Return a function's result, which has no value where an operand has none. The
    function takes the operands with a view in place of each tile."""
    box = defined(*operands, mask=mask)
    if box is None:
        return Tile(_in_pieces(compute, list(map(part, operands))))
    if box.empty:
        dtype = next(t.dtype for t in operands if isinstance(t, Tile))
        return Tile(ndarray(box.sizes, dtype), box=box)
    result = _in_pieces(compute, [part(v, box) for v in operands])
    out = ndarray(box.sizes, result.dtype)
    with tracing.assigning():
        placed(box.of(out), result)
    return Tile(out, box=box)


def _in_pieces(compute: Callable[..., NkiTensor], operands: list[Any]) -> NkiTensor:
    """Return a function's result, computed in pieces of four free dimensions."""
    tensors = [v for v in operands if isinstance(v, NkiTensor)]
    rank = max(t.ndim for t in tensors)
    if rank <= MOST_DIMENSIONS:
        return compute(*operands)
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    out: NkiTensor | None = None
    for n in range(shape[1]):
        pieces = [_piece(v, n) if _has_rank(v, rank) else v for v in operands]
        result = _in_pieces(compute, pieces)
        out = ndarray(shape, result.dtype) if out is None else out
        placed(_piece(out, n), result)
    assert out is not None
    return out


def _has_rank(value: Any, rank: int) -> bool:
    return isinstance(value, NkiTensor) and value.ndim == rank


def _piece(t: NkiTensor, n: int) -> NkiTensor:
    """Return the elements at index n of the first free dimension, without it."""
    return t.select(1, n if t.shape[1] > 1 else 0)


def combined(op: str, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Return x <op> y; a single partition is repeated if the other operand has more."""
    if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
        count = max(x.shape[0], y.shape[0])
        x, y = over_partitions(x, count), over_partitions(y, count)
    return apply(op, x, y, dtype)


def over_partitions(t: NkiTensor, count: int) -> NkiTensor:
    """Return a single partition on chip repeated to `count`; any other tile unchanged.

    The copy by DMA is timed as a product on TensorE, where the older compiler
    multiplies the partition by ones."""
    if t.shape[0] != 1 or count == 1 or not t.storage.on_chip:
        return t
    return movement.over_partitions(t, count, engine=engine.tensor)


def placed(target: NkiTensor, value: Any) -> None:
    """Copy a value, by DMA if engines may not start at target's first partition."""
    if target.ndim > MOST_DIMENSIONS and target.storage.on_chip:
        for n in range(target.shape[1]):
            same = _has_rank(value, target.ndim)
            placed(_piece(target, n), _piece(value, n) if same else value)
        return
    first = target.offset // target.storage.free_size
    if not target.storage.on_chip or first % 32 == 0:
        assign(target, value)
        return
    scratch = ndarray(target.shape, target.dtype)
    assign(scratch, value)
    dma_copy(target, scratch)


def part(value: Any, box: Box | None = None) -> Any:
    """Return a tile's view, or its part in the box; return other values unchanged."""
    if isinstance(value, Tile):
        return value.of(box)
    return box.of(value) if box is not None and isinstance(value, NkiTensor) else value


def _copied(t: NkiTensor, dtype: Any) -> NkiTensor:
    out = ndarray(t.shape, dtype)
    assign(out, t)
    return out


def alike(value: NkiTensor, target: NkiTensor) -> NkiTensor:
    """Return the value in the target's shape if only dimensions of size 1 differ."""
    if value.shape == target.shape or value.size != target.size:
        return value
    return value.reshape(target.shape) if value.shape[0] == target.shape[0] else value


_CHOSEN = (Tile, Offset)
_RANGES = (slice, DynamicSlice)


def _offset(tile: Tile) -> Offset:
    return Offset(tile.of(), np.zeros((), np.int64))


def expanded(key: Any, rank: int) -> list[Any]:
    """Return one key per dimension; an ellipsis and missing keys are whole slices."""
    keys = list(key) if isinstance(key, tuple) else [key]
    for at, one in enumerate(keys):
        if one is Ellipsis:
            keys[at : at + 1] = [slice(None)] * (rank - len(keys) + 1)
            break
    return keys + [slice(None)] * (rank - len(keys))


def _grid(shape: tuple[int, ...], keys: list[Any]) -> tuple[np.ndarray, ...]:
    if len(keys) != len(shape):
        remedy = "give one index per dimension"
        refuse("index", f"{len(keys)} indices of a tile of shape {shape}", remedy)
    arrays = []
    for size, key in zip(shape, keys, strict=True):
        if isinstance(key, _RANGES):
            if len(range(*bounds(key, size))) != 1:
                refuse(
                    "index", "an index array beside a slice", "use index arrays for all"
                )
            key = bounds(key, size)[0]
        arrays.append(as_array(key, size))
    return tuple(arrays)


def _sliced(t: NkiTensor, keys: list[Any]) -> Tile:
    """Return the tile that numbers and slices select; on chip two dimensions remain."""
    on_chip, rank = t.storage.on_chip, t.ndim
    dropped: list[int] = []
    for at, key in enumerate(keys):
        if isinstance(key, _RANGES):
            start, stop, step = bounds(key, t.shape[at])
            t = t.slice(at, start, stop, step)
            continue
        index = int(key) + (t.shape[at] if key < 0 else 0)
        t = t.slice(at, index, index + 1)
        if at or not on_chip:
            dropped.append(at)
    if rank - len(dropped) < (2 if on_chip else 1):
        dropped = dropped[1:]
    view = t.layout
    for at in reversed(dropped):
        view = layout.drop_dim(view, at)
    return Tile(t.with_layout(view))


class ChosenTile(Tile):
    """Rows of HBM that a tile of indices selects."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows.of(None))
        self._rows = rows

    def of(self, box: Box | None = None) -> NkiTensor:
        """Return the rows as a view, or only those in a mask's box."""
        return self._rows.of(box)
