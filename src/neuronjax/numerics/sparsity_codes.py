"""Integer kernels of structured sparsity: groups pruned, compressed and expanded.

Elements are moved and compared as integer codes: nothing is rounded or flushed, and the
bits are the same eagerly, under `jit` and under `vmap`. The members of a group come
first, [size, ...], so that every operation runs over long rows for any axis. Axes count
from the end. Callers check the arguments.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import FORMATS, FloatFormat
from neuronjax.numerics.microscaling import blocked

Array = jax.Array | np.ndarray


# -- patterns --------------------------------------------------------------------------

# The vendor has published the patterns, the size of the tags and the throughput. The
# NKI call is not released, so the layout of the compressed operand is ours; ASSUMPTION
# marks each guess.


@dataclasses.dataclass(frozen=True)
class SparsityPattern:
    """A pattern: of every `group` consecutive elements, `kept` are stored.

    Attributes:
        kept: N, the number of stored elements.
        group: M, the number of elements of a group; at most 16, since a tag has 4 bits.
    """

    kept: int
    group: int

    @property
    def name(self) -> str:
        """Return the name, with N first, such as "4:16"."""
        return f"{self.kept}:{self.group}"

    @property
    def ratio(self) -> int:
        """Return M / N, the vendor's compress_ratio: how many times fewer values."""
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
# [C3; C4 without FP8]. float8_e3m4 is included, as the third FP8 type of the chips.
DTYPES: tuple[str, ...] = tuple(
    f.name for f in FORMATS.values() if f.has_dtype and f.width >= 8 and f.signed
)

TAGS_PER_WORD = 4  # [A3]: a tag tile is uint16 [128, 32] for 128 x 128 kept elements


def get_pattern(name: str | SparsityPattern) -> SparsityPattern:
    """Return the pattern of a name such as "4:16"; the vendor's "16:4" is the same.

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
    """Return the format of an array's elements, if there is a sparse matmul for it."""
    if x.dtype.name in DTYPES:
        return FORMATS[x.dtype.name]
    raise InvalidProgramError(
        f"{x.dtype.name} has no sparse matmul",
        remedy=f"use one of: {', '.join(DTYPES)}",
    )


def negative(axis: int, ndim: int) -> int:
    """Return `axis` counted from the end, a negative number."""
    if -ndim <= axis < ndim:
        return axis % ndim - ndim
    raise InvalidProgramError(
        f"axis {axis} of an array of {ndim} dimensions",
        remedy=f"give an axis from {-ndim} to {ndim - 1}, or an array with that axis",
    )


Members = list[jax.Array]


def _members(x: jax.Array, size: int, axis: int) -> Members:
    return list(jnp.moveaxis(blocked(x, axis, size), axis, 0))


def _joined(members: Members, axis: int, length: int | None = None) -> jax.Array:
    """Invert `_members`, and cut the axis to `length` (None: keep the padding)."""
    at = axis + members[0].ndim
    x = jnp.stack(members, axis=at + 1)
    x = x.reshape(*x.shape[:at], x.shape[at] * len(members), *x.shape[at + 2 :])
    return lax.slice_in_dim(x, 0, length, axis=at)


def _codes(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, format_of(x).code_dtype)


def _decoded(codes: jax.Array, dtype: np.dtype) -> jax.Array:
    """Return the inverse of `_codes`.

    LLVM moves the bitcast in front of a select of codes, and so selects bfloat16
    values. On x86 it does that in float32, which flushes subnormals. The xor with a
    zero that LLVM cannot fold prevents this. The zero is not from `exact`, because a
    captured program has no generator. Constant codes are folded as integers, exactly.
    """
    zero = codes * (codes + 1) & 1
    return lax.bitcast_convert_type(codes ^ zero, dtype)


def _magnitudes(codes: jax.Array, fmt: FloatFormat) -> jax.Array:
    """Return the codes without sign, in the order of magnitudes; all NaNs are equal."""
    nan = fmt.overflow_code + fmt.has_inf  # the lowest code of a NaN
    return jnp.minimum(codes & ((1 << (fmt.width - 1)) - 1), nan)


def _ranks(magnitudes: Members) -> Members:
    """Return, for each element, how many elements of its group are larger, or equal and
    before it."""
    ranks = [jnp.zeros(magnitudes[0].shape, jnp.uint8) for _ in magnitudes]
    for late in range(len(magnitudes)):
        for early in range(late):
            first = magnitudes[early] >= magnitudes[late]
            ranks[late] += first.astype(jnp.uint8)
            ranks[early] += (~first).astype(jnp.uint8)
    return ranks


def _group_ranks(codes: Members, fmt: FloatFormat) -> Members:
    # Kept apart, because XLA would rank again for every slot.
    return lax.optimization_barrier(_ranks([_magnitudes(c, fmt) for c in codes]))


@functools.partial(jax.jit, static_argnums=(1, 2))
def ranked(x: jax.Array, pattern: SparsityPattern, axis: int) -> jax.Array:
    """Return the rank of every element in its group by magnitude, uint8."""
    codes = _members(_codes(x), pattern.group, axis)
    return _joined(_group_ranks(codes, format_of(x)), axis, x.shape[axis])


@functools.partial(jax.jit, static_argnums=(1, 2))
def compress(
    x: jax.Array, pattern: SparsityPattern, axis: int
) -> tuple[jax.Array, jax.Array]:
    """Return the elements of the lowest ranks of every group, and their positions."""
    codes = _members(_codes(x), pattern.group, axis)
    keep = [rank < pattern.kept for rank in _group_ranks(codes, format_of(x))]
    slots = _slots(keep)
    zero = jnp.zeros_like(codes[0])
    kept, tags = [], []
    for slot in range(pattern.kept):
        code, tag = zero, jnp.zeros(zero.shape, jnp.uint8)
        for position, member in enumerate(codes):
            here = keep[position] & (slots[position] == slot)
            code = jnp.where(here, member, code)
            tag = jnp.where(here, jnp.uint8(position), tag)
        kept.append(code)
        tags.append(tag)
    return _decoded(_joined(kept, axis), x.dtype), _joined(tags, axis)


def _slots(keep: Members) -> Members:
    slots = [jnp.zeros(keep[0].shape, jnp.uint8)]
    for mask in keep[:-1]:
        slots.append(slots[-1] + mask.astype(jnp.uint8))
    return lax.optimization_barrier(slots)


@functools.partial(jax.jit, static_argnums=(2, 3))
def ordered(
    values: jax.Array, tags: jax.Array, pattern: SparsityPattern, axis: int
) -> tuple[jax.Array, jax.Array]:
    """Return values and tags with every group in the order of positions."""
    parts = [jnp.stack(_members(a, pattern.kept, axis)) for a in (tags, _codes(values))]
    tags, codes = lax.sort(tuple(parts), dimension=0, num_keys=1)
    codes, tags = (_joined(list(a), axis) for a in (codes, tags))
    return _decoded(codes, values.dtype), tags


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def expand(
    values: jax.Array, tags: jax.Array, pattern: SparsityPattern, axis: int, length: int
) -> jax.Array:
    """Return the dense array, +0 where nothing was kept."""
    codes = _members(_codes(values), pattern.kept, axis)
    tags_of = _members(tags, pattern.kept, axis)
    dense = []
    for position in range(pattern.group):
        member = jnp.zeros_like(codes[0])
        for code, tag in zip(codes, tags_of, strict=True):
            member = jnp.where(tag == position, code, member)
        dense.append(member)
    return _decoded(_joined(dense, axis, length), values.dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def rows(tags: jax.Array, pattern: SparsityPattern, axis: int) -> jax.Array:
    """Return the index along the dense axis of every kept element, int32."""
    index = lax.broadcasted_iota(jnp.int32, tags.shape, axis + tags.ndim)
    return index // pattern.kept * pattern.group + tags.astype(jnp.int32)
