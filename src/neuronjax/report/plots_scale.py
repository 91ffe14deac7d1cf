"""Where a logarithmic axis may begin, so that a few points do not stretch it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_GAP = 30.0
#: What is left below the axis at most, of all weights.
_MOST_BELOW = 0.1


def axis_floor(
    values: Sequence[float], weights: Sequence[float] | None = None
) -> float:
    """The smallest of the positive values that the axis shows.

    It is the smallest of all, unless those of a tenth of the weight at most lie below
    a gap of more than a decade and a half: then it is the first one above the gap.
    """
    weights = [1.0] * len(values) if weights is None else weights
    pairs = sorted(
        (v, w) for v, w in zip(values, weights, strict=True) if 0 < v < math.inf
    )
    whole = sum(w for _, w in pairs)
    floor, below = pairs[0][0], 0.0
    for (value, weight), (above, _) in itertools.pairwise(pairs):
        below += weight
        if below > _MOST_BELOW * whole:
            break
        if above > _GAP * value:
            floor = above
    return floor
