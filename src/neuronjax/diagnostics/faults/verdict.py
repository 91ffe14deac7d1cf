"""The verdict on a run: the results that are wrong, and the ops at fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from neuronjax.diagnostics.faults.draws import with_draws
from neuronjax.diagnostics.faults.fault import Fault
from neuronjax.diagnostics.faults.naming import FaultName, named
from neuronjax.diagnostics.faults.recorder import Recorder
from neuronjax.diagnostics.faults.remedies import Remedy, tried_op
from neuronjax.diagnostics.faults.search import FaultSearch, Suspect
from neuronjax.diagnostics.faults.shares import Seen
from neuronjax.diagnostics.faults.trials import Executions, Wanted
from neuronjax.diagnostics.faults.wrong_results import Wrong
from neuronjax.diagnostics.op_records import OpRecord
from neuronjax.diagnostics.parallel_runs import OpPath
from neuronjax.ir import host_functions
from neuronjax.ir.program import Program
from neuronjax.ir.value_sources import ValueSources

#: Remedies are tried for at most this many faults.
MOST_TRIED = 3
MOST_EXECUTIONS = 2048  # no remedy is tried for a fault that shows after more ops


@dataclass(frozen=True, kw_only=True)
class WrongResult:
    """A result that is farther from float64 than its formats and data explain.

    Attributes:
        name: path in the pytree of the results.
        how: "nonfinite", "far", "discrete" (whole numbers that changed), "chosen" (an
            index or order that changed) or "lost" (a state whose step is missing or
            wrong).
        dtype: the dtype, such as "bfloat16".
        allowed: the relative error that the roundings of formats and the data explain.
        nonfinite: number of elements that are Inf or NaN.
        lost: share of elements that are off by more than half of their magnitude.
        step: norm of a lost step (change of a state) relative to the norm of the state.
        step_error: L2 error of the step, relative to the step.
        step_allowed: the error of a step that the condition of the problem explains.
        unmoved: share of a state's elements that should change but did not.
    """

    name: str
    how: str
    dtype: str
    relative_l2: float
    allowed: float
    nonfinite: int
    elements: int
    lost: float
    step: float = 0.0
    step_error: float = 0.0
    step_allowed: float = 0.0
    unmoved: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FaultVerdict:
    """The verdict on a run.

    Attributes:
        results: number of results of the program.
        wrong: the results that are wrong.
        faults: the ops at fault, in the order in which to examine them.
        unjudged: descriptions of the arguments of host calls, which are not judged.
    """

    results: int
    wrong: tuple[WrongResult, ...]
    faults: tuple[Fault, ...]
    unjudged: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[Fault, ...]:
        """Return the first fault of every source line."""
        lines: dict[str, Fault] = {}
        for fault in self.faults:
            lines.setdefault(fault.record.source, fault)
        return tuple(lines.values())

    def amplifies(self, record: OpRecord) -> bool:
        """Return whether `record` is of a fault that amplifies other ops' errors."""
        return any(f.record is record and f.role == "amplifies" for f in self.faults)

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {
            "results": self.results,
            "wrong": [asdict(w) for w in self.wrong],
            "faults": [f.as_dict() for f in self.faults],
            "unjudged": list(self.unjudged),
        }


def verdict(
    program: Program,
    seen: Recorder,
    arguments: Sequence[np.ndarray],
    records: Mapping[OpPath, OpRecord],
    names: Sequence[str],
    draw: Callable[[int], Sequence[Seen]] | None = None,
    execute: Callable[[Wanted], Executions] | None = None,
) -> FaultVerdict:
    """Return the verdict on a run, from the errors of every op.

    `names` are the names of the results. `draw` runs the reference on other perturbed
    data, and `execute` executes ops again to try remedies; both may be None.
    """
    unjudged = tuple(dict.fromkeys(_sent(program)))
    execute = None if unjudged else execute  # a trial must not call the host
    with np.errstate(all="ignore"):  # errors may be Inf or NaN
        search = FaultSearch(program, seen, arguments, names)
        doubtful = [w.index for w in search.wrong if w.is_doubtful]
        if draw is not None and doubtful and not unjudged:
            seen.results = with_draws(seen.results, doubtful, draw)
            search = FaultSearch(program, seen, arguments, names)
        found = [(suspect, named(suspect)) for suspect in search.suspects()]
        found = [f for f in found if f[1].kind != "other"] or found
        remedies = _remedies(found, seen, search.wrong, ValueSources(program), execute)
    return FaultVerdict(
        results=len(seen.results),
        wrong=tuple(
            _wrong_result(w, names[w.index], seen.results[w.index].dtype.name)
            for w in search.wrong
        ),
        faults=tuple(
            Fault(
                kind=name.kind,
                role=s.role,
                record=records[s.trace.path],
                parameter=search.parameter(s.trace),
                shows=s.amplifier and records[s.amplifier.path],
                iteration=s.trace.moment[1] if s.trace.moment else (),
                evidence=name.evidence,
                remedy=remedy,
                outputs=tuple(names[n] for n in s.results),
            )
            for (s, name), remedy in zip(found, remedies, strict=True)
        ),
        unjudged=unjudged,
    )


def _remedies(
    found: Sequence[tuple[Suspect, FaultName]],
    seen: Recorder,
    wrong: Sequence[Wrong],
    graph: ValueSources,
    execute: Callable[[Wanted], Executions] | None,
) -> list[str]:
    shown = [tried_op(suspect, name.kind) for suspect, name in found]
    near = {
        t.path: t.moment and t.moment[1]
        for t in shown[:MOST_TRIED]
        if t.moment is None or t.moment[0] < MOST_EXECUTIONS
    }
    kept = execute(near) if execute is not None and near else {}
    steps = {w.index: w.step.size for w in wrong if w.step is not None}
    remedies = []
    for (suspect, name), trace in zip(found, shown, strict=True):
        lost = [steps[n] for n in suspect.results if n in steps and suspect.is_update]
        execution, unit = kept.get(trace.path), seen.unit(trace.path.op)
        step = max(lost, default=0.0)
        remedy = Remedy(name, suspect, trace, execution, unit, step, graph)
        remedies.append(str(remedy))
    return remedies


def _sent(program: Program) -> Iterator[str]:
    """Yield descriptions of `io_callback` calls, which may keep values on the host."""
    for op in program.walk():
        text = str(op.attributes.get("backend_config", ""))
        called = host_functions.find(text)
        if called is not None and called.name == "io_callback":
            place = op.location.source.rpartition("/")[2]
            yield f"the arguments of {called.name}, {place or called.line}"


def _wrong_result(wrong: Wrong, name: str, dtype: str) -> WrongResult:
    share, step = wrong.share, wrong.step
    return WrongResult(
        name=name,
        how=wrong.how,
        dtype=dtype,
        relative_l2=share.error,
        allowed=wrong.allowed,
        nonfinite=share.nonfinite,
        elements=share.elements,
        lost=share.lost,
        step=step.size if step else 0.0,
        step_error=step.error if step else 0.0,
        step_allowed=step.allowed if step else 0.0,
        unmoved=step.unmoved if step else 0.0,
    )
