"""Conformance vectors, and runs of implementations of Trainium's arithmetic on them.

A set of vectors is a folder with `manifest.json` and one `.npz` per family. A case
names a function, its parameters, and the arrays of its inputs and outputs: bit
patterns, as unsigned integers, named by the hash of their content. Cases of one version
of the set never change. NumPy alone is enough to read the set.

A runner is any object with methods named like the manifest's functions. Cases of
functions that it lacks, or for which it raises NotImplementedError, are skipped.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.table import Table

from neuronjax.errors import InvalidProgramError, NeuronJaxError
from neuronjax.ir.array_file import read_npz
from neuronjax.ir.json_text import json_object
from neuronjax.report.progress import CaseProgress
from neuronjax.report.tables import PLAIN, RIGHT, Displayed, new_table
from neuronjax.testing.archive import sha256, write_atomically
from neuronjax.testing.bits import LeafDifference, compared, type_text

VERSION = 1
MANIFEST = "manifest.json"

PUBLISHED = Path(__file__).with_name("vectors")
_SHOWN, _SHOWN_INPUTS, _MX_BLOCK = 8, 8, 32
Outcome = Literal["passed", "failed", "skipped"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One call with its expected outputs."""

    family: str  # casts, mx, sparsity, matmul or collectives
    name: str  # unique in the set
    function: str  # the name of a function that the manifest describes
    parameters: Mapping[str, Any]  # keyword arguments that are not arrays
    inputs: Mapping[str, np.ndarray]  # keyword arguments that are arrays
    outputs: Mapping[str, np.ndarray]  # the expected results by name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of a case with a runner, and how its outputs differ from the case's.

    Attributes:
        call: the call as text if the case failed, with the inputs of the first output
            element that differs; otherwise "".
    """

    case: Case
    outcome: Outcome
    differences: tuple[LeafDifference, ...] = ()
    call: str = ""


@dataclasses.dataclass(frozen=True)
class ConformanceReport(Displayed):
    """The outcomes of all cases, with a table of how many passed and failed per family.

    Attributes:
        runner: the runner's name.
        results: one for every case.
    """

    runner: str
    results: tuple[Result, ...]

    @property
    def failed(self) -> tuple[Result, ...]:
        """The cases that failed."""
        return tuple(r for r in self.results if r.outcome == "failed")

    @property
    def records(self) -> list[dict[str, Any]]:
        """One dictionary per case."""
        return [
            {
                "family": r.case.family,
                "case": r.case.name,
                "outcome": r.outcome,
                "differences": [d.record() for d in r.differences],
                "call": r.call,
            }
            for r in self.results
        ]

    def __rich__(self) -> Table:
        outcomes = ("passed", "failed", "skipped")
        firsts = [
            f"{r.case.name}: {r.differences[0]}\n  of {r.call}"
            for r in self.failed[:_SHOWN]
        ]
        if len(self.failed) > _SHOWN:
            firsts.append(f"and {len(self.failed) - _SHOWN} more, see report.failed")
        counts = Counter((r.case.family, r.outcome) for r in self.results)
        return new_table(
            f"Conformance of {self.runner}, vectors version {VERSION}",
            {"family": PLAIN} | dict.fromkeys(outcomes, RIGHT),
            (
                (family, *(str(counts[family, outcome]) for outcome in outcomes))
                for family in dict.fromkeys(r.case.family for r in self.results)
            ),
            caption="\n".join(firsts),
            collapse_padding=False,
            min_width=None,
            pad_edge=True,
        )


def write(folder: Path) -> list[Path]:
    """Write the published set to a folder; return the paths."""
    paths = sorted(PUBLISHED.iterdir(), key=lambda path: path.name == MANIFEST)
    for path in paths:
        write_atomically(folder / path.name, path.read_bytes())
    return [folder / path.name for path in paths]


def read(folder: Path = PUBLISHED) -> list[Case]:
    """Read a set, by default the published one."""
    try:
        return _cases(folder, json_object((folder / MANIFEST).read_bytes()))
    except NeuronJaxError:
        raise
    except (OSError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidProgramError(
            f"conformance vectors in {folder}: {error}",
            remedy="write them: neuronjax conformance --write FOLDER",
        ) from error


def _cases(folder: Path, manifest: dict[str, Any]) -> list[Case]:
    if outside := [name for name in manifest["files"] if Path(name).name != name]:
        raise ValueError(f"{MANIFEST} names {outside[0]!r}, which is not in the folder")
    data = {name: (folder / name).read_bytes() for name in manifest["files"]}
    for name, content in data.items():
        if sha256(content) != manifest["files"][name]:
            raise InvalidProgramError(
                f"{folder / name} does not have the hash that the manifest states",
                remedy="write all files again: neuronjax conformance --write FOLDER",
            )
    arrays = {name.removesuffix(".npz"): read_npz(d) for name, d in data.items()}
    for entry in manifest["cases"]:
        family = arrays[entry["family"]]
        for kind in ("inputs", "outputs"):
            entry[kind] = {name: family[key] for name, key in entry[kind].items()}
    return [Case(**entry) for entry in manifest["cases"]]


def run(
    runner: Any,
    cases: Sequence[Case] | None = None,
    name: str = "",
    progress: bool = False,
) -> ConformanceReport:
    """Run an implementation on a set of cases.

    Args:
        runner: an object with methods named as the functions of the cases.
        cases: the cases; by default the published ones.
        name: the runner's name for the report; by default the name of its class.
        progress: whether to show a progress bar with the name of the case.
    """
    chosen = read() if cases is None else cases
    results = []
    with CaseProgress(len(chosen), shown=progress) as bar:
        for case in chosen:
            bar.begin(case.name)
            results.append(_result(runner, case))
    return ConformanceReport(name or type(runner).__name__, tuple(results))


def _result(runner: Any, case: Case) -> Result:
    function: Callable[..., Any] | None = getattr(runner, case.function, None)
    try:
        if function is None:
            raise NotImplementedError
        returned = function(**case.inputs, **case.parameters)
    except NotImplementedError:
        return Result(case=case, outcome="skipped")
    differences = tuple(_differences(returned, case.outputs))
    if not differences:
        return Result(case=case, outcome="passed")
    difference = differences[0]
    parameters = (f"{name}={value!r}" for name, value in case.parameters.items())
    output = case.outputs[difference.path]
    inputs = (
        f"{name}={_patterns(array, output, difference.index)}"
        for name, array in case.inputs.items()
    )
    call = f"{case.function}({', '.join([*inputs, *parameters])})"
    return Result(case=case, outcome="failed", differences=differences, call=call)


def _patterns(array: np.ndarray, output: np.ndarray, index: tuple[int, ...]) -> str:
    """Return an array's bit patterns as text: the element or MX block from which the
    output at `index` is computed; or the first elements if that is unknown."""
    shown = array.reshape(-1)
    if index and array.shape == output.shape:
        shown = array[index].reshape(1)
    elif index and array.shape[:-1] == output.shape[:-1]:
        shown = array[index[:-1]][_MX_BLOCK * index[-1] :][:_MX_BLOCK]
    width = 2 + 2 * array.dtype.itemsize
    limit = shown.size if shown.size <= _MX_BLOCK else _SHOWN_INPUTS
    first = ", ".join(f"{int(x):#0{width}x}" for x in shown[:limit])
    rest = f", ... {type_text(array)}" if shown.size > limit else ""
    return f"[{first}{rest}]"


def _differences(
    returned: Any, expected: Mapping[str, np.ndarray]
) -> Iterable[LeafDifference]:
    if not isinstance(returned, Mapping):
        returned = {next(iter(expected)): returned}
    for name, want in expected.items():
        if name not in returned:
            yield LeafDifference(path=name, what="is not returned")
        elif leaf := compared(name, np.asarray(returned[name]), want):
            yield leaf


BUILT_IN = {
    "neuronjax": "neuronjax.testing.runners:Neuronjax",
    "ml_dtypes": "neuronjax.testing.runners:MlDtypes",
}


def load_runner(name: str) -> Any:
    """Return the runner of a built-in name or "module:object" (a class is called)."""
    module, _, attribute = BUILT_IN.get(name, name).partition(":")
    try:
        runner = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidProgramError(
            f"no runner {name!r}: {error}",
            remedy=f"write module:object, or one of: {', '.join(BUILT_IN)}",
        ) from error
    return runner() if isinstance(runner, type) else runner
