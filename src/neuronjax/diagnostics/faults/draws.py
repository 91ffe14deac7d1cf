"""More draws (random perturbations) of the data, for results that seem wrong.

In one draw, a sign that could flip may stay, and a sum of a few terms may hardly
change. So the float64 reference runs on more draws before a result counts as wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from neuronjax.diagnostics.faults.shares import Seen

#: Number of draws for a doubtful result, including the first draw.
DRAWS = 5


def with_draws(
    results: Sequence[Seen],
    doubtful: Collection[int],
    draw: Callable[[int], Sequence[Seen]],
) -> tuple[Seen, ...]:
    """Return `results`, with `DRAWS` perturbed arrays at the indices in `doubtful`.

    `draw(n)` returns the results of the float64 reference on data of perturbation `n`.
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
