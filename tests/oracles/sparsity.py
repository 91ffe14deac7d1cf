"""N:M structured sparsity by magnitude, group by group in a Python loop.

Each group of M neighbours keeps its N largest magnitudes: a NaN is larger than Inf, and
of equals the lower index stays. FP32 subnormals compare by what they are. A kept
element carries its position in the group, its tag; kept elements stay in order of
position (the vendor is silent: hardware facts, section 6). The last group is padded
with +0.
"""

from __future__ import annotations

import math

import numpy as np


def kept(group: list[float], n: int) -> list[int]:
    """Positions of the n elements that stay, in ascending order."""
    ranks = [
        (0, 0.0, i) if math.isnan(x) else (1, -abs(x), i) for i, x in enumerate(group)
    ]
    return sorted(i for _, _, i in sorted(ranks)[:n])


def sparsify(
    x: np.ndarray, n: int, m: int, *, axis: int = -1
) -> tuple[np.ndarray, np.ndarray]:
    """The kept elements and their tags.

    Args:
        x: Any float dtype, of any rank >= 1.
        n: Elements kept of each group.
        m: Neighbours in a group.
        axis: Along which the groups lie.

    Returns:
        Values, of the dtype of x, and tags, uint8 in [0, m): both of the shape of x
        with n * ceil(K / m) in place of the axis' length K.
    """
    groups = _groups(x, m, axis)
    rows = groups.astype(np.float64).reshape(-1, m).tolist()
    tags = np.array([kept(row, n) for row in rows], np.uint8).reshape(-1, n)
    tags = tags.reshape(*groups.shape[:-1], n)
    values = np.take_along_axis(groups, tags.astype(np.intp), -1)
    flat = (*groups.shape[:-2], groups.shape[-2] * n)
    return (
        np.moveaxis(values.reshape(flat), -1, axis),
        np.moveaxis(tags.reshape(flat), -1, axis),
    )


def densify(
    values: np.ndarray,
    tags: np.ndarray,
    n: int,
    m: int,
    *,
    length: int,
    axis: int = -1,
) -> np.ndarray:
    """The array of `length` along the axis that has +0 where nothing was kept.

    Raises:
        ValueError: A group has a tag twice.
    """
    values, tags = (np.moveaxis(a, axis, -1) for a in (values, tags))
    lead, count = values.shape[:-1], values.shape[-1] // n
    out = np.zeros((math.prod(lead) * count, m), values.dtype)
    pairs = zip(tags.reshape(-1, n).tolist(), values.reshape(-1, n), strict=True)
    for row, (places, numbers) in zip(out, pairs, strict=True):
        if len(set(places)) != n:
            raise ValueError(f"a group of {m} has the tags {places}")
        row[places] = numbers
    return np.moveaxis(out.reshape(*lead, count * m)[..., :length], -1, axis)


def _groups(x: np.ndarray, m: int, axis: int) -> np.ndarray:
    """[..., groups, m], padded with +0."""
    x = np.moveaxis(np.asarray(x), axis, -1)
    padding = np.zeros((*x.shape[:-1], -x.shape[-1] % m), x.dtype)
    padded = np.concatenate([x, padding], -1)
    return padded.reshape(*x.shape[:-1], padded.shape[-1] // m, m)
