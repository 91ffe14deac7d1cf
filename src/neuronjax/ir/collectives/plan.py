"""The fold plans that algorithms are made of, and how two of them nest.

Three patterns suffice: a *star*, where one rank reads what all others have and rounds
once; a *path*, along which a partial sum travels from rank to rank; a *hypercube*,
where pairs of ranks add, then pairs of pairs. `nested` runs one pattern on every chip
(or node) and another over what they have; `arranged` says which ranks they are.
Plans name ranks by their index into the group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from neuronjax.ir.fold_plan import FoldPlan, Stage


def star(ranks: int) -> FoldPlan:
    """Everything is read at once, in order, and rounded once.

    A DMA engine adds at most 16 operands at a time (`nki.isa`, `dma_compute`);
    ASSUMPTION: more than that are added with the partial sum kept in FP32.
    """
    stages = (Stage(ranks, ranks),) if ranks > 1 else ()
    return FoldPlan("star", stages, (tuple(range(ranks)),))


def path(ranks: int, hop: int = 1) -> FoldPlan:
    """A closed path: the sum starts behind the owner's place and ends there.

    Args:
        ranks: how many.
        hop: how many neighbouring ranks share a place and add together; divides
            `ranks`.
    """
    if ranks == 1:
        return star(1)
    order = []
    for owner in range(ranks):
        start = (owner // hop + 1) * hop
        order.append(tuple((start + k) % ranks for k in range(ranks)))
    return FoldPlan("path", (Stage(ranks, hop),), tuple(order))


def hypercube(ranks: int, *, highest_first: bool) -> FoldPlan:
    """Pairs whose numbers differ in one bit add, bit after bit: recursive halving.

    Args:
        ranks: a power of two.
        highest_first: whether the first pairs differ in the highest bit or the lowest.
    """
    bits = ranks.bit_length() - 1
    order = tuple(range(ranks))
    if highest_first and bits:
        order = tuple(int(f"{k:0{bits}b}"[::-1], 2) for k in order)
    return FoldPlan("hypercube", (Stage(2, 2),) * bits, (order,))


def nested(inner: FoldPlan, outer: FoldPlan) -> FoldPlan:
    """`inner` within every one of `outer.ranks` places, then `outer` over the places.

    Rank k is the k-th over all places: number k % inner.ranks of its place.
    """
    width = inner.ranks
    channels = math.lcm(inner.channels, outer.channels)
    rows = 1 if inner.chunks == outer.chunks == 1 else width * outer.ranks * channels
    order = []
    for row in range(rows):
        owner, channel = divmod(row, channels)
        place, number = divmod(owner, width)
        within = inner.order_of(number, channel)
        between = outer.order_of(place, channel)
        order.append(tuple(p * width + k for p in between for k in within))
    stages = (*inner.stages, *outer.stages)
    return FoldPlan(f"{inner.algorithm}+{outer.algorithm}", stages, tuple(order))


def arranged(plan: FoldPlan, ranks: Sequence[int]) -> FoldPlan:
    """The plan with `ranks[k]` in place of rank k, as owner of a chunk too."""
    rows = [tuple(ranks[k] for k in row) for row in plan.order]
    if plan.chunks == 1:
        return replace(plan, order=tuple(rows))
    place = {rank: k for k, rank in enumerate(ranks)}
    n = plan.channels
    order = [row for r in range(plan.ranks) for row in rows[place[r] * n :][:n]]
    return replace(plan, order=tuple(order))


def channelled(channels: Sequence[FoldPlan]) -> FoldPlan:
    """Every rank's chunk in equal parts, one for each of these plans.

    Args:
        channels: plans that differ in their orders alone, each with a row per rank.
    """
    first = channels[0]
    order = (plan.order_of(owner) for owner in range(first.ranks) for plan in channels)
    return replace(first, order=tuple(order))


def named(plan: FoldPlan, algorithm: str) -> FoldPlan:
    """The plan under the name of an algorithm."""
    return replace(plan, algorithm=algorithm)
