"""Published times of collectives, for `validate_collectives.py`.

They are in `collective_measurements.json`, as in their sources. nccom-test's samples
name neither the instance nor the software: both are assumed, and said. Two formats of
it exist: whole microseconds, which contain some 50 to 150 us of every execution, and
(SDK 2.31) fractions, which do not.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measured time.

    Attributes:
        size_bytes: of the collective, as nccom-test counts it.
        seconds: measured.
        fits: the constant that was chosen to meet it, or "".
    """

    size_bytes: int
    seconds: float
    fits: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """Times of one collective by size.

    Attributes:
        key: of the data set in the list of published measurements.
        op: the collective.
        ranks: how many, from device 0.
        pairs: of a collective_permute.
        dtype: of the elements.
        target: the machine.
        assumed: what the source does not say.
        source: where it is published.
        rows: the times.
        overhead_from: the row whose error is added to all predictions, or None: the
            old format contains the execution, which the model of collectives does not.
    """

    key: str
    op: str
    ranks: int
    dtype: str
    target: str
    assumed: str
    source: str
    rows: tuple[Row, ...]
    pairs: tuple[tuple[int, int], ...] = ()
    overhead_from: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """The time of chained executions with so many all-reduces in BF16.

    Attributes:
        target: the machine.
        ranks: of every group.
        all_reduces: one after the other.
        seconds: measured.
        size_bytes: of every all-reduce.
        fits: whether constants of the barrier were chosen to meet it.
    """

    target: str
    ranks: int
    all_reduces: int
    seconds: float
    size_bytes: int = 32 * 2**10
    fits: bool = False


def _series(given: dict[str, Any]) -> Series:
    fits = given.pop("fits", {})
    sizes, times = given.pop("sizes").split(), given.pop("microseconds").split()
    rows = (
        Row(
            size_bytes=int(size[:-1]) * _UNITS[size[-1]],
            seconds=float(time) * 1e-6,
            fits=fits.get(size, ""),
        )
        for size, time in zip(sizes, times, strict=True)
    )
    pairs = tuple(tuple(pair) for pair in given.pop("pairs", ()))
    return Series(**given, rows=tuple(rows), pairs=pairs)


def _executions(given: dict[str, Any]) -> Iterator[Execution]:
    given.pop("about", "")
    ranks, times = given.pop("ranks").split(), given.pop("milliseconds").split()
    for count, time in zip(ranks, times, strict=True):
        yield Execution(**given, ranks=int(count), seconds=float(time) * 1e-3)


_GIVEN = json.loads(Path(__file__).with_suffix(".json").read_text())
SERIES: tuple[Series, ...] = tuple(map(_series, _GIVEN["series"]))
EXECUTIONS: tuple[Execution, ...] = tuple(
    execution for given in _GIVEN["executions"] for execution in _executions(given)
)
