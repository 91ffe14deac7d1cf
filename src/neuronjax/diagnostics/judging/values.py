"""Runs of a traced candidate kernel, in this process or in a child process.

A loop whose number of iterations depends on data may never end, and XLA cannot be
interrupted. Such programs, and long programs, run in a child, which can be killed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from neuronjax.diagnostics.judging import types_file, values_child, values_file
from neuronjax.diagnostics.judging.guard import Limits
from neuronjax.diagnostics.judging.sandbox import Ended, run_child
from neuronjax.diagnostics.judging.tracing import TracedCandidate
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.kernels.running import USUAL_MEMORY, FreshMemory
from neuronjax.ir.kernel import KernelBlock, KernelInstruction, KernelLoop, KernelWhile
from neuronjax.ir.kernel_file import write_program

#: A program that executes more instructions than this runs in a child process.
_MOST_HERE = 1_000_000


class EndlessError(InvalidProgramError):
    """The error of a kernel whose run exceeds the time limit."""


class ValuesRun(NamedTuple):
    """Arguments for one run, and numbers in memory that the kernel has not written."""

    arguments: tuple[Any, ...]
    memory: FreshMemory = USUAL_MEMORY


def executed(block: KernelBlock) -> int:
    """Return how many instructions run, if every loop of unknown length runs once."""
    total = 0
    for item in block.items:
        if isinstance(item, KernelInstruction):
            total += 1
            continue
        turns = _turns(item)
        total += (1 if turns is None else turns) * executed(item.body)
    return total


def _turns(loop: KernelLoop | KernelWhile) -> int | None:
    if isinstance(loop, KernelWhile):
        return None
    if isinstance(loop.start, int) and isinstance(loop.stop, int):
        return len(range(loop.start, loop.stop, loop.step))
    return None


def _may_not_end(block: KernelBlock) -> Iterator[str]:
    """Yield source lines of loops whose number of iterations depends on data."""
    for item in block.items:
        if isinstance(item, KernelLoop | KernelWhile):
            if _turns(item) is None:
                yield item.location
            yield from _may_not_end(item.body)


def computed(
    candidate: TracedCandidate, runs: Iterable[ValuesRun], seconds: float
) -> Iterator[Any]:
    """Yield the results of `candidate` in every run.

    If runs may not end or are long, a child process executes all runs, in at most
    `seconds` in total; otherwise this process executes each run when it is needed.

    Raises:
        EndlessError: the runs did not end in time.
        NeuronJaxError: a run breaks a limit.
    """
    body = candidate.kernel.program.body
    lines = list(_may_not_end(body))
    if lines or executed(body) > _MOST_HERE:
        return _elsewhere(candidate, [*runs], seconds, next(iter(lines), ""))
    later = iter(runs)
    return _here(candidate, itertools.chain([next(later)], later))


def _here(candidate: TracedCandidate, runs: Iterable[ValuesRun]) -> Iterator[Any]:
    kernels = {USUAL_MEMORY: candidate.kernel}
    for run in runs:
        if run.memory not in kernels:
            kernels[run.memory] = candidate.kernel.in_memory(run.memory)
        yield kernels[run.memory](*run.arguments)


def _elsewhere(
    candidate: TracedCandidate, runs: Sequence[ValuesRun], seconds: float, line: str
) -> Iterator[Any]:
    program, tree, dtypes = candidate.kernel.stored
    asked = [[list(run.arguments), list(run.memory)] for run in runs]
    results, names = types_file.described(tree), list(dtypes)
    given = {"results": results, "dtypes": names, "runs": asked}
    text, arrays = values_file.stored(given)
    wanted = (values_child.DONE, values_child.DONE_ARRAYS)
    files = {
        values_child.PROGRAM: write_program(program),
        values_child.GIVEN: text,
        values_child.GIVEN_ARRAYS: arrays,
    }
    ended = run_child(values_child.__name__, {}, wanted, Limits(seconds=seconds), files)
    if not all(name in ended.files for name in wanted):
        raise _unfinished(ended, program.name, line)
    found = values_file.read(*(ended.files[name] for name in wanted))
    yield from found["done"]
    if found["failed"] is not None:
        what, op, location, remedy = found["failed"]
        raise InvalidProgramError(what, op=op, location=location, remedy=remedy)


def _unfinished(ended: Ended, kernel: str, line: str) -> InvalidProgramError:
    if ended.is_late:
        return EndlessError(
            f"executing its instructions {ended.how}",
            op=kernel,
            location=line,
            remedy="let the loop's condition become 0, or give the judge more time",
        )
    words = ended.printed.strip().rpartition("\n")[2]
    message = f"executing its instructions {ended.how or 'wrote no result'}: {words}"
    return InvalidProgramError(message, op=kernel, remedy="judge a smaller case")
