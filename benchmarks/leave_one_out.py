"""How the figures that kernels were fitted to generalise: each op left out in turn.

    python -m benchmarks.leave_one_out CORPUS [--output FILE]

For every op of `validate_kernels` each of `FIGURES` takes the value with which the
other ops are nearest to what was measured; then the op's own error is reported beside
that of the model as it is. Only trn2 has kernels enough. Kernels are traced once and
scheduled for every value; those of more than `MOST_INSTRUCTIONS` are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import results_file
from benchmarks.validation import corpus as corpora
from neuronjax.errors import NeuronJaxError
from neuronjax.hardware import Target, resolve_target
from neuronjax.ir.kernel import KernelProgram
from neuronjax.timing import assumptions
from neuronjax.timing.engines import dma, vector
from neuronjax.timing.kernel_schedule import schedule_kernel

MOST_INSTRUCTIONS = 30_000
CHIP = "trn2"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A constant of the model that is fitted to kernels.

    Attributes:
        values: its possible values; the first is the model's own.
        applied: value -> a context in which the figure has this value.
    """

    name: str
    values: tuple[Any, ...]
    applied: Callable[[Any], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def _replaced(places: Sequence[tuple[ModuleType, str]], value: Any) -> Iterator[None]:
    before = [getattr(module, name) for module, name in places]
    for module, name in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name), old in zip(places, before, strict=True):
            setattr(module, name, old)


def _constant(
    name: str, places: Sequence[ModuleType], values: tuple[float, ...]
) -> Figure:
    constant = getattr(places[0], name)

    def applied(value: float) -> contextlib.AbstractContextManager[None]:
        changed = dataclasses.replace(constant, value=value)
        return _replaced([(place, name) for place in places], changed)

    return Figure(name, values, applied)


def _function(
    name: str, places: Sequence[ModuleType], values: tuple[Any, ...]
) -> Figure:
    def applied(value: float) -> contextlib.AbstractContextManager[None]:
        return _replaced([(p, name) for p in places], lambda core: value)

    return Figure(name, values, applied)


FIGURES = (
    _function("streaming_bytes_per_second", (dma,), (25.6e9, 22e9, 23e9, 24e9, 27.2e9)),
    _function("streams_per_cycle", (vector,), (2.0, 1.0, 1.5)),
    _constant("THROTTLE_SINKING", (assumptions,), (0.25, 0.0, 0.1, 0.5, 1.0)),
    _constant("REORDER_WINDOW", (assumptions,), (64, 1, 4, 16, 256)),
)
"""Those that kernels of an op led to."""

Traced = list[tuple[str, float, KernelProgram]]


def traced(corpus: Path) -> Traced:
    """Return op, measured seconds and program of every kernel."""
    found = []
    for row in corpora.rows():
        if row.chip != CHIP:
            continue
        try:
            kernel, arguments = corpora.kernel_and_arguments(row, corpus)
            program = kernel.with_target(CHIP).trace(*arguments)
        except NeuronJaxError as error:
            print(f"{row.name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        if sum(1 for _ in program.body.walk()) <= MOST_INSTRUCTIONS:
            found.append((row.op, row.seconds, program))
    return found


def errors(kernels: Traced, target: Target) -> list[float]:
    """Return magnitudes of errors of the model with its current figures."""
    return [
        abs(schedule_kernel(program, target, lnc=1).total_seconds / seconds - 1)
        for _, seconds, program in kernels
    ]


def measure(corpus: Path) -> list[dict[str, Any]]:
    """Return a row for each op."""
    kernels, target = traced(corpus), resolve_target(CHIP)
    ops = list(dict.fromkeys(op for op, _, _ in kernels))
    found = by_value(kernels, target)
    return [left_out(op, kernels, found, target) for op in ops]


def by_value(kernels: Traced, target: Target) -> dict[tuple[str, Any], list[float]]:
    """Return errors of all kernels for every value of each figure, one at a time."""
    found = {}
    for figure in FIGURES:
        for value in figure.values:
            with figure.applied(value):
                found[figure.name, value] = errors(kernels, target)
    return found


def left_out(
    op: str,
    kernels: Traced,
    found: Mapping[tuple[str, Any], list[float]],
    target: Target,
) -> dict[str, Any]:
    """Return an op's errors with the model's figures and with those fitted to others.

    `found` contains the errors of all kernels for every figure and value."""
    others = [n for n, (name, _, _) in enumerate(kernels) if name != op]
    own = [kernel for kernel in kernels if kernel[0] == op]
    chosen = {}
    with contextlib.ExitStack() as stack:
        for figure in FIGURES:
            medians = {
                value: statistics.median([found[figure.name, value][n] for n in others])
                for value in figure.values
            }
            chosen[figure.name] = min(medians, key=lambda v: round(medians[v], 4))
            stack.enter_context(figure.applied(chosen[figure.name]))
        without = errors(own, target)
    fitted = errors(own, target)
    return {
        "op": op,
        "kernels": len(own),
        "median_error": statistics.median(fitted),
        "mean_error": statistics.fmean(fitted),
        "left_out_error": statistics.median(without),
        "left_out_mean_error": statistics.fmean(without),
        "chosen": chosen,
    }


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each op with both errors and the figures that differ."""
    lines = [f"{'op':22}kernels  fitted  left out  figures without it"]
    for e in entries:
        own = {f.name: f.values[0] for f in FIGURES}
        other = {n: v for n, v in e["chosen"].items() if v != own[n]}
        lines.append(
            f"{e['op']:22}{e['kernels']:7}{e['median_error']:8.0%}"
            f"{e['left_out_error']:10.0%}  "
            + (", ".join(f"{n} {v:g}" for n, v in other.items()) or "the same")
        )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, help="folder of the repositories")
    parser.add_argument("--output", type=Path, help="where to write the results")
    options = parser.parse_args(given)
    if not corpora.is_there(options.corpus):
        return 2
    begun = results_file.Run("leave_one_out")
    entries = measure(options.corpus)
    print(table(entries))
    if options.output:
        document = begun.document({"entries": entries}, quick=False)
        results_file.write(document, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
