"""Published times of collectives, for `validate_collectives.py`.

They are in `collective_measurements.json`, as in their sources. Samples of nccom-test
name neither the instance nor the software; the file states what is assumed. They have
two formats: whole microseconds, which contain some 50 to 150 us of every execution, and
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
        size_bytes: size of the collective, as nccom-test counts it.
        seconds: measured time.
        fits: the constant that was fitted to the row, or "".
    """

    size_bytes: int
    seconds: float
    fits: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """The times of one collective by size.

    Attributes:
        key: key of the data set in the list of published measurements.
        op: the collective.
        ranks: number of ranks, from device 0.
        pairs: pairs of a collective_permute.
        dtype: data type of the elements.
        target: the machine.
        assumed: assumptions about what the source does not say.
        source: the publication.
        rows: the times.
        overhead_from: the row whose error is added to all predictions, or None. The old
            format contains the execution, which the model of collectives does not.
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
    """The time of chained executions with a number of all-reduces in BF16.

    Attributes:
        target: the machine.
        ranks: number of ranks of every group.
        all_reduces: number of all-reduces, one after the other.
        seconds: measured time.
        size_bytes: size of every all-reduce.
        fits: whether constants of the barrier were fitted to it.
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
