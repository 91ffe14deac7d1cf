"""One figure of the time model that is not a fact of `neuronjax.hardware`.

Every number that a cost rule uses is a `Constant` with its source, so that it can be
listed, doubted and replaced. A figure that nobody published is an assumption; one that
was chosen to meet a measurement names the measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Constant:
    """A figure of the time model.

    Attributes:
        name: what it is called in the rules; `named` sets it.
        value: in `unit`.
        unit: "s", "cycles", "B", "B/s", "fraction", "elements/cycle" and so on.
        source: where it is published, or the reasoning of an assumption.
        is_assumption: whether it is not published.
        fitted_to: the measurement it was chosen to meet; empty if it was not.
    """

    name: str = field(init=False, default="")
    value: float
    unit: str
    source: str
    is_assumption: bool = False
    fitted_to: str = ""


def assumed(value: float, unit: str, source: str, fitted_to: str = "") -> Constant:
    """A figure that nobody published."""
    return Constant(value, unit, source, is_assumption=True, fitted_to=fitted_to)


def named(declared: Mapping[str, object]) -> Mapping[str, Constant]:
    """The constants that a module declares, each of which learns its name here."""
    found = {n: c for n, c in declared.items() if isinstance(c, Constant)}
    for name, constant in found.items():
        object.__setattr__(constant, "name", name)
    return found
