"""A traced candidate on the reference's inputs, where it is small enough to run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from neuronjax.diagnostics.judging.case import ReferenceCase
from neuronjax.diagnostics.judging.comparing import compared
from neuronjax.diagnostics.judging.tracing import TracedCandidate
from neuronjax.diagnostics.judging.verdict import Problem, SeedVerdict
from neuronjax.errors import NeuronJaxError
from neuronjax.ir import nki_dtypes
from neuronjax.ir.kernel import KernelBlock, KernelLoop, KernelProgram
from neuronjax.report.quantities import binary

#: What the emulator may take here: a kernel that takes more is not run, and refused.
MOST_BYTES = 8 << 30
MOST_INSTRUCTIONS = 20_000_000


def too_large(program: KernelProgram, path: Path) -> Iterator[Problem]:
    """Why a program is not run: what it allocates, or how often its loops turn."""
    held = sum(_bytes(s.size, s.dtype) for s in program.storages)
    if held > MOST_BYTES:
        told = f"allocates {binary(held)}, more than the {binary(MOST_BYTES)} here"
        yield Problem(
            rule="memory",
            location=str(path),
            message=told,
            remedy="allocate less, or judge a smaller case",
        )
    count = _executed(program.body)
    if count > MOST_INSTRUCTIONS:
        told = f"executes {count:,} instructions, more than {MOST_INSTRUCTIONS:,}"
        yield Problem(
            rule="time",
            location=str(path),
            message=told,
            remedy="let its loops turn less often, or judge a smaller case",
        )


def _bytes(elements: int, dtype: str) -> int:
    return elements * nki_dtypes.info(dtype).itemsize


def _executed(block: KernelBlock) -> int:
    """Instructions; of loops whose turns the trace does not know, one turn."""
    total = 0
    for item in block.items:
        if isinstance(item, KernelLoop):
            start, stop = item.start, item.stop
            known = isinstance(start, int) and isinstance(stop, int)
            turns = len(range(start, stop, item.step)) if known else 1  # type: ignore[arg-type]
            total += turns * _executed(item.body)
        else:
            total += 1
    return total


def seeds(
    case: ReferenceCase,
    candidate: TracedCandidate,
    wanted: Sequence[int],
    allowed: float | None,
) -> tuple[tuple[SeedVerdict, ...], tuple[Problem, ...]]:
    """A comparison for every seed, up to the first that cannot be run, and why.

    `allowed` is the relative L2 error; None for tolerances that the reference gives."""
    done: list[SeedVerdict] = []
    for seed in wanted:
        expected = case.expected(seed)
        arguments = case.kernel_arguments(seed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                returned = candidate.kernel(*arguments)
            actual = case.results(returned, expected)
        except NeuronJaxError as error:
            return tuple(done), (_failed(error),)
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            told = f"its results do not fit the reference's: {error}"
            return tuple(done), (
                Problem(rule="results", location="", message=told, remedy=""),
            )
        tolerance = case.tolerances(seed) if allowed is None else allowed
        done.append(compared(seed, actual, expected, tolerance))
    return tuple(done), ()


def _failed(error: NeuronJaxError) -> Problem:
    told = f"{error.op}: {error.what}" if error.op else error.what
    return Problem(
        rule="run",
        location=error.location or "",
        message=told,
        remedy=error.remedy or "",
    )
