"""Hardware layouts of MX operands: x4 words, tiles of partitions, and where scales lie.

TensorE contracts an MX operand [K, F] in tiles of up to 128 partitions, F words wide.
A word ("x4") holds the four elements that its partition contracts at once, so a tile is
up to 512 deep. A scale belongs to 8 partitions x 4 slots. Which k lies where is a
`KLayout`; an `MXArray` is always in order of position, 4 * partition + slot, in which a
block is 32 consecutive positions. Sources: `nki.isa` and the MXFP guide of NKI, as
collected in hardware.md, section 5.1. Nothing is computed here, only moved.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import FLOAT8_E8M0FNU, FloatFormat, get_format
from neuronjax.numerics.microscaling import (
    BLOCK_SIZE,
    MXArray,
    MXFormat,
    from_codes,
    to_codes,
)

LayoutName = Literal["consecutive", "interleaved"]

PARTITIONS = 128
QUADRANT = 32  # partitions; tiles have a multiple of it
SLOTS = 4  # elements of a word
GROUP = BLOCK_SIZE // SLOTS  # partitions that share a scale
SCALES = QUADRANT // GROUP  # scales of a quadrant, on as many of its partitions
SCALE_OFFSETS = (0, 4, 8, 12)  # where they may start, so that 4 operands share a tile


@dataclasses.dataclass(frozen=True, kw_only=True)
class KLayout:
    """Where index k of the contraction lies, as strides of k.

        k = tile * 4 * partitions + partition * partition_stride + slot * slot_stride

    Attributes:
        partitions: of a tile.
        partition_stride: how far neighbouring partitions are apart in k.
        slot_stride: how far neighbouring elements of a word are apart in k.
    """

    partitions: int
    partition_stride: int
    slot_stride: int

    @property
    def depth(self) -> int:
        """The k of a tile."""
        return SLOTS * self.partitions

    def cell(self, k: Any) -> tuple[Any, Any, Any]:
        """Tile, partition and slot of k, an int or an integer array."""
        partition = k // self.partition_stride % self.partitions
        return k // self.depth, partition, k // self.slot_stride % SLOTS

    def k(self, tile: Any, partition: Any, slot: Any) -> Any:
        """The inverse of `cell`."""
        within = partition * self.partition_stride + slot * self.slot_stride
        return tile * self.depth + within

    def position(self, k: Any) -> Any:
        """The index of k in order of position."""
        tile, partition, slot = self.cell(k)
        return tile * self.depth + partition * SLOTS + slot

    def k_at(self, position: Any) -> Any:
        """The inverse of `position`."""
        tile, within = position // self.depth, position % self.depth
        return self.k(tile, within // SLOTS, within % SLOTS)


def k_layout(name: LayoutName, partitions: int = PARTITIONS) -> KLayout:
    """Returns a layout by name.

    Args:
        name: "consecutive": a word holds 4 consecutive k, a block 32; the blocks of OCP
            arrays. "interleaved": the vendor guide's; the elements of a word are 128
            apart, so a block is 4 runs of 8.
        partitions: of a tile: 32, 64, 96 or 128. ASSUMPTION: in a smaller tile the
            interleaved elements are as far apart as it has partitions; the guide shows
            full tiles only.

    Raises:
        InvalidProgramError: another name or number of partitions.
    """
    _check_partitions(partitions)
    strides = {"consecutive": (SLOTS, 1), "interleaved": (1, partitions)}
    if name not in strides:
        raise InvalidProgramError(
            f"MX layout {name!r}", remedy=f"use one of: {', '.join(strides)}"
        )
    partition_stride, slot_stride = strides[name]
    return KLayout(
        partitions=partitions,
        partition_stride=partition_stride,
        slot_stride=slot_stride,
    )


def to_positions(x: jax.Array, layout: KLayout, axis: int = 0) -> jax.Array:
    """Puts an axis, the contraction, in order of position, before quantization.

    Args:
        x: any dtype; the axis is filled up with zeros to whole tiles.
        layout: which k lies where.
        axis: the contraction.

    Returns:
        The array whose blocks of 32 along `axis` are those of the hardware.
    """
    length = x.shape[axis]
    padded = _padded(x, -(-length // layout.depth) * layout.depth, axis)
    order = layout.k_at(np.arange(padded.shape[axis]))
    return jnp.take(padded, order, axis=axis, unique_indices=True)


def from_positions(
    x: jax.Array, layout: KLayout, length: int, axis: int = 0
) -> jax.Array:
    """The inverse of `to_positions`, for an axis that was of this length."""
    order = layout.position(np.arange(length))
    return jnp.take(x, order, axis=axis, unique_indices=True)


# ---- Words.


def pack_x4(elements: jax.Array) -> jax.Array:
    """Packs each 4 elements along the last, free axis into one word.

    Args:
        elements: FP8 or FP4, [..., 4 W].

    Returns:
        [..., W]; FP8: uint32, little-endian; FP4: uint16, the first in the low nibble.

    Raises:
        InvalidProgramError: the last axis is no multiple of 4.
    """
    fmt = get_format(elements.dtype)
    free = elements.shape[-1]
    if free % SLOTS:
        raise InvalidProgramError(
            f"x4 words of {free} elements along the free axis",
            remedy=f"pad it to {-(-free // SLOTS) * SLOTS}",
        )
    _word_of(fmt)  # refuses other formats
    cells = to_codes(elements).reshape(*elements.shape[:-1], free // SLOTS, SLOTS)
    return _packed(cells, fmt)


def unpack_x4(words: jax.Array, fmt: FloatFormat) -> jax.Array:
    """The inverse of `pack_x4`.

    Raises:
        InvalidProgramError: words of another dtype than this format has.
    """
    cells = _unpacked(words, fmt)
    *before, free = words.shape
    return from_codes(cells.reshape(*before, free * SLOTS), fmt)


def _packed(cells: jax.Array, fmt: FloatFormat) -> jax.Array:
    """uint8 codes [..., 4] to words."""
    word = _word_of(fmt)
    wide = cells.astype(word)
    shifted = [wide[..., slot] << word(slot * fmt.width) for slot in range(SLOTS)]
    return functools.reduce(jnp.bitwise_or, shifted)


def _unpacked(words: jax.Array, fmt: FloatFormat) -> jax.Array:
    """The inverse of `_packed`."""
    word = _word_of(fmt)
    if words.dtype != word:
        raise InvalidProgramError(
            f"x4 words of {fmt.name} in {words.dtype}",
            remedy=f"they are {np.dtype(word).name}",
        )
    mask = word((1 << fmt.width) - 1)
    slots = [words >> word(slot * fmt.width) & mask for slot in range(SLOTS)]
    return jnp.stack(slots, axis=-1).astype(jnp.uint8)


# ---- Scales.


def scale_partition(group: Any, offset: int = 0) -> Any:
    """The partition on which the scale of 8 partitions lies: in their own quadrant.

    Args:
        group: partition // 8, an int or an integer array.
        offset: 0, 4, 8 or 12.
    """
    return group // SCALES * QUADRANT + offset + group % SCALES


def place_scales(scales: jax.Array, offset: int = 0) -> jax.Array:
    """Spreads scales over partitions: the first four of each quadrant, or the next.

    Args:
        scales: uint8 [..., P / 8, F], P a multiple of 32.
        offset: 0, 4, 8 or 12: operands with different ones can share a tile.

    Returns:
        uint8 [..., P, F], zeros elsewhere (as the vendor's golden does).

    Raises:
        InvalidProgramError: another offset, or groups that fill no quadrant.
    """
    _check_offset(offset)
    *before, groups, free = scales.shape
    if groups % SCALES:
        raise InvalidProgramError(
            f"scales of {groups} groups of {GROUP} partitions",
            remedy=f"pad to {-(-groups // SCALES) * SCALES}: whole quadrants",
        )
    quadrants = scales.reshape(*before, groups // SCALES, SCALES, free)
    room = QUADRANT - SCALES - offset
    padding = [(0, 0)] * (quadrants.ndim - 2) + [(offset, room), (0, 0)]
    return jnp.pad(quadrants, padding).reshape(*before, groups * GROUP, free)


def take_scales(placed: jax.Array, offset: int = 0) -> jax.Array:
    """The inverse of `place_scales`: uint8 [..., P, F] to [..., P / 8, F]."""
    _check_offset(offset)
    _check_partitions(placed.shape[-2])
    *before, partitions, free = placed.shape
    quadrants = placed.reshape(*before, partitions // QUADRANT, QUADRANT, free)
    used = lax.slice_in_dim(quadrants, offset, offset + SCALES, axis=-2)
    return used.reshape(*before, partitions // GROUP, free)


# ---- Tiles.


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("words", "scales"),
    meta_fields=("format", "axis", "length", "scale_offset"),
)
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MXTile:
    """An MX operand as it lies in the partitions of SBUF; a pytree.

    Attributes:
        words: [tiles, P, F], uint32 (FP8) or uint16 (FP4).
        scales: uint8, [tiles, P, F], placed as `place_scales` does; or [tiles, P / 8,
            F], the short form, which exists for P = 32 only.
        format: of the elements.
        axis: of the `MXArray`, which `from_tile` gives back.
        length: of that axis, without what the tiles are filled up with.
        scale_offset: 0, 4, 8 or 12; None in the short form.
    """

    words: jax.Array
    scales: jax.Array
    format: MXFormat
    axis: int
    length: int
    scale_offset: int | None


@functools.partial(jax.jit, static_argnames=("partitions", "scale_offset"))
def to_tile(
    array: MXArray,
    *,
    partitions: int = PARTITIONS,
    scale_offset: int | None = 0,
) -> MXTile:
    """Arranges an operand for the hardware.

    Args:
        array: of rank 2, in order of position (see `to_positions`; an array quantized
            as it stands is "consecutive").
        partitions: of a tile: 32, 64, 96 or 128. The contraction is filled up to whole
            tiles with zeros of scale 0.
        scale_offset: 0, 4, 8 or 12; None for the short form of 32 partitions.

    Raises:
        InvalidProgramError: a limit of the hardware does not hold.
    """
    _check_operand(array)
    _check_partitions(partitions)
    depth, axis = SLOTS * partitions, array.axis
    length, free = array.shape[axis], array.shape[-3 - axis]
    tiles = -(-length // depth)
    codes = jnp.moveaxis(to_codes(array.elements), axis, 0)
    cells = _padded(codes, tiles * depth, 0).reshape(tiles, partitions, SLOTS, free)
    groups = partitions // GROUP
    scales = jnp.moveaxis(to_codes(array.scales), axis, 0)
    scales = _padded(scales, tiles * groups, 0).reshape(tiles, groups, free)
    return MXTile(
        words=_packed(jnp.swapaxes(cells, -1, -2), array.format.element),
        scales=_stored_scales(scales, scale_offset),
        format=array.format,
        axis=axis,
        length=length,
        scale_offset=scale_offset,
    )


@jax.jit
def from_tile(tile: MXTile) -> MXArray:
    """The inverse of `to_tile`, in order of position."""
    element, axis = tile.format.element, tile.axis
    tiles, partitions, free = tile.words.shape
    cells = _unpacked(tile.words, element).swapaxes(-1, -2)
    codes = cells.reshape(tiles * partitions * SLOTS, free)[: tile.length]
    scales = tile.scales
    if tile.scale_offset is not None:
        scales = take_scales(scales, tile.scale_offset)
    scales = scales.reshape(-1, free)[: -(-tile.length // BLOCK_SIZE)]
    return MXArray(
        elements=from_codes(jnp.moveaxis(codes, 0, axis), element),
        scales=from_codes(jnp.moveaxis(scales, 0, axis), FLOAT8_E8M0FNU),
        axis=axis,
        format=tile.format,
    )


def _stored_scales(scales: jax.Array, offset: int | None) -> jax.Array:
    if offset is not None:
        return place_scales(scales, offset)
    if scales.shape[-2] != SCALES:
        raise InvalidProgramError(
            f"the short form of scales with {scales.shape[-2] * GROUP} partitions",
            remedy=f"use partitions={QUADRANT}, or a scale_offset",
        )
    return scales


def _padded(x: jax.Array, length: int, axis: int) -> jax.Array:
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, padding)


def _word_of(fmt: FloatFormat) -> Any:
    """The unsigned type of a format's x4 words."""
    words = {8: np.uint32, 4: np.uint16}
    if fmt.width not in words:
        raise InvalidProgramError(
            f"x4 words of {fmt.name}", remedy="use FP8 or FP4 elements"
        )
    return words[fmt.width]


def _check_operand(array: MXArray) -> None:
    if len(array.shape) != 2 or array.block_size != BLOCK_SIZE:
        raise InvalidProgramError(
            f"a tile of an MXArray of shape {array.shape} in blocks of "
            f"{array.block_size}",
            remedy=f"use rank 2 (jax.vmap for more) and blocks of {BLOCK_SIZE}",
        )


def _check_partitions(partitions: int) -> None:
    if partitions % QUADRANT or not 0 < partitions <= PARTITIONS:
        raise InvalidProgramError(
            f"an MX tile of {partitions} partitions",
            remedy=f"use a multiple of {QUADRANT}, at most {PARTITIONS}",
        )


def _check_offset(offset: int) -> None:
    if offset not in SCALE_OFFSETS:
        raise InvalidProgramError(
            f"scales at partition offset {offset}",
            remedy=f"use one of: {', '.join(map(str, SCALE_OFFSETS))}",
        )
