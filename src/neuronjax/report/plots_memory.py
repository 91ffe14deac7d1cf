"""Memory over time: what is in SBUF, and what HBM holds.

Time is that of the units of the main block, one after the other. What the arguments
take in HBM is there all the time, by category; the rest comes and goes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from neuronjax.report.memory_samples import sbuf_of, unit_edges
from neuronjax.report.plots_style import INK, annotate, plain
from neuronjax.report.quantities import binary, time_unit
from neuronjax.timing.hbm import capacity_bytes
from neuronjax.timing.memory_plan import CATEGORIES, MemoryPlan
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import Core

# Okabe and Ito's again; engines are not in these pictures.
CATEGORY_COLOURS: Mapping[str, str] = dict(
    zip(
        (*CATEGORIES, "temporaries"),
        ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#F0E442", "#D55E00"),
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
    usage = np.array(memory.hbm.usage, float)[: len(memory.main.units)]
    edges = _edges(axes, timeline, memory)
    size, name = _binary_unit(max(memory.hbm.bytes, 1))
    base = np.zeros(len(usage))
    for category, held in _fixed(memory).items():
        label = f"{category} {binary(held)}"
        base = _layer(axes, edges, base, base + held / size, category, label)
    left = np.maximum(usage / size - base, 0)
    if left.any():
        label = f"temporaries, at most {binary(left.max() * size)}"
        base = _layer(axes, edges, base, base + left, "temporaries", label)
    limit = capacity_bytes(core) / size
    top = max(base.max(initial=0.0), 1e-12)
    if limit < 3 * top:
        _capacity(axes, limit, f"{limit:.3g} {name} of HBM")
    axes.set_ylim(0, max(1.35 * top, 1.2 * limit if limit < 3 * top else 0))
    axes.set_ylabel(name, color=INK, fontsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", fontsize=7.5, frameon=False, ncols=2)
    plain(axes, f"HBM, of {binary(capacity_bytes(core))}")


def _edges(axes: Axes, timeline: Timeline, memory: MemoryPlan) -> np.ndarray:
    """Limits of the units in the unit of the time axis, which is labelled."""
    unit, name = time_unit(timeline.total_seconds)
    axes.set_xlim(0, timeline.total_seconds / unit or 1)
    axes.set_xlabel(f"time [{name}]", color=INK, fontsize=9)
    return unit_edges(timeline, memory) / unit


def _fixed(memory: MemoryPlan) -> dict[str, int]:
    """Bytes of the arguments by category."""
    found: dict[str, int] = {}
    for tensor in memory.arguments:
        found[tensor.category] = found.get(tensor.category, 0) + tensor.bytes
    return {category: found[category] for category in CATEGORIES if category in found}


def _layer(
    axes: Axes,
    edges: np.ndarray,
    base: np.ndarray,
    top: np.ndarray,
    category: str,
    label: str,
) -> np.ndarray:
    colour = CATEGORY_COLOURS[category]
    axes.stairs(top, edges, baseline=base, fill=True, color=colour, label=label)
    return top


def _capacity(axes: Axes, limit: float, text: str) -> None:
    axes.axhline(limit, color=INK, linewidth=1, linestyle="--")
    place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
    annotate(axes, text, (1.0, limit), (-2, 2), **place)


def _binary_unit(largest: float) -> tuple[float, str]:
    fitting = [(size, name) for size, name in _BINARY.items() if largest >= size]
    return fitting[-1] if fitting else (2**10, "KiB")
