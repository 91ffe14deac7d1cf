"""A profile as tables of at most 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from rich.table import Table
from rich.text import Text

from neuronjax.report.places import places
from neuronjax.report.profile_summary import METRICS, QUEUE_METRICS
from neuronjax.report.profile_usage import NONE, Usage, total
from neuronjax.report.quantities import binary, decimal, percent, seconds, time_unit
from neuronjax.report.tables import (
    NAME,
    NUMBER,
    PLAIN,
    TEXT,
    WORD,
    Displayed,
    new_table,
)
from neuronjax.timing.evidence import Confidence
from neuronjax.timing.hbm import capacity_bytes
from neuronjax.timing.kernel_timeline import KernelMemory
from neuronjax.timing.memory_plan import MemoryPlan
from neuronjax.timing.work import QUEUES, Core, Queue

QUEUE_TITLES: Mapping[Queue, str] = {
    "tensor": "TensorE",
    "vector": "VectorE",
    "scalar": "ScalarE",
    "gpsimd": "GpSimdE",
    "sync": "SyncE",
    "dma": "DMA",
    "cc": "CC-cores",
    "host": "host",
}
"""What the queues are called in tables and pictures, in their order."""

_BAR = 24
_NEAREST = 3


def headline_table(title: str, figures: Mapping[str, float]) -> Table:
    """Return a table of the most important figures of `metrics`."""
    transposes = figures["adjusted_transpose_flops"]
    spilled = figures["spill_save_bytes"] + figures["spill_reload_bytes"]
    whole = figures["adjusted_hardware_flops"]
    cells = [
        ("predicted time", seconds(figures["total_time"])),
        ("MFU", percent(figures["mfu_estimated_percent"])),
        ("HBM read", binary(figures["hbm_read_bytes"])),
        ("matmuls", decimal(figures["model_flops"], "FLOP")),
        ("HFU", percent(figures["hfu_estimated_percent"])),
        ("HBM written", binary(figures["hbm_write_bytes"])),
        ("per HBM byte", decimal(figures["mm_arithmetic_intensity"], "FLOP")),
        ("MBU", percent(figures["mbu_estimated_percent"])),
        ("spills", binary(spilled)),
        ("transposes", percent(transposes / whole if whole else 0.0)),
        ("MFU at best", percent(figures["mfu_max_achievable_estimated_percent"])),
        ("DMA efficiency", percent(figures["dma_efficiency_percent"])),
    ]
    columns = {str(n): NAME | NUMBER if n % 2 else WORD for n in range(6)}
    rows = (
        [part for cell in cells[start : start + 3] for part in cell]
        for start in range(0, len(cells), 3)
    )
    return new_table(title, columns, rows, show_header=False)


def queues_table(
    figures: Mapping[str, float], bound: Queue | Literal["waiting"]
) -> Table:
    """Return a table of how long each queue works, titled with the bottleneck."""
    limit = "queues that wait" if bound == "waiting" else QUEUE_TITLES[bound]
    around = figures["around_time"]
    if around > figures["total_time"] / 2:
        limit = "its start and end"
    return new_table(
        f"Active time of each queue; the program is limited by {limit}",
        {"queue": NAME, "active": NUMBER, "share": NUMBER}
        | {"instructions": NUMBER, "": WORD},
        [
            *(
                _queue_row(QUEUE_TITLES[queue], figures, time, figures[count])
                for queue, time, count in QUEUE_METRICS
                if figures[count] or queue == "dma"
            ),
            # The part of a program's time in which no queue works.
            *([_queue_row("start, end", figures, "around_time")] * bool(around)),
        ],
    )


def _queue_row(
    title: str, figures: Mapping[str, float], time: str, count: float | None = None
) -> tuple[str, ...]:
    share = figures[time] / (figures["total_time"] or 1.0)
    counted = "" if count is None else f"{count:,.0f}"
    bar = ("█" * round(_BAR * share)).ljust(_BAR, "░")
    return title, seconds(figures[time]), percent(share), counted, bar


def _memory_row(
    name: str, needed: int, capacity: int, what_for: str
) -> tuple[str | Text, ...]:
    share = Text(percent(needed / capacity))
    if needed > capacity:
        share = Text(f"{share}: does not fit", "red")
    return name, binary(needed), binary(capacity), share, what_for


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ShownMemory(Displayed, MemoryPlan):
    """A `MemoryPlan` whose display has the peaks of HBM and SBUF of a logical core."""

    core: Core

    @property
    def _rows(self) -> tuple[tuple[str | Text, ...], ...]:
        peak, capacity = self.hbm, capacity_bytes(self.core)
        parts = (f"{kind} {binary(b)}" for kind, b in peak.categories.items() if b)
        return (
            _memory_row("HBM", peak.bytes, capacity, ", ".join(parts)),
            _memory_row("SBUF", self.sbuf_peak_bytes, self.core.sbuf_bytes, ""),
        )

    def __rich__(self) -> Table:
        numbers = dict.fromkeys(("needed", "capacity", "share"), NUMBER)
        columns = {"memory": NAME} | numbers | {"used for": PLAIN}
        return new_table("Peak memory use", columns, self._rows)

    def __repr__(self) -> str:
        hbm = f"{binary(self.hbm.bytes)} of {binary(capacity_bytes(self.core))}"
        sbuf = f"{binary(self.sbuf_peak_bytes)} of {binary(self.core.sbuf_bytes)}"
        return f"<neuronjax.MemoryPlan HBM {hbm}, SBUF {sbuf}>"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ShownKernelMemory(ShownMemory, KernelMemory):
    """A `KernelMemory` whose display also has the peak of PSUM."""

    @property
    def _rows(self) -> tuple[tuple[str | Text, ...], ...]:
        held = max(self.psum_usage, default=0)
        capacity = self.core.lnc * self.core.spec.psum_bytes
        return (*super()._rows, _memory_row("PSUM", held, capacity, ""))


def shown_memory(memory: MemoryPlan, core: Core) -> ShownMemory:
    """Return `memory` as an object that can be displayed."""
    shown = ShownKernelMemory if isinstance(memory, KernelMemory) else ShownMemory
    return shown(core=core, **{f.name: getattr(memory, f.name) for f in fields(memory)})


def confidence_table(found: Confidence, kind: str, predicted: float) -> Table:
    """Return a table of the measured programs that are most similar to a program. The
    title has the interval of the program's predicted time."""
    low, high = seconds(found.low_seconds), seconds(found.high_seconds)
    title = (
        f"How sure: {low} to {high} (80 %), "
        f"from the {len(found.nearest)} most similar measured {kind}s"
    )
    if not found.knows_chip:
        title += "; none ran on this chip"
    rows = (
        (
            row.name,
            row.chip if row.lnc == 1 else f"{row.chip}, LNC {row.lnc}",
            seconds(row.measured_seconds),
            seconds(row.predicted_seconds),
            f"{1 / row.ratio - 1:+.0%}",
        )
        for row in found.nearest[:_NEAREST]
    )
    columns = {"nearest": TEXT, "chip": PLAIN, "measured": NUMBER, "predicted": NUMBER}
    outside = None
    if not found.low_seconds <= predicted <= found.high_seconds:
        how = "longer" if predicted < found.low_seconds else "less"
        outside = (
            f"{seconds(predicted)} is outside this interval: nearly all of these "
            f"programs took {how} than predicted"
        )
    return new_table(title, columns | {"error": NUMBER}, rows, outside)


def metrics_table(figures: Mapping[str, float]) -> Table:
    """Return a table of every figure by the vendor's name, with its meaning."""
    return new_table(
        "Figures, by the names of the vendor's profiler",
        {"name": NAME, "value": NUMBER, "meaning": {"overflow": "fold"}},
        (
            (name, _figure(value, METRICS[name].unit), METRICS[name].meaning)
            for name, value in figures.items()
        ),
    )


_IN_WORDS: Mapping[str, Callable[[float], str]] = {
    "s": seconds,
    "B": binary,
    "percent": percent,
    "FLOP": lambda value: decimal(value, "FLOP"),
}


def _figure(value: float, unit: str) -> str:
    if unit in _IN_WORDS:
        return _IN_WORDS[unit](value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"


def parts_that_hold(
    groups: Mapping[str, Usage], limit: int
) -> tuple[dict[str, Usage], str]:
    """Return parts of a model, merged into the parts that contain them, and a note.

    Weights are merged into layers, and layers into blocks, until the first `limit` rows
    have half of the time."""
    whole = total(groups.values()).busy_seconds
    deepest = depth = max((key.count("/") + 1 for key in groups), default=1)
    found = dict(groups)
    while depth > 1 and total([*found.values()][limit:]).busy_seconds > whole / 2:
        depth -= 1
        found = _cut(groups, depth)
    if depth == deepest:
        return found, ""
    return found, f"a row is the sum of the parts inside it; {len(groups)} parts in all"


def _cut(groups: Mapping[str, Usage], depth: int) -> dict[str, Usage]:
    """Merge parts that have equal passes and equal first `depth` names of the path."""
    held: dict[str, list[Usage]] = {}
    for key, used in groups.items():
        path, bracket, phase = key.partition(" (")
        name = "/".join(path.split("/")[:depth])
        held.setdefault(f"{name}{bracket}{phase}", []).append(used)
    found = {name: total(parts) for name, parts in held.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1].busy_seconds))


#: Grouping -> the title of its table, and the heading of the first column.
GROUPS = {
    "op": ("Busiest ops", "op"),
    "source": ("Busiest lines", "line"),
    "module": ("Busiest modules", "module"),
    "phase": ("Phases", "phase"),
    "engine": ("Queues", "queue"),
}


class UsageGroups(Displayed, dict[str, Usage]):
    """Usage by group, the busiest first. `pandas.DataFrame` makes a column of each."""

    def __init__(self, by: str, found: Mapping[str, Usage]) -> None:
        super().__init__({name: used.told() for name, used in found.items()})
        self.by = by

    def __rich__(self) -> Table:
        return self.table()

    def table(self, rows: int = 12) -> Table:
        """Return the busiest groups as a Rich table: source lines without folders, and
        parts of a model merged into the parts that contain them. All groups after
        `rows` rows are one row."""
        names = places(self) if self.by == "source" else {}
        groups = {names.get(key, key): used for key, used in self.items()}
        note = ""
        if self.by == "module":
            groups, note = parts_that_hold(groups, rows)
        return groups_table(*GROUPS[self.by], groups, note, limit=rows)


def groups_table(
    title: str,
    heading: str,
    groups: Mapping[str, Usage],
    note: str = "",
    *,
    limit: int = 12,
) -> Table:
    """Return a table of the usage of groups; the last row adds up all after `limit`.

    The seconds are busy times of queues, which work in parallel. Their sum may exceed
    the time of the program."""
    shown = dict(list(groups.items())[:limit])
    whole = total(groups.values())
    rest = list(groups.values())[limit:]
    if rest:
        shown[f"{len(rest)} more"] = total(rest)
    unit, unit_name = time_unit(max(whole.seconds.values(), default=0.0))
    # Queues that hardly work have no column.
    least = 0.001 * whole.busy_seconds
    queues: list[Queue] = [q for q in QUEUES if whole.seconds.get(q, 0.0) > least]
    short = [QUEUE_TITLES[q].removesuffix("E").removesuffix("-cores") for q in queues]
    rows = new_table(
        f"{title}: share of the time of all queues; {unit_name} in each queue",
        {heading: TEXT | {"min_width": 22}} | dict.fromkeys(("share", *short), NUMBER),
        caption="\n".join(filter(None, (note, _of_none(shown, heading)))) or None,
    )
    for key, used in shown.items():
        spent = [used.seconds.get(queue, 0.0) / unit for queue in queues]
        share = used.busy_seconds / whole.busy_seconds if whole.busy_seconds else 0.0
        rows.add_row(key, percent(share), *map(_figures, spent))
    return rows


def _of_none(shown: Mapping[str, Usage], heading: str) -> str:
    if NONE not in shown:
        return ""
    moved = (
        "transfers that count for no op: of constants, and some to make room in SBUF"
    )
    if {queue for queue, spent in shown[NONE].seconds.items() if spent} <= {"dma"}:
        return f"{NONE}: {moved}"
    return f"{NONE}: ops of no known {heading}; {moved}"


def _figures(value: float) -> str:
    if value < 0.005:
        return "-"
    return f"{value:.2f}" if value < 9.995 else f"{value:,.0f}"
