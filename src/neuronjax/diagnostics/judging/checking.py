"""What is wrong with a traced candidate before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neuronjax.diagnostics.judging import ignored
from neuronjax.diagnostics.judging.case import ReferenceCase
from neuronjax.diagnostics.judging.tracing import TracedCandidate
from neuronjax.diagnostics.judging.verdict import Problem
from neuronjax.nki.hazards import check

#: Findings about what documents ask for and public compilers let pass, and about what
#: measured kernels do and are right on chips.
_ADVICE = frozenset({"documented-limit", "loop-carried-reduction", "no-grid"})


def problems(candidate: TracedCandidate) -> dict[str, tuple[Problem, ...]]:
    """What `nki.check` finds, as limits, hazards and advice."""
    report = check(candidate.kernel)(*candidate.arguments)
    kinds: dict[str, list[Problem]] = {"limits": [], "hazards": [], "advice": []}
    for f in report.findings:
        kind = "limits" if f.severity == "error" else "hazards"
        kind = "advice" if f.rule in _ADVICE else kind
        message = f"{f.op}: {f.message}" if f.op else f.message
        other = f" (and {f.other})" if f.other else ""
        problem = Problem(
            rule=f.rule,
            location=f.location,
            message=message + other,
            remedy=f.remedy,
            count=f.count,
        )
        kinds[kind].append(problem)
    return {kind: tuple(found) for kind, found in kinds.items()}


def ignored_arguments(
    case: ReferenceCase, seeds: Sequence[int], candidate: TracedCandidate
) -> Iterator[Problem]:
    """Arguments that no result depends on, though those of the reference do."""
    program = candidate.kernel.program
    for n in ignored.arguments(program):
        if ignored.matters(case, seeds[0], n):
            yield Problem(
                rule="input-ignored",
                location="",
                message=f"no result depends on argument {n}; the reference's do",
                remedy="compute with it",
            )
