"""Markdown: tables, and text that is to stand in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(value: object) -> str:
    """A value in a table: on one line, with no bar and no tag."""
    text = " ".join(str(value).split())
    return text.replace("|", "\\|").replace("<", "&lt;")


def code(value: object) -> str:
    """A value as code; nothing for an empty one."""
    return f"`{value}`" if str(value) else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; heads that end in ":" are of columns of numbers."""
    rules = ["---:" if head.endswith(":") else "---" for head in heads]
    lines = [[head.removesuffix(":") for head in heads], rules]
    lines += [[cell(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
