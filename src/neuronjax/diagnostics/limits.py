"""Changes that would make a program faster, each with its predicted time.

To predict a time, the changed program is lowered or scheduled again. A time that no
program reaches, such as the time if all queues overlapped, is called a bound. A change
of precision changes the numbers; `neuronjax run` and `jit` show if training works.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

from neuronjax.errors import NeuronJaxError
from neuronjax.hardware import Target
from neuronjax.ir.instruction import InstructionProgram
from neuronjax.ir.program import Program
from neuronjax.lowering import lower
from neuronjax.policy import Policy
from neuronjax.report.profile_tables import QUEUE_TITLES
from neuronjax.report.quantities import seconds
from neuronjax.report.tables import NUMBER, TEXT, WORD, Displayed, new_table
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import QUEUES, Core, Queue

Basis = Literal["re-priced", "bound"]
Price = Callable[[InstructionProgram, Core], Timeline]

_PRECISIONS = ("bf16", "fp8", "mxfp8", "mxfp4")
_LARGER_BATCH = 4


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The program that is to be made faster.

    Attributes:
        program: the program before lowering.
        instructions: the program after lowering.
        with_batch: returns the instructions for a batch of another size, given as a
            factor such as 1/8; it returns None if the program cannot have such a batch.
            The attribute is None if it is not known which arguments are the batch.
    """

    program: Program
    instructions: InstructionProgram
    target: Target
    core: Core
    policy: Policy
    timeline: Timeline
    price: Price
    with_batch: Callable[[float], InstructionProgram | None] | None = None

    def changed(
        self,
        kind: str,
        what: str,
        instructions: InstructionProgram,
        core: Core,
        basis: Basis = "re-priced",
        times: int = 1,
    ) -> Change:
        """Return a change to `instructions` on `core`, for a batch `times` as large."""
        seconds = self.price(instructions, core).total_seconds / times
        return Change(kind, what, seconds, self.timeline.total_seconds, basis)


@dataclass(frozen=True)
class Change:
    """One change and its predicted effect.

    Attributes:
        kind: "precision", "cores", "spills", "overlap", "transfers", "batch" or
            "sharding".
        what: what to do, in one line.
        seconds: the program's time after the change; for a larger batch, this time
            divided by the factor by which the batch is larger.
        before_seconds: the program's time now.
        basis: "re-priced" if `seconds` is predicted, "bound" if no program reaches it.
    """

    kind: str
    what: str
    seconds: float
    before_seconds: float
    basis: Basis = "re-priced"

    @property
    def gain_seconds(self) -> float:
        return self.before_seconds - self.seconds

    @property
    def speedup(self) -> float:
        """Return `before_seconds / seconds`; infinite if `seconds` is 0."""
        return self.before_seconds / self.seconds if self.seconds else float("inf")


class Changes(Displayed, tuple[Change, ...]):
    """Changes, the largest gain first."""

    __slots__ = ()
    _repr_pretty_ = Displayed._repr_pretty_  # IPython prefers this to __repr__

    def __rich__(self) -> Table:
        kinds = {"bound": "at best", "re-priced": "predicted"}
        rows = [
            (c.what, seconds(c.seconds), f"{c.speedup:.2f}", kinds[c.basis])
            for c in self
        ]
        return new_table(
            "What would save most",
            {"change": TEXT, "time": NUMBER, "× faster": NUMBER, "": WORD},
            rows or [("no change gains anything", "", "", "")],
        )

    def __repr__(self) -> str:
        lines = (f"{change.what}: {change.speedup:.3g}x" for change in self)
        return f"<neuronjax.Changes ({'; '.join(lines)})>"


def gaining(found: Iterable[Change]) -> list[Change]:
    """Return the changes that save over 0.1 % of the time, the largest gain first."""
    gains = (c for c in found if c.gain_seconds > 0.001 * c.before_seconds)
    return sorted(gains, key=lambda change: change.seconds)


def changes(subject: Subject) -> tuple[Change, ...]:
    """Return the best change of each kind, largest gain first; omit tiny gains."""
    found = [*_precisions(subject), *_cores(subject), overlap(subject.timeline)]
    found += _batches(subject)
    best: dict[str, Change] = {}
    for change in gaining(found):
        best.setdefault(change.kind, change)
    return tuple(best.values())


def _precisions(subject: Subject) -> Iterator[Change]:
    for name in _PRECISIONS:
        policy = Policy.preset(name)
        if policy == subject.policy:
            continue
        try:
            lowered = lower(subject.program, target=subject.target, policy=policy)
        except NeuronJaxError:
            continue  # the chip does not support it
        yield subject.changed("precision", f'policy="{name}"', lowered, subject.core)


def _cores(subject: Subject) -> Iterator[Change]:
    """Yield changes to another LNC, and to two ideal cores that no chip has."""
    core, program, replace = subject.core, subject.instructions, dataclasses.replace
    size = 2**20 * core.spec.sbuf_usable_bytes_per_partition
    spec = replace(core.spec, sbuf_usable_bytes_per_partition=size)
    roomy = replace(core.chip, core=spec)  # type: ignore[arg-type]
    prompt = replace(core.chip, dma_start_seconds=0.0)
    fused = "fuse or tile so that every intermediate stays in SBUF"
    fewer = "DMA transfers so large that the time of their starts is negligible"
    for lnc in core.chip.lnc_options:
        if lnc != core.lnc:
            what = f"lnc={lnc}: {lnc} physical core{'s' * (lnc > 1)} for the program"
            yield subject.changed("cores", what, program, replace(core, lnc=lnc))
    for kind, what, chip in (("spills", fused, roomy), ("transfers", fewer, prompt)):
        yield subject.changed(kind, what, program, replace(core, chip=chip), "bound")


def overlap(timeline: Timeline) -> Change:
    """Return the change in which the busiest queue never waits: the program takes this
    queue's busy time, plus its start and end, in which no queue works."""
    longest: Queue = max(QUEUES, key=timeline.busy_seconds)
    what = f"overlap all queues, so that {QUEUE_TITLES[longest]} never waits"
    seconds = timeline.busy_seconds(longest) + timeline.around_seconds
    return Change("overlap", what, seconds, timeline.total_seconds, "bound")


def _batches(subject: Subject) -> Iterator[Change]:
    if subject.with_batch is None:
        return
    core, times = subject.core, _LARGER_BATCH
    larger = subject.with_batch(times)
    if larger is not None:
        what = f"a batch {times} times as large (time / {times})"
        yield subject.changed("batch", what, larger, core, times=times)
    cores = core.chip.cores_per_chip // core.lnc
    shared = subject.with_batch(1 / cores) if cores > 1 else None
    if shared is not None:
        what = f"divide the batch over the chip's {cores} cores, without collectives"
        yield subject.changed("sharding", what, shared, core, "bound")
