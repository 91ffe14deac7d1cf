"""The roofline of a profile: every op below the limits of HBM and of the engines.

Filled circles are matmuls: their x is operations of the array per byte of the op's HBM
traffic, their y operations per second. Open circles are all other ops: they count one
operation per element, and their roof is VectorE's. An op without traffic is at the
right edge, an op far slower than all others at the bottom. A circle's area is the op's
share of the queues' time; ops with one name and nearly equal positions, such as those
of equal layers, are one circle. Left of the dotted line HBM is the limit, right of the
line the array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from neuronjax.report.plots_labels import SMALL, box_around, boxes_along, write_beside
from neuronjax.report.plots_style import COLOURS, FAINT, annotate, axis_floor, plain
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
Place = tuple[float, float]
#: Ops with a smaller share of the time of all queues are not drawn.
_LEAST_SHARE = 0.001
_WORDS = (
    "FLOP of a matmul, or elements of another op, per byte of HBM traffic\n"
    "memory bound: HBM is the limit; compute bound: an engine is; "
    "dotted line: where both limits meet in BF16"
)
_ROOF_LINE = 0.032
_LEAST_AREA = 26.0
_IN_A_DECADE = 12  # positions per decade that count as different


@dataclass(frozen=True, kw_only=True)
class Point:
    """An op in the roofline.

    Attributes:
        queue: the queue that the op occupies longest, which decides the colour.
        is_matmul: whether TensorE executes its operations.
        operations: number of operations, over all iterations of loops.
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
        """Return the operations per HBM byte; infinite without bytes."""
        return self.operations / self.hbm_bytes if self.hbm_bytes else math.inf

    @property
    def rate(self) -> float:
        """Return the operations per second."""
        return self.operations / self.seconds


def points(timeline: Timeline) -> tuple[Point, ...]:
    """Return a point for every instruction that takes time and has elements."""
    used = by_instruction(timeline)
    trips = {event.instruction: event.count for event in timeline.events}
    whole = sum(each.busy_seconds for each in used.values())
    # A kernel's transfers are separate ops. Every matmul therefore gets all bytes that
    # the kernel moves, and the time of all transfers.
    of_kernel = isinstance(timeline.memory, KernelMemory)
    moved = sum(each.hbm_bytes for each in used.values()) if of_kernel else 0
    moving = timeline.busy_seconds("dma") if of_kernel else 0.0
    found = []
    for index, each in used.items():
        instruction = timeline.instructions[index]
        queue = each.bottleneck
        tensors = (*instruction.operands, *instruction.results)
        # One operation for each element of the largest tensor.
        elements = max((math.prod(t.type.shape) for t in tensors), default=0)
        operations = each.flops or elements * trips[index]
        share = each.busy_seconds / whole if whole else 0.0
        if queue is None or not operations or share < _LEAST_SHARE:
            continue
        point = Point(
            name=op_name(instruction),
            queue=queue,
            is_matmul=each.flops > 0,
            operations=operations,
            hbm_bytes=each.hbm_bytes or moved,
            seconds=max(each.seconds[queue], 0.0 if each.hbm_bytes else moving),
            share=share,
        )
        found.append(point)
    return tuple(found)


def draw_roofline(axes: Axes, timeline: Timeline, core: Core) -> Callable[[], None]:
    """Draw roofs and ops, with logarithmic axes. Return a function that names the
    largest ops once the axes have their layout."""
    found = points(timeline)
    slope, tops = hbm_bytes_per_second(core), dict(_tops(core))
    top = max(tops.values())
    finite = [p.intensity for p in found if math.isfinite(p.intensity)]
    left, right = min([*finite, 0.05]) / 2, max([*finite, top / slope]) * 8
    rates, shares = [p.rate for p in found], [p.share for p in found]
    low = min(axis_floor(rates, shares), top / 1e3) if found else slope * left
    bottom = low / 4
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top * 3)
    for name, each in tops.items():
        colour = COLOURS["vector" if name.startswith("VectorE") else "tensor"]
        axes.plot([each / slope, right], [each, each], color=colour, linewidth=1)
    _name_tops(axes, tops)
    _draw_slope(axes, slope, top, left)
    balance = tops["BF16"] / slope
    # Here HBM and the array in BF16 have equal roofs.
    axes.axvline(balance, color=FAINT, linewidth=0.8, linestyle=":", zorder=0)
    upright = {"xycoords": ("data", "axes fraction")}
    place = (balance, 0.015)
    sides = (("memory bound ◂", -5.0, "right"), ("▸ compute bound", 5.0, "left"))
    for text, offset, side in sides:
        annotate(axes, text, place, (offset, 1), ha=side, va="bottom", **upright)
    placed = _joined([_place(point, right, bottom) for point in found])
    for mark in placed:
        _draw_mark(axes, mark)
    axes.set_xlabel(_WORDS)
    axes.set_ylabel("FLOP/s of matmuls, elements/s of other ops")
    plain(axes, "Roofline of one logical core")
    _legend(axes, placed)
    lines = [((each / slope, each), (right, each)) for each in tops.values()]
    lines.append(((left, left * slope), (top / slope, top)))
    lines.append(((balance, bottom), (balance, top)))
    return lambda: _name_largest(axes, placed, lines)


def _tops(core: Core) -> Iterator[tuple[str, float]]:
    """Yield the horizontal roofs: peaks of the array by dtype, and VectorE's modes."""
    for kind, title in _KINDS.items():
        flops = peak_flops_per_second(core, kind)
        if flops is not None:
            yield title, flops
    lanes = core.spec.partitions * core.lnc
    vector = float(lanes * core.spec.vector.clock_hz)
    if "vector_perf_modes" in core.spec.capabilities:
        yield "VectorE 4×", 4 * vector
    yield "VectorE 1×", vector


def _name_tops(axes: Axes, tops: dict[str, float]) -> None:
    """Write the names of horizontal roofs right of the axes, without overlap."""
    bottom, top_of_axes = map(math.log10, axes.get_ylim())
    height, above = top_of_axes - bottom, math.inf
    for name, top in sorted(tops.items(), key=lambda item: -item[1]):
        place = min((math.log10(top) - bottom) / height, above - _ROOF_LINE)
        if place < 0:
            continue  # below the axes
        above = place
        beside = {"transform": axes.transAxes, "va": "center", "fontsize": 7.5}
        unit = "elem/s" if name.startswith("VectorE") else "FLOP/s"
        axes.text(1.01, place, f"{name} {decimal(top, unit)}", **beside)


def _draw_slope(axes: Axes, slope: float, top: float, left: float) -> None:
    colour = COLOURS["dma"]
    axes.plot([left, top / slope], [left * slope, top], color=colour, linewidth=1.5)
    lowest, _ = axes.get_ylim()
    middle = math.sqrt(max(left, lowest / slope) * top / slope)
    text = f"HBM {slope / 1e9:,.0f} GB/s"
    annotate(axes, text, (middle, middle * slope), (5, -4), va="top")


@dataclass(frozen=True)
class _Mark:
    """A point and its position: a circle, or an arrow at the edge if it is outside."""

    point: Point
    at: Place
    shape: str

    @property
    def area(self) -> float:
        """Return the area in points squared."""
        return max(_LEAST_AREA, 1500 * self.point.share)

    @property
    def radius(self) -> float:
        return math.sqrt(self.area / math.pi)


def _joined(marks: Sequence[_Mark]) -> list[_Mark]:
    """Return the marks, largest first. Marks of one name and position are merged."""
    found: dict[tuple, _Mark] = {}
    for mark in sorted(marks, key=lambda mark: -mark.point.share):
        point = mark.point
        places = (round(_IN_A_DECADE * math.log10(each)) for each in mark.at)
        key = (point.name, point.queue, point.is_matmul, mark.shape, *places)
        if key in found:
            joined = found[key].point
            point = replace(joined, share=joined.share + point.share)
            mark = replace(found[key], point=point)
        found[key] = mark
    return sorted(found.values(), key=lambda mark: -mark.point.share)


def _place(point: Point, right: float, bottom: float) -> _Mark:
    """Return the mark of a point; a point outside the picture is at the edge."""
    is_inside = math.isfinite(point.intensity)
    x = point.intensity if is_inside else right / 1.7
    if point.rate < bottom:
        return _Mark(point, (x, bottom * 1.15), "v")
    return _Mark(point, (x, point.rate), "o" if is_inside else ">")


def _draw_mark(axes: Axes, mark: _Mark) -> None:
    colour, is_matmul = COLOURS[mark.point.queue], mark.point.is_matmul
    axes.scatter(
        [mark.at[0]],
        [mark.at[1]],
        s=mark.area,
        marker=mark.shape,
        facecolor=colour if is_matmul else "none",
        edgecolor="none" if is_matmul else colour,
        linewidth=0.6 if is_matmul else 1.2,
        alpha=0.85,
        zorder=3,
    )


def _name_largest(
    axes: Axes, placed: Sequence[_Mark], lines: Iterable[tuple[Place, Place]]
) -> None:
    """Write the names of the ops with the largest shares, if there is room."""
    taken = [box_around(axes, mark.at, mark.radius) for mark in placed]
    taken += [text.get_window_extent() for text in axes.texts]
    taken += [box for line in lines for box in boxes_along(axes, *line)]
    legend = axes.get_legend()
    taken += [legend.get_window_extent()] if legend else []
    named: set[str] = set()
    for mark in placed:
        name = mark.point.name
        may_name = name not in named and len(named) < _NAMED
        if may_name and write_beside(axes, name, mark.at, taken, mark.radius):
            named.add(name)


def _legend(axes: Axes, placed: Sequence[_Mark]) -> None:
    present = {mark.point.queue for mark in placed}
    shapes = {mark.shape for mark in placed}
    queues = [(COLOURS[q], name) for q, name in QUEUE_TITLES.items() if q in present]
    looks = [("o", colour, colour, name) for colour, name in queues]
    looks += [("o", FAINT, FAINT, "matmul"), ("o", "none", FAINT, "other op")]
    outside = ((">", "no HBM traffic"), ("v", "below the axis"))
    looks += [(s, "none", FAINT, text) for s, text in outside if s in shapes]
    names = "marker", "markerfacecolor", "markeredgecolor", "label"
    axes.legend(
        handles=[Line2D([], [], ls="", **dict(zip(names, look))) for look in looks],
        title="busiest queue of an op; area: time of the op",
        title_fontsize=SMALL,
        alignment="left",
        loc="upper left",
        fontsize=SMALL,
    )
