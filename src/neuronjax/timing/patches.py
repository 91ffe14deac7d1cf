"""The patches of an image that a convolution multiplies by its kernel (`Im2col`).

If the image has enough channels to fill the rows of the smallest tile of TensorE's
array, the patches are not stored: a matmul reads the image through strides, once for
every position of the kernel. If the image has fewer channels, the DMA engines copy it
once for each position along the first axis of the kernel (or of the result, if the
result's axis is shorter), so that channels and positions share the partitions. Along
the other axes of the kernel, the matmul still reads through strides.
"""

from __future__ import annotations

from math import prod

from neuronjax.ir.instruction_set import Im2col
from neuronjax.timing.access import ValueAccess, rows_of
from neuronjax.timing.engines.tensor import least_tile
from neuronjax.timing.work import Core


def read_in_place(i: Im2col, core: Core) -> bool:
    """Return whether a matmul reads patches from the image, without a copy: whether the
    channels fill the rows of the smallest tile of TensorE's array."""
    return i.operands[0].type.shape[-1] * i.side_by_side >= least_tile(core)


def seen_as(i: Im2col, before: ValueAccess) -> ValueAccess:
    """Return the access pattern by which a matmul reads patches from an image, without
    a copy; `before` is the access pattern of the image.

    Patches of one pixel can be divided into tiles of rows like the image. Larger
    patches overlap in neighbouring rows, so they can be divided only along the first
    axis, the groups of the convolution."""
    shape, window = i.operands[0].type.shape, i.window
    is_point = prod(window.sizes) == prod(window.strides) == 1
    unpadded = not any(map(any, window.padding)) and prod(window.base_dilations) == 1
    kept = rows_of(shape[:-1] if is_point and unpadded else shape[:1])
    rows = kept if before.rows is None else kept & before.rows
    return before._replace(rows=rows, is_scalar=False)


def copied_bytes(i: Im2col) -> int:
    """Return the bytes that DMA writes to copy an image with few channels: one copy for
    each position along the first axis of the kernel (or of the result, if the result's
    axis is shorter), but at most the bytes of all patches."""
    window = i.window
    copies = min(window.sizes[0], _places(i)) if window.sizes else 1
    return min(i.results[0].type.size_bytes, copies * i.operands[0].type.size_bytes)


def held_bytes(i: Im2col) -> int:
    """Return the SBUF bytes that patches count for: those of one copy of the image, but
    at most those of all patches."""
    return min(i.results[0].type.size_bytes, i.operands[0].type.size_bytes)


def run_bytes(i: Im2col) -> int:
    """Return the bytes of a contiguous piece of an image that is copied. The piece is a
    row of pixels; it is one pixel if the last axis is dilated, or if the image has only
    one axis and more than one channel."""
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
