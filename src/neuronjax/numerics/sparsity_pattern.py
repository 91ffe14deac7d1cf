"""The N:M patterns of the tensor engine as data: of every M elements N are stored.

Published are the patterns, the size of the tags and the throughput. The NKI call is not
released, so the layout of the compressed operand is ours; ASSUMPTION marks each guess.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import FORMATS, FloatFormat

Array = jax.Array | np.ndarray


@dataclasses.dataclass(frozen=True)
class SparsityPattern:
    """Keeps `kept` elements of every `group` consecutive ones.

    Attributes:
        kept: N, elements that are stored.
        group: M, elements that they stand for; at most 16, for a tag has 4 bits.
    """

    kept: int
    group: int

    @property
    def name(self) -> str:
        """ "4:16": kept first."""
        return f"{self.kept}:{self.group}"

    @property
    def ratio(self) -> int:
        """M / N, the vendor's compress_ratio: how many times fewer values."""
        return self.group // self.kept

    def __str__(self) -> str:
        return self.name


# Sources, pages of the AWS Neuron SDK documentation: [C3] neuron-core-v3.rst and [C4]
# neuron-core-v4.rst, "structured sparsity"; [A3] trainium2_arch.rst, a section that is
# commented out until the NKI call ships.
PATTERNS: dict[str, SparsityPattern] = {
    pattern.name: pattern
    for pattern in (
        SparsityPattern(4, 16),  # [C3, C4, A3]
        SparsityPattern(4, 12),  # [C3, C4, A3]
        SparsityPattern(4, 8),  # [C3, C4, A3]
        SparsityPattern(2, 8),  # [C3, C4]
        SparsityPattern(2, 4),  # [C3, C4]
        SparsityPattern(1, 4),  # [C3, C4]
        SparsityPattern(1, 2),  # [C3, C4]
    )
}

# The operands of sparse matmuls: FP8, FP16, BF16 and TF32, which is kept in float32
# [C3; C4 without FP8]. float8_e3m4 is the third FP8 of the chips.
DTYPES: tuple[str, ...] = tuple(
    f.name for f in FORMATS.values() if f.has_dtype and f.width >= 8 and f.signed
)

TAGS_PER_WORD = 4  # [A3]: a tag tile is uint16 [128, 32] for 128 x 128 kept elements


def get_pattern(name: str | SparsityPattern) -> SparsityPattern:
    """Returns the pattern of a name, "4:16"; the vendor's other spelling "16:4" too.

    Raises:
        InvalidProgramError: no such pattern; the message lists all.
    """
    if isinstance(name, SparsityPattern):
        name = name.name
    kept_last = ":".join(reversed(str(name).split(":")))
    for spelling in (name, kept_last):
        if spelling in PATTERNS:
            return PATTERNS[spelling]
    raise InvalidProgramError(
        f"{name!r} is not a sparsity pattern (kept:group) of the tensor engine",
        remedy=f"use one of: {', '.join(PATTERNS)}",
    )


def format_of(x: Array) -> FloatFormat:
    """The format of an array's elements, if there is a sparse matmul for it."""
    if x.dtype.name in DTYPES:
        return FORMATS[x.dtype.name]
    raise InvalidProgramError(
        f"{x.dtype.name} has no sparse matmul",
        remedy=f"use one of: {', '.join(DTYPES)}",
    )


def negative(axis: int, ndim: int) -> int:
    """The axis counted from the end."""
    if -ndim <= axis < ndim:
        return axis % ndim - ndim
    raise InvalidProgramError(
        f"axis {axis} of an array of {ndim} dimensions",
        remedy=f"give an axis from {-ndim} to {ndim - 1} of an array that has one",
    )
