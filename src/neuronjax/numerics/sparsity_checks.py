"""What can be wrong with parts of a sparse array, and with an array to be one.

Every check raises InvalidProgramError, which names the first offending index. They look
at concrete values: under `jit` there are none, and the caller leaves them out.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.sparsity_codes import rows as rows_of
from neuronjax.numerics.sparsity_pattern import Array, SparsityPattern, format_of


def check_dtype(name: str, x: Array, dtype: Any) -> None:
    if x.dtype != dtype:
        raise InvalidProgramError(
            f"{name} are {x.dtype.name}, expected {np.dtype(dtype).name}",
            remedy=f"convert them with .astype({np.dtype(dtype).name!r})",
        )


def check_layout(
    values: Array, tags: Array, pattern: SparsityPattern, axis: int
) -> int:
    """Returns the number of groups along the axis."""
    check_dtype("tags", tags, np.uint8)
    if values.shape != tags.shape:
        raise InvalidProgramError(
            f"values of shape {values.shape} with tags of shape {tags.shape}",
            remedy="give every value one tag",
        )
    groups, rest = divmod(values.shape[axis], pattern.kept)
    if rest:
        raise InvalidProgramError(
            f"{values.shape[axis]} kept elements along axis {axis}, but {pattern} "
            f"keeps {pattern.kept} of every group",
            remedy=f"fill the last group up to {(groups + 1) * pattern.kept} elements "
            "with zeros at free positions",
        )
    return groups


def check_length(length: int, groups: int, pattern: SparsityPattern) -> None:
    full = groups * pattern.group
    if not full - pattern.group < length <= full:
        raise InvalidProgramError(
            f"length {length} with {groups} groups of {pattern.group}",
            remedy=f"give a length from {max(full - pattern.group + 1, 0)} to {full}",
        )


def _first(bad: np.ndarray) -> tuple[int, ...] | None:
    """The first index, in row-major order, at which `bad` is true."""
    if not bad.any():
        return None
    return tuple(int(i) for i in np.unravel_index(np.argmax(bad), bad.shape))


def check_tags(tags: np.ndarray, pattern: SparsityPattern, axis: int) -> None:
    """Every tag in range, and none twice in its group."""

    def group_of(index: tuple[int, ...]) -> str:
        return f"group {index[axis] // pattern.kept} of axis {axis} ({pattern})"

    index = _first(tags >= pattern.group)
    if index is not None:
        raise InvalidProgramError(
            f"tags{list(index)} is {tags[index]}, in {group_of(index)}",
            remedy=f"tags are positions from 0 to {pattern.group - 1}",
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
    """By code: NumPy compares some of the FP8 dtypes only after a conversion."""
    fmt = format_of(x)
    return np.asarray(x).view(fmt.code_dtype) & ((1 << (fmt.width - 1)) - 1) == 0


def check_beyond_end(
    values: Array, tags: np.ndarray, pattern: SparsityPattern, axis: int, length: int
) -> None:
    rows = np.asarray(rows_of(jnp.asarray(tags), pattern, axis))
    index = _first((rows >= length) & ~_is_zero(values))
    if index is not None:
        raise InvalidProgramError(
            f"values{list(index)} is {np.asarray(values)[index]} at row {rows[index]} "
            f"of {length}, in group {index[axis] // pattern.kept} of axis {axis}",
            remedy=f"keep rows up to {length - 1}, or zeros beyond; or give length=",
        )


def check_obeys(x: Array, pattern: SparsityPattern, axis: int) -> None:
    """At most N non-zero elements in every group."""
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
            remedy="prune it with sparsify, or train it: examples/sparse_training.py",
        )


def _split_last(x: np.ndarray, size: int) -> np.ndarray:
    """[..., groups, size]; no -1, for there may be none."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
