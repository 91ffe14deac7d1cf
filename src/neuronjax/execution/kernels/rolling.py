"""Re-rolling: runs of equal neighbours become loops over tables.

An unrolled loop leaves the signatures of its body over and over. `roll` folds them from
the inside: the shortest period that repeats anywhere is folded first, everywhere, then
the next, so that nests come back. How often a run repeats is no part of its signature:
triangular loops fold too. What stays long because its turns differ (tiles at the edge
of a mask) is dispatched: a loop over positions, each kind of element in it once.
`tabulate` then turns equal elements into one node with a table of rows. Offsets need
not be affine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from neuronjax.execution.kernels.splitting import (
    Conditional,
    Counted,
    Dispatch,
    Element,
    KernelStep,
    Numbering,
    Repeat,
)

# Periods longer than this are not looked for.
LONGEST_PERIOD = 2048
# A run is worth a loop if it saves so many instructions.
FEWEST_SAVED = 4
# A dispatch asks at every position which kind it is: less than an instruction takes to
# compile, more than it takes to run.
FEWEST_DISPATCHED = 200
FEWEST_OF_A_KIND = 4


def roll(elements: Sequence[Element], numbering: Numbering) -> list[Element]:
    """The same elements, with repeats folded; bodies of device loops first."""
    items = [_inner(e, numbering) for e in elements]
    period = 1
    while period <= min(len(items) // 2, LONGEST_PERIOD):
        folded = _fold(items, period, numbering)
        if folded is None:
            period += 1
        else:
            # Shorter periods may repeat now.
            items, period = folded, 1
    return _dispatched(items, numbering)


def _dispatched(items: list[Element], numbering: Numbering) -> list[Element]:
    """A long list of a few kinds as one element."""
    kinds: dict[int, int] = {}
    for e in items:
        kinds.setdefault(e.key, len(kinds))
    if len(items) < FEWEST_DISPATCHED or len(items) < FEWEST_OF_A_KIND * len(kinds):
        return items
    order = tuple(kinds[e.key] for e in items)
    counts = [0] * len(kinds)
    ordinals = []
    for kind in order:
        ordinals.append(counts[kind])
        counts[kind] += 1
    found = Dispatch(order, tuple(ordinals), tuple(counts))
    key = numbering.of((found, tuple(kinds)))
    return [Element(found, key, turns=[items])]


def _inner(e: Element, numbering: Numbering) -> Element:
    if not isinstance(e.kind, Counted | Conditional):
        return e
    body = roll(e.turns[0], numbering)
    key = numbering.of((e.kind, tuple(b.key for b in body)))
    return Element(e.kind, key, e.ints, e.floats, [body])


def _fold(
    items: list[Element], period: int, numbering: Numbering
) -> list[Element] | None:
    """All runs of one period folded, None if there is none."""
    keys = np.array([e.key for e in items])
    equal = keys[:-period] == keys[period:]
    runs = _runs(equal, period)
    if not runs:
        return None
    result: list[Element] = []
    done = 0
    for start, length in runs:
        count = length // period + 1
        if start < done or not _is_worth(items[start : start + period], count):
            continue
        result += items[done:start]
        done = start + count * period
        result.append(_repeat(items[start:done], period, numbering))
    if not done:
        return None
    return [*result, *items[done:]]


def _runs(equal: np.ndarray, period: int) -> list[tuple[int, int]]:
    """(start, length) of stretches of True of at least `period`."""
    padded = np.concatenate([[False], equal, [False]])
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    starts, ends = edges[::2], edges[1::2]
    long = ends - starts >= period
    return list(zip(starts[long].tolist(), (ends - starts)[long].tolist(), strict=True))


def _is_worth(body: list[Element], count: int) -> bool:
    return (count - 1) * sum(map(_weight, body)) >= FEWEST_SAVED


def _weight(e: Element) -> int:
    if isinstance(e.kind, KernelStep):
        return 1
    return 1 + sum(map(_weight, e.turns[0]))


def _repeat(items: list[Element], period: int, numbering: Numbering) -> Element:
    turns = [items[n : n + period] for n in range(0, len(items), period)]
    key = numbering.of((Repeat(), tuple(e.key for e in turns[0])))
    return Element(Repeat(), key, turns=turns)


class Node(NamedTuple):
    """Equal elements of which each execution has a row.

    Attributes:
        kind: what they are.
        ints: int32 [instances, columns].
        floats: float32 [instances, columns].
        starts: of a repeat, the first turn of each instance; turns are numbered on.
        counts: of a repeat, how many turns each instance has.
        body: nodes of the body, of which the instances are all turns of all instances;
            of a dispatch one for each kind, with the elements of all instances.
    """

    kind: KernelStep | Counted | Conditional | Repeat | Dispatch
    ints: np.ndarray
    floats: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    body: tuple[Node, ...]


def tabulate(instances: Sequence[Element]) -> Node:
    """The node of elements of one signature, in the order in which they execute."""
    first = instances[0]
    counts = np.array([len(e.turns) for e in instances], np.int32)
    turns = [turn for e in instances for turn in e.turns]
    if isinstance(first.kind, Dispatch):
        body = tuple(map(tabulate, _by_kind(first.kind, turns)))
    else:  # bodies of equal length, of which the n-th elements are equal each
        body = tuple(tabulate(column) for column in zip(*turns, strict=True))
    return Node(
        first.kind,
        np.array([e.ints for e in instances], np.int32).reshape(len(instances), -1),
        np.array([e.floats for e in instances], np.float32).reshape(len(instances), -1),
        (np.cumsum(counts) - counts).astype(np.int32),
        counts,
        body,
    )


def _by_kind(dispatch: Dispatch, turns: Sequence[list[Element]]) -> list[list[Element]]:
    found: list[list[Element]] = [[] for _ in dispatch.counts]
    for turn in turns:
        for kind, element in zip(dispatch.kinds, turn, strict=True):
            found[kind].append(element)
    return found
