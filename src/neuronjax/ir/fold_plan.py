"""Plans of sums over devices: the order, and where partial sums are rounded.

A reduction over n ranks is data: a list of stages. Each stage turns every `width`
neighbouring partial sums into one, by a left fold in FP32 that is rounded to the
tensor's dtype where a rank stores its sum. `collectives.algorithms` builds plans, and
`execution.exchange_fold` executes them.

Three patterns suffice: a *star*, where one rank reads the data of all others and rounds
once; a *path*, along which a partial sum is sent from rank to rank; a *hypercube*,
where pairs of ranks add, then pairs of pairs. `nested` runs one pattern on every chip
(or node) and another over the results; `arranged` renames the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from neuronjax.errors import InvalidProgramError


@dataclass(frozen=True)
class Stage:
    """A stage in which every `width` neighbouring partial sums become one.

    A stage is a left fold in FP32 that takes `hop` partial sums at a time and rounds
    each time: a rank adds its data to the sum that it received, and stores the new sum.
    With a hop of 1 the first partial sum is only copied, and is not rounded."""

    width: int  # how many partial sums become one
    hop: int  # how many of them a rank adds at a time; it divides `width`

    def __post_init__(self) -> None:
        if self.width < 2 or self.hop < 1 or self.width % self.hop:
            raise InvalidProgramError(
                f"a stage cannot have width {self.width} and hop {self.hop}",
                remedy="use a width of 2 or more and a hop that divides the width",
            )

    @property
    def roundings(self) -> int:
        """Number of roundings of a sum in this stage."""
        return self.width // self.hop - (self.hop == 1)


@dataclass(frozen=True)
class FoldPlan:
    """A reduction over the ranks of a group.

    Raises:
        InvalidProgramError: the widths do not multiply to the number of ranks, a row is
            not a permutation of them, or the ranks have different numbers of rows.
    """

    algorithm: str  # the name in `collectives.algorithms`
    stages: tuple[Stage, ...]  # the stages, first to last; none for one rank
    #: The ranks, as indices into the group, in the order in which the first stage adds
    #: them. Either one row holds for the whole tensor, or every rank owns a part of it,
    #: with one row for each channel that carries a share of the part: the `channels`
    #: rows of rank r start at number r * `channels`.
    order: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        ranks = self.ranks
        if len(self.order) != 1 and (not self.order or len(self.order) % ranks):
            raise InvalidProgramError(
                f"{self}: {len(self.order)} orders do not fit {ranks} ranks",
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
        """Number of ranks of a group."""
        return prod(stage.width for stage in self.stages)

    @property
    def chunks(self) -> int:
        """Number of chunks of the tensor, each with an order of its own."""
        return len(self.order)

    @property
    def channels(self) -> int:
        """Number of sub-chunks per rank; each is reduced in its own rank order."""
        return max(1, self.chunks // self.ranks)

    @property
    def roundings(self) -> int:
        """Number of roundings of an element to the tensor's dtype."""
        return sum(stage.roundings for stage in self.stages)

    def order_of(self, owner: int, channel: int = 0) -> tuple[int, ...]:
        """Return the order of the ranks in the chunk of rank `owner` on one channel."""
        if self.chunks == 1:
            return self.order[0]
        return self.order[owner * self.channels + channel % self.channels]

    def __str__(self) -> str:
        stages = ",".join(f"{s.width}/{s.hop}" for s in self.stages)
        channels = f"x{self.channels}" if self.channels > 1 else ""
        return f"{self.algorithm}({stages}){channels}"


# -- patterns ------------------------------------------------------------------------


def star(ranks: int) -> FoldPlan:
    """Return the plan that reads all ranks at once, in order, and rounds once. A DMA
    engine adds at most 16 operands at a time (`nki.isa`, `dma_compute`); ASSUMPTION:
    more are added with the partial sum kept in FP32."""
    stages = (Stage(ranks, ranks),) if ranks > 1 else ()
    return FoldPlan("star", stages, (tuple(range(ranks)),))


def path(ranks: int, hop: int = 1) -> FoldPlan:
    """Return a closed path over groups of `hop` neighbouring ranks that add together;
    `hop` divides `ranks`. A sum starts after its owner's group, and ends in it."""
    if ranks == 1:
        return star(1)
    starts = ((owner // hop + 1) * hop for owner in range(ranks))
    order = (tuple((start + k) % ranks for k in range(ranks)) for start in starts)
    return FoldPlan("path", (Stage(ranks, hop),), tuple(order))


def hypercube(ranks: int, *, highest_first: bool) -> FoldPlan:
    """Return recursive halving of 2^n ranks: each stage adds up pairs of ranks whose
    numbers differ in one bit. The first stage takes the highest bit, and later ones the
    next lower bit, if `highest_first`; otherwise the bits rise from the lowest."""
    bits = ranks.bit_length() - 1
    order = tuple(range(ranks))
    if highest_first and bits:
        order = tuple(int(f"{k:0{bits}b}"[::-1], 2) for k in order)
    return FoldPlan("hypercube", (Stage(2, 2),) * bits, (order,))


def nested(inner: FoldPlan, outer: FoldPlan) -> FoldPlan:
    """Return `inner` within every one of `outer.ranks` groups, then `outer` over the
    groups. Rank k is number k % inner.ranks of group k // inner.ranks."""
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
    """Return the plan with `ranks[k]` in place of rank k, also as owner of a chunk."""
    rows = [tuple(ranks[k] for k in row) for row in plan.order]
    if plan.chunks == 1:
        return replace(plan, order=tuple(rows))
    place = {rank: k for k, rank in enumerate(ranks)}
    n = plan.channels
    order = [row for r in range(plan.ranks) for row in rows[place[r] * n :][:n]]
    return replace(plan, order=tuple(order))


def channelled(channels: Sequence[FoldPlan]) -> FoldPlan:
    """Return a plan that divides every rank's chunk equally among these plans. The
    plans differ only in their orders, and each has a row per rank."""
    first = channels[0]
    order = (plan.order_of(owner) for owner in range(first.ranks) for plan in channels)
    return replace(first, order=tuple(order))
