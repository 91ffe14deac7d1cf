"""`Profile`: the predicted timeline of a program, and the figures read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from neuronjax.api.lowered import Lowered
from neuronjax.diagnostics import kernel_limits as kernels
from neuronjax.diagnostics.limits import Change, Changes
from neuronjax.hardware import Target
from neuronjax.policy import Policy
from neuronjax.report import profile_tables as tables, profile_usage as usages
from neuronjax.report.casts import cast_notes
from neuronjax.report.memory_samples import memory_samples
from neuronjax.report.profile_events import write_csv, write_parquet
from neuronjax.report.profile_summary import metrics
from neuronjax.report.profile_tables import ShownMemory, UsageGroups, shown_memory
from neuronjax.report.quantities import binary
from neuronjax.report.setting import kernel_line, setting_line
from neuronjax.report.tables import Displayed
from neuronjax.timing.evidence import Confidence, confidence
from neuronjax.timing.hbm import capacity_bytes, check_fits, donation_saves
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import QUEUES, Core, Queue

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN_CHANGES = 3
#: A queue that is busy for less than this share of the time is no bottleneck.
_SATURATED = 0.8
#: Donation is suggested in a note if it saves at least this share of HBM.
_WORTH_A_NOTE = 0.01


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Profile(Displayed):
    """The predicted timeline of a program on one logical core, with reports of it.

    Attributes:
        name: name of the function or file.
        target: the machine.
        policy: the numerics.
        core: the logical core.
        peak: the peak to which MFU refers.
        timeline: every event on every queue.
    """

    name: str
    target: Target
    policy: Policy
    core: Core
    peak: str | float
    timeline: Timeline
    _run: Callable[[], Any]
    _find_changes: Callable[[], tuple[Change, ...]]
    _program: Lowered | None = None  # None for a kernel

    @property
    def total_seconds(self) -> float:
        """Predicted time of the whole program, including overheads before and after it.
        `confidence` gives the uncertainty."""
        return self.timeline.total_seconds

    @cached_property
    def memory(self) -> ShownMemory:
        """The contents of SBUF and HBM when each is fullest, and what spills.

        Results take the place of arguments that the function donates
        (`donate_argnums`). Which arguments a loaded program donates is unknown."""
        return shown_memory(self.timeline.memory, self.core)

    def check_memory(self) -> None:
        """Check that HBM can hold the program.

        Raises:
            InvalidProgramError: it does not fit; the message names the biggest tensors,
                and what rematerialisation or sharding would save.
        """
        error = check_fits(self.memory, self.core)
        if error is not None:
            raise error

    @property
    def notes(self) -> tuple[str, ...]:
        """The assumptions about loops and branches, the cost of casts to 16 bits, and
        the HBM that `donate_argnums` would save."""
        if self._program is None:
            return self.timeline.notes
        casts = cast_notes(self.timeline, self.policy, self.core)
        return (*self.timeline.notes, *casts, *self._donation_notes())

    def _donation_notes(self) -> Iterator[str]:
        saved = donation_saves(self.memory)
        if saved > _WORTH_A_NOTE * capacity_bytes(self.core):
            left = binary(self.memory.hbm.bytes - saved)
            yield (
                f"HBM: {left} if results reused the memory of arguments of their type; "
                "name such arguments in donate_argnums"
            )

    @cached_property
    def outputs(self) -> Any:
        """The outputs of the program, which is emulated when this is first read.

        Raises:
            InvalidProgramError: the arguments were types, not arrays.
        """
        return self._run()

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Every figure under its name in the vendor's profiler.

        `_percent` figures are fractions from 0 to 1, the others seconds, bytes or
        counts. `neuronjax.report.profile_summary.METRICS` explains each figure."""
        return metrics(self.timeline, self.core, self.peak)

    @cached_property
    def confidence(self) -> Confidence | None:
        """The uncertainty of `total_seconds`, from the most similar measured programs.

        None for a program that takes no time."""
        kind = "program" if self._program else "kernel"
        return confidence(self.timeline, self.core, kind)

    @property
    def instruction_counts(self) -> dict[Queue, int]:
        """Number of instructions that each engine executes: every tile and every loop
        iteration counts. DMA transfers and collectives are listed by queue."""
        counts = usages.usage(self.timeline.events).counts
        return {queue: counts[queue] for queue in QUEUES if counts.get(queue)}

    def by_op(self) -> UsageGroups:
        """Return time and bytes by instruction and operator, the busiest first.
        "(none)" is work that belongs to no instruction, such as loads of constants."""
        return UsageGroups("op", usages.grouped(self.timeline, usages.op_name))

    def by_source(self) -> UsageGroups:
        """Return time and bytes by `file:line` of the user's program. `In[3]:12` is
        line 12 of cell 3 of a notebook."""
        return UsageGroups("source", usages.grouped(self.timeline, usages.source_line))

    def by_module(self) -> UsageGroups:
        """Return time and bytes by module and pass, "blocks/0/attn (backward)". Modules
        are the name stack (Flax linen, Haiku, `jax.named_scope`), the path of the
        parameters (Flax NNX, Equinox), or the function, as the framework permits."""
        return UsageGroups("module", usages.grouped(self.timeline, usages.module_name))

    def by_phase(self) -> UsageGroups:
        """Return time and bytes by pass: "forward", "backward", "optimizer"; "(none)"
        if neither the name stack nor the flow of data shows the pass."""
        return UsageGroups("phase", usages.grouped(self.timeline, usages.phase_name))

    def by_engine(self) -> UsageGroups:
        """Return time and bytes by queue: the engines, "dma" and "cc"."""
        events = self.timeline.events
        found = {q: usages.usage(e for e in events if e.queue == q) for q in QUEUES}
        used = {queue: each for queue, each in found.items() if each.seconds}
        return UsageGroups("engine", used)

    @property
    def lowered(self) -> Lowered:
        """The program that was profiled; raises InvalidProgramError for a kernel."""
        return kernels.not_a_kernel(self._program)

    @cached_property
    def _changes(self) -> tuple[Change, ...]:
        return self._find_changes()

    def limits(self, most: int = _SHOWN_CHANGES) -> Changes:
        """Return the changes with the largest predicted gain; see `Change`.

        The program is lowered and scheduled again for each change."""
        return Changes(self._changes[:most])

    def limits_table(self) -> Table:
        """Return `limits` as a Rich table."""
        return self.limits().__rich__()

    @property
    def busiest(self) -> Queue:
        """The queue with the longest busy time."""
        return max(QUEUES, key=self.timeline.busy_seconds)

    @property
    def bound(self) -> Queue | Literal["waiting"]:
        """The bottleneck: the busiest queue, or "waiting" if queues wait for others."""
        share = self.timeline.busy_seconds(self.busiest) / (self.total_seconds or 1.0)
        return self.busiest if share >= _SATURATED else "waiting"

    def __rich__(self) -> Group:
        ops = self.by_op().table(8)
        notes = (Text(f"note: {note}") for note in self.notes)
        return Group(self.headline(), ops, self.confidence_table(), *notes)

    def confidence_table(self) -> Group:
        """Return `confidence` as a Rich table; an empty group if there is none."""
        if self.confidence is None:
            return Group()
        kind = "program" if self._program else "kernel"
        return Group(tables.confidence_table(self.confidence, kind, self.total_seconds))

    def headline(self) -> Group:
        """Return key figures, queues and memory as Rich tables."""
        return Group(
            tables.headline_table(self._title, self.metrics),
            tables.queues_table(self.metrics, self.bound),
            self.memory.__rich__(),
        )

    @property
    def _title(self) -> str:
        if self._program is None:
            return f"{self.name} on {kernel_line(self.target, self.core.lnc)}"
        setting = setting_line(self.target, self.policy, self.core.lnc)
        return f"{self.name} on {setting}"

    def __repr__(self) -> str:
        return f"<neuronjax.Profile {self._title} {self.total_seconds:.3g} s>"

    def plot(self, kind: str = "all") -> Figure:
        """Return a Matplotlib figure.

        Args:
            kind: "timeline" (a row for each queue), "roofline" (every op under the
                limits of memory and engines), "memory" (SBUF and HBM over time), or
                "all" of them.

        Raises:
            InvalidProgramError: another kind.
        """
        from neuronjax.report.plots import draw  # Matplotlib takes a second to import

        return draw(kind, self.timeline, self.memory, self.core, self._title)

    def to_perfetto(self, path: str | Path) -> None:
        """Write a trace for ui.perfetto.dev; the usual suffix is .pftrace.

        Raises:
            UnsupportedError: the library perfetto is not installed.
        """
        from neuronjax.report.perfetto import write_perfetto

        process = f"{self.target.name}, logical core (LNC {self.core.lnc})"
        samples = memory_samples(self.timeline, self.memory)
        write_perfetto(self.timeline, Path(path), process=process, counters=samples)

    def to_csv(self, path: str | Path) -> None:
        """Write every event as a line, with the vendor profiler's column names."""
        write_csv(self.timeline, Path(path))

    def to_parquet(self, path: str | Path) -> None:
        """Write every event as a row of a Parquet table.

        Raises:
            UnsupportedError: pyarrow is not installed.
        """
        write_parquet(self.timeline, Path(path))

    def as_dict(self) -> dict[str, Any]:
        """Return figures, and times by queue, op, line and module, for JSON."""
        groups = ("by_engine", "by_op", "by_source", "by_module", "by_phase")
        used = {group: getattr(self, group)() for group in groups}
        return {
            "program": self.name,
            "target": self.target.name,
            "lnc": self.core.lnc,
            "policy": self.policy.name,
            **{n: getattr(self, n) for n in ("bound", "busiest", "notes", "metrics")},
            **{g: {key: u.as_dict() for key, u in used[g].items()} for g in groups},
        }
