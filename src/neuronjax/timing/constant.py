"""One figure of the time model that is not a fact of `neuronjax.hardware`.

Every number that a cost rule uses is a `Constant` with its source, so that it can be
listed, doubted and replaced. A figure that nobody published is an assumption; one that
was chosen to meet a measurement names the measurement.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    """A figure of the time model.

    Attributes:
        name: what it is called in the rules.
        value: in `unit`.
        unit: "s", "cycles", "B", "B/s", "fraction", "elements/cycle" and so on.
        source: where it is published, or the reasoning of an assumption.
        is_assumption: whether it is not published.
        fitted_to: the measurement it was chosen to meet; empty if it was not.
    """

    name: str
    value: float
    unit: str
    source: str
    is_assumption: bool = False
    fitted_to: str = ""
