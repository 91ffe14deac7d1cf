"""What `compare` says of one fault and of its healthy twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.case import Fault
from neuronjax.api.compare import compare

#: Within so many lines a reader is taken to find it.
FEW = 3


@dataclass(frozen=True)
class Found:
    """How a fault was found.

    Attributes:
        rank: of the faulty line, or another of its statement, among the lines that the
            report names, from 1; 0 where it names others only.
        kind: whether the finding there is of one of the fault's kinds.
        alarms: lines that the report names of the healthy twin.
        reported: the first lines and kinds, for a reader.
    """

    fault: Fault
    rank: int
    kind: bool
    alarms: int
    reported: tuple[str, ...]
    false: tuple[str, ...]


def found(fault: Fault, reference: str) -> Found:
    """Asks about a fault and its twin."""
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
    """(`file:line`, kind) of what a report finds, in its order."""
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
