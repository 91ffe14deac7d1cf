"""The reports of `compare` on a fault and on its healthy twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.case import Fault
from neuronjax.api.compare import compare

#: A fault among this many first lines of a report counts as found by a reader.
FEW = 3


@dataclass(frozen=True)
class Found:
    """The report of `compare` on a fault and its twin.

    Attributes:
        rank: position from 1 of the faulty statement among the lines that the report
            names; 0 if it is not named.
        kind: whether the report gives one of the fault's kinds there.
        alarms: number of lines that the report names in the healthy twin.
        reported: the first lines and kinds of the report.
    """

    fault: Fault
    rank: int
    kind: bool
    alarms: int
    reported: tuple[str, ...]
    false: tuple[str, ...]


def found(fault: Fault, reference: str) -> Found:
    """Return the reports on a fault and its twin."""
    places = findings(fault, fault.faulty, reference)
    lines = list(dict.fromkeys(source for source, _ in places))
    right = fault.places
    rank = next((n for n, source in enumerate(lines, 1) if source in right), 0)
    kinds = {kind for source, kind in places if source in right}
    false = findings(fault, fault.healthy, reference)
    return Found(
        fault=fault,
        rank=rank,
        kind=bool(kinds & set(fault.kinds)),
        alarms=len(false),
        reported=_shown(places),
        false=_shown(false),
    )


def findings(
    fault: Fault, function: Callable[..., Any], reference: str
) -> list[tuple[str, str]]:
    """Return (`file:line`, kind) of the findings of a report, in its order."""
    report = compare(
        function,
        target=fault.target,
        policy=fault.policy,
        reference=reference,
        explain=False,
    )(*fault.arguments())
    return [(f.record.source, f.kind) for f in report.faults]


def _shown(places: list[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{s.rpartition('/')[2]} {kind}" for s, kind in places[:FEW])
