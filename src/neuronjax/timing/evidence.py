"""How sure a predicted time is: programs and kernels that were measured on chips.

`measured_times.json` holds what was measured and what this model predicts for it,
written by `python -m benchmarks.evidence`. A prediction is as sure as those of the
measured ones that are most like it: of the same kind, as long, that keep the same
queues busy. Sources: hardware sheet 9.1 to 9.4, vendor's baselines, KDA.
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
#: Rows that an interval is taken of, and the share of others like them in it: with one
#: left out on both sides, (19 - 2 - 1) of (19 + 1).
ROWS, COVERED = 19, 0.8
#: What is as far apart as a queue that is always busy and one that never is.
_DECADE, _OTHER_CORES, _OTHER_CHIP = 1.0, 0.5, 1.0


@dataclass(frozen=True, kw_only=True)
class MeasuredTime:
    """A time measured on a chip, and the model's for it.

    Attributes:
        shares: of the predicted time in which each queue works.
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
        """Measured, of predicted."""
        return self.measured_seconds / self.predicted_seconds


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """What measured times say of a predicted one.

    Attributes:
        low_seconds, high_seconds: between which 80 % of the measured times most like it
            would lie, had they been predicted the same.
        nearest: these, the one most like it first.
        knows_chip: whether one of them is of this chip.
    """

    low_seconds: float
    high_seconds: float
    nearest: tuple[MeasuredTime, ...]
    knows_chip: bool


#: Of collectives that nothing was fitted to, as `benchmarks/tests` finds them.
HOW_SURE = (
    "80 % of 81 measured collectives (trn1, trn2): 0.93 to 1.16 of the modelled time."
)


@cache
def measured_times() -> tuple[MeasuredTime, ...]:
    """All of them."""
    path = resources.files("neuronjax.timing") / "measured_times.json"
    return tuple(MeasuredTime(**row) for row in json.loads(path.read_text())["rows"])


def confidence(timeline: Timeline, core: Core, kind: Kind) -> Confidence | None:
    """How sure a timeline's total is; None of one that takes no time."""
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
    """How sure a predicted time is, of which nobody knows what was measured."""
    alike = [row for row in rows if row.kind == found.kind]
    nearest = sorted(alike, key=lambda row: (_distance(found, row), row.name))[:ROWS]
    ratios = sorted(row.ratio for row in nearest)
    # As many are left out on both sides.
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
