"""A program's run under its policy, compared op by op with a reference run.

For each run the program is lowered and gets an executor; both together are a side. A
walk executes the two sides and measures after each op how far their values differ; a
recorder adds up these distances and notes the first op that exceeds the tolerance.
Further runs search for the ops that explain this first divergence.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from neuronjax.diagnostics.comparison import Comparison, result_errors
from neuronjax.diagnostics.distances import remembering
from neuronjax.diagnostics.executors import Emulator
from neuronjax.diagnostics.faults.masks import masked_values
from neuronjax.diagnostics.faults.recorder import Recorder, Witness
from neuronjax.diagnostics.faults.shares import Seen
from neuronjax.diagnostics.faults.trials import executions
from neuronjax.diagnostics.faults.units import contraction_casts, path_units
from neuronjax.diagnostics.faults.verdict import verdict
from neuronjax.diagnostics.first_divergence import ancestors, smallest_set
from neuronjax.diagnostics.lane_errors import Compared
from neuronjax.diagnostics.op_errors import Errors
from neuronjax.diagnostics.op_records import FirstDivergence, Iteration, OpRecord
from neuronjax.diagnostics.op_walk import ParallelWalk
from neuronjax.diagnostics.parallel_runs import OpPath, Side
from neuronjax.diagnostics.reference64 import Reference64
from neuronjax.execution import stages
from neuronjax.execution.inputs_outputs import CallContext
from neuronjax.hardware import Target
from neuronjax.ir.program import Program
from neuronjax.ir.value_sources import ValueSources
from neuronjax.lowering import lower_by_op
from neuronjax.policy import Policy
from neuronjax.report.setting import policy_name

DOUBLES = ("float64", "float64_rounded")
REFERENCES = ("float32", *DOUBLES)
#: Default tolerance, a relative L2 error, against "float32" or another policy.
DEFAULT_TOLERANCE = 0.1


def float32_policy(policy: Policy) -> Policy:
    """Return the policy of the "float32" reference: FP32, as JAX on a host.

    Only the program's own casts are made, and XLA chooses the order of sums. The
    emulator computes elementary functions. Settings that change no numbers (LNC, host
    calls, algorithms of collectives) are those of `policy`."""
    return dataclasses.replace(
        policy,
        auto_cast="none",
        rounding="rne",
        scaling="none",
        accumulation="host",
        psum_dtype="float32",
        transcendentals="exact",
        integer_path="exact",
        integer_division="exact",
        float_to_int="truncate",
        round_trips="kept",
        overflow="ieee",
        sparsity=None,
        collective_reduce_dtype=None,
        rules=(),
        name="float32",
    )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The program, machine and call that both runs of a comparison share.

    Attributes:
        program: captured StableHLO without complex numbers.
        call_index: number of the call, for stochastic rounding.
        amax_history: amax history for delayed scaling; None if it is empty.
    """

    program: Program
    target: Target
    call_index: jax.Array | None = None
    amax_history: jax.Array | None = None

    def emulated(self, policy: Policy, *, obeys_scopes: bool = True) -> Side:
        """Return the program lowered under `policy`, with an emulator to execute it. If
        `obeys_scopes`, each `policy_scope` in the program overrides `policy`."""
        program, regions = self._lower(policy, obeys_scopes)
        context = CallContext(self.call_index, self.amax_history)
        return Side(program, regions, Emulator(program, context))

    def double(self, policy: Policy, *, rounds: bool) -> Side:
        """Return the lowered program with an executor in double precision. If `rounds`,
        results are rounded to declared formats narrower than float32."""
        program, regions = self._lower(float32_policy(policy), False)
        return Side(program, regions, Reference64(program, rounds=rounds))

    def _lower(self, policy: Policy, obeys_scopes: bool) -> tuple:
        stages.stage("lowering")
        return lower_by_op(
            self.program, target=self.target, policy=policy, obeys_scopes=obeys_scopes
        )

    def side(self, reference: str | Policy, policy: Policy) -> Side:
        """Return the program lowered for `reference`, with its executor. For a word of
        `REFERENCES`, settings that change no numbers are those of `policy`."""
        if reference in DOUBLES:
            return self.double(policy, rounds=reference == "float64_rounded")
        if reference == "float32":
            return self.emulated(float32_policy(policy), obeys_scopes=False)
        return self.emulated(Policy.resolve(reference))


def label(reference: str | Policy) -> str:
    """Return the name that reports use for `reference`, a word or a policy."""
    return reference if isinstance(reference, str) else policy_name(reference)


def default_tolerance(policy: Policy, reference: str | Policy) -> float | None:
    """Return 0 (every bit must agree) if `reference` equals `policy`, None if it is in
    `DOUBLES` (`verdict` derives tolerances), and otherwise `DEFAULT_TOLERANCE`."""
    if reference in DOUBLES:
        return None
    same = isinstance(reference, Policy) and reference == policy
    return 0.0 if same else DEFAULT_TOLERANCE


@dataclass
class _Sums:
    number: int
    executions: int = 0
    total: Compared = field(default_factory=Compared)
    iterations: list[Iteration] = field(default_factory=list)

    def add(self, iterations: tuple[int, ...], found: Compared) -> None:
        self.executions += 1
        self.total = self.total.plus(found)
        pair = (found.isolation, found.accumulation)
        if iterations and any(e is not None and _errs(e) for e in pair):
            self.iterations.append(
                Iteration(index=iterations, isolation=pair[0], accumulation=pair[1])
            )


def _errs(errors: Errors) -> bool:
    return errors.differing > 0 or errors.sum_error2 > 0 or errors.nonfinite_changed > 0


def exceeds(errors: Errors, path: OpPath, tolerance: float) -> bool:
    """Return whether the `errors` of the op at `path` exceed `tolerance`. Errors of
    booleans, and of casts of booleans, exceed only a tolerance of 0, since a wrong
    boolean shows in the numbers that it selects."""
    if tolerance == 0:
        return errors.differing > 0
    op = path.op
    read = op.operands if op.name == "stablehlo.convert" else op.results
    is_discrete = {value.type.dtype.kind for value in read} == {"b"}
    return not is_discrete and errors.relative_l2 > tolerance


class _First(NamedTuple):
    """The first execution of an op whose error exceeds the tolerance."""

    path: OpPath
    iterations: tuple[int, ...]
    device: int
    errors: Errors
    alone: bool  # whether the op also diverges on the reference's operands


class ErrorRecorder:
    """A recorder that adds up the errors of each op, and notes the first divergence."""

    def __init__(self, tolerance: float | None) -> None:
        self._tolerance = tolerance
        self._sums: dict[OpPath, _Sums] = {}
        self.first: _First | None = None

    def __call__(
        self, path: OpPath, iterations: tuple[int, ...], found: Compared
    ) -> None:
        sums = self._sums.setdefault(path, _Sums(number=len(self._sums)))
        sums.add(iterations, found)
        errors, limit = found.accumulation, self._tolerance
        if limit is None or self.first is not None or errors is None:
            return
        if exceeds(errors, path, limit):
            alone = exceeds(found.isolation or Errors(), path, limit)
            self.first = _First(path, iterations, found.device, errors, alone)

    def suspects(self, program: Program) -> list[OpPath]:
        """Return the ops that may cause the first divergence: the diverged op, then its
        ancestors, worst first; only ops with an error on the reference's operands."""
        assert self.first is not None
        path = self.first.path
        behind = ancestors(program, path.op)
        alone = {s: sums.total.isolation or Errors() for s, sums in self._sums.items()}
        worst = {s: e for s, e in alone.items() if s.op in behind and _errs(e)}
        return sorted(
            worst,
            key=lambda s: (s == path, worst[s].relative_l2, worst[s].max_ulp),
            reverse=True,
        )

    def records(self) -> dict[OpPath, OpRecord]:
        return {path: _record(path, sums) for path, sums in self._sums.items()}


def _record(path: OpPath, sums: _Sums) -> OpRecord:
    location, total = path.location, sums.total
    return OpRecord(
        op=path.op.name,
        scope=location.scope,
        source=location.source,
        module=location.part,
        phase=location.phase,
        result=", ".join(str(v.type) for v in path.op.results),
        number=sums.number,
        executions=sums.executions,
        isolation=total.isolation or Errors(),
        accumulation=total.accumulation or Errors(),
        expected=total.expected,
        actual=total.actual,
        iterations=tuple(sums.iterations),
        callers=location.callers,
    )


class _ReachedError(Exception):
    """A signal that ends a run at the op of the first divergence."""


#: With more causes than this, a diverged op that amplifies errors is named instead.
FEW_CAUSES = 3
#: Largest relative error that counts as an ordinary rounding to FP32.
ORDINARY = 2.0**-18


def _explanation(
    recorder: ErrorRecorder,
    setting: Setting,
    sides: tuple[Side, Side],
    arguments: Sequence[Any],
    tolerance: float,
) -> tuple[OpPath, ...]:
    first = recorder.first
    assert first is not None
    if first.alone:
        return (first.path,)
    suspects = recorder.suspects(setting.program)
    if not suspects:
        return ()

    def explains(chosen: Sequence[Any]) -> bool:
        diverged = False

        def heard(path: OpPath, iterations: tuple[int, ...], found: Compared) -> None:
            nonlocal diverged
            if (path, iterations, found.device) == first[:3]:
                errors = found.accumulation
                diverged = errors is not None and exceeds(errors, path, tolerance)
                raise _ReachedError

        how: Any = {"replaced": frozenset(chosen), "stage": "explaining"}
        walk = ParallelWalk(*sides, heard, isolates=False, **how)
        with contextlib.suppress(_ReachedError):
            walk.run(arguments)
        return not diverged

    return smallest_set(suspects, explains)  # type: ignore[return-value]


@remembering()
def compare_sides(
    setting: Setting,
    actual: Side,
    reference: Side,
    arguments: Sequence[Any],
    *,
    tolerance: float | None,
    baseline: Side | None = None,
    explain: bool = True,
    results: Sequence[str] | None = (),
    names: Mapping[str, str],
) -> Comparison:
    """Compare two sides op by op, look for faults, and explain the first divergence.

    `tolerance` is a relative L2 error; 0 means that every bit must agree, None that no
    divergence is searched for. `results` are the names of main's results; None means
    that no faults are searched for. `names` has further fields of `Comparison`."""
    start = time.perf_counter()
    executors = [side.executor for side in (reference, baseline) if side]
    wide = [each for each in executors if isinstance(each, Reference64)]
    for each in wide:  # an earlier comparison may have had the same sides
        each.kept_in_float32.clear()
    recorder = ErrorRecorder(tolerance)
    witness = None if results is None else _witness(setting.program, actual)
    stage = f"comparing with {names['reference']}"
    walk = ParallelWalk(
        reference, actual, recorder, baseline, witness=witness, stage=stage
    )
    walk.run(arguments)
    stages.stage("judging")
    records, found, causes, figures = recorder.records(), None, (), ()
    if witness is not None and results is not None:
        numbers = [*map(str, range(len(witness.results)))]
        results = results if len(results) == len(numbers) else numbers
        figures = tuple(map(result_errors, results, witness.results))
        draw = execute = None
        if reference.executor.is_wide:
            draw = functools.partial(_drawn, reference, arguments, witness)
            if explain:
                execute = functools.partial(executions, reference, arguments)
        ask = setting.program, witness, arguments, records, results
        found = verdict(*ask, draw, execute)
    is_verified = False
    if tolerance is not None and recorder.first is not None and explain:
        path, sides = recorder.first.path, (reference, actual)
        causes = _explanation(recorder, setting, sides, arguments, tolerance)
        is_verified = bool(causes)
        if found is not None and found.amplifies(records[path]):
            # An ordinary rounding is not named as a cause, since a rounding in any FP32
            # op has the same effect.
            errors = {c: records[c].isolation.relative_l2 for c in causes}
            ordinary = [c for c, error in errors.items() if error <= ORDINARY]
            if ordinary or len(causes) > FEW_CAUSES:
                causes, is_verified = (path,), False
    first = recorder.first
    divergence = None
    if first is not None:
        divergence = FirstDivergence(
            record=records[first.path],
            iteration=first.iterations,
            errors=first.errors,
            causes=tuple(sorted((records[c] for c in causes), key=lambda r: r.number)),
            verified=is_verified,
        )
    kept = ", ".join(sorted({name for each in wide for name in each.kept_in_float32}))
    note = f"errors of {kept} are not shown: the reference runs these ops in FP32 too"
    return Comparison(
        ops=tuple(records.values()),
        first_divergence=divergence,
        verdict=found,
        results=figures,
        tolerance=tolerance,
        notes=(note,) if kept else (),
        seconds=time.perf_counter() - start,
        **names,
    )


def _drawn(
    reference: Side, arguments: Sequence[Any], witness: Recorder, number: int
) -> Sequence[Seen]:
    """Return the results of `reference` on data perturbed with seed `number`."""
    kept = Witness(witness.contractions)
    how: Any = {"stage": f"drawing data {number}", "draw": number, "is_again": True}
    walk = ParallelWalk(
        reference, reference, lambda *_: None, isolates=False, witness=kept, **how
    )
    walk.run(arguments)
    return kept.results


def _witness(program: Program, actual: Side) -> Recorder:
    contractions = contraction_casts(actual.regions)
    graph = ValueSources(program)
    units = path_units(graph, contractions)
    return Recorder(contractions, units=units, masked=masked_values(graph))
