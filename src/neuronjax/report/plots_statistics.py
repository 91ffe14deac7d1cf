"""A picture of a run's statistics: the size of its numbers, and the losses of rounding.

Results are in program order. The upper panel shows the largest number of each result
and the largest of its format; the lower one the shares of its elements that were lost,
on a logarithmic axis, so that a result without a dot lost nothing. The largest losses
are named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from neuronjax.execution.probes.collect import element_format
from neuronjax.execution.probes.statistics import Statistics, fraction
from neuronjax.report.places import place
from neuronjax.report.plots_labels import box_around, write_beside
from neuronjax.report.plots_style import FAINT, INK, pictured, plain, shade_phases

_AMAX, _LIMIT = "#0072B2", INK
#: The kinds of loss: counters, colour, mark and label.
_LOST: Sequence[tuple[tuple[str, ...], str, str, str]] = (
    (("overflow", "saturated"), "#D55E00", "X", "overflowed or saturated"),
    (("nan", "inf"), INK, "*", "NaN or Inf"),
    (("underflow",), "#E69F00", "o", "share of non-zero numbers flushed to 0"),
    (("stagnant",), "#009E73", "s", "updates lost: x + u == x"),
)
_NAMED = 2  # losses named per kind
_FEWEST_SHARE = 1e-6
#: Limits as large as FP32's are not drawn, since no result comes near them.
_WIDE = 1e38

Record = Mapping[str, Any]


@pictured
def draw_statistics(figure: Figure, statistics: Statistics) -> None:
    """Draw the two panels."""
    figure.set_size_inches(9.0, 6.0)
    above, below = figure.subplots(2, 1, sharex=True)
    records = statistics.records
    for axes in (above, below):
        shade_phases(axes, [record["phase"] for record in records])
    _draw_sizes(above, statistics, records)
    lost = list(_draw_lost(below, records))
    if not lost:
        middle = {"transform": below.transAxes, "ha": "center", "fontsize": 9}
        below.text(0.5, 0.5, "nothing", **middle)
    below.set_xlabel("result, in program order")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    below.set_xlim(-1, max(len(records), 1))
    legends = (axes.get_legend_handles_labels() for axes in (above, below))
    named = {name: h for each in legends for h, name in zip(*each, strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside lower left", ncols=3)
    figure.draw_without_rendering()
    _name_worst(below, records, lost)


def _draw_sizes(axes: Axes, statistics: Statistics, records: Sequence[Record]) -> None:
    sizes = enumerate(record["amax"] for record in records)
    shown = [(n, size) for n, size in sizes if size is not None and 0 < size < math.inf]
    sites = [(n, p) for n, p in enumerate(statistics.sites) if p.kind != "integer"]
    held = ((n, element_format(p).max_finite) for n, p in sites if p.blocked is None)
    limits = [(n, limit) for n, limit in held if limit < _WIDE]
    axes.set_yscale("log")
    axes.scatter(*_columns(shown), s=12, color=_AMAX, linewidths=0, label="largest")
    if limits:
        label = "the format's largest"
        axes.scatter(*_columns(limits), s=40, marker="_", color=_LIMIT, label=label)
    axes.set_ylabel("largest number")
    plain(axes, f"magnitudes of {len(records)} results")


def _draw_lost(
    axes: Axes, records: Sequence[Record]
) -> Iterator[tuple[float, float, str]]:
    """Draw the losses, and yield the position, share and label of each."""
    axes.set_yscale("log")
    axes.set_ylim(_FEWEST_SHARE, 2.0)
    axes.set_ylabel("share of the elements")
    plain(axes, "what rounding lost")
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    for counters, colour, marker, label in _LOST:
        shares = [sum(fraction(record, n) for n in counters) for record in records]
        found = [(n, max(s, _FEWEST_SHARE)) for n, s in enumerate(shares) if s]
        if found:
            look = {"s": 26, "color": colour, "marker": marker, "label": label}
            axes.scatter(*_columns(found), linewidths=0, **look)
            yield from ((n, share, label) for n, share in found)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


def _name_worst(
    axes: Axes, records: Sequence[Record], lost: Sequence[tuple[float, float, str]]
) -> None:
    """Write the source lines of the largest losses of each kind, if there is room."""
    taken: list[Bbox] = [box_around(axes, (n, share), 3) for n, share, _ in lost]
    for *_, label in _LOST:
        worst = sorted((e for e in lost if e[2] == label), key=lambda e: -e[1])
        for n, share, _ in worst[:_NAMED]:
            record = records[int(n)]
            op = record["scope"].rpartition("/")[2] or record["op"]
            text = f"{op} {place(record['source'])}".strip()
            write_beside(axes, text, (n, share), taken, 3)
