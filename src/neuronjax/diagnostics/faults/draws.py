"""More draws of perturbed data, for results that one draw does not excuse.

One draw says little about a sign that may flip or a sum of a few terms. So where a
result seems wrong, the reference runs again on other perturbations of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from neuronjax.diagnostics.faults.shares import Seen
from neuronjax.diagnostics.faults.units import Cast
from neuronjax.ir.program import Op

#: Number of draws for a doubtful result, the first one included.
DRAWS = 5


@dataclass
class LastResults:
    """A witness that ignores ops and keeps the results of main.

    Attributes:
        contractions: as at `Witness`.
    """

    contractions: Mapping[Op, Cast]
    hears_every_device: ClassVar[bool] = False
    results: tuple[Seen, ...] = ()

    def saw(self, *_: Any, **__: Any) -> None:
        """Ignore the op."""

    def repeated(self, op: Op, done: int, device: int) -> None:
        """Ignore the op."""

    def ended(self, results: Sequence[Seen]) -> None:
        """Keep the results."""
        self.results = tuple(results)


def with_draws(
    results: Sequence[Seen],
    doubtful: Collection[int],
    draw: Callable[[int], Sequence[Seen]],
) -> tuple[Seen, ...]:
    """Return the results, with `DRAWS` draws of perturbed data for the doubtful ones.

    Args:
        results: the results, each with one draw.
        doubtful: the indices of doubtful results.
        draw: runs the reference on data of another draw and returns its results.
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
