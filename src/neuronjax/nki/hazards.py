"""`nki.check`, which finds legal uses with an undefined or accidental result.

Nothing is executed. A violated limit of the hardware, at which every call fails, is a
finding. The other findings come from `hazard_rules`, from `limits.initialised` (loops
that may have no iteration, results written in part) and from the advice of `limits`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group
from rich.text import Text

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import CoreSpec, Target
from neuronjax.ir.kernel import KernelProgram
from neuronjax.nki.hazard_rules import HazardWalk, KernelFinding, Severity
from neuronjax.nki.kernel import Kernel, jit
from neuronjax.nki.language.programs import GRID_REMEDY
from neuronjax.nki.limits.initialised import Initialised
from neuronjax.nki.limits.programs import checked
from neuronjax.nki.limits.registry import advice_for, signature
from neuronjax.nki.targets import chosen_target
from neuronjax.numerics.shown import Shown


@dataclass(frozen=True, kw_only=True, repr=False)
class KernelReport(Shown):
    """The result of `nki.check`.

    Attributes:
        kernel: the kernel's name.
        target: the chip's name.
        findings: errors first, then in the order of the program.
    """

    shown_by = "neuronjax.report.tables"
    kernel: str
    target: str
    findings: tuple[KernelFinding, ...]

    @property
    def ok(self) -> bool:
        """Return whether there are no findings."""
        return not self.findings

    def __str__(self) -> str:
        count = len(self.findings)
        outcome = f"{count} finding{'s' * (count != 1)}" if count else "nothing found"
        head = f"{self.kernel} on {self.target}: {outcome}"
        return "\n\n".join([head, *map(str, self.findings)])

    __repr__ = __str__

    def __rich__(self) -> Group:
        first, *rest = str(self).split("\n\n")
        styles = ["bold red" if f.severity == "error" else "" for f in self.findings]
        parts = [Text(t, style=s) for t, s in zip(rest, styles, strict=True)]
        return Group(Text(first, style="bold"), *parts)


def check(
    kernel: Kernel | Callable[..., Any], target: str | Target | None = None
) -> Callable[..., KernelReport]:
    """Return a function that examines a kernel: `nki.check(kernel)(*args)`.

    Args:
        kernel: a `Kernel`, or a function for `nki.jit`.
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
            findings = tuple(_findings(program, chip.core))
        except InvalidProgramError as error:
            findings = (_of_error("limit", "error", error),)
        return KernelReport(
            kernel=made.function.__name__, target=chip.name, findings=findings
        )

    return examine


def _findings(program: KernelProgram, core: CoreSpec) -> Iterator[KernelFinding]:
    findings = [
        *_uncertain(program),
        *_partial_results(program),
        *_unreachable_results(program),
        *_missing_grid(program),
        *_advice(program, core),
        *HazardWalk(program, core).run(),
    ]
    alike: dict[tuple[str, str, str], list[KernelFinding]] = defaultdict(list)
    for finding in findings:
        alike[finding.rule, finding.location, finding.other].append(finding)
    for first, *rest in alike.values():
        yield replace(first, count=1 + len(rest))


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
    """Return a finding for each read of elements that may be unwritten: nothing writes
    them, or only a loop that may have no iteration."""
    findings: list[KernelFinding] = []

    def report(error: InvalidProgramError, _: Any) -> None:
        finding = _of_error("maybe-unwritten", "warning", error)
        message = finding.message.replace("were never", "may not have been")
        why = f"{message}: nothing writes them, or only a loop that may be skipped"
        findings.append(replace(finding, message=why))

    Initialised(program, report=report, certain=True).check()
    return findings


def _partial_results(program: KernelProgram) -> Iterator[KernelFinding]:
    state = Initialised(program, report=lambda error, i: None)
    state.check()
    for number, access in enumerate(program.results):
        missing = state.unwritten(access)
        if missing:
            yield KernelFinding(
                rule="result-in-part",
                op=f"result {number}",
                location=access.storage.location,
                message=f"{missing:,} of {access.size:,} elements are never written: "
                "they keep what the memory held before (here NaN, or 4 in integers)",
                remedy="write these elements, or return a smaller tensor",
            )


def _unreachable_results(program: KernelProgram) -> Iterator[KernelFinding]:
    for number, access in enumerate(program.results):
        memory = access.storage.memory
        if memory in ("sbuf", "psum", "private_hbm"):
            yield KernelFinding(
                rule="result-out-of-reach",
                op=f"result {number}",
                location=access.storage.location,
                message=f"is in {memory}, which is freed when the kernel ends: the "
                "caller can read only shared_hbm",
                remedy="return a copy in nl.ndarray(..., buffer=nl.shared_hbm)",
            )


def _missing_grid(program: KernelProgram) -> Iterator[KernelFinding]:
    if program.wants_grid:
        yield KernelFinding(
            rule="no-grid",
            op="nl.program_id",
            location=program.wants_grid,
            message="is 0 without a launch grid: only one program runs",
            remedy=GRID_REMEDY,
        )


def _advice(program: KernelProgram, core: CoreSpec) -> Iterator[KernelFinding]:
    first = {}
    for i in program.body.walk():
        first.setdefault((signature(i), i.location), i)
    for i in first.values():
        if error := advice_for(i, core):
            yield _of_error("documented-limit", "warning", error)
