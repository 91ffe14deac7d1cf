"""Limits of an NKI kernel, found by scheduling it again without some of its work.

The author of a kernel chooses its precision, layout and order of instructions, so these
do not change. Each change assumes that some work takes no time: the time after the
change is a bound that no kernel reaches.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from neuronjax.diagnostics.limits import Change, gaining, overlap
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy
from neuronjax.report.profile_summary import roofs
from neuronjax.timing.cost_rules import KernelPrice
from neuronjax.timing.kernel_schedule import KernelSchedule, schedule_kernel, what_if
from neuronjax.timing.kernel_timeline import bottleneck, kernel_timeline
from neuronjax.timing.timeline import Timeline

Program = TypeVar("Program")
Made = TypeVar("Made")


def is_kernel(step: Any) -> bool:
    """Return whether `step` is a kernel; False if `neuronjax.nki` is not imported."""
    module = sys.modules.get("neuronjax.nki.kernel")
    return module is not None and isinstance(step, module.Kernel)


def profiler(
    kernel: Any,
    make: Callable[..., Made],
    values: Callable[[Any], Any],
    policy: Policy | str | None,
    options: Mapping[str, Any],
) -> Callable[..., Made]:
    """Return the function that profiles a kernel, for `neuronjax.profile`.

    `make` makes the profile from its fields; `values` returns the values of arguments
    that are arrays, and raises for ShapeDtypeStructs; `options` are target, lnc, trips
    and peak. `policy` must be None, since a kernel states its dtypes. The returned
    function takes the kernel's arguments, or ShapeDtypeStructs for arrays.

    Raises:
        InvalidProgramError: `policy` is not None; or, from the returned function, the
            kernel does not fit PSUM, so that it cannot run.
    """
    if policy is not None:
        raise InvalidProgramError(
            "a policy for an NKI kernel, which states its own dtypes",
            remedy="profile it without policy=",
        )
    target = options["target"]
    chosen = kernel if target is None else kernel.with_target(target)

    def profiled(*args: Any, **kwargs: Any) -> Made:
        program = chosen.trace(*args, **kwargs)
        machine = resolve_target(program.target)
        timing = {name: options[name] for name in ("lnc", "trips")}
        schedule = schedule_kernel(program, machine, **timing)
        roofs(schedule.core, options["peak"])  # raises for an unknown peak
        if "PSUM" in schedule.found.short:
            from neuronjax.nki.limits.addresses import peak_bytes

            peak_bytes(program, spills=chosen.older, memories=("psum",))
        timeline = kernel_timeline(schedule)
        return make(
            name=program.name,
            target=machine,
            core=schedule.core,
            timeline=timeline,
            policy=Policy.resolve(None),
            peak=options["peak"],
            _find_changes=lambda: kernel_changes(schedule, timeline),
            _run=lambda: chosen(*values(args), **values(kwargs)),
        )

    return profiled


def not_a_kernel(program: Program | None) -> Program:
    """Return `program`; raise InvalidProgramError if it is None, as for a kernel."""
    if program is None:
        raise InvalidProgramError(
            "an NKI kernel, where a program of JAX is needed",
            remedy="pass the function that calls the kernel",
        )
    return program


def kernel_changes(schedule: KernelSchedule, timeline: Timeline) -> tuple[Change, ...]:
    """Return every change that makes the kernel faster, the largest gain first."""
    fewer = "DMA transfers so large that the time of their starts is negligible"
    reuse = "reuse what is loaded, so that no transfer takes time"
    found = [
        *_line(schedule, timeline),
        _transfers(schedule, "transfers", fewer, _started),
        _transfers(schedule, "spills", reuse, _free),
        overlap(timeline),
    ]
    return tuple(gaining(found))


def _started(p: KernelPrice) -> KernelPrice:
    return dataclasses.replace(p, start_seconds=0.0, issue_seconds=0.0)


def _free(p: KernelPrice) -> KernelPrice:
    work = dataclasses.replace(p.work, seconds=0.0)
    return dataclasses.replace(_started(p), work=work, load_seconds=0.0)


def _line(schedule: KernelSchedule, timeline: Timeline) -> Iterator[Change]:
    """Yield the change in which one source line takes no time: the line with the
    largest share of the critical path."""
    found = bottleneck(schedule)
    if found is None:
        return
    _, number, _ = found
    op = timeline.instructions[number]
    where = f"{op.location.file}:{op.location.line}"
    every = enumerate(schedule.stream.entries)
    entries = {n for n, i in every if (i.name, i.location) == (op.name, where)}
    seconds = what_if(schedule, lambda n, p: _free(p) if n in entries else p)
    what = f"without {op.name} at {where.rpartition('/')[2]}"
    yield Change("line", what, seconds, schedule.total_seconds, "bound")


def _transfers(
    schedule: KernelSchedule,
    kind: str,
    what: str,
    change: Callable[[KernelPrice], KernelPrice],
) -> Change:
    """Return the change in which `change` replaces the price of every transfer."""
    known: dict[int, KernelPrice] = {}

    def changed(_: int, p: KernelPrice) -> KernelPrice:
        if id(p) not in known:
            known[id(p)] = change(p) if p.ring else p
        return known[id(p)]

    seconds = what_if(schedule, changed)
    return Change(kind, what, seconds, schedule.total_seconds, "bound")
