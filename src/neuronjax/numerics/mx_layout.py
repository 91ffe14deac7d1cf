"""x4 words: the four elements of an MX operand that a partition contracts at once.

TensorE contracts an MX operand [K, F] in tiles of up to 128 partitions, F words wide,
so a tile is up to 512 deep. A scale belongs to 8 partitions x 4 elements. Sources:
`nki.isa` and the MXFP guide of NKI. Functions here only move data.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import FloatFormat, get_format
from neuronjax.numerics.microscaling import BLOCK_SIZE, to_codes
from neuronjax.numerics.widening import from_codes

PARTITIONS = 128
QUADRANT = 32  # partitions; a tile has a multiple of 32
SLOTS = 4  # elements of a word
GROUP = BLOCK_SIZE // SLOTS  # partitions that share a scale
SCALES = QUADRANT // GROUP  # scales of a quadrant, one per partition
SCALE_OFFSETS = (0, 4, 8, 12)  # partitions where scales may start, for 4 operands


def pack_x4(elements: jax.Array) -> jax.Array:
    """Pack each 4 elements along the last, free axis into one word: [..., 4 W] becomes
    [..., W]. A word of FP8 is uint32, little-endian; one of FP4 is uint16, with the
    first element in the low nibble.

    Raises:
        InvalidProgramError: the last axis is not a multiple of 4.
    """
    fmt = get_format(elements.dtype)
    *before, free = elements.shape
    if free % SLOTS:
        raise InvalidProgramError(
            f"the {free} elements along the free axis do not fill x4 words",
            remedy=f"pad the axis to {-(-free // SLOTS) * SLOTS} elements",
        )
    word = _word_of(fmt)
    cells = to_codes(elements).reshape(*before, free // SLOTS, SLOTS).astype(word)
    shifted = [cells[..., slot] << word(slot * fmt.width) for slot in range(SLOTS)]
    return functools.reduce(jnp.bitwise_or, shifted)


def unpack_x4(words: jax.Array, fmt: FloatFormat) -> jax.Array:
    """Return the inverse of `pack_x4`.

    Raises:
        InvalidProgramError: the words do not have the dtype of this format.
    """
    word = _word_of(fmt)
    if words.dtype != word:
        raise InvalidProgramError(
            f"x4 words of {fmt.name} have dtype {words.dtype}",
            remedy=f"give words of {np.dtype(word).name}",
        )
    mask = word((1 << fmt.width) - 1)
    slots = [words >> word(slot * fmt.width) & mask for slot in range(SLOTS)]
    codes = jnp.stack(slots, axis=-1).astype(jnp.uint8)
    *before, free = words.shape
    return from_codes(codes.reshape(*before, free * SLOTS), fmt)


def _word_of(fmt: FloatFormat) -> Any:
    words = {8: np.uint32, 4: np.uint16}
    if fmt.width not in words:
        raise InvalidProgramError(
            f"x4 words cannot hold {fmt.name}", remedy="use FP8 or FP4 elements"
        )
    return words[fmt.width]
