"""The throttle that slows TensorE after low use, on NeuronCore-v3 and v4.

The throttle limits the array's rate to a fraction of the full rate. After idle time
the limit is 50 %. While the array's use is 50 % or more, the limit rises, to 100 % in
3 us; while it is less, the limit falls. This prevents jumps of electric current [GL].

ASSUMPTION: the use is the limit times the fraction of the array's rows that a matmul
occupies, and the limit falls in proportion to the difference between the use and 50 %.
With fewer than half of the rows, the use is always below 50 %, so the limit never
rises: FP32 products of one row take eight cycles a column, not four (mamba [KDA]). With
half of the rows, the use is 50 % if the limit is 100 %, but after a gap has lowered the
limit, the use is lower and the limit falls further: FP32 products of 64 rows take one
to two times the time at the full rate (bmm [KDA]).
"""

from __future__ import annotations

from math import inf, sqrt

from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.task import has
from neuronjax.timing.work import Core


def is_throttled(core: Core) -> bool:
    return has(core, "quarter_tiling")


def after_idle_seconds(core: Core, busy_seconds: float) -> float:
    """Return by how many seconds the throttle delays matmuls that follow a pause; 0 on
    a core without throttle.

    The matmuls use all rows of the array and take `busy_seconds` at the full rate."""
    if not is_throttled(core):
        return 0.0
    return Throttle().spent(0.0, busy_seconds, 1.0) - busy_seconds


def is_idle(seconds: float) -> bool:
    """Return whether a pause of `seconds` between matmuls brings the array's limit back
    to 50 % of the full rate: the pause is longer than half of `THROTTLE_SECONDS`."""
    return seconds > a.THROTTLE_SECONDS.value * (1 - a.THROTTLE_LIMIT.value)


class Throttle:
    """The state of one array's throttle; `spent` is called for each matmul in order.

    Attributes:
        lost_seconds: by how much the throttle has delayed matmuls so far.
    """

    def __init__(self) -> None:
        self.lost_seconds = 0.0
        self._ramped = 0.0  # seconds for which the limit has risen
        self._end = -inf  # end of the last matmul

    def spent(self, start: float, seconds: float, share: float) -> float:
        """Return how long a matmul that begins at `start` takes, in seconds, and change
        the limit of TensorE's rate accordingly.

        `seconds` is the matmul's time at the full rate, `share` the fraction of the
        array's rows that the matmul uses."""
        if not seconds:
            return 0.0
        least = a.THROTTLE_LIMIT.value
        gap = start - self._end
        if is_idle(gap):
            self._ramped = 0.0
        else:
            self._sink(least, gap)
        limit = least + (1 - least) * self._ramped / a.THROTTLE_SECONDS.value
        if share * limit < least:
            taken = seconds / limit
            self._sink(least - share * limit, taken)
        else:
            taken = self._rise(seconds, limit)
        self._end = start + taken
        self.lost_seconds += taken - seconds
        return taken

    def _sink(self, lack: float, seconds: float) -> None:
        lost = a.THROTTLE_SINKING.value * lack * seconds
        self._ramped = max(0.0, self._ramped - lost)

    def _rise(self, seconds: float, limit: float) -> float:
        window = a.THROTTLE_SECONDS.value
        slope = (1 - a.THROTTLE_LIMIT.value) / window
        rest = window - self._ramped
        meanwhile = rest * (1 + limit) / 2
        if seconds >= meanwhile:
            self._ramped = window
            return rest + seconds - meanwhile
        taken = (sqrt(limit * limit + 2 * slope * seconds) - limit) / slope
        self._ramped += taken
        return taken
