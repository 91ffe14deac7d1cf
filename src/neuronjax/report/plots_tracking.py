"""The errors of a function over the commits of a repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from neuronjax.report.plots_study import COLOURS
from neuronjax.report.plots_style import INK, pictured, plain

_MOST_NAMED = 40


@pictured
def draw_tracking(figure: Figure, records: Sequence[Mapping[str, Any]]) -> None:
    """Draw two panels, a line for each policy: errors, and predicted time.

    The records are the oldest first. A cross is a commit with a fault."""
    figure.set_size_inches(9.0, 6.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    commits = [*dict.fromkeys(record["commit"] for record in records)]
    lines: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for r in records:
        lines.setdefault((r["source"], r["target"], r["policy"]), []).append(r)
    for number, ((*_, policy), own) in enumerate(lines.items(), 1):
        colour = {"color": COLOURS[number % len(COLOURS)]}
        at = [commits.index(r["commit"]) for r in own]
        errors = [r["rel_l2"] for r in own]
        above.plot(at, errors, "o-", ms=3, label=f"{policy}: relative L2", **colour)
        above.plot(at, [r["max"] for r in own], ":", label=f"{policy}: max", **colour)
        wrong = [error if r["faults"] else None for error, r in zip(errors, own)]
        above.plot(at, wrong, "x", color=INK)
        below.plot(at, [1e6 * r["predicted_seconds"] for r in own], **colour)
    above.set_yscale("log")
    above.set_ylabel("error / RMS of reference", color=INK, fontsize=9)
    below.set_ylabel("predicted µs", color=INK, fontsize=9)
    below.set_ylim(0, 1.3e6 * max(r["predicted_seconds"] for r in records))
    places = range(0, len(commits), -(-len(commits) // _MOST_NAMED))
    below.set_xticks(places, [commits[n][:7] for n in places], rotation=90)
    sources = ", ".join(dict.fromkeys(f"{s} on {target}" for s, target, _ in lines))
    plain(above, f"{sources}: errors against float64 (x: a fault)")
    plain(below, "")
    figure.legend(loc="outside lower left", fontsize=8, frameon=False, ncols=4)
