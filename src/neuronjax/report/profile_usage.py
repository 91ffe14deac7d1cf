"""The resources that events use, and their division among ops, lines and modules.

Resources are engine seconds, floating-point operations and bytes, over all iterations
of loops. Engines work in parallel, so the seconds of all groups of a profile add up to
the engines' busy times, not to the wall time of the program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from neuronjax.errors import cell_place
from neuronjax.ir.instruction import Instruction
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import QUEUES, Event, Queue, Reason, Transfer

#: Fields that `Usage` and `Work` share.
_SUMMED = (
    *("flops", "hardware_flops", "transpose_flops", "dma_bytes"),
    *("sbuf_read_bytes", "sbuf_write_bytes", "psum_read_bytes", "psum_write_bytes"),
)


@dataclass(kw_only=True, repr=False)
class Usage(dict[str, float]):
    """Sums over events; after `told`, also a dict of the figures.

    Attributes:
        seconds: busy time by queue.
        counts: engine instructions, or DMA transfers, by queue.
        opcode_seconds: busy time by opcode of the engines.
        opcode_counts: engine instructions by opcode.
        flops: operations of the program's matmuls.
        hardware_flops: operations of the array, in BF16 equivalents.
        transpose_flops: the part of `hardware_flops` that is transposes.
        read_bytes: bytes from HBM, by reason.
        write_bytes: bytes to HBM, by reason.
        dma_bytes: bytes that pass the DMA engines; a copy within HBM counts once.
        sbuf_read_bytes, sbuf_write_bytes: by the engines.
        psum_read_bytes, psum_write_bytes: by the engines.
    """

    seconds: dict[Queue, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[Queue, int] = field(default_factory=lambda: defaultdict(int))
    opcode_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    opcode_counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    flops: float = 0.0
    hardware_flops: float = 0.0
    transpose_flops: float = 0.0
    read_bytes: dict[Reason, int] = field(default_factory=lambda: defaultdict(int))
    write_bytes: dict[Reason, int] = field(default_factory=lambda: defaultdict(int))
    dma_bytes: float = 0.0
    sbuf_read_bytes: float = 0.0
    sbuf_write_bytes: float = 0.0
    psum_read_bytes: float = 0.0
    psum_write_bytes: float = 0.0

    @property
    def busy_seconds(self) -> float:
        """Return the busy time of all queues together."""
        return sum(self.seconds.values())

    @property
    def hbm_read_bytes(self) -> int:
        return sum(self.read_bytes.values())

    @property
    def hbm_write_bytes(self) -> int:
        return sum(self.write_bytes.values())

    @property
    def hbm_bytes(self) -> int:
        return self.hbm_read_bytes + self.hbm_write_bytes

    @property
    def bottleneck(self) -> Queue | None:
        """Return the queue that works longest; None if no queue works."""
        busiest = max(QUEUES, key=lambda queue: self.seconds.get(queue, 0.0))
        return busiest if self.seconds.get(busiest, 0.0) > 0 else None

    def told(self) -> Usage:
        """Copy the figures into the dict, for a data frame, and return this object."""
        names = ("hbm_read_bytes", "hbm_write_bytes", *_SUMMED)
        self["busy_seconds"] = self.busy_seconds
        self.update({f"{queue}_seconds": s for queue, s in self.seconds.items()})
        self.update({name: getattr(self, name) for name in names})
        return self

    def __repr__(self) -> str:
        return f"<neuronjax.Usage: queues busy for {self.busy_seconds:.3g} s>"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without zeros."""
        return {
            name: dict(value) if isinstance(value, dict) else value
            for name, value in vars(self).items()
            if value
        }

    def add(self, event: Event) -> None:
        spent = event.queue_seconds * event.count
        self.seconds[event.queue] += spent
        work, count = event.source, event.count
        if isinstance(work, Transfer):
            self.counts[event.queue] += count
            side = self.read_bytes if work.is_read else self.write_bytes
            side[work.reason] += work.bytes * count
            if event.queue_seconds:  # 0 for the write of a copy within HBM
                self.dma_bytes += work.bytes * count
            return
        # A collective is one op, whatever its number of steps.
        self.counts[event.queue] += count * (1 if event.queue == "cc" else work.tiles)
        self.opcode_seconds[work.opcode] += spent
        self.opcode_counts[work.opcode] += work.tiles * count
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(work, name) * count)
        if work.hbm_read_bytes:
            self.read_bytes["input"] += work.hbm_read_bytes * count
        if work.hbm_write_bytes:
            self.write_bytes["output"] += work.hbm_write_bytes * count


def usage(events: Iterable[Event]) -> Usage:
    """Return the sums over some events."""
    found = Usage()
    for event in events:
        found.add(event)
    return found


def total(parts: Iterable[Usage]) -> Usage:
    """Return a `Usage` with the sums of the busy times of `parts`, and nothing else."""
    found = Usage()
    for part in parts:
        for queue, spent in part.seconds.items():
            found.seconds[queue] += spent
    return found


Key = Callable[[Instruction], str]
NONE = "(none)"


def grouped(timeline: Timeline, key: Key) -> dict[str, Usage]:
    """Return usage by the `key` of instructions, the busiest first.

    `NONE` has the instructions whose key is "", and the events without an instruction
    (such as loads of constants). A group that takes no time is left out."""
    names = [key(instruction) for instruction in timeline.instructions]
    found: Mapping[str, Usage] = defaultdict(Usage)
    for event in timeline.events:
        name = names[event.instruction] if event.instruction >= 0 else ""
        found[name or NONE].add(event)
    busy = [(name, used) for name, used in found.items() if used.busy_seconds]
    return dict(sorted(busy, key=lambda item: -item[1].busy_seconds))


def by_instruction(timeline: Timeline) -> dict[int, Usage]:
    """Return usage by index into `timeline.instructions`."""
    found: dict[int, Usage] = defaultdict(Usage)
    for event in timeline.events:
        if event.instruction >= 0:
            found[event.instruction].add(event)
    return dict(found)


def op_name(instruction: Instruction) -> str:
    """Return the nki.isa name, with the function or operator: "tensor_tensor.add"."""
    attributes = instruction.attributes()
    detail = attributes.get("op") or attributes.get("function")
    return f"{instruction.name}.{detail}" if detail else instruction.name


def source_line(instruction: Instruction) -> str:
    """Return `file:line` of the user's program, or a notebook cell by its number."""
    source = instruction.location.source
    return cell_place(source) or source


def module_name(instruction: Instruction) -> str:
    """Return the part of the model and the pass of an instruction: "mlp (backward)"."""
    return instruction.location.label


def phase_name(instruction: Instruction) -> str:
    """Return "forward", "backward" or "optimizer"; "" if the phase is not known."""
    return instruction.location.phase
