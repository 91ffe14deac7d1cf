"""Tables of a comparison, 80 columns wide."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from neuronjax.diagnostics.op_records import OpRecord
from neuronjax.ir.phases import SHORT_PHASES
from neuronjax.report.html import Narrowed
from neuronjax.report.tables import NUMBER, RIGHT, WORD, Look, new_table

#: Ratio above which the vendor's three-way comparison calls an error unexpected.
R_RATIO = 1.2
#: Least width of the column of model parts, in characters.
_PART_WIDTH = 13


def short(value: float) -> str:
    """Return `value` with two significant digits; from 100 to 1e6, as an integer."""
    if value == 0:
        return "0"
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.2g}"


def percent(share: float) -> str:
    """Return a fraction in percent: "0.78 %" for 0.0078."""
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def part_of(record: OpRecord, width: int = _PART_WIDTH) -> str:
    """Return the op's module and pass, cut to `width` at the left: "…attn/out bwd" for
    the backward pass of "params/layers/attn/out"."""
    after = f" {SHORT_PHASES[record.phase]}" if record.phase else ""
    width -= len(after)
    kept = record.module
    if len(kept) <= width:
        return kept + after
    while "/" in kept and len(kept) > width - 1:
        kept = kept.partition("/")[2]
    return "…" + kept[-(width - 1) :] + after


def line_of(record: OpRecord, width: int) -> str:
    """Return `file:line` with the file's name cut to fit `width`: "fault_bf…:98"."""
    file, colon, number = record.line.rpartition(":")
    if len(record.line) <= width or not file:
        return record.line
    return f"{file[: max(1, width - 1 - len(colon + number))]}…{colon}{number}"


def _fixed_table(
    title: str,
    rows: Iterable[Sequence[RenderableType]],
    names: str,
    numbers: str,
    apart: int = 2,
) -> Table:
    return new_table(
        title,
        {name: WORD | _LOOKS.get(name, {}) for name in names.split("|")}
        | dict.fromkeys(numbers.split("|"), NUMBER),
        rows,
        collapse_padding=False,
        min_width=None,
        padding=(0, apart - 1, 0, 0),
        width=80,
    )


_OP_WIDTH, _LINE_WIDTH = 15, 22
#: Least width of source lines. If space is short, they are cut to this width before
#: model parts are cut, since only model parts distinguish layers.
_LEAST_LINE = 14
#: Total width of the columns of names, in a table with three columns of figures.
_NAMES_WIDTH = 47
_LOOKS: dict[str, Look] = {
    "#": RIGHT,
    "op": {"max_width": _OP_WIDTH},
    "line": {"max_width": _LINE_WIDTH},
    "module": {"ratio": 1, "min_width": 8, "no_wrap": False, "overflow": "fold"},
    "part": {"ratio": 1, "min_width": _PART_WIDTH},
}


def op_table(title: str, ops: Sequence[OpRecord]) -> Table:
    """Return a table with one row per op. It has no ULPs, since a correct BF16 matmul
    is off by millions of FP32 ULPs."""
    numbered = _longest(str(r.number) for r in ops)
    room = _NAMES_WIDTH - numbered - min(_OP_WIDTH, _longest(r.short_op for r in ops))
    parts = _longest(part_of(r, _NAMES_WIDTH) for r in ops)
    lines = min(_LINE_WIDTH, _longest(r.line for r in ops))
    lines = min(lines, max(_LEAST_LINE, room - parts))
    room -= lines
    apart = 2 if room >= _PART_WIDTH else 1
    room += 6 * (2 - apart)  # six gaps are narrower if `apart` is 1
    rows = (
        (
            str(r.number),
            r.short_op,
            Narrowed(part_of(r, max(room, _PART_WIDTH)), part_of(r, sys.maxsize)),
            Narrowed(line_of(r, lines), r.line),
            short(r.isolation.relative_l2),
            short(r.accumulation.relative_l2),
            f"{r.accumulation.sqnr_db:.0f}",
        )
        for r in ops
    )
    names, numbers = "#|op|part|line", "isolated|in run|SQNR"
    return _fixed_table(title, rows, names, numbers, apart)


def _longest(cells: Iterable[str]) -> int:
    return max(map(len, cells), default=0)


def group_table(
    groups: Sequence[Mapping[str, Any]], key: str = "label", heading: str = "module"
) -> Table:
    """Return a table with one row for each of `groups`: modules or source lines."""
    rows = (
        (
            g[key],
            str(g["ops"]),
            str(g["differing"]),
            short(g["isolation_relative_l2"]),
            short(g["accumulation_relative_l2"]),
        )
        for g in groups
    )
    title = f"errors by {heading} (isolated: with the reference's operands)"
    return _fixed_table(title, rows, heading, "ops|err|isolated|in run")


def three_way_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the worst `rows` with a ratio above `R_RATIO`."""
    worse = [row for row in rows if row["ratio"] > R_RATIO]
    worse.sort(key=lambda row: row["actual_relative_l2"], reverse=True)
    cells = (
        (
            str(row["number"]),
            row["op"].rpartition(".")[2],
            row["label"],
            short(row["expected_relative_l2"]),
            short(row["actual_relative_l2"]),
            short(row["ratio"]),
        )
        for row in worse[:6]
    )
    title = f"errors against the baseline, where actual > {R_RATIO} x expected"
    return _fixed_table(title, cells, "#|op|module", "expected|actual|ratio")
