"""The roofline of a profile: every op between the memory's roof and the engines'.

Filled circles are matmuls: operations of the array, per byte that moves to or from HBM
on the op's behalf, against the time that the op takes. Open circles are all other ops,
one operation per element, whose roof is that of VectorE or ScalarE. An op that moves
nothing stands at the right edge. A circle's area is the op's share of the queues' time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from neuronjax.ir.instruction import Instruction
from neuronjax.report.plots_style import COLOURS, FAINT, INK, annotate, plain
from neuronjax.report.profile_tables import QUEUE_TITLES
from neuronjax.report.profile_usage import by_instruction, op_name
from neuronjax.report.quantities import decimal
from neuronjax.timing.engines.dma import hbm_bytes_per_second
from neuronjax.timing.engines.tensor import peak_flops_per_second
from neuronjax.timing.kernel_timeline import KernelMemory
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import Core, Queue

_KINDS = {"fp32": "FP32", "bf16": "BF16", "fp8": "FP8", "mx": "MX", "sparse": "sparse"}
_NAMED = 6
#: Ops with less of the time of all queues are not drawn.
_LEAST_SHARE = 0.001
_LINE_HEIGHT = 0.05
_ROOF_LINE = 0.032


@dataclass(frozen=True, kw_only=True)
class Point:
    """An op's place.

    Attributes:
        queue: that it occupies longest; its colour.
        is_matmul: whether operations are the array's.
        operations: all trips of loops counted.
        hbm_bytes: read and written.
    """

    name: str
    queue: Queue
    is_matmul: bool
    operations: float
    hbm_bytes: int
    seconds: float
    share: float

    @property
    def intensity(self) -> float:
        """Operations per HBM byte; infinite without bytes."""
        return self.operations / self.hbm_bytes if self.hbm_bytes else math.inf

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds


def points(timeline: Timeline) -> tuple[Point, ...]:
    """Every instruction that takes time and does something to elements."""
    used = by_instruction(timeline)
    trips = {event.instruction: event.count for event in timeline.events}
    whole = sum(each.busy_seconds for each in used.values())
    # A kernel's transfers are ops of their own: its matmuls share all that it moves.
    of_kernel = isinstance(timeline.memory, KernelMemory)
    moved = sum(each.hbm_bytes for each in used.values()) if of_kernel else 0
    found = []
    for index, each in used.items():
        instruction = timeline.instructions[index]
        queue = each.bottleneck
        operations = each.flops or _elements(instruction) * trips[index]
        share = each.busy_seconds / whole if whole else 0.0
        if queue is None or not operations or share < _LEAST_SHARE:
            continue
        point = Point(
            name=op_name(instruction),
            queue=queue,
            is_matmul=each.flops > 0,
            operations=operations,
            hbm_bytes=each.hbm_bytes or moved,
            seconds=each.seconds[queue],
            share=share,
        )
        found.append(point)
    return tuple(found)


def _elements(instruction: Instruction) -> int:
    """The most elements that it reads or writes in one tensor."""
    types = [view.type for view in instruction.operands]
    types += [buffer.type for buffer in instruction.results]
    return max((math.prod(type.shape) for type in types), default=0)


def draw_roofline(axes: Axes, timeline: Timeline, core: Core) -> None:
    """Draws roofs and ops, log-log."""
    placed = points(timeline)
    slope = hbm_bytes_per_second(core)
    tops = dict(_tops(core))
    left, right = _limits(placed, slope, max(tops.values()))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    low = min([point.rate for point in placed], default=slope * left)
    axes.set_ylim(low / 4, max(tops.values()) * 3)
    for name, top in tops.items():
        colour = _roof_colour(name)
        axes.plot([top / slope, right], [top, top], color=colour, linewidth=1)
    _name_tops(axes, tops)
    _draw_slope(axes, slope, max(tops.values()), left)
    for point in placed:
        _draw_point(axes, point, right)
    _name_largest(axes, placed, right)
    corner = {"transform": axes.transAxes, "ha": "right", "fontsize": 7.5}
    axes.text(0.99, 0.02, "▷ no HBM traffic", color=INK, **corner)
    axes.set_xlabel("operations per byte of HBM traffic", color=INK, fontsize=9)
    axes.set_ylabel("operations per second", color=INK, fontsize=9)
    plain(axes, "Roofline of one logical core")
    _legend(axes, placed)


def _tops(core: Core) -> Iterator[tuple[str, float]]:
    """Horizontal roofs: peaks of the array by dtype, and VectorE with its modes."""
    for kind, title in _KINDS.items():
        flops = peak_flops_per_second(core, kind)
        if flops is not None:
            yield title, flops
    lanes = core.spec.partitions * core.lnc
    vector = float(lanes * core.spec.vector.clock_hz)
    if "vector_perf_modes" in core.spec.capabilities:
        yield "VectorE 4×", 4 * vector
    yield "VectorE 1×", vector


def _limits(placed: tuple[Point, ...], slope: float, top: float) -> tuple[float, float]:
    ridge = top / slope
    finite = [p.intensity for p in placed if math.isfinite(p.intensity)]
    left = min([*finite, 0.05]) / 2
    return left, max([*finite, ridge]) * 8


def _roof_colour(name: str) -> str:
    return COLOURS["vector"] if name.startswith("VectorE") else COLOURS["tensor"]


def _name_tops(axes: Axes, tops: dict[str, float]) -> None:
    """Names of the horizontal roofs, right of the picture, with room between them."""
    bottom, top_of_axes = map(math.log10, axes.get_ylim())
    height, above = top_of_axes - bottom, math.inf
    for name, top in sorted(tops.items(), key=lambda item: -item[1]):
        place = min((math.log10(top) - bottom) / height, above - _ROOF_LINE)
        if place < 0:
            continue  # below the picture
        above = place
        beside = {"transform": axes.transAxes, "va": "center", "fontsize": 7.5}
        text = f"{name} {decimal(top, 'OP/s')}"
        axes.text(1.01, place, text, color=_roof_colour(name), **beside)


def _draw_slope(axes: Axes, slope: float, top: float, left: float) -> None:
    colour = COLOURS["dma"]
    axes.plot([left, top / slope], [left * slope, top], color=colour, linewidth=1.5)
    text, start = f"HBM {slope / 1e9:,.0f} GB/s", (left, left * slope)
    annotate(axes, text, start, (14, 4), va="top", color=colour)


def _draw_point(axes: Axes, point: Point, right: float) -> None:
    at_edge = not math.isfinite(point.intensity)
    x = right / 1.15 if at_edge else point.intensity
    colour = COLOURS[point.queue]
    axes.scatter(
        [x],
        [point.rate],
        s=max(12.0, 900 * point.share),
        marker=">" if at_edge else "o",
        facecolor=colour if point.is_matmul else "none",
        edgecolor="white" if point.is_matmul else colour,
        linewidth=0.6 if point.is_matmul else 1.2,
        alpha=0.85,
        zorder=3,
    )


def _name_largest(axes: Axes, placed: tuple[Point, ...], right: float) -> None:
    """The ops of the largest share, each name once, where no other stands."""
    named: dict[str, Sequence[float]] = {}
    for point in sorted(placed, key=lambda p: -p.share):
        finite = math.isfinite(point.intensity)
        x = point.intensity if finite else right / 1.15
        pixels = axes.transData.transform((x, point.rate))
        place = axes.transAxes.inverted().transform(pixels).tolist()
        if point.name in named or any(_near(place, n) for n in named.values()):
            continue
        if len(named) == _NAMED:
            break
        named[point.name] = place
        offset, side = ((8, -3), "left") if finite else ((-8, -3), "right")
        annotate(axes, point.name, (x, point.rate), offset, ha=side, zorder=4)


def _near(place: Sequence[float], other: Sequence[float]) -> bool:
    return abs(place[0] - other[0]) < 0.3 and abs(place[1] - other[1]) < _LINE_HEIGHT


def _legend(axes: Axes, placed: tuple[Point, ...]) -> None:
    queues = dict.fromkeys(point.queue for point in placed)
    handles = [
        Line2D([], [], marker="o", linestyle="", color=COLOURS[queue], label=label)
        for queue, label in QUEUE_TITLES.items()
        if queue in queues
    ]
    ring = dict(marker="o", linestyle="", markeredgecolor=FAINT)
    handles += [
        Line2D([], [], markerfacecolor=FAINT, label="matmul", **ring),  # type: ignore
        Line2D([], [], markerfacecolor="none", label="other op", **ring),  # type: ignore
    ]
    axes.legend(
        handles=handles,
        title="busiest queue of an op",
        title_fontsize=7.5,
        alignment="left",
        loc="upper left",
        fontsize=7.5,
        frameon=False,
    )
