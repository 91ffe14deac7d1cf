"""What is aimed at, and which aims a count of faults misses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: Shares of the faults, and of the healthy twins that raise an alarm.
TARGETS = {"first": 0.90, "top": 0.97, "named": 0.85, "alarms": 0.02}

#: The targets are for this reference, float64 without rounding.
REFERENCE = "float64"


def side(figure: str) -> str:
    """Return on which side of its target a figure is right."""
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
