"""How a group of devices adds: the order, and where partial sums are rounded.

A reduction over n ranks is data. Stages follow each other; each turns every `width`
neighbouring partial sums into one, by a left fold in FP32 that is rounded to the
tensor's dtype wherever a rank stores what it has. `collectives.algorithms` builds
plans, `collectives.fold` executes any of them. Steps of a reduce-scatter are as many as
roundings.
"""

from __future__ import annotations

from dataclasses import dataclass
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
