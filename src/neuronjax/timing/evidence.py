"""Confidence intervals of predicted times, from times measured on chips.

`measured_times.json` holds measured times and this model's predictions of them, written
by `python -m benchmarks.evidence`. A new prediction is taken to be as uncertain as the
predictions of the most similar measured times: same kind, similar length, the same
queues busy. The measured times are the vendor's published times and baselines, and
those of the source KDA (`assumptions` lists the sources).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import QUEUES, Core

#: What was profiled: a program in JAX, or a kernel of NKI by itself.
Kind = Literal["program", "kernel"]
#: The number of measured times from which an interval is made, and the probability that
#: the interval contains a further ratio (measured / predicted). This ratio is equally
#: likely in each of the 20 gaps around 19 sorted ratios; the interval leaves out two
#: gaps at each end.
ROWS, COVERED = 19, 0.8
#: How much a factor of ten in time, another LNC and another chip each add to the
#: distance of two programs. A queue that is always busy in one program and idle in the
#: other adds 1.
_DECADE, _OTHER_CORES, _OTHER_CHIP = 1.0, 0.5, 1.0


@dataclass(frozen=True, kw_only=True)
class MeasuredTime:
    """A time measured on a chip, and the model's prediction of it.

    Attributes:
        shares: by queue, the fraction of the predicted time in which the queue works.
    """

    name: str
    kind: Kind
    chip: str
    lnc: int
    measured_seconds: float
    predicted_seconds: float
    shares: Mapping[str, float]

    @property
    def ratio(self) -> float:
        return self.measured_seconds / self.predicted_seconds


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """The confidence interval of a predicted time.

    Attributes:
        low_seconds, high_seconds: the measured time is between these with a probability
            of 80 %. They are the prediction multiplied by the second lowest and the
            second highest ratio (measured / predicted) of the 19 in `nearest`.
        nearest: the most similar measured times, the most similar first.
        knows_chip: whether one of `nearest` was measured on the chip of the prediction.
    """

    low_seconds: float
    high_seconds: float
    nearest: tuple[MeasuredTime, ...]
    knows_chip: bool


#: No constant was fitted to these 81 collectives (see `benchmarks/tests`).
HOW_SURE = (
    "80 % of 81 measured collectives (trn1, trn2): 0.93 to 1.16 of the modelled time."
)


@cache
def measured_times() -> tuple[MeasuredTime, ...]:
    path = resources.files("neuronjax.timing") / "measured_times.json"
    return tuple(MeasuredTime(**row) for row in json.loads(path.read_text())["rows"])


def confidence(timeline: Timeline, core: Core, kind: Kind) -> Confidence | None:
    """Return the confidence interval of a timeline's total; None if the total is 0."""
    seconds = timeline.total_seconds
    if not seconds:
        return None
    found = MeasuredTime(
        name="",
        kind=kind,
        chip=core.chip.name,
        lnc=core.lnc,
        measured_seconds=0.0,
        predicted_seconds=seconds,
        shares={q: timeline.busy_seconds(q) / seconds for q in QUEUES},
    )
    return among(found, measured_times())


def among(found: MeasuredTime, rows: Sequence[MeasuredTime]) -> Confidence:
    """Return the confidence interval of the predicted time in `found`, from the most
    similar measured times in `rows`. The measured time in `found` is not read."""
    alike = [row for row in rows if row.kind == found.kind]
    nearest = sorted(alike, key=lambda row: (_distance(found, row), row.name))[:ROWS]
    ratios = sorted(row.ratio for row in nearest)
    # As many ratios are left out below the interval as above it.
    left_out = math.floor(len(ratios) * (1 - COVERED) / 2)
    low, high = ratios[left_out], ratios[-1 - left_out]
    return Confidence(
        low_seconds=low * found.predicted_seconds,
        high_seconds=high * found.predicted_seconds,
        nearest=tuple(nearest),
        knows_chip=any(row.chip == found.chip for row in nearest),
    )


def _distance(one: MeasuredTime, other: MeasuredTime) -> float:
    queues = one.shares.keys() | other.shares.keys()
    found = sum(abs(one.shares.get(q, 0) - other.shares.get(q, 0)) for q in queues)
    ratio = one.predicted_seconds / other.predicted_seconds
    found += _DECADE * abs(math.log10(ratio))
    found += _OTHER_CHIP * (one.chip != other.chip)
    return found + _OTHER_CORES * (one.lnc != other.lnc)
