"""`study`: one training loop under several policies and seeds, compared.

The loop is the user's generator `train(jit, seed)`, which yields measurements after
every step. `study` calls `train` with the `jit` of each machine (a target and a policy,
or `jax.jit` on the host) and keeps the records. Every machine runs the same seeds, so
that two machines are compared seed by seed. With a folder, every run is a file
(`diagnostics.run_files`), and a study that was stopped continues with missing runs.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table

from neuronjax.api.estimate import estimate
from neuronjax.api.instance_costs import Names
from neuronjax.api.study_costs import StudyCosts, labelled, study_costs
from neuronjax.api.study_machines import Policies, StudyJit, StudyMachine, machines_of
from neuronjax.api.study_runs import KEYS, StudyRuns, Train
from neuronjax.diagnostics.run_files import Record
from neuronjax.errors import InvalidProgramError
from neuronjax.policy import Policy
from neuronjax.policy.values import check_word
from neuronjax.report.progress import StudyProgress
from neuronjax.report.study_curves import Curves, curves
from neuronjax.report.study_tables import final_figures, final_table
from neuronjax.report.study_verdicts import (
    TrainingVerdict,
    last_steps,
    training_verdicts,
)
from neuronjax.report.tables import Displayed, Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Confidence level that all intervals of a study have together.
_CONFIDENCE = 0.95


def study(
    train: Train,
    *,
    policies: Policies,
    target: str | Sequence[str] | None = None,
    targets: str | Sequence[str] | None = None,
    seeds: int | Iterable[int] = 3,
    options: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    if_changed: Literal["error", "rerun"] = "error",
    baseline: str | None = None,
    margin: float = 0.02,
    until_sure: bool = False,
    find_fault: bool = True,
    at: Sequence[Any] | None = None,
    instance: Names = None,
    steps: int | None = None,
    against: Any = (),
    progress: bool = True,
) -> Study:
    """Train under every policy, on every target, with every seed, and compare.

    The verdict on a policy says that it trains like the baseline, that it needs more
    steps (with the ratio), that it is worse, that it diverges, or what would decide
    between these verdicts. With one seed, a policy diverges or is undecided.

    Args:
        train: a generator function `train(jit, seed, **options)` that yields after
            every step its loss, or a dict of numbers ({"loss": ..., "accuracy": ...};
            "step" overrides the count from 0). It compiles with the given `jit`, which
            is `jax.jit` or `neuronjax.jit` for one machine and, like `nnx.jit`, keeps
            what a function writes into modules of Flax NNX. A function passed to `jit`
            that is defined outside of `train` is compiled once for all seeds.
        policies: presets' names, named policies, or a dict from names to either.
            "native" is `jax.jit` on the host; "trn3/mxfp8" is for that target alone.
        target: as `neuronjax.jit`, one or several; None for "trn2".
        targets: another name for `target`.
        seeds: how many seeds (5 means the seeds 0 to 4), or the seeds themselves.
        options: further keywords of `train`, the same for all runs.
        folder: the folder that keeps each run, as a file of JSON lines. Complete runs
            are read instead of repeated; incomplete ones start again. None: no files.
        if_changed: what to do with a stored run if the function `train`, the options
            or the policy have changed since: "error" or "rerun".
        baseline: the policy with which the others are compared, by its label in the
            table; None for the first.
        margin: how much worse the final loss may be: this share of the amount by which
            training lowers the baseline's loss, and at least the standard deviation of
            the baseline's final loss over the seeds.
        until_sure: stop adding seeds to a policy once its verdict is not "undecided";
            because this is tested after every seed, all intervals are wider.
        find_fault: if a policy diverges, repeat its first diverging run up to the
            divergence, with statistics of its casts, and name the first fault.
        at: a training step of the full-size model and its arguments, `(step,
            *arguments)`, as arrays or `jax.ShapeDtypeStruct`s. It is not run: the
            result contains the predicted cost of reaching the baseline's loss.
        instance: with `at`, as `estimate`.
        steps: with `at`, how many steps the baseline needs to train that model.
        against: with `at`, as `estimate`.
        progress: whether to show progress bars in a terminal or a notebook, and in a
            terminal a line for each finished run.

    Returns:
        The `Study`: records, verdicts, a table of final losses, dollars, a picture.

    Raises:
        InvalidProgramError: unknown policies, targets or baseline; a `train` that
            yields nothing, or values that are not numbers; a changed file under
            `if_changed="error"`; a margin below 0; the errors of `estimate`.

    Example:
        >>> def train(jit, seed):
        ...     step, params = jit(train_step), initial(seed)
        ...     for batch in batches(seed):
        ...         params, loss = step(params, batch)
        ...         yield loss
        >>> found = nj.study(train, policies=["native", "bf16", "fp8"], seeds=3)
        >>> print(found)
        >>> found.plot().savefig("losses.png")
    """
    if target is not None and targets is not None:
        raise InvalidProgramError(
            "target= and targets=, which mean the same", remedy="give one of them"
        )
    machines = machines_of(policies, target or targets or "trn2")
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    names = [machine.label for machine in machines]
    reference = names[0] if baseline is None else baseline
    check_word("baseline", reference, names)
    if not chosen:
        raise InvalidProgramError("a study without seeds", remedy="give seeds=3")
    check_word("if_changed", if_changed, ("error", "rerun"))
    if not margin >= 0:
        raise InvalidProgramError(f"margin={margin}", remedy="use 0 or more, like 0.02")
    if at is None and (instance is not None or steps is not None or against):
        raise InvalidProgramError(
            "instance=, steps= or against= without at=",
            remedy="name the step of the full-size model: at=(step, *arguments), in a "
            "shell --at train.py:step",
        )
    every = StudyRuns(
        train=train,
        options=dict(options or {}),
        folder=None if folder is None else Path(folder),
    )
    looks = max(len(chosen) - 1, 1) if until_sure else 1
    judged = Study(
        records=[],
        labels={(m.policy, m.target): m.label for m in machines},
        baseline=reference,
        settings={m.label: m.setting for m in machines},
        numerics={m.label: m.numerics for m in machines},
        margin=margin,
        confidence=1 - (1 - _CONFIDENCE) / looks,
    )
    stored = every.stored(machines, chosen, if_changed)
    rounds = _rounds(every, machines, chosen, stored, judged, until_sure, progress)
    found = dataclasses.replace(judged, records=rounds)
    if find_fault:
        seen = _faults_before_divergence(every, machines, found, progress)
        found = dataclasses.replace(found, seen=seen)
    if at is None:
        return found
    priced = found.costs(at[0], instance=instance, steps=steps, against=against)
    return dataclasses.replace(found, cost=priced(*at[1:]))


def _rounds(
    every: StudyRuns,
    machines: Sequence[StudyMachine],
    seeds: Sequence[int],
    stored: Mapping[tuple[StudyMachine, int], tuple[Record, ...]],
    judged: Study,
    until_sure: bool,
    progress: bool,
) -> list[Record]:
    """Run all machines with one seed, then the next seed. Return records by machine.

    With `until_sure`, a machine whose verdict is decided runs no further seeds, and the
    study ends when only the baseline remains."""
    found: dict[StudyMachine, list[Record]] = {machine: [] for machine in machines}
    jits = {machine: StudyJit(machine) for machine in machines}
    left = list(machines)
    runs = len(machines) * len(seeds)
    with StudyProgress(runs, done=len(stored), shown=progress) as bars:
        for seed in seeds:
            for machine in left:
                run = stored.get((machine, seed))
                run = run or every.run(machine, jits[machine], seed, bars)
                found[machine] += run
            if until_sure:
                so_far = Records(itertools.chain(*found.values()))
                verdicts = dataclasses.replace(judged, records=so_far).verdicts()
                unsure = ("baseline", "undecided")
                left = [m for m in left if verdicts[m.label].kind in unsure]
                if all(machine.label == judged.baseline for machine in left):
                    break
    return Records(itertools.chain(*found.values()))


def _faults_before_divergence(
    every: StudyRuns, machines: Sequence[StudyMachine], found: Study, progress: bool
) -> dict[str, str]:
    verdicts, seen = found.verdicts(), {}
    runs = {m: verdicts[m.label].diverged for m in machines if m.numerics is not None}
    first = {m: min(d.items(), key=lambda run: run[1]) for m, d in runs.items() if d}
    known = {m: every.stored_fault(m, *run) for m, run in first.items()}
    done = sum(map(bool, known.values()))
    with StudyProgress(len(first), done=done, shown=progress) as bars:
        for machine, (seed, step) in first.items():
            own = [machine.policy, machine.target, seed]
            run = [r["step"] for r in found.records if [r[k] for k in KEYS] == own]
            steps = run[: [*map(int, run)].index(step) + 1]
            try:
                words = known[machine] or every.fault(machine, seed, steps, bars)
            except Exception as error:  # an error of `train` must not end the study
                words = f"the run could not be repeated: {error!r}"
            seen[machine.label] = f"seed {seed}, {words}"
    return seen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study(Displayed):
    """The records of `study`, with methods that compare, show and price them.

    Attributes:
        records: a dict for every step of every run: policy, target, seed, step, and
            what `train` yielded ("loss"). `pandas.DataFrame(study.records)` works.
        labels: (policy, target) -> the label in tables and pictures.
        baseline: the label of the machine with which the others are compared.
        settings: label -> target, logical core, policy and SDK as text.
        numerics: label -> policy; None for the host.
        margin: the `margin` that `study` was given.
        confidence: confidence level of the verdicts' intervals.
        seen: label of a machine that diverges -> the first fault in the step of the
            divergence and the step before: its op and the user's line.
        cost: the cost of reaching the baseline's loss, if `study` was called with `at`.
    """

    records: list[Record] = dataclasses.field(repr=False)
    labels: Mapping[tuple[str, str], str]
    baseline: str
    settings: Mapping[str, str]
    numerics: Mapping[str, Policy | None] = dataclasses.field(repr=False)
    margin: float
    confidence: float
    seen: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cost: StudyCosts | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the numbers that `train` yielded: "loss", ..."""
        names = dict.fromkeys(name for record in self.records for name in record)
        return tuple(name for name in names if name not in (*KEYS, "step"))

    def curves(self, metric: str | None = None) -> Curves:
        """Return a metric as arrays [seeds, steps], by label.

        Args:
            metric: one of `metrics`; None for "loss", or without it the first metric.

        Raises:
            InvalidProgramError: no such metric.
        """
        return curves(self.records, self.labels, self._metric(metric))

    def verdicts(
        self, metric: str | None = None, *, last: int | None = None
    ) -> dict[str, TrainingVerdict]:
        """Return, by label, the verdict on each machine, compared with the baseline.

        If the baseline's metric falls, less is better, otherwise more.

        Args:
            metric: as `curves`.
            last: number of steps whose mean is a final value; None for a tenth of all.
        """
        found = self.curves(metric)
        return training_verdicts(
            found,
            self.baseline,
            margin=self.margin,
            last=last_steps(found, last),
            confidence=self.confidence,
        )

    def costs(
        self, step: Any, *, instance: Names = None, **keywords: Any
    ) -> Callable[..., StudyCosts]:
        """Predict the cost to reach the baseline's loss under each policy.

        Args:
            step: a training step of the full-size model; it is not run.
            instance: as `estimate`; policies studied on other chips are left out.
            keywords: as `estimate`, with `steps` or `tokens` of the baseline.

        Returns:
            A function of the step's arguments (arrays or ShapeDtypeStructs) that
            returns the `StudyCosts`.

        Raises:
            InvalidProgramError: no policy was studied on these chips; errors of
                `estimate`.
        """
        targets = {label: target for (_, target), label in self.labels.items()}
        policies = labelled(self.numerics, targets, instance)
        keywords |= {"policy": [*policies.values()]}
        priced = estimate(step, instance=instance, **keywords)

        def costed(*args: Any, **kwargs: Any) -> StudyCosts:
            found = self.verdicts()
            verdicts = {policies[label].named(): found[label] for label in policies}
            return study_costs(
                priced(*args, **kwargs), verdicts, self.baseline, self.confidence
            )

        return costed

    def final(self, metric: str | None = None, *, last: int | None = None) -> Records:
        """Return final values by machine, and their differences from the baseline's.

        Args:
            metric: as `curves`.
            last: number of steps whose mean is a final value; None for a tenth of all.

        Returns:
            A dict for each machine: mean and std over seeds; mean, std and confidence
            interval ("difference_low") of the differences from the baseline, seed by
            seed; the ratio of steps to the same value ("steps_ratio") and its
            interval; the verdict as text and its margin; the number of runs that
            "diverged"; and the seeds whose metric ends where it began, within its noise
            ("unmoved").
        """
        found = self.curves(metric)
        verdicts = self.verdicts(metric, last=last)
        last = last_steps(found, last)
        figures = final_figures(found, verdicts, self.baseline, last)
        return Records(figures, partial(self.table, metric, last=last))

    def table(self, metric: str | None = None, *, last: int | None = None) -> Table:
        """Return the figures of `final` as a Rich table."""
        figures = self.final(metric, last=last)
        verdicts = self.verdicts(metric, last=last)
        about = self.baseline, self.confidence, self.settings, self.seen
        return final_table(figures, verdicts, self._metric(metric), *about)

    def plot(
        self, metric: str | None = None, *, band: str = "ci95", smooth: int = 1
    ) -> Figure:
        """Return a Matplotlib figure of a metric, and of differences from the baseline.

        Args:
            metric: as `curves`.
            band: the band around the mean over seeds: "ci95", its 95 % confidence
                interval (Student's t); "std"; or "range", from minimum to maximum.
            smooth: number of steps of a moving mean that smooths every run first.

        Raises:
            InvalidProgramError: another band, or no such metric.
        """
        from neuronjax.report.plots_study import draw_study  # Matplotlib takes a second

        name = self._metric(metric)
        return draw_study(self.curves(name), name, self.baseline, band, smooth)

    def as_dict(self) -> dict[str, Any]:
        """Return final figures, verdicts and, if asked for, dollars as plain data."""
        return {
            "baseline": self.baseline,
            "confidence": self.confidence,
            "settings": dict(self.settings),
            "rows": self.final(),
            "seen": dict(self.seen),
            "costs": self.cost and self.cost.records,
        }

    def to_csv(self, path: str | Path) -> None:
        """Write one line for every record."""
        columns = (*KEYS, "step", *self.metrics)
        with Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.records)

    def __rich__(self) -> RenderableType:
        return Group(self.table(), *([self.cost.__rich__()] if self.cost else []))

    def _metric(self, wanted: str | None) -> str:
        names = self.metrics
        usual = "loss" if "loss" in names else names[0]
        return str(check_word("metric", wanted or usual, names))
