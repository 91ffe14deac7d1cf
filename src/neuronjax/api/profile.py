"""`profile`: where the time of a program goes on a chip, and what would save some.

The thin public face of `timing`, `report` and `diagnostics.limits`: it captures and
lowers as `jit` does and schedules instead of running. Shapes are enough: no value is
computed unless `Profile.outputs` is read. Times are predictions of a model for one
logical NeuronCore; `neuronjax constants` lists what they rest on.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from rich.console import Group
from rich.table import Table
from rich.text import Text

from neuronjax.api.jit import Emulated, jit
from neuronjax.api.lowered import Lowered
from neuronjax.diagnostics import kernel_limits as kernels
from neuronjax.diagnostics.changes import Changes
from neuronjax.diagnostics.limits import Change, Subject, changes
from neuronjax.errors import InvalidProgramError, NeuronJaxError
from neuronjax.hardware import Target, resolve_target
from neuronjax.ir.instruction import InstructionProgram
from neuronjax.policy import Policy
from neuronjax.report import profile_tables as tables, profile_usage as usages
from neuronjax.report.memory_samples import memory_samples
from neuronjax.report.profile_events import write_csv, write_parquet
from neuronjax.report.profile_summary import metrics, roofs
from neuronjax.report.profile_usage import Usage
from neuronjax.report.quantities import binary
from neuronjax.report.setting import kernel_line, setting_line
from neuronjax.report.tables import Displayed, as_text
from neuronjax.timing.evidence import Confidence, confidence
from neuronjax.timing.hbm import (
    capacity_bytes,
    check_fits,
    donation_saves,
    with_donation,
)
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.memory_plan import MemoryPlan
from neuronjax.timing.schedule import schedule
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import QUEUES, Core, Queue

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How often a loop turns, by "file.py:12" or ordinal, where its condition does not say.
Trips = Mapping[str | int, int]

_SHOWN_CHANGES = 3
#: A queue that works less than this share of the time does not limit a program alone.
_SATURATED = 0.8
#: What donation saves is worth a note from this share of HBM on.
_WORTH_A_NOTE = 0.01


def profile(
    step: Callable[..., Any] | Emulated | Lowered,
    *,
    target: str | None = None,
    policy: str | Policy | None = None,
    lnc: int | None = None,
    peak: str | float = "bf16",
    batch_argnums: int | Sequence[int] = (),
    trips: Trips | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., Profile]:
    """Predicts where the time of a function goes on a chip.

    Args:
        step: what `jax.jit` takes; a function of `neuronjax.jit`; a kernel of
            `neuronjax.nki.jit`; or a `Lowered` (of `neuronjax.load`, say), whose
            profile takes no arguments.
        target: as `neuronjax.jit`; None for the step's own, else "trn2".
        policy: as `neuronjax.jit`; None for the step's own.
        lnc: physical cores per logical core; None for the policy's, else the target's
            default.
        peak: what MFU refers to: "bf16", "fp32", "fp8", "mx", "sparse", or TFLOPS.
        batch_argnums: the arguments whose leading axis is the batch. With them
            `Profile.limits` also prices other batch sizes.
        trips: how often loops turn where values decide it, by the user's line
            ("train.py:12"); without, such a loop turns once, and a note says so.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments (arrays or ShapeDtypeStructs) that returns the
        `Profile`; nothing is run.

    Raises:
        InvalidProgramError: unknown target, policy, peak or LNC size; a `Lowered` with
            a policy, or for another target.

    Example:
        >>> profiled = nj.profile(train_step, target="trn2")(state, batch)
        >>> print(profiled.summary())
    """
    statics = dict(static_argnums=static_argnums, static_argnames=static_argnames)
    if isinstance(step, Lowered):
        return _profile_lowered(step, target, policy, lnc, peak, trips)
    if kernels.is_kernel(step):
        options = dict(target=target, lnc=lnc, trips=trips, peak=peak)
        return kernels.profiler(step, Profile, _values, policy, options)
    emulated = _emulated(step, target, policy, statics)
    core = _core(emulated.target, emulated.policy, lnc, peak)
    batch = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)

    def profiled(*args: Any, **kwargs: Any) -> Profile:
        lowered = emulated.lower(*args, **kwargs)
        with_batch = functools.partial(_scaled, emulated, args, kwargs, batch)
        return _profile(
            lowered,
            name=getattr(step, "__name__", "function"),
            target=emulated.target,
            policy=emulated.policy,
            core=core,
            peak=peak,
            trips=trips,
            donated=_donated(emulated, lowered.program.argument_names),
            _with_batch=with_batch if batch else None,
            _run=lambda: emulated(*_values(args), **_values(kwargs)),
        )

    return profiled


def _emulated(
    step: Any, target: str | None, policy: str | Policy | None, statics: dict[str, Any]
) -> Emulated:
    if not isinstance(step, Emulated):
        return jit(step, target=target or "trn2", policy=policy, **statics)
    if target is None and policy is None:
        return step
    given = step.options
    return step.with_options(
        target=target or given["target"], policy=policy or given["policy"]
    )


def _core(target: Target, policy: Policy, lnc: int | None, peak: str | float) -> Core:
    core = Core.of(target, policy.lnc if lnc is None else lnc)
    roofs(core, peak)  # refuses an unknown peak before the work
    return core


def _donated(emulated: Emulated, names: Sequence[str]) -> frozenset[int]:
    """Positions of the program's arguments that `donate_argnums` gives away."""
    given = emulated.named("donate")
    chosen = {*given.names, *(emulated.argument_name(n) for n in given.numbers)}
    heads = (name.partition("/")[0] for name in names)
    return frozenset(n for n, head in enumerate(heads) if head in chosen)


def _profile_lowered(
    lowered: Lowered,
    target: str | None,
    policy: str | Policy | None,
    lnc: int | None,
    peak: str | float,
    trips: Trips | None,
) -> Callable[..., Profile]:
    machine = _same("target", lowered.target, target, resolve_target)
    own = _same("policy", lowered.policy, policy, Policy.resolve)
    core = _core(machine, own, lnc, peak)
    options: dict[str, Any] = dict(
        name=lowered.name, target=machine, policy=own, core=core, peak=peak, trips=trips
    )

    def profiled(*args: Any, **kwargs: Any) -> Profile:
        def run() -> Any:
            return lowered.compile()(*_values(args), **_values(kwargs))

        return _profile(lowered, _run=run, **options)

    return profiled


def _same(what: str, own: Any, given: Any, resolve: Callable[[Any], Any]) -> Any:
    """What a lowered program was lowered for, which can be named but not changed."""
    if given is None or resolve(given) == own:
        return own
    raise InvalidProgramError(
        f"this program was lowered for another {what}",
        remedy=f"lower it again: nj.jit(f, {what}=...).lower(...), or "
        f"nj.load(file, {what}=...)",
    )


def _values(arguments: Any) -> Any:
    """Arguments of a call that is made, not only profiled."""
    leaves = jax.tree.leaves(arguments)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise InvalidProgramError(
            "the program was profiled for types of arguments, which have no values",
            remedy="pass arrays to the profile, or run the program: nj.jit(f)(...)",
        )
    return arguments


def _scaled(
    emulated: Emulated, args: tuple, kwargs: dict, batch: Sequence[int], factor: float
) -> InstructionProgram | None:
    """The program with another batch; None where the program cannot have it."""

    def scaled(leaf: Any) -> Any:
        if not jnp.ndim(leaf):
            return leaf
        size, *rest = leaf.shape
        return jax.ShapeDtypeStruct((int(size * factor), *rest), leaf.dtype)

    leaves = jax.tree.leaves([args[i] for i in batch])
    sizes = {leaf.shape[0] * factor for leaf in leaves if jnp.ndim(leaf)}
    if not sizes or any(size != int(size) or size < 1 for size in sizes):
        return None
    other = [
        jax.tree.map(scaled, arg) if i in batch else arg for i, arg in enumerate(args)
    ]
    try:
        return emulated.captured(*other, **kwargs).instructions
    except (TypeError, ValueError, NeuronJaxError):
        return None  # what JAX raises where the program is written for one batch size


def _profile(
    lowered: Lowered,
    *,
    core: Core,
    target: Target,
    trips: Trips | None,
    policy: Policy,
    donated: Collection[int] = (),
    _with_batch: Callable[[float], InstructionProgram | None] | None = None,
    **options: Any,
) -> Profile:
    instructions, placement = lowered.captured.instructions, policy.placement
    plan = plan_memory(instructions, core, lowered.program.argument_names)
    plan = with_donation(plan, donated)

    def price(instructions: InstructionProgram, other: Core) -> Timeline:
        # Of another LNC size the numbers of logical cores mean other cores.
        cores = placement if other.lnc == core.lnc else ()
        return schedule(instructions, other, target, trips=trips, placement=cores)

    timeline = schedule(
        instructions, core, target, trips=trips, plan=plan, placement=placement
    )
    subject = Subject(
        program=lowered.program, instructions=instructions, target=target, core=core,
        policy=policy, timeline=timeline, price=price, with_batch=_with_batch,
    )  # fmt: skip
    return Profile(
        timeline=timeline,
        core=core,
        target=target,
        policy=policy,
        _find_changes=lambda: changes(subject),
        _program=lowered,
        **options,
    )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Profile(Displayed):
    """The predicted timeline of a program on one logical core, and what follows.

    Attributes:
        name: of the function or file.
        target: the machine.
        policy: the numerics.
        core: the logical core.
        peak: what MFU refers to.
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
    _program: Lowered | None = None  # of a kernel

    @property
    def total_seconds(self) -> float:
        """From the first event to the last, and what is around them; `confidence` says
        how sure that is."""
        return self.timeline.total_seconds

    @property
    def memory(self) -> MemoryPlan:
        """What stays in SBUF, what spills, and what HBM has to hold.

        Results take the place of arguments that the function donates
        (`donate_argnums`); of a `Lowered` it is not known which these are.
        """
        return self.timeline.memory

    def check_memory(self) -> None:
        """Does nothing if HBM holds the program.

        Raises:
            InvalidProgramError: it does not; with the biggest tensors, and what
                rematerialisation or sharding would save.
        """
        error = check_fits(self.memory, self.core)
        if error is not None:
            raise error

    @property
    def notes(self) -> tuple[str, ...]:
        """What had to be assumed of this program: turns of loops, branches; and what
        `donate_argnums` would save of HBM."""
        return (*self.timeline.notes, *self._donation_notes())

    def _donation_notes(self) -> Iterator[str]:
        saved = 0 if self._program is None else donation_saves(self.memory)
        if saved > _WORTH_A_NOTE * capacity_bytes(self.core):
            left = binary(self.memory.hbm.bytes - saved)
            yield (
                f"HBM: {left} if results took the place of arguments of their type; "
                "name these arguments in donate_argnums"
            )

    @cached_property
    def outputs(self) -> Any:
        """What the program returns, emulated when this is first read.

        Raises:
            InvalidProgramError: only types of arguments were given, not arrays.
        """
        return self._run()

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Every figure by the vendor profiler's name.

        Seconds, bytes, counts; `_percent` are fractions from 0 to 1. What each of them
        is: `neuronjax.report.profile_summary.METRICS`.
        """
        return metrics(self.timeline, self.core, self.peak)

    @cached_property
    def confidence(self) -> Confidence | None:
        """How sure `total_seconds` is, by the measured programs that are most like it.

        None of a program that takes no time.
        """
        return confidence(
            self.timeline, self.core, "program" if self._program else "kernel"
        )

    @property
    def instruction_counts(self) -> dict[Queue, int]:
        """Instructions by engine, tiles and turns of loops included; DMA transfers and
        collectives by their queues."""
        counts = usages.usage(self.timeline.events).counts
        return {queue: counts[queue] for queue in QUEUES if counts.get(queue)}

    # -- who takes the time ------------------------------------------------------------

    def by_op(self) -> dict[str, Usage]:
        """Time and bytes by instruction and operator, the busiest first."""
        return usages.grouped(self.timeline, usages.op_name)

    def by_source(self) -> dict[str, Usage]:
        """The same by `file:line` of the user's program; a notebook's cell, whose file
        has no name, by its number: `In[3]:12`."""
        return usages.grouped(self.timeline, usages.source_line)

    def by_module(self) -> dict[str, Usage]:
        """The same by part of the model and pass, "blocks/0/attn (backward)": the name
        stack (Flax linen, Haiku, `jax.named_scope`), the path of the parameters (Flax
        NNX, Equinox), or the function, whichever the framework leaves."""
        return usages.grouped(self.timeline, usages.module_name)

    def by_phase(self) -> dict[str, Usage]:
        """The same by pass: "forward", "backward", "optimizer"; "" of what neither the
        name stack nor the flow of data tells."""
        return usages.grouped(self.timeline, usages.phase_name)

    def by_engine(self) -> dict[str, Usage]:
        """The same by queue: engines, "dma", "cc"."""
        events = self.timeline.events
        found = {q: usages.usage(e for e in events if e.queue == q) for q in QUEUES}
        return {queue: used for queue, used in found.items() if used.seconds}

    @property
    def lowered(self) -> Lowered:
        """The program that was profiled; a kernel has none."""
        return kernels.not_a_kernel(self._program)

    @cached_property
    def _changes(self) -> tuple[Change, ...]:
        return self._find_changes()

    def limits(self, most: int = _SHOWN_CHANGES) -> Changes:
        """The changes with the largest predicted gain, each priced; see `Change`.

        Lowers and schedules the program several times more.
        """
        return Changes(self._changes[:most])

    def limits_table(self) -> Table:
        """`limits` as a table of Rich."""
        return self.limits().__rich__()

    @property
    def busiest(self) -> Queue:
        """The queue that works longest."""
        return max(QUEUES, key=self.timeline.busy_seconds)

    @property
    def bound(self) -> Queue | Literal["waiting"]:
        """What limits the program: its busiest queue, or "waiting" for one another."""
        share = self.timeline.busy_seconds(self.busiest) / (self.total_seconds or 1.0)
        return self.busiest if share >= _SATURATED else "waiting"

    # -- what is shown and written -----------------------------------------------------

    def summary(self) -> str:
        """Key figures, queues, memory and the busiest ops, in 80 columns."""
        return as_text(self.__rich__())

    def __rich__(self) -> Group:
        ops = tables.groups_table("Busiest ops", "op", self.by_op(), limit=8)
        parts = [self.headline(), ops]
        if self.confidence is not None:
            kind = "program" if self._program else "kernel"
            parts.append(tables.confidence_table(self.confidence, kind))
        return Group(*parts, *(Text(f"note: {note}") for note in self.notes))

    def headline(self) -> Group:
        """Key figures, queues and memory, as tables of Rich."""
        return Group(
            tables.summary_tables(self._title, self.metrics, self.bound),
            tables.memory_table(self.memory, self.core),
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
        """A Matplotlib figure.

        Args:
            kind: "timeline" (a lane for each queue), "roofline" (every op under the
                memory's and the engines' roofs), "memory" (SBUF and HBM over time), or
                "all" of them.

        Raises:
            InvalidProgramError: another kind.
        """
        from neuronjax.report.plots import draw  # Matplotlib takes a second to import

        return draw(kind, self.timeline, self.memory, self.core, self._title)

    def to_perfetto(self, path: str | Path) -> None:
        """Writes a trace that ui.perfetto.dev opens; suffix .pftrace by convention.

        Raises:
            UnsupportedError: the library perfetto is not installed.
        """
        from neuronjax.report.perfetto import write_perfetto

        process = f"{self.target.name}, logical core (LNC {self.core.lnc})"
        samples = memory_samples(self.timeline, self.memory)
        write_perfetto(self.timeline, Path(path), process=process, counters=samples)

    def to_csv(self, path: str | Path) -> None:
        """Writes every event as a line; columns as the vendor's profiler names them."""
        write_csv(self.timeline, Path(path))

    def to_parquet(self, path: str | Path) -> None:
        """Writes every event as a row of a Parquet table.

        Raises:
            UnsupportedError: pyarrow is not installed.
        """
        write_parquet(self.timeline, Path(path))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: figures, and time by queue, op, line and module."""
        groups = ("by_engine", "by_op", "by_source", "by_module", "by_phase")
        used = {group: getattr(self, group)() for group in groups}
        return {
            "program": self.name,
            "target": self.target.name,
            "lnc": self.core.lnc,
            "policy": self.policy.name,
            "bound": self.bound,
            "busiest": self.busiest,
            "notes": self.notes,
            "metrics": self.metrics,
            **{g: {key: u.as_dict() for key, u in used[g].items()} for g in groups},
        }

    def to_json(self) -> str:
        """`as_dict` as a JSON object."""
        return json.dumps(self.as_dict(), indent=2)
