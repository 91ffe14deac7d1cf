"""The releases of NKI, and what differs among them."""

from __future__ import annotations

from neuronjax.nki.releases.differences import DIFFERENCES, ReleaseDifference, When
from neuronjax.nki.releases.release import RELEASES
from neuronjax.nki.releases.reports import REPORTS

from .markdown import code, table

_EFFECTS = {"lost": "limit", "values": "hazard", "order": "advice", "note": "advice"}


def releases_table() -> str:
    """Every release, oldest first, with its other names."""
    rows = (
        (
            code(r.name),
            r.sdk,
            r.date,
            ", ".join(map(code, r.styles)),
            ", ".join(map(code, r.aliases)),
        )
        for r in RELEASES
    )
    heads = ("release", "SDK", "date", "namespaces", "also called")
    return table(heads, rows)


def differences_table() -> str:
    """Every difference; names of which the same is true share a row."""
    names: dict[tuple[str, ...], list[str]] = {}
    for d in DIFFERENCES:
        names.setdefault(_said(d), []).append(d.name)
    rows = (
        (*said[:2], ", ".join(map(code, dict.fromkeys(same))), *said[2:])
        for said, same in names.items()
    )
    heads = (
        "from",
        "before",
        "name",
        "difference",
        "uses",
        "remedy",
        "verdict",
        "source",
    )
    return table(heads, rows)


def reports_table() -> str:
    """Every public report that a chip or the compiler does otherwise."""
    rows = (
        (
            code(r.name),
            ", ".join(r.chips) or "not stated",
            ", ".join(r.releases),
            r.does,
            r.documented,
            r.remedy,
            "limit" if r.lost else "advice",
            r.source,
        )
        for r in REPORTS
    )
    heads = (
        "name",
        "chip",
        "NKI",
        "reported",
        "documented",
        "remedy",
        "verdict",
        "source",
    )
    return table(heads, rows)


def _said(d: ReleaseDifference) -> tuple[str, ...]:
    """What is said of a name, in the order of the columns after it."""
    effect = _EFFECTS[d.effect]
    return d.since, d.until, d.what, _uses(d.when), d.remedy, effect, d.source


def _uses(when: When) -> str:
    """Which uses of the name a difference is about."""
    parts = []
    if when.traced:
        parts.append("as traced")
    if when.called:
        parts.append("calls")
    if when.valued:
        parts.append("results that are used")
    if when.positional:
        parts.append(f"{when.positional} or more by position")
    if when.keyword:
        kind = f" as {when.literal}" if when.literal else ""
        parts.append(f"{code(when.keyword)} given{kind}")
    if when.without:
        parts.append(f"{code(when.without)} not given")
    if when.style:
        parts.append(code(when.style))
    return ", ".join(parts)
