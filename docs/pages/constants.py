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

This page lists the {count} figures of the time model that are not facts of a chip (the
[hardware tables](hardware.md) list those), with their sources. {assumed} of them are
assumptions, because nobody has published them. {fitted} were fitted to a measurement,
which the table names. `neuronjax constants` prints the same list; `make validate`
compares the model with the published times.
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
