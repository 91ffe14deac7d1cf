"""`Statistics` as a table, the worst results first, and as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from neuronjax.execution.probes.statistics import Statistics as Statistics, fraction
from neuronjax.ir.program import Location
from neuronjax.report.places import place
from neuronjax.report.tables import NUMBER, TEXT, Displayed, new_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StatisticsTable(Displayed):
    """A table of the `limit` worst results, or of all results if `limit` is None."""

    statistics: Statistics
    limit: int | None = 20

    def __rich__(self) -> Table:
        worst = sorted(self.statistics.records, key=_badness, reverse=True)
        records = worst[: self.limit]
        cells = {name: list(map(show, records)) for name, show in _COLUMNS.items()}
        shown = {name: column for name, column in cells.items() if any(column)}
        return new_table(
            f"{self.statistics.setting}\n"
            f"the worst {len(records)} of {len(self.statistics.sites)} results",
            {"where": TEXT} | dict.fromkeys(shown, NUMBER),
            zip(map(_where, records), *shown.values(), strict=True),
            caption="; ".join(text for name, text in _LEGEND.items() if name in shown),
        )

    def plot(self) -> Figure:
        """Return the figure of `Statistics.plot`."""
        from neuronjax.report.plots_statistics import draw_statistics  # slow to import

        return draw_statistics(self.statistics)


display_of = StatisticsTable


def _badness(record: Mapping[str, Any]) -> tuple:
    faults = record["faults"].values()
    since = min((f["since"] for f in faults), default=0)
    broken = fraction(record, "overflow") or (
        0.0 if record["overflow"] is not None else _nonfinite(record)
    )
    lost = max(fraction(record, n) for n in ("underflow", "saturated", "stagnant"))
    counted, bits = record["elements"] is not None, record["effective_bits"] or 0.0
    return bool(faults), -since, broken, lost, counted, -bits


def _nonfinite(record: Mapping[str, Any]) -> float:
    return fraction(record, "nan") + fraction(record, "inf")


def _percent(fraction: float) -> str:
    if not fraction:
        return ""
    return "<0.1%" if fraction < 1e-3 else f"{fraction:.1%}"


def _where(record: Mapping[str, Any]) -> str:
    """Return lines of text: the user's line and the part of the model; then the kind of
    probe, the JAX op, the shape and the parameter; then a line for each fault."""
    location = Location(module=record["module"], phase=record["phase"])
    op = record["scope"].rpartition("/")[2] or record["op"]
    shape = "x".join(map(str, record["shape"]))
    params = " ".join(record["params"][:1])
    what = " ".join(filter(None, [record["kind"], op, shape, params]))
    lines = [f"{place(record['source'])}  {location.label}", what]
    for kind, seen in record["faults"].items():
        since = f", since step {seen['since']}" if record["steps"] > 1 else ""
        lines.append(f"{kind} in {seen['steps']} of {record['steps']} steps{since}")
    return "\n".join(lines)


def _told(number: float | None, spec: str) -> str:
    return "" if number is None else f"{number:{spec}}"


_LEGEND = {
    "flushed": "flushed: share of non-zero numbers that became 0",
    "lost": "lost: share of updates u with x + u == x",
    "bits": "bits: correct bits on average",
}
_COLUMNS = {
    "format": lambda record: record["format"].replace("float", "f"),
    "amax": lambda record: _told(record["amax"], ".1e"),
    "flushed": lambda record: _percent(fraction(record, "underflow")),
    "over": lambda record: _percent(
        fraction(record, "overflow") + fraction(record, "saturated")
    ),
    "nan inf": lambda record: _percent(_nonfinite(record)),
    "lost": lambda record: _percent(fraction(record, "stagnant")),
    "bits": lambda record: _told(record["effective_bits"], ".1f"),
}
