"""The modelled times of collectives against every published measurement.

    python benchmarks/validate_collectives.py

Prints the error of each row, (model - measured) / measured, and the median magnitude
per data set. Rows to which a constant was fitted are marked with the constant and left
out of the median. Errors and possible reasons are printed too. T12 was also used to
choose the structure of the model (that mesh on trn1 sends every chunk to every rank,
and that both directions of a ring are used); T4 is predicted from it.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

# For a script, `benchmarks` itself is on the path instead of the folder that holds it.
sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.collective_measurements import EXECUTIONS, SERIES, Execution, Series
from neuronjax.hardware import resolve_target
from neuronjax.timing.assumptions import NULL_EXECUTION
from neuronjax.timing.collectives import (
    CollectiveTime,
    collective_time,
    queued_launch_seconds,
)

NOTES = {
    "T1": "8-bit elements are priced by their bytes alone.",
    "T6": "a permutation is given one channel; measured is two thirds of that.",
    "T8": "2.1 us and the 14 us of a collective inside a program make 16.1.",
    "T12": "8 ranks: 1 MiB is still mesh; 2 ranks: rdh from 16 MiB on is 24 % short, "
    "as if kangaring ran there already.",
    "T16 32 MiB": "measured is what mesh would take (2.00 and 1.00 ms), not rdh.",
    "T16": "12 exchanges of 32 MB on trn1: 1.4 ms each, 0.75 modelled (rdh).",
}


def predictions(series: Series) -> list[CollectiveTime]:
    """Return the modelled time of every row."""
    groups = series.pairs or [range(series.ranks)]
    target = resolve_target(series.target)
    return [
        collective_time(series.op, row.size_bytes, groups, target)
        for row in series.rows
    ]


def errors(series: Series) -> list[float]:
    """Return (model - measured) / measured of every row."""
    times = [time.seconds for time in predictions(series)]
    first = series.overhead_from
    overhead = 0.0 if first is None else series.rows[first].seconds - times[first]
    return [
        (time + overhead) / row.seconds - 1
        for time, row in zip(times, series.rows, strict=True)
    ]


def execution_error(case: Execution) -> float:
    """Return (model - measured) / measured."""
    return execution_prediction(case) / case.seconds - 1


def execution_prediction(case: Execution) -> float:
    """Return the modelled seconds of an execution with its all-reduces."""
    target, group = resolve_target(case.target), range(case.ranks)
    each = collective_time("all_reduce", case.size_bytes, [group], target).seconds
    each += target.chip.collective_start_seconds
    ranks = case.ranks if case.all_reduces else 1
    program = NULL_EXECUTION.value + case.all_reduces * each
    return program + queued_launch_seconds(target, ranks, program)


def medians() -> dict[str, float]:
    """Return the median magnitude of errors per data set, without fitted rows."""
    found: dict[str, list[float]] = {}
    for series in SERIES:
        for row, error in zip(series.rows, errors(series), strict=True):
            if not row.fits:
                found.setdefault(series.key, []).append(abs(error))
    found["T16"] = [abs(execution_error(case)) for case in EXECUTIONS if not case.fits]
    return {key: statistics.median(values) for key, values in found.items()}


def lines() -> Iterator[str]:
    """Yield the lines of the report."""
    for series in SERIES:
        yield f"\n{series.key}  {series.op}, {series.ranks} ranks, {series.dtype}"
        yield f"    {series.source}; {series.assumed}"
        for row, time, error in zip(
            series.rows, predictions(series), errors(series), strict=True
        ):
            fits = f"  fits {row.fits}" if row.fits else ""
            yield (
                f"{row.size_bytes:>12} B {row.seconds * 1e6:>10.2f} us {error:>+7.1%}"
                f"  {time.algorithm}, {time.bottleneck}{fits}"
            )
    yield "\nT16  chained executions with all-reduces, BF16"
    for case in EXECUTIONS:
        fits = "  fits the barrier" if case.fits else ""
        yield (
            f"  {case.target} {case.ranks:>3} ranks {case.all_reduces:>3} all-reduces"
            f" {case.seconds * 1e3:>6.3f} ms {execution_error(case):>+7.1%}{fits}"
        )
    yield "\nMedian |error|, fitted rows left out"
    for key, median in medians().items():
        yield f"  {key:<10} {median:6.1%}  {NOTES.get(key, '')}".rstrip()


if __name__ == "__main__":
    print("\n".join(lines()))
