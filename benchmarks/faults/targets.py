"""Targets for the count of faults, and the targets that a count misses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: Targets as shares of the faults; "alarms" as share of the healthy twins.
TARGETS = {"first": 0.90, "top": 0.97, "named": 0.85, "alarms": 0.02}

#: The reference of the targets: float64 without rounding.
REFERENCE = "float64"


def side(figure: str) -> str:
    """Return whether a figure should be "at most" or "at least" its target."""
    return "at most" if figure == "alarms" else "at least"


def missed(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for every target that the figures of a whole set miss."""
    for entry in entries:
        if entry["kind"] != "all" or entry["reference"] != REFERENCE:
            continue
        for figure, target in TARGETS.items():
            share = entry[figure] / entry["faults"]
            if share > target if figure == "alarms" else share < target:
                yield (
                    f"{entry['half']}: {figure} is {share:.1%}, and should be "
                    f"{side(figure)} {target:.1%}"
                )
