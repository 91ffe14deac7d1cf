"""The figures of the time model, as `neuronjax constants` lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from neuronjax.report.quantities import seconds
from neuronjax.timing.assumptions import (
    COLLECTIVE_CONSTANTS as COLLECTIVES,
    CONSTANTS as RULES,
    PLANNING_CONSTANTS as PLANNING,
    Constant,
)

from .markdown import code, table

GROUPS: Mapping[str, Iterable[Constant]] = {
    "Engines and DMA": RULES.values(),
    "Memory and scheduling": PLANNING.values(),
    "Collectives": COLLECTIVES.values(),
}
_INTRODUCTION = """---
hide: [toc]
---

# Constants of the time model

Every figure of the time model that is no fact of a chip (those are in the
[hardware tables](hardware.md)), with its source: {count} of them, {assumed} of which
are assumptions, because nobody published them, and {fitted} of which were chosen to
meet a measurement, which is named. `neuronjax constants` prints the same list;
`make validate` compares the model with the published times.
"""


def page() -> str:
    """The page."""
    listed = [constant for group in GROUPS.values() for constant in group]
    introduction = _INTRODUCTION.format(
        count=len(listed),
        assumed=sum(constant.is_assumption for constant in listed),
        fitted=sum(bool(constant.fitted_to) for constant in listed),
    )
    heads = ("name", "value:", "source")
    parts = (
        f"## {title}\n\n{table(heads, map(_row, group))}"
        for title, group in GROUPS.items()
    )
    return "\n".join((introduction, *parts))


def _row(constant: Constant) -> tuple[str, str, str]:
    value = f"{constant.value:.6g} {constant.unit}"
    if constant.unit == "s":
        value = seconds(constant.value)
    assumed = "**assumption:** " if constant.is_assumption else ""
    fitted = f" Fitted to: {constant.fitted_to}." if constant.fitted_to else ""
    return code(constant.name), value, f"{assumed}{constant.source}.{fitted}"
