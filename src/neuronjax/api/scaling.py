"""`scaling`: the predicted time of a training step on 16 to 100,000 chips.

Only the time model is used; no program is needed. A step consists of compute at a given
share of the peak, the all-reduce of the gradients, the all-reduces of tensor
parallelism, the bubble and messages of a pipeline, and one launch barrier. Devices are
logical NeuronCores. Devices that are closest together are tensor-parallel, the next
closest data-parallel, and pipeline stages are farthest apart. Not modelled: memory,
input, stragglers, failures, and lower efficiency with little work per device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from neuronjax.api.collective_bench import element
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import Target, resolve_target
from neuronjax.report.tables import NUMBER, WORD, Displayed, Records, new_table
from neuronjax.timing.collectives import (
    collective_time,
    queued_launch_seconds,
    time_over_nodes,
)
from neuronjax.timing.evidence import HOW_SURE

CHIPS = (16, 64, 256, 1024, 4096, 16_384, 65_536, 100_000)
_BACKWARD = 2 / 3  # share of the compute time: two of three matmuls
_LIMITED = 0.9  # efficiency above which no limit is reported


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScalePoint:
    """The predicted step on one number of chips; seconds are those of one step.

    Attributes:
        chips: number of chips.
        devices: logical NeuronCores: data x tensor x pipeline.
        data: number of copies of the model.
        compute_seconds: compute time of one device.
        communication_seconds: communication time of one device, hidden or not.
        exposed_seconds: communication time that compute does not hide.
        bubble_seconds: time that a device waits for other pipeline stages.
        barrier_seconds: extra time if the launch takes longer than the step.
        step_seconds: total time of the step.
        efficiency: compute time divided by step time.
        algorithm: algorithm of the all-reduce of the gradients; "" for one copy.
        limit: the largest cost besides compute; "" above 90 % efficiency.
    """

    chips: int
    devices: int
    data: int
    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float
    bubble_seconds: float
    barrier_seconds: float
    step_seconds: float
    efficiency: float
    algorithm: str
    limit: str


@dataclasses.dataclass(frozen=True, repr=False)
class Scaling(Displayed):
    """The result of `scaling`: one point for each number of chips; prints as a table.

    Attributes:
        title: the title of the table.
        points: one for every number of chips.
    """

    title: str
    points: tuple[ScalePoint, ...]

    @property
    def records(self) -> Records:
        """A dict for every point."""
        return Records(dataclasses.asdict(point) for point in self.points)

    def __rich__(self) -> Group:
        names = "chips|compute|comm|exposed|bubble|step|eff.".split("|")
        columns = dict.fromkeys(names, NUMBER) | {"limited by": WORD}
        table = new_table(self.title, columns, map(_row, self.points))
        return Group(table, Text(f"Milliseconds of a step; modelled.\n{HOW_SURE}"))

    def __repr__(self) -> str:
        return f"<neuronjax.Scaling {self.title}, {len(self.points)} points>"


def _row(p: ScalePoint) -> tuple[str, ...]:
    communication = (p.communication_seconds, p.exposed_seconds, p.bubble_seconds)
    seconds = (p.compute_seconds, *communication, p.step_seconds)
    shown = (f"{1e3 * s:.1f}" if s < 10 else f"{1e3 * s:.0f}" for s in seconds)
    return (str(p.chips), *shown, f"{p.efficiency:.0%}", p.limit or "-")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Workload:
    """The quantities that do not change with the number of chips."""

    parameters: float
    tokens_per_step: float | None
    tokens_per_device: float | None
    compute_seconds: float | None
    utilization: float
    target: Target
    tensor: int
    pipeline: int
    microbatches: int
    layers: int
    hidden: int
    gradient_bytes: int
    overlap: float
    algorithm: str | None

    def tokens(self, devices: int) -> float:
        if self.tokens_per_step is not None:
            return self.tokens_per_step
        return (self.tokens_per_device or 0.0) * devices


def scaling(
    parameters: float,
    *,
    tokens_per_step: float | None = None,
    tokens_per_device: float | None = None,
    compute_seconds: float | None = None,
    utilization: float = 0.4,
    chips: Sequence[int] | None = None,
    target: str = "trn2.48xlarge",
    tensor: int = 1,
    pipeline: int = 1,
    microbatches: int = 1,
    layers: int = 0,
    hidden: int = 0,
    gradient_dtype: str = "bfloat16",
    overlap: float = 1.0,
    algorithm: str | None = None,
) -> Scaling:
    """Predict the time of a training step for several numbers of chips.

    Args:
        parameters: number of parameters of the model.
        tokens_per_step: tokens of all devices together, on any number of chips.
        tokens_per_device: tokens of every device, given instead of `tokens_per_step`.
        compute_seconds: compute time of one device per step; None for 6 x parameters x
            tokens operations at `utilization` of the BF16 peak.
        utilization: share of the peak that is reached.
        chips: numbers of chips, each a multiple or divisor of the target's chips. None
            for `CHIPS`, in which numbers above the target's chips are rounded down to a
            multiple of them; numbers that do not suit the mesh are then left out.
        target: an instance or UltraServer.
        tensor: number of tensor-parallel devices; they must fit on a node.
        pipeline: number of pipeline stages.
        microbatches: microbatches per step and copy, for the pipeline.
        layers: number of layers, for tensor parallelism.
        hidden: width of the activations, for tensor and pipeline parallelism.
        gradient_dtype: data type in which gradients are all-reduced.
        overlap: share of the backward pass that the gradients' all-reduce overlaps.
        algorithm: all-reduce algorithm; None for a choice by size and group.

    Returns:
        The points, as data and as a table.

    Raises:
        InvalidProgramError: invalid sizes, neither tokens nor `compute_seconds`,
            numbers of chips that target or mesh do not divide, an unknown target or
            dtype.
        UnsupportedError: chips in several targets that no network connects.
    """
    given = dict(locals())
    known = {**given, "target": resolve_target(target)}
    known["gradient_bytes"] = element(gradient_dtype)[1]
    job = _Workload(**{f.name: known[f.name] for f in dataclasses.fields(_Workload)})
    _check(job)
    title = (
        f"{parameters:.3g} parameters on {job.target.name}: "
        f"tensor {tensor}, pipeline {pipeline}, {gradient_dtype} gradients"
    )
    counts = chips
    if counts is None:
        whole = job.target.chips
        rounded = (c // whole * whole if c > whole else c for c in CHIPS)
        distinct = dict.fromkeys(rounded)
        counts = [c for c in distinct if not _misfit(job, _layout(job, c))]
    return Scaling(title, tuple(_point(job, count) for count in counts))


def _check(job: _Workload) -> None:
    tokens = (job.tokens_per_step, job.tokens_per_device)
    needed = job.compute_seconds is None or job.tensor > 1 or job.pipeline > 1
    problems = (
        (job.target.instance is None, "a bare chip: name an instance"),
        (job.target.instances > 1, "several instances: name one, and give `chips`"),
        (min(job.parameters, job.utilization) <= 0, "no work: use sizes above 0"),
        (min(job.tensor, job.pipeline, job.microbatches) < 1, "a degree below 1"),
        (not 0 <= job.overlap <= 1, "an overlap outside 0 to 1"),
        (
            needed and sum(t is not None for t in tokens) != 1,
            "neither or both of tokens_per_step and tokens_per_device",
        ),
        (job.tensor > 1 and job.layers < 1, "tensor parallelism without `layers`"),
        (
            job.tensor * job.pipeline > 1 and job.hidden < 1,
            "tensor or pipeline parallelism without `hidden`",
        ),
    )
    for is_wrong, what in problems:
        if is_wrong:
            remedy = "see help(neuronjax.scaling)"
            raise InvalidProgramError(f"scaling with {what}", remedy=remedy)


@dataclasses.dataclass(frozen=True)
class _DeviceLayout:
    """The devices of one pipeline stage and their distribution over nodes."""

    chips: int
    devices: int
    data: int
    per_node: int
    nodes: int


def _layout(job: _Workload, chips: int) -> _DeviceLayout:
    per_node = job.target.logical_cores()
    devices = chips * per_node // job.target.chips
    data = devices // (job.tensor * job.pipeline)
    stage = data * job.tensor
    return _DeviceLayout(chips, devices, data, per_node, max(1, stage // per_node))


def _misfit(job: _Workload, layout: _DeviceLayout) -> str:
    stage, per_node = layout.data * job.tensor, layout.per_node
    if layout.chips < 1 or not stage or stage * job.pipeline != layout.devices:
        return f"not a multiple of tensor {job.tensor} x pipeline {job.pipeline}"
    if per_node % job.tensor:
        return f"a node has {per_node} devices, not a multiple of tensor {job.tensor}"
    if stage % per_node and per_node % stage:
        return f"a stage of {stage} devices does not fit nodes of {per_node} devices"
    return ""


def _point(job: _Workload, chips: int) -> ScalePoint:
    layout = _layout(job, chips)
    misfit = _misfit(job, layout)
    if misfit:
        raise InvalidProgramError(
            f"scaling on {chips} chips, {layout.devices} devices: {misfit}",
            remedy="choose chips so that a stage fills whole nodes, or several stages "
            "fill one node",
        )
    compute = _compute(job, layout)
    gradients, algorithm, reason = _gradients(job, layout)
    tensor = _tensor(job, layout)
    messages = _messages(job, layout)
    hidden = min(gradients, job.overlap * _BACKWARD * compute)
    bubble = (job.pipeline - 1) / job.microbatches * (compute + tensor)
    total = gradients + tensor + messages
    step = compute + (total - hidden) + bubble
    barrier = queued_launch_seconds(job.target, layout.devices, step)
    step += barrier
    costs = {
        reason: gradients - hidden,
        "tensor all-reduce": tensor,
        "pipeline messages": messages,
        "pipeline bubble": bubble,
        "too little work per chip": barrier,
    }
    return ScalePoint(
        chips=chips,
        devices=layout.devices,
        data=layout.data,
        compute_seconds=compute,
        communication_seconds=total,
        exposed_seconds=total - hidden,
        bubble_seconds=bubble,
        barrier_seconds=barrier,
        step_seconds=step,
        efficiency=compute / step,
        algorithm=algorithm,
        limit="" if compute > _LIMITED * step else max(costs, key=lambda n: costs[n]),
    )


def _compute(job: _Workload, layout: _DeviceLayout) -> float:
    if job.compute_seconds is not None:
        return job.compute_seconds
    chip = job.target.chip
    peak = (chip.core.documented_tflops.bf16 or 0.0) * 1e12 * chip.cores_per_chip
    operations = 6 * job.parameters * job.tokens(layout.devices)
    return operations / (layout.chips * peak * job.utilization)


def _gradients(job: _Workload, layout: _DeviceLayout) -> tuple[float, str, str]:
    """Return the gradients' all-reduce: seconds, algorithm, and the name in reports."""
    if layout.data == 1:
        return 0.0, "", "gradients"
    size = job.parameters * job.gradient_bytes / (job.tensor * job.pipeline)
    # Every tensor-parallel part and every stage on a node runs one at the same time.
    stage = min(layout.data * job.tensor, layout.per_node)
    used = min(layout.devices, layout.per_node)
    groups = [
        range(first + part, first + stage, job.tensor)
        for first in range(0, used, stage)
        for part in range(job.tensor)
    ]
    time = time_over_nodes(
        "all_reduce", size, groups, layout.nodes, job.target, algorithm=job.algorithm
    )
    if time.bottleneck != "latency":
        where = {"efa": "EFA", "link": "NeuronLink", "dma": "DMA"}[time.bottleneck]
        reason = f"{where} all-reduce"
    elif time.algorithm.endswith("ring") and layout.nodes > 1:
        reason = f"ring of {layout.nodes} nodes"
    else:
        reason = "too little work per chip"
    return time.seconds, time.algorithm, reason


def _tensor(job: _Workload, layout: _DeviceLayout) -> float:
    """Return the seconds of two all-reduces per layer in each of the two passes."""
    if job.tensor == 1:
        return 0.0
    size = _activations(job, layout)
    used = min(layout.per_node, layout.devices)
    groups = [tuple(range(n, n + job.tensor)) for n in range(0, used, job.tensor)]
    each = collective_time("all_reduce", size, groups, job.target).seconds
    return 4 * job.layers / job.pipeline * job.microbatches * each


def _messages(job: _Workload, layout: _DeviceLayout) -> float:
    """Return the seconds to send activations to the next stage and gradients back."""
    if job.pipeline == 1:
        return 0.0
    stage = layout.data * job.tensor
    senders = range(min(stage, layout.per_node))
    pairs = [(device, device + stage) for device in senders]
    size = _activations(job, layout) / job.tensor
    each = collective_time("collective_permute", size, pairs, job.target).seconds
    return 2 * job.microbatches * each


def _activations(job: _Workload, layout: _DeviceLayout) -> float:
    tokens = job.tokens(layout.devices) / layout.data / job.microbatches
    return math.ceil(tokens) * job.hidden * 2
