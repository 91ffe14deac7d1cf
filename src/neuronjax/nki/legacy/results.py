"""The tiles that the older functions return, and to which the newer ones write."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.nki import isa
from neuronjax.nki.language.creation import ndarray
from neuronjax.nki.language.promotion import promoted
from neuronjax.nki.legacy.masks import Box, box_of
from neuronjax.nki.legacy.tiles import Tile, defined, part
from neuronjax.nki.tensor import NkiTensor

Adapt = Callable[[dict[str, Any]], Any]


def new_tile(
    sizes: Sequence[int], dtype: Any, box: Box | None = None
) -> tuple[Tile, NkiTensor | None]:
    """Return a tile and its part inside a mask's box, which is None if the box is
    empty.

    Elements outside are undefined (nki.api.shared of release 2.26, "NKI API Masking":
    the instruction has a smaller tile), so they stay unwritten."""
    tile, view = whole_tile(sizes, dtype)
    if box is None:
        return tile, view
    return Tile(view, box=box), None if box.empty else box.of(view)


def whole_tile(
    sizes: Sequence[int], dtype: Any, buffer: str = "sbuf"
) -> tuple[Tile, NkiTensor]:
    """Return a tile and its view."""
    tile = ndarray(tuple(sizes), dtype_name(dtype), buffer)
    return Tile(tile), tile


def dtype_name(dtype: Any) -> str:
    """Return the NKI name of a dtype, which may be Python's bool or a NumPy type."""
    return "uint8" if dtype in (bool, np.bool_) else dtypes.as_dtype(dtype)


def computed(
    like: Tile,
    dtype: Any,
    mask: Any,
    write: Callable[[NkiTensor, Box | None], Any],
    sizes: Sequence[int] | None = None,
) -> Tile:
    """Return a tile with the shape of another, written by an instruction.

    Args:
        like: the operand to which the mask belongs.
        dtype: of the result, by default that of `like`.
        write: emits the instruction, given dst and the mask's box.
        sizes: the result's shape if it differs.
    """
    box = defined(like, mask=box_of(mask, like.sizes))
    out_box = box if sizes is None or box is None else _cut(box, sizes)
    tile, dst = new_tile(sizes or like.sizes, dtype or like.dtype, out_box)
    if dst is not None:
        write(dst, box)
    return tile


def made(
    name: str,
    given: Mapping[str, Any],
    like: Tile,
    dtype: Any = None,
    sizes: Sequence[int] | None = None,
    adapt: Adapt | None = None,
) -> Tile:
    """Return a tile that an instruction of nki.isa writes.

    The arguments are those of `computed` and of `issue`. If `given` has a dtype, it is
    that of the result."""

    def write(dst: NkiTensor, box: Box | None) -> None:
        issue(name, {**given, "dst": dst}, box, adapt)

    return computed(like, given["dtype"] or dtype, given["mask"], write, sizes)


def issue(
    name: str, given: Mapping[str, Any], box: Box | None, adapt: Adapt | None = None
) -> None:
    """Emit an instruction of nki.isa on a box of the operands.

    Args:
        given: the arguments of the older function; those that nki.isa's function lacks
            are ignored.
        adapt: changes the arguments for nki.isa's function.
    """
    function = getattr(isa, name)
    taken = [p for p in _parameters(function) if p in given and p != "dtype"]
    arguments = {p: part(given[p], box) for p in taken}
    if adapt is not None:
        adapt(arguments)
    function(**arguments)


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _cut(box: Box, sizes: Sequence[int]) -> Box:
    """Return a box with the same partitions and whole free dimensions of `sizes`."""
    rest = tuple(sizes[1:])
    return Box(
        (box.starts[0], *[0] * len(rest)), (box.stops[0], *rest), (sizes[0], *rest)
    )


def promoted_dtype(x: Any, y: Any) -> str:
    """Return the promoted dtype of two operands; one of them may be a number."""
    both = [v.dtype for v in (x, y) if isinstance(v, Tile)]
    return promoted(*both) if len(both) == 2 else both[0]
