"""Patches of a convolution as a matmul reads them; they are usually not stored.

A matmul reads an image through strides, once for every position of the kernel. If the
image's channels fill a tile of the array's rows, its patches are thus an access
pattern. If the image has fewer channels, it is copied once for each position along the
first axis of the kernel (or of the result, if shorter), so that channels and positions
share the partitions. The other axes are read through strides.
"""

from __future__ import annotations

from math import prod

from neuronjax.ir.instruction_set import Im2col
from neuronjax.timing.access import ValueAccess, rows_of
from neuronjax.timing.engines.tensor import least_tile
from neuronjax.timing.work import Core


def read_in_place(i: Im2col, core: Core) -> bool:
    """Return whether the channels of an image fill a tile of the array's rows."""
    return i.operands[0].type.shape[-1] * i.side_by_side >= least_tile(core)


def seen_as(i: Im2col, before: ValueAccess) -> ValueAccess:
    """Return the access to patches that are read from an image by strides, not copied.
    Patches of one pixel can be cut into the same numbers of rows as the image. Larger
    patches also read neighbouring rows, so they can be cut only along the first axis
    (groups)."""
    shape, window = i.operands[0].type.shape, i.window
    is_point = prod(window.sizes) == prod(window.strides) == 1
    unpadded = not any(map(any, window.padding)) and prod(window.base_dilations) == 1
    kept = rows_of(shape[:-1] if is_point and unpadded else shape[:1])
    rows = kept if before.rows is None else kept & before.rows
    return before._replace(rows=rows, is_scalar=False)


def copied_bytes(i: Im2col) -> int:
    """Return the bytes that DMA writes to copy an image with few channels once for each
    position along the kernel's first axis."""
    window = i.window
    copies = min(window.sizes[0], _places(i)) if window.sizes else 1
    return min(i.results[0].type.size_bytes, copies * i.operands[0].type.size_bytes)


def held_bytes(i: Im2col) -> int:
    """Return the SBUF bytes of one copy of an image, at most those of the patches."""
    return min(i.results[0].type.size_bytes, i.operands[0].type.size_bytes)


def run_bytes(i: Im2col) -> int:
    """Return the bytes that a copy moves contiguously: a row of pixels, or one pixel if
    the image is dilated, or has one axis and several channels."""
    image, window = i.operands[0].type, i.window
    has_rows = len(window.sizes) > 1 or image.shape[-1] == 1
    is_dense = has_rows and window.base_dilations[-1] == 1
    shape = image.shape[-2:] if is_dense else image.shape[-1:]
    return prod(shape) * image.dtype.itemsize


def _places(i: Im2col) -> int:
    window, size = i.window, i.operands[0].type.shape[2]
    dilated = (size - 1) * window.base_dilations[0] + 1 + sum(window.padding[0])
    reach = (window.sizes[0] - 1) * window.window_dilations[0] + 1
    return max(0, (dilated - reach) // window.strides[0] + 1)
