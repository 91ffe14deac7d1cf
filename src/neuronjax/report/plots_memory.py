"""Memory over time: what is in SBUF, and what HBM holds.

Time is that of the units of the main block, one after the other. What the arguments
take in HBM is there all the time; results, activations and workspace come and go.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from neuronjax.report.memory_samples import sbuf_of, unit_edges
from neuronjax.report.plots_labels import HALO, SMALL
from neuronjax.report.plots_style import INK, annotate, plain
from neuronjax.report.quantities import binary, time_unit
from neuronjax.timing.hbm import capacity_bytes
from neuronjax.timing.memory_plan import CATEGORIES, Category, MemoryPlan
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import Core

# Okabe and Ito's again; engines are not in these pictures.
CATEGORY_COLOURS: Mapping[Category, str] = dict(
    zip(
        CATEGORIES,
        ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#D55E00"),
        strict=True,
    )
)
_SBUF_COLOUR = "#0072B2"
_BINARY = {2**10: "KiB", 2**20: "MiB", 2**30: "GiB", 2**40: "TiB"}


def draw_sbuf(axes: Axes, timeline: Timeline, memory: MemoryPlan, core: Core) -> None:
    """SBUF while each unit runs, in KiB of a partition, under what there is."""
    partitions = core.spec.partitions * core.lnc
    used = np.array([sbuf_of(unit) for unit in memory.main.units])
    edges = _edges(axes, timeline, memory)
    if used.size:
        heights = used / partitions / 2**10
        axes.stairs(heights, edges, fill=True, color=_SBUF_COLOUR, alpha=0.8)
    limit = core.sbuf_bytes / partitions / 2**10
    axes.set_ylim(0, 1.2 * limit)
    _capacity(axes, limit, f"{limit:.0f} KiB usable")
    axes.set_ylabel("KiB per partition", color=INK, fontsize=9)
    plain(axes, "SBUF")


def draw_hbm(axes: Axes, timeline: Timeline, memory: MemoryPlan, core: Core) -> None:
    """HBM over time: what the arguments take, and the rest on top."""
    count, held = len(memory.main.units), _held(memory)
    edges = _edges(axes, timeline, memory)
    size, name = _binary_unit(max(memory.hbm.bytes, 1))
    base = np.zeros(count)
    for category, layer in held.items():
        most = "at most " if len(set(layer)) > 1 else ""
        top, label = base + layer / size, f"{category}, {most}{binary(max(layer))}"
        colour = CATEGORY_COLOURS[category]
        axes.stairs(top, edges, baseline=base, fill=True, color=colour, label=label)
        base = top
    limit, peak = capacity_bytes(core) / size, base.max(initial=1e-12)
    is_shown = limit < 3 * peak
    if is_shown:
        _capacity(axes, limit, f"{limit:.3g} {name} of HBM")
    axes.set_ylim(0, 1.45 * max(peak, limit if is_shown else 0))
    axes.set_ylabel(name, color=INK, fontsize=9)
    if held:
        axes.legend(loc="upper left", fontsize=SMALL, frameon=False, ncols=2)
    plain(axes, _hbm_title(memory, capacity_bytes(core)))


def _held(memory: MemoryPlan) -> dict[Category, np.ndarray]:
    """Bytes after every unit, by category: arguments, then what comes and goes."""
    count = len(memory.main.units)
    fixed: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)
    for tensor in memory.arguments:
        fixed[tensor.category] += tensor.bytes
    held: dict[Category, np.ndarray] = {
        c: np.full(count, float(size)) for c, size in fixed.items() if size
    }
    for category in reversed(CATEGORIES):  # results below: they stay
        if category in memory.hbm.temporaries:
            layer = np.array(memory.hbm.temporaries[category], float)[:count]
            held[category] = held.get(category, np.zeros(count)) + layer
    return held if count else {}


def _hbm_title(memory: MemoryPlan, capacity: int) -> str:
    peak = memory.hbm.bytes
    if peak > capacity:
        return f"HBM: {binary(peak)} do not fit in {binary(capacity)}"
    return f"HBM: {binary(peak)} of {binary(capacity)}"


def _edges(axes: Axes, timeline: Timeline, memory: MemoryPlan) -> np.ndarray:
    """Limits of the units in the unit of the time axis, which is labelled."""
    unit, name = time_unit(timeline.total_seconds)
    axes.set_xlim(0, timeline.total_seconds / unit or 1)
    axes.set_xlabel(f"time [{name}]", color=INK, fontsize=9)
    return unit_edges(timeline, memory) / unit


def _capacity(axes: Axes, limit: float, text: str) -> None:
    axes.axhline(limit, color=INK, linewidth=1, linestyle="--")
    place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
    annotate(axes, text, (1.0, limit), (-2, 2), path_effects=[HALO], **place)


def _binary_unit(largest: float) -> tuple[float, str]:
    fitting = [(size, name) for size, name in _BINARY.items() if largest >= size]
    return fitting[-1] if fitting else (2**10, "KiB")
