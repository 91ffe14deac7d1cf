"""Runs of a traced candidate kernel on the reference's inputs, and limits on runs."""

from __future__ import annotations

import contextvars
import secrets
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

import numpy as np

from neuronjax.diagnostics.differences import alike
from neuronjax.diagnostics.judging import values
from neuronjax.diagnostics.judging.case import ReferenceCase, ReferenceFailed
from neuronjax.diagnostics.judging.comparing import compared
from neuronjax.diagnostics.judging.tracing import TracedCandidate
from neuronjax.diagnostics.judging.values import ValuesRun
from neuronjax.diagnostics.judging.verdict import Problem, SeedVerdict
from neuronjax.diagnostics.tolerance import Tolerance
from neuronjax.errors import NeuronJaxError
from neuronjax.execution.kernels.running import FreshMemory
from neuronjax.execution.kernels.slots import assign
from neuronjax.ir import nki_dtypes
from neuronjax.ir.kernel import KernelProgram
from neuronjax.nki.limits.initialised import surely_writes
from neuronjax.report.quantities import binary

#: Limits on a kernel's memory and executed instructions; a larger kernel is refused.
MOST_BYTES = 8 << 30
MOST_INSTRUCTIONS = 20_000_000


def with_unknown(program: KernelProgram, asked: Sequence[int]) -> tuple[int, ...]:
    """Return the seeds `asked` and a random seed that no candidate can know.

    The random seed is omitted if `program` contains fewer constants than its smallest
    result has elements: such a program cannot contain precomputed results.
    """
    numbers = sum(s.size for s in program.storages if s.initial is not None)
    numbers += sum(len(i.parameters) for i in program.body.walk())
    if numbers < min((r.size for r in program.results), default=0):
        return tuple(asked)
    return (*asked, secrets.randbelow(1 << 32))


def too_large(program: KernelProgram, path: Path) -> Iterator[Problem]:
    """Yield problems if `program` needs too much memory or too many instructions."""
    held = _all_bytes(program)
    if held > MOST_BYTES:  # tiles may share memory: count it once
        pools, _ = assign(program)
        held = sum(_bytes(prod(p.shape) * p.slots, p.dtype) for p in pools)
    if held > MOST_BYTES:
        message = f"allocates {binary(held)}; {binary(MOST_BYTES)} are allowed"
        remedy = "allocate less, or judge a smaller case"
        yield Problem(rule="memory", location=str(path), message=message, remedy=remedy)
    count = values.executed(program.body)
    if count > MOST_INSTRUCTIONS:
        message = f"executes {count:,} instructions; {MOST_INSTRUCTIONS:,} are allowed"
        remedy = "give its loops fewer iterations, or judge a smaller case"
        yield Problem(rule="time", location=str(path), message=message, remedy=remedy)


def _all_bytes(program: KernelProgram) -> int:
    return sum(_bytes(s.size, s.dtype) for s in program.storages)


def _bytes(elements: int, dtype: str) -> int:
    return elements * nki_dtypes.info(dtype).itemsize


def shares_memory(program: KernelProgram) -> bool:
    """Return whether separate memory for every tile of `program` would exceed
    `MOST_BYTES`; if so, tiles reuse memory that contains numbers of earlier tiles."""
    return _all_bytes(program) > MOST_BYTES


def seeds(
    case: ReferenceCase,
    candidate: TracedCandidate,
    wanted: Sequence[int],
    allow: Callable[[], float | None],
    seconds: float,
) -> tuple[tuple[SeedVerdict, ...], tuple[Problem, ...]]:
    """Return (a comparison for each seed in `wanted` up to a failure, the problems).

    `allow` is called in a thread during the first run of the kernel. It returns the
    allowed relative L2 error, or None to derive tolerances from the reference.
    `seconds` limits the time of programs that are long or may not end. If the program
    may read memory that it has not written, the first seed is run twice, with different
    numbers in that memory; a difference between the two results is a problem.
    """
    done: list[SeedVerdict] = []
    program = candidate.kernel.program
    other = None
    if not surely_writes(program):
        other = FreshMemory(1.0, 3, shared=shares_memory(program))
    returned = values.computed(candidate, _runs(case, wanted, other), seconds)
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as thread:
        warnings.simplefilter("ignore")
        allowed = thread.submit(contextvars.copy_context().run, allow)
        try:
            for seed in wanted:
                result, is_later = next(returned), seed != wanted[0]
                limits = case.tolerances(seed, allowed.result(), is_later=is_later)
                expected = tuple(map(_held, limits))
                actual = case.results(result, expected)
                done.append(compared(seed, actual, limits))
                if not is_later and other is not None:
                    again = case.results(next(returned), expected)
                    if count := _differing(actual, again):
                        return tuple(done), (_from_memory(count, candidate),)
        except ReferenceFailed:
            raise
        except NeuronJaxError as error:
            allowed.result()  # raises if the reference is at fault
            rule = "time" if isinstance(error, values.EndlessError) else "run"
            return tuple(done), (Problem.of_error(rule, error),)
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            allowed.result()
            message = f"the results do not fit the reference: {error}"
            return tuple(done), (Problem(rule="results", message=message),)
    return tuple(done), ()


def _held(tolerance: Tolerance) -> np.ndarray:
    value = tolerance.value
    is_wide = tolerance.bound is not None and value.dtype.kind == "f"
    return value.astype(np.float32, copy=False) if is_wide else value


def _runs(
    case: ReferenceCase, wanted: Sequence[int], other: FreshMemory | None
) -> Iterator[ValuesRun]:
    """Yield runs for `wanted`, with new arguments, since a run may change arguments."""
    for seed in wanted:
        yield ValuesRun(case.kernel_arguments(seed))
        if seed == wanted[0] and other is not None:
            yield ValuesRun(case.kernel_arguments(seed), other)


def _differing(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> int:
    pairs = zip(one, other, strict=True)
    wide = ([np.asarray(x, np.float64) for x in pair] for pair in pairs)
    return sum(int(np.count_nonzero(~alike(a, b))) for a, b in wide)


def _from_memory(count: int, candidate: TracedCandidate) -> Problem:
    results = candidate.kernel.program.results
    return Problem(
        rule="unwritten-memory",
        location=results[0].storage.location if results else "",
        message=f"{count:,} elements of the results depend on numbers that were "
        "in memory before the kernel",
        remedy="write all elements that you read or return, even if loops run 0 times",
    )
