"""N:M structured sparsity: N of every M consecutive elements along K are stored.

`sparsify` prunes by magnitude; a `SparseArray` holds the kept values and their 4-bit
positions ("tags"). This is the form of the stationary operand of a sparse matmul, along
its contraction axis. For training see `examples/sparse_training.py`; the patterns are
in `sparsity_codes`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics import sparsity_codes as codes
from neuronjax.numerics.exact import kept_apart
from neuronjax.numerics.shown import Shown
from neuronjax.numerics.sparsity_codes import (
    DTYPES as DTYPES,
    PATTERNS as PATTERNS,
    TAGS_PER_WORD,
    Array,
    SparsityPattern,
    format_of,
    get_pattern,
    negative,
    rows as rows_of,
)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("values", "tags"),
    meta_fields=("pattern", "axis", "length"),
)
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SparseArray(Shown):
    """An array that stores N of every M elements along one axis.

    `sparsify`, `from_dense` and `from_parts` make one; the constructor checks nothing,
    so that JAX may rebuild an array from whatever leaves it has. The axis counts from
    the end, so that it stays right when `vmap` takes leading axes away.

    With K the length of the dense axis, both arrays have ceil(K / M) N elements along
    it. Inside a group positions increase. A last group of fewer than M rows is filled
    up with zeros. If it has fewer than N rows, it also stores positions beyond K, whose
    values are +0.

    Attributes:
        values: the kept elements.
        tags: uint8 of the same shape, the positions 0 to M - 1 within the groups.
        pattern: N:M.
        axis: the sparse axis, negative.
        length: K.
    """

    values: jax.Array
    tags: jax.Array
    pattern: SparsityPattern
    axis: int
    length: int

    @classmethod
    def from_parts(
        cls,
        values: Array,
        tags: Array,
        *,
        pattern: str | SparsityPattern,
        axis: int = 0,
        length: int | None = None,
    ) -> SparseArray:
        """Make an array from given values and tags.

        The elements of a group may come in any order; they are sorted by position.
        Under `jit` or `vmap` tags have no values yet, so they are not checked, and of
        duplicates `todense` uses the last value.

        Args:
            values: the kept elements, of a dtype in `DTYPES`.
            tags: uint8 of the same shape.
            pattern: N:M.
            axis: the sparse axis.
            length: K, if the last group is not full.

        Raises:
            InvalidProgramError: shapes or dtypes do not fit; a tag is out of range or
                twice in its group; a value that is not zero lies beyond K. The message
                names the first offending index.
        """
        pattern = get_pattern(pattern)
        format_of(values)
        axis = negative(axis, values.ndim)
        groups = check_layout(values, tags, pattern, axis)
        length = groups * pattern.group if length is None else length
        check_length(length, groups, pattern)
        if not isinstance(tags, Tracer):
            check_tags(np.asarray(tags), pattern, axis)
            if not isinstance(values, Tracer):
                check_beyond_end(values, np.asarray(tags), pattern, axis, length)
        ordered = codes.ordered(jnp.asarray(values), jnp.asarray(tags), pattern, axis)
        return cls(
            values=ordered[0],
            tags=ordered[1],
            pattern=pattern,
            axis=axis,
            length=length,
        )

    @classmethod
    def from_dense(
        cls, x: Array, pattern: str | SparsityPattern, *, axis: int = 0
    ) -> SparseArray:
        """Compress an array that already has the pattern, without loss.

        Only the signs of dropped zeros are lost. Under `jit` or `vmap` the values
        cannot be looked at: the array is then pruned as by `sparsify`.

        Raises:
            InvalidProgramError: a group has more than N non-zero elements (a NaN is not
                zero), or as `sparsify`.
        """
        pattern = get_pattern(pattern)
        axis = _checked_axis(x, axis)
        if not isinstance(x, Tracer):
            check_obeys(x, pattern, axis)
        return sparsify(x, pattern, axis=axis)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the dense shape."""
        shape = list(self.values.shape)
        shape[self.axis] = self.length
        return tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Return the bytes that the values and the packed tags take on the chip."""
        shape = list(self.tags.shape)
        shape[self._pack_axis] = -(-shape[self._pack_axis] // TAGS_PER_WORD)
        return self.values.size * self.dtype.itemsize + 2 * math.prod(shape)

    def __repr__(self) -> str:
        # JAX's transformations may put any object in the place of an array.
        is_array = hasattr(self.values, "shape") and hasattr(self.values, "dtype")
        what = f"{self.dtype}{self.shape}" if is_array else f"{self.values}"
        return f"<neuronjax.SparseArray {self.pattern} {what}, axis {self.axis}>"

    def todense(self) -> jax.Array:
        """Return the dense array, exactly; +0 where nothing was kept.

        Raises:
            InvalidProgramError: a tag is out of range or twice in its group. Arrays
                that `from_parts` made under `jit` or `vmap`, where it cannot check
                tags, may have such tags. Under `jit` nothing is raised here either.
        """
        if not isinstance(self.tags, Tracer):
            check_tags(np.asarray(self.tags), self.pattern, self.axis)
        return codes.expand(
            self.values, self.tags, self.pattern, self.axis, self.length
        )

    @property
    def _pack_axis(self) -> int:
        return -2 if self.axis == -1 and self.values.ndim > 1 else -1


def sparsify(
    x: Array, pattern: str | SparsityPattern = "4:16", *, axis: int = 0
) -> SparseArray:
    """Keep, in every group of M elements along an axis, the N of largest magnitude.

    Of equal magnitudes the lower index is kept. A NaN, whatever its payload, counts as
    larger than Inf, so a group with a NaN keeps at least one NaN. Subnormals are not
    flushed, and -0 counts as +0.

    Args:
        x: of a dtype in `DTYPES`.
        pattern: N:M.
        axis: the contraction axis of the matmul.

    Raises:
        InvalidProgramError: unknown pattern, dtype without a sparse matmul, or no such
            axis.
    """
    pattern = get_pattern(pattern)
    axis = _checked_axis(x, axis)
    # Kept apart for the reason given in magnitude_ranks.
    values, tags = kept_apart(codes.compress(jnp.asarray(x), pattern, axis))
    return SparseArray(
        values=values, tags=tags, pattern=pattern, axis=axis, length=x.shape[axis]
    )


def magnitude_ranks(
    x: Array, pattern: str | SparsityPattern, *, axis: int = 0
) -> jax.Array:
    """Return the rank of every element in its group by magnitude, 0 for the largest, as
    uint8 of the shape of `x`. The order is that of `sparsify`, which keeps the ranks
    below N. Arguments and errors are those of `sparsify`."""
    pattern = get_pattern(pattern)
    # Kept apart, because XLA would compute x separately for both sides of a comparison,
    # once with a contracted multiply-add and once without, so an element would be
    # larger than itself.
    return kept_apart(codes.ranked(jnp.asarray(x), pattern, _checked_axis(x, axis)))


def expanded_rows(
    tags: Array, pattern: str | SparsityPattern, *, axis: int = 0
) -> jax.Array:
    """Return the index along K of every kept element: int32, the shape of the tags.
    If the last group has fewer than N rows, some indices are K or more (see
    `SparseArray`). The values there are +0, so pad the moving operand with zeros before
    gathering its rows."""
    return codes.rows(
        jnp.asarray(tags), get_pattern(pattern), negative(axis, tags.ndim)
    )


def _checked_axis(x: Array, axis: int) -> int:
    format_of(x)
    return negative(axis, x.ndim)


# The checks need concrete values; under `jit` the caller skips them.


def check_layout(
    values: Array, tags: Array, pattern: SparsityPattern, axis: int
) -> int:
    """Check `values` and `tags`, and return the number of groups along the axis."""
    if tags.dtype != np.uint8:
        raise InvalidProgramError(
            f"tags are {tags.dtype.name}, expected uint8",
            remedy="convert them with .astype('uint8')",
        )
    if values.shape != tags.shape:
        raise InvalidProgramError(
            f"values of shape {values.shape} with tags of shape {tags.shape}",
            remedy="give every value one tag",
        )
    groups, rest = divmod(values.shape[axis], pattern.kept)
    if rest:
        raise InvalidProgramError(
            f"axis {axis} has {values.shape[axis]} kept elements, but {pattern} keeps "
            f"{pattern.kept} of every group",
            remedy=f"append zeros until the axis has {(groups + 1) * pattern.kept} "
            "elements, with tags that the last group does not use",
        )
    return groups


def check_length(length: int, groups: int, pattern: SparsityPattern) -> None:
    full = groups * pattern.group
    if not full - pattern.group < length <= full:
        raise InvalidProgramError(
            f"length {length} does not fit {groups} groups of {pattern.group}",
            remedy=f"give a length from {max(full - pattern.group + 1, 0)} to {full}",
        )


def _first(bad: np.ndarray) -> tuple[int, ...] | None:
    if not bad.any():
        return None
    return tuple(int(i) for i in np.unravel_index(np.argmax(bad), bad.shape))


def check_tags(tags: np.ndarray, pattern: SparsityPattern, axis: int) -> None:
    """Refuse a tag out of range, or a tag that occurs twice in its group."""

    def group_of(index: tuple[int, ...]) -> str:
        return f"group {index[axis] // pattern.kept} of axis {axis} ({pattern})"

    index = _first(tags >= pattern.group)
    if index is not None:
        raise InvalidProgramError(
            f"tags{list(index)} is {tags[index]}, in {group_of(index)}",
            remedy=f"use as tags the positions from 0 to {pattern.group - 1}",
        )
    moved = np.moveaxis(tags, axis, -1)
    groups = _split_last(moved, pattern.kept)
    repeats = np.zeros(groups.shape, bool)
    for n in range(1, pattern.kept):
        repeats[..., n] = (groups[..., :n] == groups[..., n : n + 1]).any(axis=-1)
    index = _first(np.moveaxis(repeats.reshape(moved.shape), -1, axis))
    if index is not None:
        raise InvalidProgramError(
            f"tags{list(index)} is {tags[index]}, for the second time in "
            f"{group_of(index)}",
            remedy="give every kept element of a group a position of its own",
        )


def _is_zero(x: Array) -> np.ndarray:
    """Return where x is zero, by its codes: NumPy cannot compare some FP8 dtypes."""
    fmt = format_of(x)
    return np.asarray(x).view(fmt.code_dtype) & ((1 << (fmt.width - 1)) - 1) == 0


def check_beyond_end(
    values: Array, tags: np.ndarray, pattern: SparsityPattern, axis: int, length: int
) -> None:
    rows = np.asarray(rows_of(jnp.asarray(tags), pattern, axis))
    index = _first((rows >= length) & ~_is_zero(values))
    if index is not None:
        raise InvalidProgramError(
            f"values{list(index)} is {np.asarray(values)[index]}, but its position "
            f"{rows[index]} on axis {axis} is not below length {length}",
            remedy=f"make values 0 from position {length} on, or give a larger length=",
        )


def check_obeys(x: Array, pattern: SparsityPattern, axis: int) -> None:
    """Refuse an array with more than N nonzero elements in a group."""
    nonzero = np.moveaxis(~_is_zero(x), axis, -1)
    missing = -nonzero.shape[-1] % pattern.group
    nonzero = np.pad(nonzero, [(0, 0)] * (nonzero.ndim - 1) + [(0, missing)])
    counts = _split_last(nonzero, pattern.group).sum(axis=-1)
    counts = np.moveaxis(counts, -1, axis)
    index = _first(counts > pattern.kept)
    if index is not None:
        raise InvalidProgramError(
            f"group {index[axis]} of axis {axis}, at group index {list(index)}, has "
            f"{counts[index]} non-zero elements; {pattern} keeps {pattern.kept} of "
            f"{pattern.group}",
            remedy="prune with sparsify, or train as in examples/sparse_training.py",
        )


def _split_last(x: np.ndarray, size: int) -> np.ndarray:
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
