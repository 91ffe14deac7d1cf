"""The runs of a study: one for each machine and seed, each a file of its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from neuronjax.api.study_machines import StudyMachine
from neuronjax.diagnostics.code_fingerprint import code_fingerprint
from neuronjax.diagnostics.run_files import Record, read_run, run_path, written_run
from neuronjax.errors import InvalidProgramError
from neuronjax.report.progress import StudyProgress

Train = Callable[..., Iterable[Any]]

#: What a record says of its run, beside what `train` yielded.
KEYS = ("policy", "target", "seed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyRuns:
    """The training loop, its options and the folder, which all runs share."""

    train: Train
    options: Mapping[str, Any]
    folder: Path | None

    def stored(
        self,
        machines: Sequence[StudyMachine],
        seeds: Sequence[int],
        if_changed: Literal["error", "rerun"],
    ) -> dict[tuple[StudyMachine, int], tuple[Record, ...]]:
        """Return the runs that are complete in the folder."""
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
        machine: StudyMachine,
        jit: Callable[..., Any],
        seed: int,
        bars: StudyProgress,
    ) -> tuple[Record, ...]:
        """Train once, and return the records of the run."""
        bars.begin(f"{machine.label} seed {seed}")
        try:
            with self._writer(machine, seed) as write:
                return tuple(self._records(machine, jit, seed, bars, write))
        except Exception as error:
            error.add_note(f"in the run of {machine.label} with seed {seed}")
            raise

    def _writer(
        self, machine: StudyMachine, seed: int
    ) -> contextlib.AbstractContextManager[Callable[[Record], None] | None]:
        if self.folder is None:
            return contextlib.nullcontext()
        return written_run(self._path(machine, seed), self._header(machine, seed))

    def _records(
        self,
        machine: StudyMachine,
        jit: Callable[..., Any],
        seed: int,
        bars: StudyProgress,
        write: Callable[[Record], None] | None,
    ) -> Iterator[Record]:
        where = dict(zip(KEYS, (machine.policy, machine.target, seed), strict=True))
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

    def _path(self, machine: StudyMachine, seed: int) -> Path:
        assert self.folder is not None
        return run_path(self.folder, machine.target, machine.policy, f"seed{seed}")

    def _header(self, machine: StudyMachine, seed: int) -> Record:
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

    def _fingerprint(self, machine: StudyMachine) -> str:
        numerics = machine.numerics
        if numerics is not None:
            numerics = dataclasses.replace(numerics, name=None)
        return f"{self._of_train}-{code_fingerprint(numerics)}"

    @functools.cached_property
    def _of_train(self) -> str:
        return code_fingerprint(self.train, self.options)


def _metrics(yielded: Any) -> Record:
    """Return what `train` yielded as plain numbers."""
    named = yielded if isinstance(yielded, Mapping) else {"loss": yielded}
    return {str(name): _number(str(name), value) for name, value in named.items()}


def _number(name: str, value: Any) -> int | float:
    if name in KEYS:
        raise InvalidProgramError(
            f"train yielded a metric called {name!r}",
            remedy=f"{', '.join(KEYS)} are the run's own; use another name",
        )
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biufV":
        raise InvalidProgramError(
            f"train yielded {name!r} of shape {array.shape} and dtype {array.dtype}",
            remedy="yield the loss, or a dict of single numbers",
        )
    number = array.reshape(())
    return int(number) if array.dtype.kind in "biu" else float(number)
