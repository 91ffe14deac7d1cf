"""The trace of a candidate kernel, made in a child process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neuronjax.diagnostics.judging import tracing_child, types_file
from neuronjax.diagnostics.judging.guard import Limits
from neuronjax.diagnostics.judging.sandbox import Ended, run_child
from neuronjax.diagnostics.judging.verdict import Problem
from neuronjax.errors import NeuronJaxError
from neuronjax.ir.collection import no_collection
from neuronjax.ir.kernel_file import read_program
from neuronjax.nki.kernel import TracedKernel
from neuronjax.nki.stored_kernel import StoredKernel


@dataclass(frozen=True, kw_only=True)
class TracedCandidate:
    """A kernel that was traced in a child process.

    Attributes:
        name: the kernel's name in the file.
        kernel: the traced instructions, as a kernel that can be called.
        arguments: the kernel's arguments, with types in place of arrays.
    """

    name: str
    kernel: StoredKernel
    arguments: tuple[Any, ...]


class CandidateRefused(Exception):
    """The error if a candidate is refused, with the kernel's name and the problems."""

    def __init__(self, kernel: str, problems: Sequence[Problem]) -> None:
        super().__init__(kernel, *(p.message for p in problems))
        self.kernel, self.problems = kernel, tuple(problems)


def trace(
    path: Path,
    *,
    kernel: str | None,
    target: str,
    grid: Sequence[int],
    arguments: Any,
    hidden: Mapping[str, str],
    limits: Limits,
) -> TracedCandidate:
    """Trace a kernel of the file `path` in a child process.

    `kernel` is its name; None traces the first of `tracing_child.NAMES` in the file, or
    its only kernel. The child gets only the types of `arguments`; if `arguments` is
    None, it calls the candidate's `get_inputs()`. `hidden`: path that the candidate may
    not read -> name of this file in a verdict.

    Raises:
        CandidateRefused: the kernel cannot be traced, or does what no kernel needs.
    """
    job = {
        "candidate": str(path),
        "kernel": kernel,
        "target": target,
        "grid": tuple(grid),
        "arguments": None if arguments is None else types_file.described(arguments),
        "hidden": dict(hidden),
        "limits": asdict(limits),
    }
    wanted = (tracing_child.STATUS, tracing_child.PROGRAM)
    return read(run_child(tracing_child.__name__, job, wanted, limits), path)


def read(ended: Ended, path: Path) -> TracedCandidate:
    """Return the candidate from the files that a child process wrote.

    Raises:
        CandidateRefused: no program was written, or something forbidden was tried.
    """
    status = ended.described(tracing_child.STATUS)
    if status is None:
        words = ended.printed.strip().rpartition("\n")[2]
        how = ended.how or "wrote no result"
        raise _nothing_left(path, f"{how}: {words}" if words else how)
    try:
        if refused := list(_refused(status, path)):
            raise CandidateRefused(str(status.get("kernel", "")), refused)
        return _candidate(status, ended.files[tracing_child.PROGRAM])
    except (*types_file.NO_TYPES, NeuronJaxError) as error:
        raise _nothing_left(path, f"wrote no program: {error}") from error


def _refused(status: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    for what in status["forbidden"]:
        text, remedy = str(what), "leave this out: no kernel needs it"
        yield Problem(rule="forbidden", location=str(path), message=text, remedy=remedy)
    if status["what"]:
        yield Problem(
            rule=str(status["what"]),
            location=str(status["location"]),
            message=str(status["message"]),
            remedy=str(status.get("remedy", "")),
        )


def _candidate(status: Mapping[str, Any], file: bytes) -> TracedCandidate:
    with no_collection():
        program = read_program(file)
    dtypes = tuple(a.dtype for a in program.results)
    traced = TracedKernel(program, types_file.read(status["results"]), dtypes)
    return TracedCandidate(
        name=str(status["kernel"]),
        kernel=StoredKernel(traced),
        arguments=types_file.read(status["arguments"]),
    )


def _nothing_left(path: Path, how: str) -> CandidateRefused:
    problem = Problem(rule="ended", location=str(path), message=how)
    return CandidateRefused("", [problem])
