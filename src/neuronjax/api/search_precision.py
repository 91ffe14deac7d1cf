"""`search_precision`: the cheapest policy under which a function is accurate enough.

The function is captured once. `diagnostics.precision_strategies` chooses policies,
which are lowered and priced; only promising programs run. They run op by op, because
ops that two policies have in common are then compiled once. The bits are those of
`neuronjax.jit` under the same policy.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neuronjax.api.asked import Askable, Asked
from neuronjax.api.nnx_state import copied, in_place, tied
from neuronjax.api.profile import Trips
from neuronjax.api.searched_program import SearchedProgram
from neuronjax.diagnostics import precision_strategies
from neuronjax.diagnostics.compilations import Compilations
from neuronjax.diagnostics.precision_batches import Batch, JudgedBatches
from neuronjax.diagnostics.precision_groups import Groups, Selection, find_groups
from neuronjax.diagnostics.precision_metrics import (
    Chooser,
    Metric,
    OutputError,
    check_metric,
    chosen_by,
    measured,
    on_host,
    worst,
)
from neuronjax.diagnostics.precision_policies import DEFAULT_CANDIDATES, Candidates
from neuronjax.diagnostics.precision_result import PrecisionSearch
from neuronjax.diagnostics.precision_trials import PolicyTrials, program_identity
from neuronjax.errors import InvalidProgramError
from neuronjax.policy import Policy
from neuronjax.policy.values import check_word
from neuronjax.report.progress import SearchProgress
from neuronjax.report.setting import policy_name, setting_line

NATIVE = "native"
#: Options of `jit` that a search replaces: every run needs the same arrays again.
_KEPT = {"donate_argnums": (), "donate_argnames": (), "collect": False}
#: A search needs at least two runs: the reference and the baseline.
_FEWEST = 2


def search_precision(
    function: Askable,
    *,
    tolerance: float,
    target: str | None = None,
    metric: str | Metric = "relative_l2",
    outputs: Chooser = None,
    candidates: Sequence[str | Policy] | None = None,
    groups: str | Selection = "param",
    strategy: str = "greedy",
    objective: str = "time",
    reference: str | Policy = "fp32",
    max_evaluations: int = 200,
    evaluate: Callable[..., Any] | None = None,
    batches: Iterable[tuple] = (),
    holdout: Iterable[tuple] = (),
    variations: int = 4,
    margin: float = 1.25,
    compiled: bool = False,
    lnc: int | None = None,
    trips: Trips | None = None,
    progress: bool = True,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., PrecisionSearch]:
    """Find which parts of a function can compute in lower precision.

    Args:
        function: as `compare`, except that its policy is ignored: a forward pass, a
            loss, or a whole train step.
        tolerance: the largest error that is allowed.
        target: as `compare`.
        metric: the error: "relative_l2" (norm of the error divided by norm of the
            reference) or "max_relative" (largest error divided by largest magnitude),
            of the worst array. Or a function of the reference's outputs and the
            outputs, pytrees of NumPy arrays, that returns a number, 0 for equal
            outputs.
        outputs: the outputs to measure, as a regular expression of their paths,
            "^1/loss$"; None for all. Or a function of the outputs. The outputs of a
            function that writes into NNX modules are "result" and the written
            variables, by the path of the argument: "^model/layers/0/"; a function gets
            `.result` and the dict `.state`.
        candidates: names of presets, the cheapest first and the baseline last; None for
            those of mxfp4, mxfp8, fp8, bf16, tf32 and fp32 that the target has. Or
            named policies without rules.
        groups: the ops that share one precision: "param", the ops that use the same
            weight, with a group "(others)" of all ops that use no weight, such as
            attention scores and gradients of weights; "module", a part of the model as
            in all reports, forward and backward together; "scope", a scope of the name
            stack; "source", a source line; or "op", a single op. Or selectors of a
            `Rule` by name, {"head": {"param": "head/kernel"}}.
        strategy: "greedy": lower groups one after another, the least sensitive first,
            and keep each if the result stays within the tolerance; "bisection": find,
            in fewer runs, how many groups, in this order, can be lowered together.
        objective: "time": take only steps that save predicted time, so the result is
            never predicted slower than the baseline; "preference": take the cheapest
            candidates that the tolerance permits, whatever their predicted time. In a
            small stand-in for a model the casts may cost more than they save.
        reference: the reference of the error: a policy or preset, or "native",
            `jax.jit` on the host.
        max_evaluations: the largest number of programs that run, including the
            reference; the search then stops and returns its best result so far.
        evaluate: a function called as `evaluate(run, *args)` that returns the outputs
            to measure. `run` is the function under a policy and can be called for
            several steps. `run` writes into copies of your NNX modules.
        batches: more tuples of positional arguments, of the same types; the worst error
            over all batches counts.
        holdout: tuples of positional arguments that the search does not use. The result
            must be within the tolerance on them too; otherwise steps are undone until
            it is. These runs do not count as evaluations.
        variations: the number of changed copies of the batch that must be within the
            tolerance too: in a copy, every float differs by up to 2^-8 of its value,
            which changes every rounding. Without `holdout` they show whether the error
            is small only by luck, but they do not replace new data.
        margin: the search multiplies errors by this factor, then compares them with the
            tolerance, because errors are larger on batches outside the search.
        compiled: compile every program as a whole instead of op by op. The bits are the
            same; this is faster if `evaluate` makes very many calls.
        lnc: as `neuronjax.profile`.
        trips: as `neuronjax.profile`.
        progress: whether to show a progress bar.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments that returns a `PrecisionSearch`.

    Raises:
        InvalidProgramError: an unknown keyword value; when called, no output that
            `outputs` selects, no op that a candidate could change, a baseline beyond
            the tolerance, or a metric that returns NaN.
        UnsupportedError: a candidate with delayed scaling, or that the target lacks.

    Example:
        >>> found = nj.search_precision(loss, target="trn2", tolerance=1e-3)(params, x)
        >>> print(found)
        >>> step = nj.jit(train_step, target="trn2", policy=found.policy)
    """
    static = dict(static_argnums=static_argnums, static_argnames=static_argnames)
    asked = Asked.of(function, target=target, **static, **_KEPT)
    job = _Measured(
        # The object of a bound method is one of the arguments.
        asked=dataclasses.replace(asked, first=()),
        first=asked.first,
        metric=metric,
        outputs=outputs,
        reference=reference if reference == NATIVE else Policy.resolve(reference),
        evaluate=evaluate,
        compiled=compiled,
    )
    data = (
        [(*asked.first, *batch) for batch in batches],
        [(*asked.first, *batch) for batch in holdout],
        variations,
    )
    given = Candidates.of(DEFAULT_CANDIDATES if candidates is None else candidates)
    check_word("strategy", strategy, precision_strategies.STRATEGIES)
    check_word("objective", objective, precision_strategies.OBJECTIVES)
    _check_numbers(tolerance, max_evaluations, variations, margin)
    check_metric(metric)
    _check_pattern(outputs)

    def searched(*args: Any, **kwargs: Any) -> PrecisionSearch:
        args, kwargs = tied(((*asked.first, *args), kwargs))
        with SearchProgress(shown=progress) as bar:
            earlier = Compilations.so_far()
            judged = JudgedBatches.of((args, kwargs), *data)
            timing = dict(lnc=lnc, trips=trips)
            program = SearchedProgram.of(job.asked, (args, kwargs), timing)
            if evaluate is None and isinstance(outputs, str):
                chosen_by(outputs, program.results)
            found = find_groups(program.heard(given), groups)
            chosen = program.supported(given, found, named=candidates is not None)
            goal = precision_strategies.Goal(
                tolerance=tolerance,
                strategy=strategy,
                objective=objective,
                candidates=len(chosen.names),
                groups=len(found.groups),
                margin=margin,
            )
            trials = job.trials(program, chosen, found, max_evaluations, judged)
            trials.heard = bar.heard
            search = precision_strategies.Search(trials, goal)
            search.run()
        compiled = Compilations.so_far() - earlier
        return _result(job, search, trials, judged, compiled)

    return searched


def _check_numbers(tolerance: float, most: int, variations: int, margin: float) -> None:
    reference_and_baseline = f"at least {_FEWEST}: the reference and the baseline"
    for name, number, is_valid, remedy in (
        ("tolerance", tolerance, tolerance >= 0, "give a number from 0 upwards"),
        ("margin", margin, margin >= 1, "give a number from 1 (no margin) upwards"),
        ("variations", variations, variations >= 0, "give a number from 0 upwards"),
        ("max_evaluations", most, most >= _FEWEST, reference_and_baseline),
    ):
        if not is_valid:
            raise InvalidProgramError(f"{name} is {number!r}", remedy=remedy)


def _check_pattern(outputs: Chooser) -> None:
    if isinstance(outputs, str):
        try:
            re.compile(outputs)
        except re.error as error:
            raise InvalidProgramError(
                f"outputs {outputs!r} is no regular expression: {error}",
                remedy="escape special characters with re.escape",
            ) from error


@dataclass(frozen=True, kw_only=True)
class _Measured:
    asked: Asked
    first: tuple[Any, ...]
    metric: str | Metric
    outputs: Chooser
    reference: str | Policy
    evaluate: Callable[..., Any] | None
    compiled: bool

    def trials(
        self,
        program: SearchedProgram,
        candidates: Candidates,
        groups: Groups,
        most: int,
        judged: JudgedBatches,
    ) -> PolicyTrials:
        def run(policy: str | Policy, batches: Sequence[Batch]) -> list[Any]:
            runner = self._runner(policy, program)
            return [self._measured_of(runner, *batch) for batch in batches]

        def errors(expected: list[Any], found: list[Any]) -> OutputError:
            pairs = zip(expected, found, strict=True)
            return worst(measured(self.metric, r, a) for r, a in pairs)

        expected = run(self.reference, judged.seen)
        kept_back = functools.cache(lambda: run(self.reference, judged.held_out))
        known: dict[str | Policy, Any] = {}
        if isinstance(self.reference, Policy):
            lowered = program.lower(self.reference)
            by_program = self.evaluate is None
            identity = program_identity(lowered.captured.instructions)
            known[identity if by_program else self.reference] = expected
        return PolicyTrials(
            candidates=candidates,
            groups=groups,
            price=program.price,
            outputs=lambda policy: run(policy, judged.seen),
            error_of=lambda found: errors(expected, found),
            reference=known,
            most=most,
            runs=1,
            by_program=self.evaluate is None,
            held_out=(
                lambda policy: errors(kept_back(), run(policy, judged.held_out)).error
            )
            if judged.held_out
            else None,
            elements=sum(map(np.size, jax.tree.leaves(expected[0]))),
        )

    def _measured_of(
        self, runner: Callable[..., Any], batch: tuple, kwargs: Mapping[str, Any]
    ) -> Any:
        if self.evaluate is None:
            found = runner(*tied(batch), **kwargs)
        else:
            step = in_place(runner, self.asked.step)
            args, kwargs = copied((batch, kwargs))
            first = len(self.first)
            step = functools.partial(step, *args[:first])
            found = self.evaluate(step, *args[first:], **kwargs)
        return on_host(found, self.outputs)

    def _runner(
        self, policy: str | Policy, program: SearchedProgram
    ) -> Callable[..., Any]:
        """Return the function under a policy, with calls counted from 0."""
        if isinstance(policy, str):
            return self.asked.native()
        step = self.asked.under(policy)
        return step if self.compiled else program.op_by_op(policy, step)


def _result(
    job: _Measured,
    search: precision_strategies.Search,
    trials: PolicyTrials,
    judged: JudgedBatches,
    compiled: Compilations,
) -> PrecisionSearch:
    goal, state = search.goal, search.state
    baseline = goal.uniform(goal.baseline)
    reference = job.reference
    return PrecisionSearch(
        policy=trials.policy(state),
        name=job.asked.name,
        target=job.asked.target.name,
        setting=setting_line(job.asked.target, trials.policy(state)),
        strategy=goal.strategy,
        metric=_words(job.metric),
        tolerance=goal.tolerance,
        reference=reference if isinstance(reference, str) else policy_name(reference),
        groups=trials.groups.groups,
        candidates=trials.candidates.names,
        assignment=state,
        error=trials.error(state),
        baseline_error=trials.error(baseline),
        seconds=trials.seconds(state),
        baseline_seconds=trials.seconds(baseline),
        decisions=tuple(search.decisions),
        tried=tuple(trials.tried()),
        evaluations=trials.runs,
        budget_spent=search.spent,
        margin=goal.margin,
        batches=len(judged.seen),
        held_out=len(judged.held_out),
        held_out_varied=judged.varied,
        held_out_error=trials.held_out_error(state),
        elements=trials.elements,
        worst_where=trials.worst_where(lambda error: not goal.allows(error)),
        compilations=compiled.programs,
        compile_seconds=compiled.seconds,
    )


def _words(metric: str | Metric) -> str:
    if isinstance(metric, str):
        return metric.replace("_l2", " L2").replace("_", " ")
    return getattr(metric, "__name__", "metric")
