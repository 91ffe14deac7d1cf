"""`study`: one training loop under several policies and seeds, compared.

The loop is the user's generator, `train(jit, seed)`, which yields what it measured at
every step; `study` hands it a `jit` for each machine (a target and a policy, or the
host's own `jax.jit`) and keeps the records. Every machine sees the same seeds, so that
differences to the baseline are taken pair by pair. With a folder every run is a file
(`diagnostics.run_files`), and a study that was stopped goes on with the runs that are
missing.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from rich.console import RenderableType
from rich.table import Table

from neuronjax.api.asked import Asked
from neuronjax.api.jit import Emulated
from neuronjax.api.lowered import Compiled, Lowered
from neuronjax.api.nnx_state import in_place
from neuronjax.diagnostics.code_fingerprint import code_fingerprint
from neuronjax.diagnostics.run_files import Record, read_run, run_path, written_run
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy
from neuronjax.report.progress import StudyProgress
from neuronjax.report.setting import setting_line
from neuronjax.report.study_curves import Curves, curves
from neuronjax.report.study_tables import final_figures, final_table
from neuronjax.report.tables import Displayed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Train = Callable[..., Iterable[Any]]
Policies = Sequence[str | Policy] | Mapping[str, str | Policy]

NATIVE = "native"
_HOST = "host"
_KEYS = ("policy", "target", "seed")


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
    progress: bool = True,
) -> Study:
    """Train under every policy, on every target, with every seed.

    Args:
        train: a generator function `train(jit, seed, **options)` that yields after
            every step its loss, or a dict of numbers ({"loss": ..., "accuracy": ...};
            "step" overrides the count from 0). It compiles with the given `jit`, which
            is `jax.jit` or `neuronjax.jit` for one machine, and keeps what a function
            writes into modules of Flax NNX, as `nnx.jit` does. A function given to
            `jit` that is defined outside of `train` is compiled once for all seeds.
        policies: presets' names, named policies, or a dict from names to either.
            "native" is `jax.jit` on the host; "trn3/mxfp8" is for that target alone.
        target: as `neuronjax.jit`; one, or several; None for "trn2".
        targets: the same by another name.
        seeds: so many (0, 1, ...), or which.
        options: more keywords of `train`, the same for all runs.
        folder: where each run is a file of JSON lines. What is complete there is read
            and not run again; what is not starts anew. None keeps nothing.
        if_changed: what to do with a file whose run was made by another `train`,
            other options or another policy of the same name.
        baseline: the machine that others are compared with, as labelled in the table;
            None for the first.
        progress: whether to show bars, in a terminal or a notebook, and in a terminal
            a line for each run that ended.

    Returns:
        The `Study`: records, a table of final losses, a picture.

    Raises:
        InvalidProgramError: unknown policies, targets or baseline; a `train` that
            yields nothing or no numbers; a changed file under `if_changed="error"`.

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
    machines = _machines(policies, target or targets or "trn2")
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    names = [machine.label for machine in machines]
    reference = names[0] if baseline is None else _known(baseline, names, "machine")
    if not chosen:
        raise InvalidProgramError("a study without seeds", remedy="give seeds=3")
    if if_changed not in ("error", "rerun"):
        raise InvalidProgramError(
            f"if_changed is {if_changed!r}", remedy='choose "error" or "rerun"'
        )
    every = _StudyRuns(
        train=train,
        options=dict(options or {}),
        folder=None if folder is None else Path(folder),
    )
    found = every.stored(machines, chosen, if_changed)
    total = len(machines) * len(chosen)
    with StudyProgress(total, done=len(found), shown=progress) as bars:
        for machine in machines:
            jit = machine.jit()
            for seed in chosen:
                if (machine, seed) not in found:
                    found[machine, seed] = every.run(machine, jit, seed, bars)
    runs = (found[machine, seed] for machine in machines for seed in chosen)
    return Study(
        records=[record for run in runs for record in run],
        labels={(m.policy, m.target): m.label for m in machines},
        baseline=reference,
        settings={m.label: m.setting for m in machines},
    )


# -- what a run happens on -------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class _StudyMachine:
    """A target and a policy by name, and what tables and pictures call them."""

    policy: str
    target: str
    label: str
    numerics: Policy | None  # None on the host

    @property
    def setting(self) -> str:
        """Target, logical core, policy and SDK, in words."""
        if self.numerics is None:
            return "this machine, JAX's own numbers"
        return setting_line(resolve_target(self.target), self.numerics)

    def jit(self) -> Callable[..., Any]:
        """What `train` compiles with."""
        return _StudyJit(self.target, self.numerics)


def _machines(policies: Policies, targets: str | Sequence[str]) -> list[_StudyMachine]:
    chips = [targets] if isinstance(targets, str) else list(targets)
    pairs: dict[tuple[str, str], Policy | None] = {}
    for name, numerics, own_target in _named(policies):
        where = [_HOST] if numerics is None else [own_target] if own_target else chips
        for target in where:
            if numerics is not None:
                resolve_target(target)  # refuses an unknown one before the first run
            if pairs.setdefault((name, target), numerics) != numerics:
                raise InvalidProgramError(
                    f"two policies are called {name!r}", remedy="give each its own name"
                )
    if not pairs:
        remedy = 'give policies=["native", "bf16"]'
        raise InvalidProgramError("a study without policies", remedy=remedy)
    emulated = {target for name, target in pairs if target != _HOST}
    return [
        _StudyMachine(
            policy=name,
            target=target,
            label=f"{target}/{name}" if p and len(emulated) > 1 else name,
            numerics=p,
        )
        for (name, target), p in pairs.items()
    ]


def _named(policies: Policies) -> Iterator[tuple[str, Policy | None, str]]:
    """Name, policy (None for the host's own numbers) and target, "" for all of them."""
    if isinstance(policies, Mapping):
        for name, policy in policies.items():
            yield name, None if policy == NATIVE else Policy.resolve(policy), ""
        return
    for policy in [policies] if isinstance(policies, (str, Policy)) else policies:
        if policy == NATIVE:
            yield NATIVE, None, ""
        elif isinstance(policy, str):
            target, _, name = policy.rpartition("/")
            yield name, Policy.preset(name), target
        else:
            yield _name_of(policy), Policy.resolve(policy), ""


def _name_of(policy: Any) -> str:
    name = getattr(policy, "name", None)
    if not name:
        raise InvalidProgramError(
            f"a policy without a name: {policy!r}",
            remedy='give policies={"a name": policy, ...}',
        )
    return name


def _known(wanted: str, names: Sequence[str], what: str) -> str:
    if wanted not in names:
        raise InvalidProgramError(
            f"no {what} is called {wanted!r}", remedy=f"one of: {', '.join(names)}"
        )
    return wanted


class _StudyJit:
    """What `train` compiles with on a machine; keeps what it compiled.

    What a function writes into modules is in them afterwards, or a study would train
    nothing. A function given again is the one compiled before, with its calls counted
    from 0: the random bits of stochastic rounding do not depend on the runs before.
    """

    def __init__(self, target: str, policy: Policy | None) -> None:
        named = {"target": target, "policy": policy}
        self._machine: dict[str, Any] = named if policy else {}
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def __call__(self, function: Any = None, **jit_options: Any) -> Any:
        if function is None:
            return functools.partial(self, **jit_options)
        key = (function, code_fingerprint(jit_options))
        if key not in self._compiled:
            self._compiled[key] = self._made(function, jit_options)
        made = self._compiled[key]
        return made.anew() if isinstance(made, Emulated | Compiled) else made

    def _made(self, function: Any, options: Mapping[str, Any]) -> Callable[..., Any]:
        asked = Asked.of(function, **self._machine, **options)
        if isinstance(asked.step, Lowered):
            return asked.step.compile() if self._machine else asked.native()
        step = asked.step
        made = step if self._machine else in_place(step.native, step.__wrapped__)
        return functools.partial(made, *asked.first) if asked.first else made


# -- runs ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class _StudyRuns:
    """What is the same for all runs."""

    train: Train
    options: Mapping[str, Any]
    folder: Path | None

    def stored(
        self,
        machines: Sequence[_StudyMachine],
        seeds: Sequence[int],
        if_changed: Literal["error", "rerun"],
    ) -> dict[tuple[_StudyMachine, int], tuple[Record, ...]]:
        """The runs that are complete in the folder."""
        found = {}
        for machine in machines if self.folder else ():
            for seed in seeds:
                path = self._path(machine, seed)
                stored = read_run(path)
                if stored is None or not stored.complete:
                    continue
                if stored.header.get("fingerprint") == self._fingerprint(machine):
                    found[machine, seed] = stored.records
                elif if_changed == "error":
                    raise InvalidProgramError(
                        f"{path} was made by another train function, other options or "
                        f"another policy {machine.policy!r}",
                        remedy='run it again with if_changed="rerun", or use another '
                        "folder",
                    )
        return found

    def run(
        self,
        machine: _StudyMachine,
        jit: Callable[..., Any],
        seed: int,
        bars: StudyProgress,
    ) -> tuple[Record, ...]:
        """Trains once."""
        bars.begin(f"{machine.label} seed {seed}")
        try:
            with self._writer(machine, seed) as write:
                return tuple(self._records(machine, jit, seed, bars, write))
        except Exception as error:
            error.add_note(f"in the run of {machine.label} with seed {seed}")
            raise

    def _writer(
        self, machine: _StudyMachine, seed: int
    ) -> contextlib.AbstractContextManager[Callable[[Record], None] | None]:
        if self.folder is None:
            return contextlib.nullcontext()
        return written_run(self._path(machine, seed), self._header(machine, seed))

    def _records(
        self,
        machine: _StudyMachine,
        jit: Callable[..., Any],
        seed: int,
        bars: StudyProgress,
        write: Callable[[Record], None] | None,
    ) -> Iterator[Record]:
        where = dict(zip(_KEYS, (machine.policy, machine.target, seed), strict=True))
        step = None
        for step, yielded in enumerate(self.train(jit, seed, **self.options)):
            record = {**where, "step": step, **_metrics(yielded)}
            if write is not None:
                write(record)
            bars.advance(record)
            yield record
        if step is None:
            raise InvalidProgramError(
                "train yielded nothing", remedy="yield the loss after every step"
            )

    def _path(self, machine: _StudyMachine, seed: int) -> Path:
        assert self.folder is not None
        return run_path(self.folder, machine.target, machine.policy, f"seed{seed}")

    def _header(self, machine: _StudyMachine, seed: int) -> Record:
        return {
            "fingerprint": self._fingerprint(machine),
            "policy": machine.policy,
            "target": machine.target,
            "seed": seed,
            "train": getattr(self.train, "__qualname__", type(self.train).__qualname__),
            "options": {name: repr(value) for name, value in self.options.items()},
            "numerics": repr(machine.numerics),
            "jax": jax.__version__,
        }

    def _fingerprint(self, machine: _StudyMachine) -> str:
        numerics = machine.numerics
        if numerics is not None:
            numerics = dataclasses.replace(numerics, name=None)
        return f"{self._of_train}-{code_fingerprint(numerics)}"

    @functools.cached_property
    def _of_train(self) -> str:
        return code_fingerprint(self.train, self.options)


def _metrics(yielded: Any) -> Record:
    """What `train` yielded, as plain numbers."""
    named = yielded if isinstance(yielded, Mapping) else {"loss": yielded}
    return {str(name): _number(str(name), value) for name, value in named.items()}


def _number(name: str, value: Any) -> int | float:
    if name in _KEYS:
        raise InvalidProgramError(
            f"train yielded a metric called {name!r}",
            remedy=f"{', '.join(_KEYS)} are the run's own; use another name",
        )
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biufV":
        raise InvalidProgramError(
            f"train yielded {name!r} of shape {array.shape} and dtype {array.dtype}",
            remedy="yield the loss, or a dict of single numbers",
        )
    number = array.reshape(())
    return int(number) if array.dtype.kind in "biu" else float(number)


# -- what is found ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study(Displayed):
    """The records of `study`, and how to read them.

    Attributes:
        records: a dict for every step of every run: policy, target, seed, step, and
            what `train` yielded ("loss"). `pandas.DataFrame(study.records)` works.
        labels: (policy, target) -> what tables and pictures call it.
        baseline: the label of the machine that others are compared with.
        settings: label -> target, logical core, policy and SDK, in words.
    """

    records: list[Record] = dataclasses.field(repr=False)
    labels: Mapping[tuple[str, str], str]
    baseline: str
    settings: Mapping[str, str]

    @property
    def metrics(self) -> tuple[str, ...]:
        """What `train` yielded: "loss", ..."""
        names = dict.fromkeys(name for record in self.records for name in record)
        return tuple(name for name in names if name not in (*_KEYS, "step"))

    def curves(self, metric: str | None = None) -> Curves:
        """A metric as arrays [seeds, steps], by label.

        Args:
            metric: one of `metrics`; None for "loss", else the first of them.

        Raises:
            InvalidProgramError: no such metric.
        """
        return curves(self.records, self.labels, self._metric(metric))

    def final(self, metric: str | None = None, *, last: int = 1) -> list[Record]:
        """Final values by machine, and their differences to the baseline's.

        Args:
            metric: as `curves`.
            last: of how many steps the mean is a run's final value.

        Returns:
            A dict for each machine: mean and std over seeds, the mean and std of the
            differences to the baseline, seed by seed, and the seeds whose metric ends
            where it began, within its noise ("unmoved").
        """
        name = self._metric(metric)
        return final_figures(self.curves(name), self.baseline, last)

    def table(self, metric: str | None = None, *, last: int = 1) -> Table:
        """`final` as a table of Rich."""
        name = self._metric(metric)
        figures = self.final(name, last=last)
        return final_table(figures, name, self.baseline, last, self.settings)

    def plot(
        self, metric: str | None = None, *, band: str = "ci95", smooth: int = 1
    ) -> Figure:
        """A Matplotlib figure: the metric by step, and its difference to the baseline.

        Lines are means over seeds.

        Args:
            metric: as `curves`.
            band: around the mean over seeds: "ci95", its 95 % confidence interval
                (Student's t); "std"; or "range", from the least to the largest.
            smooth: over how many steps a moving mean is taken first, of every run.

        Raises:
            InvalidProgramError: another band, or no such metric.
        """
        from neuronjax.report.plots_study import draw_study  # Matplotlib takes a second

        name = self._metric(metric)
        return draw_study(self.curves(name), name, self.baseline, band, smooth)

    def to_csv(self, path: str | Path) -> None:
        """Writes a line for every record."""
        columns = (*_KEYS, "step", *self.metrics)
        with Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.records)

    def __rich__(self) -> RenderableType:
        return self.table()

    def _metric(self, wanted: str | None) -> str:
        names = self.metrics
        usual = "loss" if "loss" in names else names[0]
        return usual if wanted is None else _known(wanted, names, "metric")
