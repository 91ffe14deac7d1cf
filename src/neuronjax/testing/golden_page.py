"""A page for reviewers: which goldens changed in a run, by how much, and where.

A row is plain data, so that processes of pytest-xdist can send it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt

from neuronjax.testing.golden_report import GoldenMismatch, GoldenReport

_HEADS = ("golden", "state", "worst result", "max ULP", "relative L2", "differ", "line")
_HTML = '<!doctype html>\n<meta charset="utf-8">\n<title>Goldens</title>\n'


def row(name: str, found: GoldenReport | GoldenMismatch, text: str) -> dict[str, Any]:
    """Return a golden's state, the cells of its row in the table, and its message."""
    if isinstance(found, GoldenMismatch):
        state = f"failed: {found.kind}"
    elif found.written:
        state = "written"
    else:
        state = "changed" if found.change or found.drift else "unchanged"
    cells, change = [name, state, "", "", "", "", ""], found.change
    if found.leaves:
        worst = found.leaves[0]
        cells[2], cells[5] = worst.path, f"{worst.differing} of {worst.compared}"
        if size := worst.size:
            ulp = "" if size.max_ulp is None else f"{size.max_ulp:.4g}"
            cells[3:5] = ulp, f"{size.relative_l2:.3g}"
    if change is not None and change.lines:
        cells[6] = next(iter([*change.lines.after, *change.lines.before]))
    return {"state": state, "cells": cells, "text": text, "told": str(found)}


def page(rows: Sequence[dict[str, Any]], *, is_html: bool) -> str:
    """Return the page as Markdown or HTML: a table, and the text of each golden."""
    states = Counter(entry["state"] for entry in rows)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    shown = [entry for entry in rows if entry["state"] != "unchanged"]
    table = [_HEADS, ["---"] * len(_HEADS), *(entry["cells"] for entry in shown)]
    lines = [f"## Goldens: {counts}", ""]
    lines += [f"| {' | '.join(cells)} |" for cells in table] if shown else []
    for entry in shown:
        head = f"<details><summary>{escape(entry['cells'][0])}</summary>"
        lines += ["", head, "", f"```text\n{entry['text']}\n```", "", "</details>"]
    text = "\n".join(lines) + "\n"
    return _HTML + MarkdownIt().enable("table").render(text) if is_html else text
