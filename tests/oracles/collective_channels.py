"""Rings with several channels, and the ragged exchange: more of `collectives`.

Points 1 to 3 of its list say what is assumed.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable

import numpy as np

from tests.oracles.collectives import (
    DEFAULT,
    Algorithm,
    Arithmetic,
    Group,
    Groups,
    cut,
    run,
    split,
)

# Collective facts, section 1.3.
CYCLES = (
    "0 12 8 4 7 3 15 11 10 6 2 14 13 9 5 1",
    "0 4 5 6 7 11 8 9 10 14 15 12 13 1 2 3",
)


def ring_paths(group: Group, ranks_per_chip: int, *, by_chip: bool) -> list[list[int]]:
    """The group along each channel; `by_chip`: never back to a chip."""
    chips: dict[int, list[int]] = collections.defaultdict(list)
    for rank in group:
        chips[rank // ranks_per_chip].append(rank)
    if sorted(chips) == list(range(16)):
        a, b = ([r for c in way.split() for r in chips[int(c)]] for way in CYCLES)
        return [a, b[::-1], a[::-1], b]
    path = list(itertools.chain(*chips.values())) if by_chip else list(group)
    return [path, path[::-1]]


def all_reduce_around(
    x: np.ndarray,
    groups: Groups,
    algorithm: Algorithm,
    paths: Callable[[Group], Groups],
    how: Arithmetic = DEFAULT,
) -> np.ndarray:
    """`all_reduce` of a ring with several channels; `paths` of a group, by channel."""
    flat = x.reshape(len(x), -1)
    out = np.empty_like(flat)
    for group in groups:
        channels = paths(group)
        pieces = split(range(flat.shape[1]), len(group) * len(channels))
        for k, path in enumerate(channels):
            mine = dict(zip(group, pieces[k :: len(channels)], strict=True))
            parts = {r: {o: flat[r, p] for o, p in mine.items()} for r in group}
            machine = run(parts, path, algorithm, how)
            for owner, piece in mine.items():
                out[np.ix_(group, piece)] = machine.memory[owner][owner].values
    return out.reshape(x.shape)


def reduce_scatter_around(
    x: np.ndarray,
    groups: Groups,
    dimension: int,
    algorithm: Algorithm,
    paths: Callable[[Group], Groups],
    how: Arithmetic = DEFAULT,
) -> np.ndarray:
    """`reduce_scatter` of a ring with several channels."""
    out: dict[int, np.ndarray] = {}
    for group in groups:
        channels = paths(group)
        cuts = {r: cut(x[r], group, dimension) for r in group}
        shape = cuts[group[0]][group[0]].shape
        pieces = split(range(int(np.prod(shape))), len(channels))
        found = {r: [] for r in group}
        for path, piece in zip(channels, pieces, strict=True):
            parts = {r: {o: c.ravel()[piece] for o, c in cuts[r].items()} for r in path}
            memory = run(parts, path, algorithm, how).memory
            for rank in group:
                found[rank].append(memory[rank][rank].values)
        out |= {r: np.concatenate(f).reshape(shape) for r, f in found.items()}
    return np.stack([out[rank] for rank in range(len(x))])


def ragged_all_to_all(
    operand: np.ndarray,
    output: np.ndarray,
    input_offsets: np.ndarray,
    send_sizes: np.ndarray,
    output_offsets: np.ndarray,
    groups: Groups,
) -> np.ndarray:
    """Message by message, as `jax.lax.ragged_all_to_all` describes; x[rank, ...]."""
    out = output.copy()
    for group in groups:
        each = input_offsets.shape[1] // len(group)
        for sender in group:
            for i, start in enumerate(input_offsets[sender]):
                size, at = send_sizes[sender, i], output_offsets[sender, i]
                part = operand[sender, start : start + size]
                out[group[i // each], at : at + size] = part
    return out
