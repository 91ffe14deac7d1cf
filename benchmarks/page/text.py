"""Markdown tables, and numbers with three digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [_line(head), "|" + "---|" * len(head)]
    return "\n".join([*lines, *map(_line, rows)])


def folded(words: str, *parts: str) -> str:
    """Return Markdown that is hidden until a reader clicks on the given words."""
    opening = f'<details markdown="1">\n<summary>{words}</summary>'
    return "\n\n".join((opening, *parts, "</details>"))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def seconds(value: float | None) -> str:
    """Return three digits and a unit; "" for None."""
    if value is None:
        return ""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1:
            return f"{digits(value * factor)} {unit}"
    return f"{digits(value * 1e9)} ns"


def digits(value: float) -> str:
    """Return three digits without exponent, with thousands separated."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def span(values: Iterable[float]) -> str:
    """Return "1.2 to 3.4", or "1.2" if both ends print the same."""
    found = sorted(values)
    low, high = digits(found[0]), digits(found[-1])
    return low if low == high else f"{low} to {high}"


def size(sizes: dict[str, object]) -> str:
    """Return sizes as "1,048,576 elements", "1024 x 1024 x 1024", or by name."""
    if set(sizes) == {"elements"}:
        return f"{sizes['elements']:,} elements"
    if set(sizes) == {"m", "k", "n"}:
        return f"{sizes['m']} × {sizes['k']} × {sizes['n']}"
    return ", ".join(f"{name} {_plain(value)}" for name, value in sizes.items())


def _plain(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def percent(value: float | None) -> str:
    """Return "12 %"; "" for None."""
    if value is None:
        return ""
    return f"{value * 100:.1f} %" if abs(value) < 0.1 else f"{value * 100:.0f} %"


def plural(count: int, noun: str) -> str:
    """Return "1 row", "2 rows"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
