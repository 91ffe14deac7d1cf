"""`judge`: whether a kernel is right, legal and safe, and how fast it would be.

A candidate is traced in a child process that knows the types of the arguments but not
their values. The child returns instructions as data, which `diagnostics.judging` checks
and runs on the reference's inputs. Then the time is predicted.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuronjax.api.profile import profile
from neuronjax.diagnostics.judging import checking, mutants, releases, running, sandbox
from neuronjax.diagnostics.judging.case import ReferenceCase
from neuronjax.diagnostics.judging.comparing import decided
from neuronjax.diagnostics.judging.guard import Limits
from neuronjax.diagnostics.judging.tracing import (
    CandidateRefused,
    TracedCandidate,
    trace,
)
from neuronjax.diagnostics.judging.verdict import KernelVerdict, Problem, VerdictTimes
from neuronjax.errors import InvalidProgramError, NeuronJaxError, UnimplementedError
from neuronjax.hardware import resolve_target
from neuronjax.ir.nki_instructions import SPECS
from neuronjax.nki.releases.release import Release, resolve_release
from neuronjax.timing.work import QUEUES

#: NKIBench's seeds, and its relative L2 tolerance, used if no bound is derived.
SEEDS = (0, 21, 42, 63, 84)
RELATIVE_L2 = 2e-5
_SHOWN_CHANGES = 3


def judge(
    candidate: str | Path,
    *,
    reference: str | Path | None = None,
    baseline: str | Path | None = None,
    kernel: str | None = None,
    target: str = "trn2",
    nki: str | None = None,
    grid: Sequence[int] | int = (),
    seeds: Sequence[int] = SEEDS,
    tolerance: float | None = None,
    timeout: float = 120.0,
) -> KernelVerdict:
    """Judge whether a kernel is legal and right, and how fast it is.

    The candidate is traced from types in a child process: it never gets a value of an
    input or of the reference, and only instructions come back. The child has no secrets
    of the environment, works in its own folder, and is limited in time, memory and
    files. Processes, connections, libraries and writes elsewhere are refused and
    reported. This is no security boundary: use a container for an attacker's code.

    Args:
        candidate: A Python file with an NKI kernel, of the newer or the older style.
        reference: A Python file with `get_inputs()` and `forward(*inputs)` in NumPy
            and, if layouts differ, `transform_to_nki_inputs(inputs)` and
            `transform_nki_outputs(results, expected)`. Without it nothing is compared,
            and the candidate's own `get_inputs()` gives the types of its arguments.
        baseline: A kernel with the same arguments; the speedup is its predicted time
            divided by the candidate's.
        kernel: The name of the kernel function. None for `kernel`, `optimized_kernel`,
            `nki_kernel`, or the only one.
        target: as `jit`.
        nki: The NKI release whose rules apply: "0.3" to "0.6", or an older one, such as
            "neuronxcc-2.26". A feature that the release lacks is reported as a limit; a
            feature that it computes differently, as a hazard; a feature that the
            emulator computes as the newest release does, as advice. None allows all
            features.
        grid: The launch grid; if it is empty, one program runs.
        seeds: The seeds of the inputs. If the kernel contains as many constants as a
            result has elements, one more random seed is added at the end of the
            verdict, to detect results stored for known seeds.
        tolerance: The relative L2 error that each result may have; None for bounds on
            each element and on the norm, which are computed from the reference and
            allow any order of addition. See `neuronjax.diagnostics.tolerance`. If a
            function of the reference has no rule, the tolerance is NKIBench's 2e-5, as
            the verdict reports. If the tolerance would accept an error of a tenth of a
            result, or a kernel that does nothing, an otherwise faultless kernel is
            undecided, not accepted.
        timeout: The time limit in seconds for tracing, and also for the execution if
            values decide how often a loop on the device runs.

    Returns:
        The `KernelVerdict`.

    Raises:
        InvalidProgramError: an unknown target or release, a missing file, no seeds, or
            an invalid reference or baseline. The verdict has the candidate's faults.

    Example:
        >>> print(nj.judge("candidate.py", reference="reference.py"))
    """
    start = time.monotonic()
    resolve_target(target)
    release = None if nki is None else resolve_release(nki)
    if not seeds:
        raise InvalidProgramError("no seeds", op="judge", remedy="seeds=(0, 21, 42)")
    job = _Job(
        candidate=_file(candidate, "candidate"),
        case=None
        if reference is None
        else ReferenceCase.of(_file(reference, "reference")),
        baseline=None if baseline is None else _file(baseline, "baseline"),
        kernel=kernel,
        target=target,
        release=release,
        grid=(grid,) if isinstance(grid, int) else tuple(grid),
        seeds=tuple(seeds),
        tolerance=tolerance,
        limits=Limits(seconds=timeout),
    )
    sandbox.prepare()
    found = _judged(job)
    refused = bool(found["limits"] or found["hazards"])
    done, correct, vague = found.get("seeds", ()), None, ""
    if done and len(done) < len(job.seeds):
        correct = False
    elif done:
        correct, vague = decided(done, found["mutants"])
    return KernelVerdict(
        candidate=str(job.candidate),
        target=target,
        nki="" if release is None else release.name,
        accepted=not (refused or correct is False or vague),
        undecided="" if refused else vague,
        correct=correct,
        judging_seconds=time.monotonic() - start,
        **found,
    )


@dataclass(frozen=True, kw_only=True)
class _Job:
    candidate: Path
    case: ReferenceCase | None
    baseline: Path | None
    kernel: str | None
    target: str
    release: Release | None
    grid: tuple[int, ...]
    seeds: tuple[int, ...]
    tolerance: float | None
    limits: Limits

    def trace(self, path: Path, kernel: str | None) -> TracedCandidate:
        arguments, hidden = None, {}
        if self.case is not None:
            arguments = self.case.kernel_arguments(self.seeds[0])
            hidden[str(self.case.path)] = "the reference"
        if self.baseline not in (None, path):
            hidden[str(self.baseline)] = "the baseline"
        return trace(
            path,
            kernel=kernel,
            target=self.target,
            grid=self.grid,
            arguments=arguments,
            hidden=hidden,
            limits=self.limits,
        )


def _file(path: str | Path, what: str) -> Path:
    found = Path(path).resolve()
    if not found.is_file():
        raise InvalidProgramError(
            f"no file {path}", op=what, remedy="name a Python file"
        )
    return found


def _allowed(case: ReferenceCase, job: _Job) -> tuple[float | None, str]:
    """Return the relative L2 tolerance and its origin as text. The tolerance is None
    if bounds are derived from the reference."""
    if job.tolerance is not None:
        return job.tolerance, "given"
    try:
        runs = max((t.runs for t in case.tolerances(job.seeds[0], None)), default=0)
    except (UnimplementedError, InvalidProgramError) as error:
        why = f"{RELATIVE_L2:g}, as in NKIBench; no bound is derived: {error.what}"
        return RELATIVE_L2, why
    drawn = f", and from {runs} runs of it with random roundings" if runs else ""
    return None, f"derived from the reference{drawn}"


def _allow(case: ReferenceCase, job: _Job, found: dict[str, Any]) -> float | None:
    """Return the tolerance of `_allowed`. Store in `found` its origin, and which wrong
    results (mutants) it would accept."""
    allowed, found["tolerance"] = _allowed(case, job)
    limits = case.tolerances(job.seeds[0], allowed)
    found["mutants"] = mutants.tried(case, job.seeds[0], limits)
    return allowed


def _judged(job: _Job) -> dict[str, Any]:
    program = None
    try:
        candidate = job.trace(job.candidate, job.kernel)
    except CandidateRefused as refused:
        found: dict[str, Any] = {"kernel": refused.kernel, "limits": refused.problems}
        found |= {"hazards": (), "advice": (), "tolerance": ""}
    else:
        program, found = candidate.kernel.program, _checked(job, candidate)
    if job.release is not None:
        ruled = releases.problems(job.candidate, program, job.release)
        found |= {kind: ruled[kind] + found[kind] for kind in ruled}
    if program is not None:
        ruled = releases.reported(program, job.release)
        found |= {kind: (*found.get(kind, ()), *ruled[kind]) for kind in ruled}
    return found


def _checked(job: _Job, candidate: TracedCandidate) -> dict[str, Any]:
    program = candidate.kernel.program
    found: dict[str, Any] = {"kernel": candidate.name, "hazards": (), "tolerance": ""}
    # This comes first: the checks below need memory for a map of every tensor.
    found["limits"] = tuple(running.too_large(program, job.candidate))
    if found["limits"]:
        return found
    found |= checking.problems(candidate)
    labels = Counter(SPECS[i.name].label for i in program.body.walk())
    found["fidelity"] = dict(labels)
    if found["limits"]:
        return found
    found["times"], unpriced = _times(job, candidate)
    found["limits"] += unpriced
    if job.case is not None:
        ignored = checking.ignored_arguments(job.case, job.seeds, candidate)
        found["hazards"] += tuple(ignored)
        wanted = running.with_unknown(program, job.seeds)
        allow = functools.partial(_allow, job.case, job, found)
        found["seeds"], failed = running.seeds(
            job.case, candidate, wanted, allow, job.limits.seconds
        )
        found["limits"] += failed
        if found["seeds"] and not failed and not running.shares_memory(program):
            found |= _with_harmless_reads(found)
    return found


def _with_harmless_reads(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return hazards and advice. Reads of memory that may be unwritten become advice,
    since two runs with different contents of memory had equal results."""
    kinds: dict[str, list[Problem]] = {"hazards": [], "advice": [*found["advice"]]}
    for p in found["hazards"]:
        if p.rule == "maybe-unwritten":
            text = f"{p.message}; the results do not depend on these elements"
            kinds["advice"].append(dataclasses.replace(p, message=text))
        else:
            kinds["hazards"].append(p)
    return {kind: tuple(problems) for kind, problems in kinds.items()}


def _times(
    job: _Job, candidate: TracedCandidate
) -> tuple[VerdictTimes | None, tuple[Problem, ...]]:
    before = None if job.baseline is None else _baseline_seconds(job, job.baseline)
    try:
        found = profile(candidate.kernel, target=job.target)(*candidate.arguments)
    except NeuronJaxError as error:
        return None, (Problem.of_error("unpriced", error),)
    metrics, sure, total = found.metrics, found.confidence, found.total_seconds
    times = VerdictTimes(
        predicted_ms=total * 1e3,
        low_ms=None if sure is None else sure.low_seconds * 1e3,
        high_ms=None if sure is None else sure.high_seconds * 1e3,
        speedup=None if before is None or not total else before / total,
        engine_activity={
            queue: busy / total
            for queue in QUEUES
            if (busy := found.timeline.busy_seconds(queue))
        },
        hbm_read_bytes=metrics["hbm_read_bytes"],
        hbm_write_bytes=metrics["hbm_write_bytes"],
        spill_bytes=metrics["spill_save_bytes"] + metrics["spill_reload_bytes"],
        mfu=metrics["mfu_estimated_percent"],
        instructions=len(found.timeline.events),
        changes=tuple(
            {"what": change.what, "saves_ms": change.gain_seconds * 1e3}
            for change in found.limits(_SHOWN_CHANGES)
        ),
    )
    return times, ()


def _baseline_seconds(job: _Job, path: Path) -> float:
    try:
        traced = job.trace(path, None)
    except CandidateRefused as refused:
        first, *_ = refused.problems
        raise InvalidProgramError(
            first.message,
            op="baseline",
            location=first.location,
            remedy=first.remedy or "name a kernel that can be traced",
        ) from None
    return profile(traced.kernel, target=job.target)(*traced.arguments).total_seconds
