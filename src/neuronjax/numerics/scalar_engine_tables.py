"""The tables of `numerics.scalar_engine`, read from tables/scalar_engine.json.

`scripts/make_scalar_engine_tables.py` makes the file, and says by which rule.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Octave:
    """The segments of sign * 2^exponent <= x < sign * 2^(exponent + 1).

    Attributes:
        sign: 1 or -1.
        exponent: see above.
        first: the row of the first segment; the others follow.
        bits: there are 2^bits segments of equal width, fewer where the limit of the
            function comes first.
    """

    sign: int
    exponent: int
    first: int
    bits: int


@dataclass(frozen=True)
class Limit:
    """What a function is from some argument on, away from zero.

    Attributes:
        start: the argument.
        value: the function there, or None where it is its argument.
    """

    start: np.float32
    value: np.float32 | None


@dataclass(frozen=True, kw_only=True, eq=False)
class PiecewiseCubic:
    """A function as ScalarE's table holds it.

    Attributes:
        parity: "odd" or "even" if |x| is looked up, "none" if both signs are.
        reduction: "none", "power" or "log", see `numerics.scalar_engine`.
        power: of a function x^power, under "power".
        octaves: of arguments or, under a reduction, of reduced ones. Below the first
            of a sign is row 0; above the last its last row.
        bases: row -> where its polynomial is expanded, if not in the middle.
        above, below: limits of large positive and negative arguments.
        at_zero: of signed zeros: "table", "zero" or "infinity" of their sign.
        ratios: coefficients 1 to 3 as multiples of coefficient 0, or ().
        coefficients: float32 [rows] each, lowest first; under `ratios` only one.
        error: the largest of a segment, relative to the largest value in it.
    """

    parity: str
    reduction: str
    power: float
    octaves: tuple[Octave, ...]
    bases: Mapping[int, np.float32]
    above: Limit | None
    below: Limit | None
    at_zero: str
    ratios: tuple[np.float32, ...]
    coefficients: tuple[np.ndarray, ...]
    error: float

    @property
    def rows(self) -> int:
        """How many segments there are."""
        return len(self.coefficients[0])


def _float(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def _limit(found: list[Any] | None) -> Limit | None:
    if found is None:
        return None
    start, value = found
    return Limit(_float(start), None if value == "x" else _float(value))


def _table(row: Mapping[str, Any]) -> PiecewiseCubic:
    fields = {name: row[name] for name in ("parity", "reduction", "power", "at_zero")}
    columns = row["coefficients"]
    return PiecewiseCubic(
        **fields,
        octaves=tuple(Octave(*octave) for octave in row["octaves"]),
        bases={int(n): _float(bits) for n, bits in row["bases"].items()},
        above=_limit(row["above"]),
        below=_limit(row["below"]),
        ratios=tuple(map(_float, row["ratios"])),
        coefficients=tuple(np.array(c, np.uint32).view(np.float32) for c in columns),
        error=row["error"],
    )


@functools.cache
def tables() -> Mapping[str, PiecewiseCubic]:
    """The table of every function, by its name in nki.language."""
    path = resources.files("neuronjax.numerics") / "tables" / "scalar_engine.json"
    rows = json.loads(path.read_text())
    return MappingProxyType({name: _table(row) for name, row in rows.items()})
