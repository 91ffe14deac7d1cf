"""What a stretch of a timeline uses, and how that divides among ops, lines and modules.

Engine seconds, floating-point operations and bytes; the trips of loops are counted. The
seconds of one group are those of its engines, which work side by side: the groups of a
profile add up to the engines' busy times, not to its wall time.
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

#: What is named alike in a `Usage` and in a `Work`.
_SUMMED = (
    *("flops", "hardware_flops", "transpose_flops", "dma_bytes"),
    *("sbuf_read_bytes", "sbuf_write_bytes", "psum_read_bytes", "psum_write_bytes"),
)


@dataclass(kw_only=True, repr=False)
class Usage(dict[str, float]):
    """Sums over events; the figures of a group, once it is `told`, as a dict too.

    Attributes:
        seconds: busy time by queue.
        counts: engine instructions, or DMA transfers, by queue.
        opcode_seconds: busy time by opcode of the engines.
        opcode_counts: engine instructions by opcode.
        flops: of the program's matmuls.
        hardware_flops: executed by the array, in BF16 equivalents.
        transpose_flops: the part of them that is transposes.
        read_bytes: from HBM, by reason.
        write_bytes: to HBM, by reason.
        dma_bytes: that pass the DMA engines: what goes from HBM to HBM counts once.
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
        """The busy time of all queues together."""
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
        """The queue that works longest, None where none does."""
        busiest = max(QUEUES, key=lambda queue: self.seconds.get(queue, 0.0))
        return busiest if self.seconds.get(busiest, 0.0) > 0 else None

    def told(self) -> Usage:
        """Make it a flat dict of its figures, for a data frame; seconds by queue."""
        names = ("hbm_read_bytes", "hbm_write_bytes", *_SUMMED)
        self["busy_seconds"] = self.busy_seconds
        self.update({f"{queue}_seconds": s for queue, s in self.seconds.items()})
        self.update({name: getattr(self, name) for name in names})
        return self

    def __repr__(self) -> str:
        return f"<neuronjax.Usage {self.busy_seconds:.3g} s of queues>"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: what is not zero."""
        plain = {
            name: dict(value) if isinstance(value, dict) else value
            for name, value in vars(self).items()
        }
        return {name: value for name, value in plain.items() if value}

    def add(self, event: Event) -> None:
        """Counts an event."""
        spent = event.queue_seconds * event.count
        self.seconds[event.queue] += spent
        if isinstance(event.source, Transfer):
            self.counts[event.queue] += event.count
            side = self.read_bytes if event.source.is_read else self.write_bytes
            side[event.source.reason] += event.source.bytes * event.count
            if event.queue_seconds:  # the other side of the same movement has none
                self.dma_bytes += event.source.bytes * event.count
        else:
            self._add_work(event, spent)

    def _add_work(self, event: Event, spent: float) -> None:
        work, count = event.source, event.count
        assert not isinstance(work, Transfer)
        # A collective is one op, in however many steps.
        self.counts[event.queue] += count * (1 if event.queue == "cc" else work.tiles)
        self.opcode_seconds[work.opcode] += spent
        self.opcode_counts[work.opcode] += work.tiles * count
        for name in _SUMMED:
            sofar = getattr(self, name)
            setattr(self, name, sofar + getattr(work, name) * count)
        if work.hbm_read_bytes:
            self.read_bytes["input"] += work.hbm_read_bytes * count
        if work.hbm_write_bytes:
            self.write_bytes["output"] += work.hbm_write_bytes * count


def usage(events: Iterable[Event]) -> Usage:
    """The sums over some events."""
    found = Usage()
    for event in events:
        found.add(event)
    return found


def total(parts: Iterable[Usage]) -> Usage:
    """The busy times of several groups together, by queue."""
    found = Usage()
    for part in parts:
        for queue, spent in part.seconds.items():
            found.seconds[queue] += spent
    return found


Key = Callable[[Instruction], str]
NONE = "(none)"


def grouped(timeline: Timeline, key: Key) -> dict[str, Usage]:
    """Usage by a property of the instruction; the busiest first.

    What does not have it is under `NONE`, and so are events of no instruction
    (constants that are loaded, say). A group that takes no time is left out.
    """
    names = [key(instruction) for instruction in timeline.instructions]
    found: Mapping[str, Usage] = defaultdict(Usage)
    for event in timeline.events:
        name = names[event.instruction] if event.instruction >= 0 else ""
        found[name or NONE].add(event)
    busy = [(name, used) for name, used in found.items() if used.busy_seconds]
    return dict(sorted(busy, key=lambda item: -item[1].busy_seconds))


def by_instruction(timeline: Timeline) -> dict[int, Usage]:
    """Usage by index into `timeline.instructions`."""
    found: dict[int, Usage] = defaultdict(Usage)
    for event in timeline.events:
        if event.instruction >= 0:
            found[event.instruction].add(event)
    return dict(found)


# -- what an instruction is called -----------------------------------------------------


def op_name(instruction: Instruction) -> str:
    """The nki.isa name, with the function or operator: "tensor_tensor.add"."""
    attributes = instruction.attributes()
    detail = attributes.get("op") or attributes.get("function")
    return f"{instruction.name}.{detail}" if detail else instruction.name


def source_line(instruction: Instruction) -> str:
    """`file:line` of the user's program; a notebook's cell by its number."""
    source = instruction.location.source
    return cell_place(source) or source


def module_name(instruction: Instruction) -> str:
    """The part of the model and the pass that it belongs to: "mlp (backward)"."""
    return instruction.location.label


def phase_name(instruction: Instruction) -> str:
    """ "forward", "backward" or "optimizer"; "" where that cannot be told."""
    return instruction.location.phase
