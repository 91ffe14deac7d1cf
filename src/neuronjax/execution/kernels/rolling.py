"""Re-rolling: runs of equal neighbours become loops over tables.

An unrolled loop repeats the signatures of its body. `roll` folds inner loops first: all
repetitions of the shortest period, then those of the next longer one. The number
of repetitions is not part of a signature, so triangular loops fold too. A list that
stays long because its iterations differ (tiles at the edge of a mask) becomes a
dispatch: a loop over positions that contains each kind of element once. `tabulate` then
makes one node, with a table of rows, of equal elements. Offsets need not be affine.
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

# Longer periods are not searched.
LONGEST_PERIOD = 2048
# A run becomes a loop if that saves this many instructions.
FEWEST_SAVED = 4
# The fewest elements of a `Dispatch`, in all and per kind. A `Dispatch` tests the kind
# of each element: faster than compiling the element, but slower than running it.
FEWEST_DISPATCHED = 200
FEWEST_OF_A_KIND = 4


def roll(elements: Sequence[Element], numbering: Numbering) -> list[Element]:
    """Return the elements with repeats folded, first in the bodies of device loops."""
    items = [_inner(e, numbering) for e in elements]
    period = 1
    while period <= min(len(items) // 2, LONGEST_PERIOD):
        folded = _fold(items, period, numbering)
        if folded is None:
            period += 1
        else:
            # Shorter periods may repeat after folding.
            items, period = folded, 1
    return _dispatched(items, numbering)


def _dispatched(items: list[Element], numbering: Numbering) -> list[Element]:
    """Return one `Dispatch` for a long list of a few kinds, or else the list."""
    kinds = {key: n for n, key in enumerate(dict.fromkeys(e.key for e in items))}
    if len(items) < FEWEST_DISPATCHED or len(items) < FEWEST_OF_A_KIND * len(kinds):
        return items
    order = tuple(kinds[e.key] for e in items)
    counts = [0] * len(kinds)
    ordinals = []
    for kind in order:
        ordinals.append(counts[kind])
        counts[kind] += 1
    dispatch = Dispatch(order, tuple(ordinals), tuple(counts))
    key = numbering.of((dispatch, tuple(kinds)))
    return [Element(dispatch, key, turns=[items])]


def _inner(e: Element, numbering: Numbering) -> Element:
    if not isinstance(e.kind, Counted | Conditional):
        return e
    body = roll(e.turns[0], numbering)
    key = numbering.of((e.kind, tuple(b.key for b in body)))
    return Element(e.kind, key, e.ints, e.floats, [body])


def _fold(
    items: list[Element], period: int, numbering: Numbering
) -> list[Element] | None:
    """Return the items with all runs of one period folded, or None if there is none."""
    keys = np.array([e.key for e in items])
    equal = keys[:-period] == keys[period:]
    # (start, length) of stretches of True of at least `period`.
    padded = np.concatenate([[False], equal, [False]])
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    starts, ends = edges[::2], edges[1::2]
    long = ends - starts >= period
    runs = list(zip(starts[long].tolist(), (ends - starts)[long].tolist(), strict=True))
    if not runs:
        return None
    result: list[Element] = []
    done = 0
    for start, length in runs:
        count = length // period + 1
        weight = sum(map(_weight, items[start : start + period]))
        if start < done or (count - 1) * weight < FEWEST_SAVED:
            continue
        result += items[done:start]
        done = start + count * period
        result.append(_repeat(items[start:done], period, numbering))
    if not done:
        return None
    return [*result, *items[done:]]


def _weight(e: Element) -> int:
    if isinstance(e.kind, KernelStep):
        return 1
    return 1 + sum(map(_weight, e.turns[0]))


def _repeat(items: list[Element], period: int, numbering: Numbering) -> Element:
    turns = [items[n : n + period] for n in range(0, len(items), period)]
    key = numbering.of((Repeat(), tuple(e.key for e in turns[0])))
    return Element(Repeat(), key, turns=turns)


class Node(NamedTuple):
    """Equal elements, with one row for each execution.

    Attributes:
        ints, floats: int32 and float32 [instances, columns].
        starts: for a repeat, the number of the first iteration of each instance.
        counts: for a repeat, the number of iterations of each instance.
        body: the nodes of the body, whose instances are all iterations of all
            instances; for a dispatch one node for each kind.
    """

    kind: KernelStep | Counted | Conditional | Repeat | Dispatch
    ints: np.ndarray
    floats: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    body: tuple[Node, ...]


def tabulate(instances: Sequence[Element]) -> Node:
    """Return the node of elements of one signature, in the order of execution."""
    first = instances[0]
    counts = np.array([len(e.turns) for e in instances], np.int32)
    turns = [turn for e in instances for turn in e.turns]
    if isinstance(first.kind, Dispatch):
        body = tuple(map(tabulate, _by_kind(first.kind, turns)))
    else:  # all bodies have the same length, and their n-th elements are equal
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
    elements: list[list[Element]] = [[] for _ in dispatch.counts]
    for turn in turns:
        for kind, element in zip(dispatch.kinds, turn, strict=True):
            elements[kind].append(element)
    return elements
