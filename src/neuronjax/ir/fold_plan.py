"""How a group of devices adds: the order, and where partial sums are rounded.

A reduction over n ranks is data. Stages follow each other; each turns every `width`
neighbouring partial sums into one, by a left fold in FP32 that is rounded to the
tensor's dtype wherever a rank stores what it has. `collectives.algorithms` builds
plans, `execution.exchange_fold` executes any of them. Steps of a reduce-scatter are as
many as roundings.

Three patterns suffice: a *star*, where one rank reads what all others have and rounds
once; a *path*, along which a partial sum travels from rank to rank; a *hypercube*,
where pairs of ranks add, then pairs of pairs. `nested` runs one pattern on every chip
(or node) and another over what they have; `arranged` says which ranks they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from neuronjax.errors import InvalidProgramError


@dataclass(frozen=True)
class Stage:
    """Every `width` neighbouring partial sums become one.

    A left fold in FP32 which takes `hop` partial sums at a time and is rounded each
    time: a rank adds what it has to what it received, and stores the sum. What is taken
    first, alone, is not rounded: it is a copy.

    Attributes:
        width: partial sums in, for one out.
        hop: how many of them a rank adds at a time; it divides `width`.

    Raises:
        InvalidProgramError: `hop` does not divide `width`.
    """

    width: int
    hop: int

    def __post_init__(self) -> None:
        if self.width < 2 or self.hop < 1 or self.width % self.hop:
            raise InvalidProgramError(
                f"a stage of width {self.width} and hop {self.hop}",
                remedy="use a width of 2 or more and a hop that divides it",
            )

    @property
    def roundings(self) -> int:
        """How often a sum is rounded on its way through the stage."""
        return self.width // self.hop - (self.hop == 1)


@dataclass(frozen=True)
class FoldPlan:
    """A reduction over the ranks of a group.

    Attributes:
        algorithm: the name in `collectives.algorithms`.
        stages: what happens to the partial sums, first to last; none for one rank.
        order: the ranks, as indices into the group, in the order in which the first
            stage meets them. A row for every chunk of the tensor: what rank r is the
            owner of has the rows from r * `channels` on, one for each channel that
            carries a part of it. Or a single row for all of the tensor.

    Raises:
        InvalidProgramError: the widths do not multiply to the number of ranks, or a row
            is no permutation of them, or there are not equally many for all ranks.
    """

    algorithm: str
    stages: tuple[Stage, ...]
    order: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        ranks = self.ranks
        if len(self.order) != 1 and (not self.order or len(self.order) % ranks):
            raise InvalidProgramError(
                f"{self}: {len(self.order)} orders for {ranks} ranks",
                remedy="give one order, or one for every rank and channel",
            )
        for row in self.order:
            if sorted(row) != list(range(ranks)):
                raise InvalidProgramError(
                    f"{self}: {row} is no permutation of {ranks} ranks",
                    remedy="name every rank once",
                )

    @property
    def ranks(self) -> int:
        """How many ranks a group has."""
        return prod(stage.width for stage in self.stages)

    @property
    def chunks(self) -> int:
        """Into how many chunks, each with an order of its own, the tensor is split."""
        return len(self.order)

    @property
    def channels(self) -> int:
        """Into how many chunks, with different orders, that of one rank is split."""
        return max(1, self.chunks // self.ranks)

    @property
    def roundings(self) -> int:
        """How often an element is rounded to the tensor's dtype on its way."""
        return sum(stage.roundings for stage in self.stages)

    def order_of(self, owner: int, channel: int = 0) -> tuple[int, ...]:
        """The order of the ranks in the chunk of rank `owner` on one channel."""
        if self.chunks == 1:
            return self.order[0]
        return self.order[owner * self.channels + channel % self.channels]

    def __str__(self) -> str:
        stages = ",".join(f"{s.width}/{s.hop}" for s in self.stages)
        channels = f"x{self.channels}" if self.channels > 1 else ""
        return f"{self.algorithm}({stages}){channels}"


# -- patterns ------------------------------------------------------------------------


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
