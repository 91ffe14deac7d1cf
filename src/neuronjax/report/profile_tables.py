"""A profile as tables of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from rich import box
from rich.console import Group
from rich.table import Table

from neuronjax.report.profile_summary import ENGINES, METRICS
from neuronjax.report.profile_usage import Usage, total
from neuronjax.report.quantities import binary, decimal, percent, seconds, time_unit
from neuronjax.timing.hbm import capacity_bytes
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


def new_table(title: str, caption: str | None = None) -> Table:
    """An empty table in the style of all reports."""
    return Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        min_width=min(80, len(title)),
        pad_edge=False,
    )


def summary_tables(
    title: str, figures: Mapping[str, float], bound: Queue | Literal["waiting"]
) -> Group:
    """The figures that a reader wants first, then the queues.

    Args:
        title: program, target and policy.
        figures: of `profile_summary.metrics`.
        bound: the queue that limits the program, or "waiting".
    """
    return Group(_headline(title, figures), _queues(figures, bound))


def _headline(title: str, figures: Mapping[str, float]) -> Table:
    rows = new_table(title)
    rows.show_header = False
    for _ in range(3):
        rows.add_column(no_wrap=True)
        rows.add_column(justify="right", no_wrap=True, style="bold")
    flops = figures["model_flops"]
    read, write = figures["hbm_read_bytes"], figures["hbm_write_bytes"]
    transposes = figures["adjusted_transpose_flops"]
    spilled = figures["spill_save_bytes"] + figures["spill_reload_bytes"]
    cells = [
        ("predicted time", seconds(figures["total_time"])),
        ("MFU", percent(figures["mfu_estimated_percent"])),
        ("HBM read", binary(read)),
        ("matmuls", decimal(flops, "FLOP")),
        ("HFU", percent(figures["hfu_estimated_percent"])),
        ("HBM written", binary(write)),
        ("per HBM byte", decimal(figures["mm_arithmetic_intensity"], "FLOP")),
        ("MBU", percent(figures["mbu_estimated_percent"])),
        ("spills", binary(spilled)),
        ("transposes", percent(_share(transposes, figures))),
        ("MFU at best", percent(figures["mfu_max_achievable_estimated_percent"])),
        ("DMA efficiency", percent(figures["dma_efficiency_percent"])),
    ]
    for start in range(0, len(cells), 3):
        rows.add_row(*[part for cell in cells[start : start + 3] for part in cell])
    return rows


def _share(part: float, figures: Mapping[str, float]) -> float:
    whole = figures["adjusted_hardware_flops"]
    return part / whole if whole else 0.0


def _queues(figures: Mapping[str, float], bound: Queue | Literal["waiting"]) -> Table:
    limit = "waiting for each other" if bound == "waiting" else QUEUE_TITLES[bound]
    rows = new_table(f"Queues, and how long each works; the limit is {limit}")
    rows.add_column("queue", style="bold", no_wrap=True)
    for heading in ("active", "share", "instructions"):
        rows.add_column(heading, justify="right", no_wrap=True)
    rows.add_column("", no_wrap=True)
    for engine in ENGINES:
        name = f"{engine}_engine"
        count = figures[f"{name}_instruction_count"]
        if count:
            _queue_row(rows, figures, engine, f"{name}_active_time", count)
    _queue_row(rows, figures, "dma", "dma_active_time", figures["dma_transfer_count"])
    if figures["cc_op_count"]:
        _queue_row(rows, figures, "cc", "cc_op_active_time", figures["cc_op_count"])
    return rows


def _queue_row(
    rows: Table, figures: Mapping[str, float], queue: Queue, time: str, count: float
) -> None:
    share = figures[f"{time}_percent"]
    bar = "█" * round(_BAR * share) + "░" * (_BAR - round(_BAR * share))
    active = seconds(figures[time])
    rows.add_row(QUEUE_TITLES[queue], active, percent(share), f"{count:,.0f}", bar)


def memory_table(memory: MemoryPlan, core: Core) -> Table:
    """HBM at its fullest, by what it is for, and SBUF, against what there is."""
    peak, capacity = memory.hbm, capacity_bytes(core)
    rows = new_table("Memory at its fullest")
    rows.add_column("memory", style="bold", no_wrap=True)
    for heading in ("needed", "of", "share"):
        rows.add_column(heading, justify="right", no_wrap=True)
    rows.add_column("what for")
    parts = (f"{kind} {binary(b)}" for kind, b in peak.categories.items() if b)
    _memory_row(rows, "HBM", peak.bytes, capacity, ", ".join(parts))
    _memory_row(rows, "SBUF", memory.sbuf_peak_bytes, core.sbuf_bytes, "")
    return rows


def _memory_row(
    rows: Table, name: str, needed: int, capacity: int, what_for: str
) -> None:
    share = percent(needed / capacity)
    if needed > capacity:
        share = f"[red]{share}: does not fit[/red]"
    rows.add_row(name, binary(needed), binary(capacity), share, what_for)


def metrics_table(figures: Mapping[str, float]) -> Table:
    """Every figure by the vendor's name, with what it means."""
    rows = new_table("Figures, by the names of the vendor's profiler")
    rows.add_column("name", style="bold", no_wrap=True)
    rows.add_column("value", justify="right", no_wrap=True)
    rows.add_column("meaning", overflow="fold")
    for name, value in figures.items():
        metric = METRICS[name]
        rows.add_row(name, _figure(value, metric.unit), metric.meaning)
    return rows


def _figure(value: float, unit: str) -> str:
    if unit == "s":
        return seconds(value)
    if unit == "B":
        return binary(value)
    if unit == "percent":
        return percent(value)
    if unit == "FLOP":
        return decimal(value, unit)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"


def groups_table(
    title: str, heading: str, groups: Mapping[str, Usage], limit: int = 12
) -> Table:
    """Usage by op, source line or module; what comes after `limit` rows is one row.

    Seconds are those of the queues, which work side by side: no share of the wall time.
    """
    shown = dict(list(groups.items())[:limit])
    whole = total(groups.values())
    rest = list(groups.values())[limit:]
    if rest:
        shown[f"{len(rest)} more"] = total(rest)
    unit, name = time_unit(max(whole.seconds.values(), default=0.0))
    queues: list[Queue] = [queue for queue in QUEUES if _is_shown(whole, queue)]
    rows = new_table(f"{title}: share of the time of all queues; {name} of each")
    rows.add_column(heading, overflow="fold", ratio=1, min_width=22)
    rows.add_column("share", justify="right", no_wrap=True)
    for queue in queues:
        short = QUEUE_TITLES[queue].removesuffix("E").removesuffix("-cores")
        rows.add_column(short, justify="right", no_wrap=True)
    for key, used in shown.items():
        spent = [used.seconds.get(queue, 0.0) / unit for queue in queues]
        share = used.busy_seconds / whole.busy_seconds if whole.busy_seconds else 0.0
        rows.add_row(key or "(none)", percent(share), *map(_figures, spent))
    return rows


def _is_shown(whole: Usage, queue: Queue) -> bool:
    """Queues that never work, or as good as never, have no column."""
    return whole.seconds.get(queue, 0.0) > 0.001 * whole.busy_seconds


def _figures(value: float) -> str:
    if value < 0.005:
        return "-"
    return f"{value:.2f}" if value < 9.995 else f"{value:,.0f}"


def changes_table(changes: Iterable[tuple[str, float, float, bool]]) -> Table:
    """What would save most time, the largest gain first.

    Args:
        changes: what to do, the time then, how many times faster that is, and whether
            no program reaches it.
    """
    rows = new_table("What would save most")
    rows.add_column("change", overflow="fold", ratio=1)
    for heading in ("time", "× faster"):
        rows.add_column(heading, justify="right", no_wrap=True)
    rows.add_column("", no_wrap=True)
    for what, time, speedup, is_bound in changes:
        basis = "at best" if is_bound else "predicted"
        rows.add_row(what, seconds(time), f"{speedup:.2f}", basis)
    if not rows.row_count:
        rows.add_row("nothing of what is tried", "", "", "")
    return rows
