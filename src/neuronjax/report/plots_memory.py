"""Pictures of memory over time: the use of SBUF, and the contents of HBM.

The arguments are in HBM all the time; results, activations and workspace come and go.
If these are small, the axis below them is compressed, as its label says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from neuronjax.report.memory_samples import MemoryStage, sbuf_of, stage_edges, stages
from neuronjax.report.plots_labels import SMALL
from neuronjax.report.plots_style import INK, annotate, plain
from neuronjax.report.quantities import binary, time_unit
from neuronjax.timing.hbm import capacity_bytes
from neuronjax.timing.memory_plan import CATEGORIES, Category, MemoryPlan
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import Core

# Okabe and Ito's colours, which denote engines in other pictures.
_COLOURS = ("#0072B2", "#F0E442", "#009E73", "#E69F00", "#CC79A7", "#D55E00")
CATEGORY_COLOURS: Mapping[Category, str] = dict(zip(CATEGORIES, _COLOURS, strict=True))
_NEAR = 3  # a capacity is drawn if it is less than this multiple of the use
_FOR_LEGEND = 1.45  # height of the axis, relative to the data
#: The picture is compressed if varying memory is a smaller share of the peak than
#: `_FLAT`; constant memory then takes the share `_SQUEEZED` of the height.
_FLAT, _SQUEEZED = 0.35, 0.22
_BINARY = {2**10: "KiB", 2**20: "MiB", 2**30: "GiB", 2**40: "TiB"}


def draw_sbuf(axes: Axes, timeline: Timeline, memory: MemoryPlan, core: Core) -> None:
    """Draw the use of SBUF over time, in KiB per partition, and its capacity."""
    shown = stages(memory)
    unit = core.spec.partitions * core.lnc * 2**10
    used = np.array([sbuf_of(stage.unit) for stage in shown]) / unit
    edges = _edges(axes, timeline, memory, shown)
    if used.size:
        axes.stairs(used, edges, fill=True, color="#56B4E9")  # no category's colour
    limit, most = core.sbuf_bytes / unit, used.max(initial=0.0)
    if limit < _NEAR * most or not most:
        _capacity(axes, limit, f"{limit:.0f} KiB usable")
        most = limit
    axes.set_ylim(0, 1.2 * most)
    axes.set_ylabel("KiB per partition")
    plain(axes, f"SBUF: at most {used.max(initial=0.0):.3g} of {limit:.0f} KiB")


def draw_hbm(axes: Axes, timeline: Timeline, memory: MemoryPlan, core: Core) -> None:
    """Draw the bytes in HBM over time: the arguments, above them all other data."""
    shown = stages(memory)
    held = _held(memory, shown)
    edges = _edges(axes, timeline, memory, shown)
    fitting = [size for size in _BINARY if memory.hbm.bytes >= size] or [2**10]
    size, name = fitting[-1], _BINARY[fitting[-1]]
    base = np.zeros(len(shown))
    for category, layer in held.items():
        most = "at most " if len(set(layer)) > 1 else ""
        top, label = base + layer / size, f"{category}, {most}{binary(max(layer))}"
        colour = CATEGORY_COLOURS[category]
        axes.stairs(top, edges, baseline=base, fill=True, color=colour, label=label)
        base = top
    capacity = capacity_bytes(core)
    limit, peak = capacity / size, base.max(initial=1e-12)
    least = base.min(initial=peak)
    axes.set_ylabel(name)
    if limit < _NEAR * peak:
        _capacity(axes, limit, f"{limit:.3g} {name} of HBM")
        axes.set_ylim(0, _FOR_LEGEND * max(peak, limit))
    elif 0 < peak - least < _FLAT * peak:
        _squeeze(axes, least, peak)
        axes.set_ylabel(f"{name}, squeezed below {least:.4g}")
    else:
        axes.set_ylim(0, _FOR_LEGEND * peak)
    if held:
        axes.legend(loc="upper left", fontsize=SMALL, ncols=2)
    fits = "of" if memory.hbm.bytes <= capacity else "do not fit in"
    plain(axes, f"HBM: {binary(memory.hbm.bytes)} {fits} {binary(capacity)}")


def _squeeze(axes: Axes, least: float, peak: float) -> None:
    """Compress the constant part of the axis, so that the rest is not flat."""
    heights = 0.0, least, least + _FOR_LEGEND * (peak - least)
    parts = 0.0, _SQUEEZED, 1.0
    axes.set_yscale(
        "function",
        functions=(
            lambda y: np.interp(y, heights, parts),
            lambda part: np.interp(part, parts, heights),
        ),
    )
    axes.set_ylim(0, heights[-1])
    above = MaxNLocator(4).tick_values(least, peak)
    room = 0.15 * (heights[-1] - least)
    ticks = [0.0, least, *(y for y in above if least + room < y < heights[-1])]
    axes.set_yticks(ticks, [f"{tick:.4g}" for tick in ticks])
    axes.axhline(least, color=INK, linewidth=0.8, linestyle=":")
    across = {"marker": [(-1, -0.6), (1, 0.6)], "markersize": 9, "clip_on": False}
    axes.plot([0], [_SQUEEZED], color=INK, transform=axes.transAxes, **across)


def _held(
    memory: MemoryPlan, shown: Sequence[MemoryStage]
) -> dict[Category, np.ndarray]:
    """Return category -> bytes at every stage, the arguments' categories first."""
    fixed: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)
    for tensor in memory.arguments:
        fixed[tensor.category] += tensor.bytes
    held: dict[Category, np.ndarray] = {
        c: np.full(len(shown), float(size)) for c, size in fixed.items() if size
    }
    for category in reversed(CATEGORIES):  # results at the bottom, since they stay
        layer = np.array([float(stage.held.get(category, 0)) for stage in shown])
        if layer.any():
            held[category] = held.get(category, np.zeros(len(shown))) + layer
    return held if shown else {}


def _edges(
    axes: Axes, timeline: Timeline, memory: MemoryPlan, shown: Sequence[MemoryStage]
) -> np.ndarray:
    """Label the time axis; return the limits of the stages in the unit of the axis."""
    unit, name = time_unit(timeline.total_seconds)
    axes.set_xlim(0, timeline.total_seconds / unit or 1)
    axes.set_xlabel(f"time [{name}]")
    return stage_edges(timeline, memory, shown) / unit


def _capacity(axes: Axes, limit: float, text: str) -> None:
    axes.axhline(limit, color=INK, linewidth=1, linestyle="--")
    place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
    annotate(axes, text, (1.0, limit), (-2, 2), **place)
