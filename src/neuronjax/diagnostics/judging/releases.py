"""The check of a candidate kernel against the rules of one NKI release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from neuronjax.diagnostics.judging.verdict import Problem
from neuronjax.errors import InvalidProgramError
from neuronjax.ir.kernel import KernelProgram
from neuronjax.nki.releases.meeting import (
    ReleaseMeeting,
    met_by_instructions,
    met_by_uses,
)
from neuronjax.nki.releases.release import NEWEST, OLDER, Release
from neuronjax.nki.releases.reports import reports_met
from neuronjax.nki.releases.uses import uses_of_file

RULE = "nki-release"
#: Rule id of the advice that the emulator applies a rule of a newer release.
NEWER_RULE = "nki-newer-rule"
#: Rule id of problems where, by public reports, a chip deviates from its documentation.
REPORT_RULE = "hardware-report"
_KINDS = {"lost": "limits", "values": "hazards", "order": "advice", "note": "advice"}


def problems(
    path: Path, program: KernelProgram | None, release: Release
) -> dict[str, tuple[Problem, ...]]:
    """Return "limits", "hazards" and "advice" by the rules of `release` for the
    candidate in the file `path`, and for its trace `program` if it was traced."""
    found: dict[str, list[Problem]] = {"limits": [], "hazards": [], "advice": []}
    try:
        meetings = [*met_by_uses(uses_of_file(path), str(path))]
        if program is not None:
            meetings += met_by_instructions(program.body.walk(), older=program.older)
    except InvalidProgramError as error:
        found["limits"].append(Problem.of_error(RULE, error, str(path)))
        meetings = []
    for m in meetings:
        kind, problem = _judged(m, release)
        if problem is not None and problem not in found[kind]:
            found[kind].append(problem)
    found["advice"] = [*_counted(found["advice"])]
    return {kind: tuple(same) for kind, same in found.items()}


def reported(
    program: KernelProgram, release: Release | None
) -> dict[str, tuple[Problem, ...]]:
    """Return public reports (`reports.json`) on instructions of `program`, as "limits"
    if `release` is given and, by the report, cannot compile them, else as "advice"."""
    found: dict[str, list[Problem]] = {"limits": [], "advice": []}
    for report, location in reports_met(program, release):
        kind = "limits" if report.lost and release is not None else "advice"
        seen = " and ".join(report.chips) or "a chip"
        text = f"{report.name} was seen on {seen}, NKI {', '.join(report.releases)}: "
        text += f"it {report.does}; documented: {report.documented} ({report.source})"
        found[kind].append(
            Problem(
                rule=REPORT_RULE, location=location, message=text, remedy=report.remedy
            )
        )
    return {kind: tuple(_counted(same)) for kind, same in found.items()}


def _counted(problems: list[Problem]) -> Iterator[Problem]:
    lines = Counter((p.rule, p.message) for p in problems)
    first = {(p.rule, p.message): p for p in reversed(problems)}
    for key in lines:
        yield replace(first[key], count=lines[key])


def _judged(m: ReleaseMeeting, release: Release) -> tuple[str, Problem | None]:
    """Return ("limits", "hazards" or "advice", problem or None) for a line `m` of the
    candidate that depends on a difference between releases."""
    d = m.difference
    if m.holds_in(release):
        if d.effect == "order" and m.older and OLDER in release.styles:
            return "advice", None
        return _KINDS[d.effect], _problem(m, RULE, d.remedy)
    if d.effect in ("lost", "values") and m.holds_in(NEWEST) and not m.older:
        remedy = f"none: the emulator has only the rules of {NEWEST.name}"
        return "advice", _problem(m, NEWER_RULE, remedy)
    return "advice", None


def _problem(m: ReleaseMeeting, rule: str, remedy: str) -> Problem:
    d = m.difference
    message = f"{m.name} {d.what} ({d.source})"
    return Problem(rule=rule, location=m.location, message=message, remedy=remedy)
