"""More draws of perturbed data, for results that one draw does not excuse.

A sign that flips, or a sum of a few terms, is not what a single draw tells. So where a
result seems wrong, the reference runs again on data that are moved otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from neuronjax.diagnostics.faults.shares import Seen
from neuronjax.diagnostics.faults.units import Cast
from neuronjax.ir.program import Op

#: How many draws there are of a result in doubt.
DRAWS = 5


@dataclass
class LastResults:
    """A witness that looks at no op, and keeps the results of main.

    Attributes:
        contractions: as at `Witness`.
    """

    contractions: Mapping[Op, Cast]
    hears_every_device: ClassVar[bool] = False
    results: tuple[Seen, ...] = ()

    def saw(self, *_: Any, **__: Any) -> None:
        """Look at nothing."""

    def repeated(self, op: Op, done: int, device: int) -> None:
        """Look at nothing."""

    def ended(self, results: Sequence[Seen]) -> None:
        """Keep the results."""
        self.results = tuple(results)


def with_draws(
    results: Sequence[Seen],
    doubtful: Collection[int],
    draw: Callable[[int], Sequence[Seen]],
) -> tuple[Seen, ...]:
    """Return results of which the doubtful ones have `DRAWS` draws.

    Args:
        results: each with one draw.
        doubtful: the indices of some.
        draw: runs the reference on other data, and returns what it makes of them.
    """
    drawn = {n: [*results[n].perturbed] for n in doubtful}
    for number in range(1, DRAWS):
        again = draw(number)
        for n, arrays in drawn.items():
            arrays += again[n].perturbed
    return tuple(
        seen._replace(perturbed=tuple(drawn.get(n, seen.perturbed)))
        for n, seen in enumerate(results)
    )
