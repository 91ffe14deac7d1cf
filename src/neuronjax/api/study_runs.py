"""The runs of a study: one for each machine and seed, each in a separate file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from neuronjax.api.study_machines import StudyJit, StudyMachine
from neuronjax.diagnostics.code_fingerprint import code_fingerprint
from neuronjax.diagnostics.run_files import Record, read_run, run_path, written_run
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.probes.statistics import Statistics
from neuronjax.ir.program import Location
from neuronjax.report.places import OpPlace
from neuronjax.report.progress import StudyProgress

Train = Callable[..., Iterable[Any]]

#: Keys of a record that identify its run.
KEYS = ("policy", "target", "seed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyRuns:
    """The training loop, options and folder of all runs of a study."""

    train: Train
    options: Mapping[str, Any]
    folder: Path | None

    def stored(
        self,
        machines: Sequence[StudyMachine],
        seeds: Sequence[int],
        if_changed: Literal["error", "rerun"],
    ) -> dict[tuple[StudyMachine, int], tuple[Record, ...]]:
        """Return the records of the runs that are complete in the folder."""
        keys = itertools.product(machines, seeds)
        found = {key: self._stored(*key, if_changed) for key in keys}
        return {key: records for key, records in found.items() if records}

    def _stored(
        self, machine: StudyMachine, seed: int | str, if_changed: str = "rerun"
    ) -> tuple[Record, ...]:
        path = self._path(machine, seed)
        stored = read_run(path) if path else None
        if stored and stored.header.get("fingerprint") == self._fingerprint(machine):
            return stored.records
        if stored is None or if_changed == "rerun":
            return ()
        raise InvalidProgramError(
            f"{path} holds a run with another train function, with other options, or "
            f"with another policy that is also called {machine.policy!r}",
            remedy='repeat the run with if_changed="rerun", or use another folder',
        )

    def run(
        self,
        machine: StudyMachine,
        jit: Callable[..., Any],
        seed: int,
        bars: StudyProgress,
    ) -> tuple[Record, ...]:
        """Train once, and return the records of the run."""
        bars.begin(f"{machine.label} seed {seed}")
        where = dict(zip(KEYS, (machine.policy, machine.target, seed), strict=True))
        found: list[Record] = []
        try:
            with self._writer(machine, seed) as write:
                for step, yielded in enumerate(self.train(jit, seed, **self.options)):
                    record = {**where, "step": step, **_metrics(yielded)}
                    write(record)
                    bars.advance(record)
                    found.append(record)
        except Exception as error:
            error.add_note(f"in the run of {machine.label} with seed {seed}")
            raise
        if not found:
            raise InvalidProgramError(
                "train yielded nothing", remedy="yield the loss after every step"
            )
        return tuple(found)

    def stored_fault(self, machine: StudyMachine, seed: int, step: Any) -> str:
        """Return the text that `fault` stored for this step; "" if there is none."""
        stored = self._stored(machine, f"{seed}-step{step}")
        return str(stored[0]["seen"]) if stored else ""

    def fault(
        self, machine: StudyMachine, seed: int, steps: list[Any], bars: StudyProgress
    ) -> str:
        """Repeat the steps of a run; return the first fault in the last two of them."""
        bars.begin(f"{machine.label} seed {seed}, again", len(steps))
        with self._writer(machine, f"{seed}-step{steps[-1]}") as write:
            found: list[Statistics] = []
            run = iter(self.train(StudyJit(machine, found), seed, **self.options))
            for _ in steps[1:]:
                found.clear()
                next(run, None)
                bars.advance({})
            before = len(found)
            next(run, None)
            both = {steps[-2:][0]: found[:before], steps[-1]: found[before:]}
            write({"seen": (seen := _fault_in_words(both))})
        return seen

    def _writer(
        self, machine: StudyMachine, seed: int | str
    ) -> contextlib.AbstractContextManager[Callable[[Record], None]]:
        path = self._path(machine, seed)
        if path is None:
            return contextlib.nullcontext(lambda record: None)
        return written_run(path, self._header(machine))

    def _path(self, machine: StudyMachine, seed: int | str) -> Path | None:
        names = (machine.target, machine.policy, f"seed{seed}")
        return run_path(self.folder, *names) if self.folder else None

    def _header(self, machine: StudyMachine) -> Record:
        return {
            "fingerprint": self._fingerprint(machine),
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
    named = yielded if isinstance(yielded, Mapping) else {"loss": yielded}
    return {str(name): _number(str(name), value) for name, value in named.items()}


def _number(name: str, value: Any) -> int | float:
    if name in KEYS:
        raise InvalidProgramError(
            f"train yielded a metric called {name!r}",
            remedy=f"rename it: {', '.join(KEYS)} are columns that identify a run",
        )
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biufV":
        raise InvalidProgramError(
            f"train yielded {name!r} of shape {array.shape} and dtype {array.dtype}",
            remedy="yield the loss, or a dict of single numbers",
        )
    number = array.reshape(())
    return int(number) if array.dtype.kind in "biu" else float(number)


def _fault_in_words(seen: Mapping[float, Sequence[Statistics]]) -> str:
    """Return the first fault other than an underflow, or else the first underflow, as
    text: step, kinds, op and the user's line. `seen` has statistics by step."""
    records = ((n, r) for n, each in seen.items() for s in each for r in s.records)
    found = [(n, record) for n, record in records if record["faults"]]
    loud = [fault for fault in found if {*fault[1]["faults"]} != {"underflow"}]
    for step, record in (loud or found)[:1]:
        op = record["scope"].rpartition("/")[2] or record["op"]
        where = Location(module=record["module"], phase=record["phase"])
        place = OpPlace(op, where.label, record["source"])
        kinds = " and ".join(record["faults"])
        return f"step {step}: {kinds} in {place} ({record['kind']}, {record['format']})"
    if not any(seen.values()):
        return "no statistics: none are collected inside jax.grad, jax.vmap or lower()"
    return "no fault in this step or the one before it"
