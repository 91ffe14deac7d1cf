"""The claims of docs/exactness.md: what is exact, what is modelled, what the host does.

The page is generated from data in docs/made, and is part of the wheel. This module
reads the tables of the page, for the command line and for `check_silicon`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

#: The cells of a row, by column heading.
Row = Mapping[str, str]


def page() -> str:
    """Return the page as Markdown."""
    installed = Path(__file__).with_suffix(".md")
    checkout = Path(__file__).parents[3] / "docs" / "exactness.md"
    found = installed if installed.exists() else checkout
    return found.read_text(encoding="utf-8")


@functools.cache
def sections() -> Mapping[str, Sequence[Row]]:
    """Return heading -> rows of the table below the heading, without backticks."""
    found: dict[str, list[Row]] = {}
    heads: list[str] = []
    rows: list[Row] = []
    for line in page().splitlines():
        if line.startswith("#"):
            rows = found.setdefault(line.lstrip("# "), [])
        elif not line.startswith("|"):
            heads = []
        elif not heads:
            heads = _cells(line)
        elif not line.startswith("| ---"):
            rows.append(dict(zip(heads, _cells(line), strict=True)))
    return found


def _cells(line: str) -> list[str]:
    return line.removeprefix("| ").removesuffix(" |").replace("`", "").split(" | ")


def meanings() -> Mapping[str, str]:
    """Return the meaning of each label."""
    return {row["label"]: row["meaning"] for row in next(iter(sections().values()))}


def claims(label: str) -> Sequence[Row]:
    """Return the rows of claims with a label: what, rule, source, switch, tests."""
    return sections()[label.capitalize()]
