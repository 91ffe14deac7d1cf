"""New tiles for results: the older functions return what the newer write to `dst`."""

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
    """A tile, and the part that a mask leaves of it; None if that is nothing.

    What the mask leaves out is undefined (nki.api.shared of release 2.26, "NKI API
    Masking": the instruction has a smaller tile): it stays unwritten.
    """
    tile, view = whole_tile(sizes, dtype)
    if box is None:
        return tile, view
    return Tile(view, box=box), None if box.empty else box.of(view)


def whole_tile(
    sizes: Sequence[int], dtype: Any, buffer: str = "sbuf"
) -> tuple[Tile, NkiTensor]:
    """A tile, and its view."""
    tile = ndarray(tuple(sizes), dtype_name(dtype), buffer)
    return Tile(tile), tile


def dtype_name(dtype: Any) -> str:
    """The nki name of a dtype; Python's bool and NumPy types too."""
    return "uint8" if dtype in (bool, np.bool_) else dtypes.as_dtype(dtype)


def computed(
    like: Tile,
    dtype: Any,
    mask: Any,
    write: Callable[[NkiTensor, Box | None], Any],
    sizes: Sequence[int] | None = None,
) -> Tile:
    """A tile of the shape of another one, written by an instruction.

    Args:
        like: the operand that the mask belongs to.
        dtype: of the result, by default that of `like`.
        mask: the instruction's.
        write: emits it, given dst and the mask's box.
        sizes: of the result if it has another shape.
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
    """Return a tile that nki.isa's instruction of a name writes.

    Args:
        name: of the instruction.
        given: arguments of the older function.
        like: the operand that the mask belongs to.
        dtype: of the result where the user gave none, by default that of `like`.
        sizes: of the result if it has another shape.
        adapt: changes the arguments of nki.isa's function.
    """

    def write(dst: NkiTensor, box: Box | None) -> None:
        issue(name, {**given, "dst": dst}, box, adapt)

    return computed(like, given["dtype"] or dtype, given["mask"], write, sizes)


def issue(
    name: str,
    given: Mapping[str, Any],
    box: Box | None,
    adapt: Adapt | None = None,
) -> None:
    """Emit nki.isa's instruction of a name on a box of the operands.

    Args:
        name: of the instruction.
        given: arguments of the older function, of which those with a parameter here
            are taken.
        box: of the mask.
        adapt: changes the arguments of nki.isa's function.
    """
    function = getattr(isa, name)
    taken = [p for p in _parameters(function) if p in given and p != "dtype"]
    found = {p: part(given[p], box) for p in taken}
    if adapt is not None:
        adapt(found)
    function(**found)


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _cut(box: Box, sizes: Sequence[int]) -> Box:
    """The box on a result of another shape: its partitions."""
    rest = tuple(sizes[1:])
    return Box(
        (box.starts[0], *[0] * len(rest)),
        (box.stops[0], *rest),
        (sizes[0], *rest),
    )


def promoted_dtype(x: Any, y: Any) -> str:
    """The dtype that two operands have together; one of them may be a number."""
    both = [v.dtype for v in (x, y) if isinstance(v, Tile)]
    return promoted(*both) if len(both) == 2 else both[0]
