"""`nki.check`: what in a kernel is legal and nevertheless left to chance.

Nothing is executed. Limits of the hardware are errors of every call and findings here;
the rest is in `hazard_rules`, `limits.initialised` (loops that may not turn, results
written in part) and what `limits` calls advice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group
from rich.text import Text

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import Target
from neuronjax.ir.kernel import KernelProgram
from neuronjax.nki.hazard_rules import HazardWalk, KernelFinding, Severity
from neuronjax.nki.kernel import Kernel, jit
from neuronjax.nki.language.programs import GRID_REMEDY
from neuronjax.nki.limits.initialised import Initialised
from neuronjax.nki.limits.programs import checked
from neuronjax.nki.limits.registry import advice_for, signature
from neuronjax.nki.targets import chosen_target
from neuronjax.nki.trace import Trace
from neuronjax.numerics.shown import Shown


@dataclass(frozen=True, kw_only=True, repr=False)
class KernelReport(Shown):
    """What `nki.check` found.

    Attributes:
        kernel: its name.
        target: the chip.
        findings: errors first, then in the order of the program.
    """

    shown_by = "neuronjax.report.tables"
    kernel: str
    target: str
    findings: tuple[KernelFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        count = len(self.findings)
        found = f"{count} finding{'s' * (count != 1)}" if count else "nothing found"
        head = f"{self.kernel} on {self.target}: {found}"
        return "\n\n".join([head, *map(str, self.findings)])

    __repr__ = __str__

    def __rich__(self) -> Group:
        """What Rich draws."""
        first, *rest = str(self).split("\n\n")
        styles = ["bold red" if f.severity == "error" else "" for f in self.findings]
        parts = [Text(t, style=s) for t, s in zip(rest, styles, strict=True)]
        return Group(Text(first, style="bold"), *parts)


def check(
    kernel: Kernel | Callable[..., Any], target: str | Target | None = None
) -> Callable[..., KernelReport]:
    """Examines a kernel: `nki.check(kernel)(*args)`.

    Args:
        kernel: a `Kernel`, or a function to make one of.
        target: the chip, by default the kernel's.

    Returns:
        A function of the kernel's arguments, arrays or `jax.ShapeDtypeStruct`s.
    """
    made = kernel if isinstance(kernel, Kernel) else jit(kernel)
    made = made.with_target(target) if target is not None else made

    def examine(*args: Any, **kwargs: Any) -> KernelReport:
        chip = chosen_target(made.target)
        try:
            program = made.trace(*args, **kwargs)
            checked(program, chip.core, older=made.older)
            findings = tuple(_findings(program, chip))
        except InvalidProgramError as error:
            findings = (_of_error("limit", "error", error),)
        return KernelReport(
            kernel=made.function.__name__, target=chip.name, findings=findings
        )

    return examine


def _findings(program: KernelProgram, target: Target) -> Iterator[KernelFinding]:
    found = [
        *_uncertain(program),
        *_partial_results(program),
        *_unreachable_results(program),
        *_missing_grid(program),
        *_advice(program, target),
        *HazardWalk(program, target.core).run(),
    ]
    places = Counter((f.rule, f.location, f.other) for f in found)
    first = {(f.rule, f.location, f.other): f for f in reversed(found)}
    for key in dict.fromkeys((f.rule, f.location, f.other) for f in found):
        finding = first[key]
        count = max(places[key], finding.count)
        yield replace(finding, count=count)


def _of_error(
    rule: str, severity: Severity, error: InvalidProgramError
) -> KernelFinding:
    return KernelFinding(
        rule=rule,
        severity=severity,
        op=error.op or "",
        location=error.location or "",
        message=error.what,
        remedy=error.remedy or "",
    )


def _uncertain(program: KernelProgram) -> list[KernelFinding]:
    """Reads of what only loops wrote that may not turn, or of partitions unwritten."""
    found: list[KernelFinding] = []

    def report(error: InvalidProgramError, _: Any) -> None:
        finding = _of_error("maybe-unwritten", "warning", error)
        message = finding.message.replace("were never", "may not have been")
        why = f"{message}: a loop that writes them may not turn, or nothing does"
        found.append(replace(finding, message=why))

    Initialised(program, report=report, certain=True).check()
    return found


def _partial_results(program: KernelProgram) -> Iterator[KernelFinding]:
    """Results of which some elements are never written."""
    state = Initialised(program, report=lambda error, i: None)
    state.check()
    for number, access in enumerate(program.results):
        missing = state.unwritten(access)
        if missing:
            yield KernelFinding(
                rule="result-in-part",
                severity="warning",
                op=f"result {number}",
                location=access.storage.location,
                message=f"{missing:,} of {access.size:,} elements are never written: "
                "they hold what was there before (here: NaN, or 4)",
                remedy="write them, or return a smaller tensor",
            )


def _unreachable_results(program: KernelProgram) -> Iterator[KernelFinding]:
    """Results where the caller of a kernel cannot read."""
    for number, access in enumerate(program.results):
        memory = access.storage.memory
        if memory in ("sbuf", "psum", "private_hbm"):
            yield KernelFinding(
                rule="result-out-of-reach",
                severity="warning",
                op=f"result {number}",
                location=access.storage.location,
                message=f"is in {memory}, which lives no longer than the kernel and is "
                "its own: the caller reads shared_hbm",
                remedy="copy it to nl.ndarray(..., buffer=nl.shared_hbm), return that",
            )


def _missing_grid(program: KernelProgram) -> Iterator[KernelFinding]:
    """Where a kernel divides its work among programs, of which there is one."""
    if program.wants_grid:
        yield KernelFinding(
            rule="no-grid",
            severity="warning",
            op="nl.program_id",
            location=program.wants_grid,
            message="is 0 without a launch grid: only one program runs",
            remedy=GRID_REMEDY,
        )


def _advice(program: KernelProgram, target: Target) -> Iterator[KernelFinding]:
    trace, seen = Trace(target), set()
    for i in program.body.walk():
        key = (signature(i), i.location)
        if key in seen:
            continue
        seen.add(key)
        error = advice_for(i, trace)
        if error is not None:
            yield _of_error("documented-limit", "warning", error)
