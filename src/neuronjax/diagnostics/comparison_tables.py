"""Tables of a comparison, 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from neuronjax.diagnostics.op_records import OpRecord

#: From which on the vendor's three-way comparison calls an error unexpected.
R_RATIO = 1.2


def short(value: float) -> str:
    """Two significant digits."""
    return "0" if value == 0 else f"{value:.2g}"


def _plain_table(title: str, columns: Iterable[tuple[str, str]]) -> Table:
    """Modules have what ops, lines and numbers leave."""
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        width=80,
    )
    for name, justify in columns:
        table.add_column(
            name,
            justify=justify,  # type: ignore[arg-type]
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if name == "module" else None,
            max_width=_WIDTHS.get(name),
        )
    return table


_WIDTHS = {"op": 15, "line": 22}


def op_table(title: str, ops: Sequence[OpRecord]) -> Table:
    """One row per op."""
    columns = (
        ("#", "right"),
        ("op", "left"),
        ("module", "left"),
        ("line", "left"),
        ("ulp", "right"),
        ("isolated", "right"),
        ("in run", "right"),
        ("SQNR", "right"),
    )
    table = _plain_table(title, columns)
    for r in ops:
        table.add_row(
            str(r.number),
            r.short_op,
            r.module,
            r.line,
            short(r.isolation.max_ulp),
            short(r.isolation.relative_l2),
            short(r.accumulation.relative_l2),
            short(r.accumulation.sqnr_db),
        )
    return table


def group_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    """One row per module."""
    columns = (
        ("module", "left"),
        ("ops", "right"),
        ("differ", "right"),
        ("ulp", "right"),
        ("isolated", "right"),
        ("in run", "right"),
    )
    table = _plain_table("by module, the worst op of each", columns)
    for g in groups:
        table.add_row(
            g["module"],
            str(g["ops"]),
            str(g["differing"]),
            short(g["isolation_max_ulp"]),
            short(g["isolation_relative_l2"]),
            short(g["accumulation_relative_l2"]),
        )
    return table


def three_way_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The ops whose actual error exceeds the expected one, the largest first."""
    columns = (
        ("#", "right"),
        ("op", "left"),
        ("module", "left"),
        ("expected", "right"),
        ("actual", "right"),
        ("ratio", "right"),
    )
    title = f"errors against the baseline, where actual > {R_RATIO} expected"
    table = _plain_table(title, columns)
    worse = [row for row in rows if row["ratio"] > R_RATIO]
    worse.sort(key=lambda row: row["actual_relative_l2"], reverse=True)
    for row in worse[:6]:
        table.add_row(
            str(row["number"]),
            row["op"].rpartition(".")[2],
            row["module"],
            short(row["expected_relative_l2"]),
            short(row["actual_relative_l2"]),
            short(row["ratio"]),
        )
    return table
