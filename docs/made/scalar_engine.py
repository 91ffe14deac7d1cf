"""The error of each of ScalarE's functions: a table of docs/exactness.md.

The numerics define the error of each function; this table states the source of its
size. docs/scalar-engine.md has the evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from neuronjax.numerics.scalar_engine import OF_PROGRAMS, PiecewiseCubic, tables

TITLE = "ScalarE's functions"
GUESS = "guess"
CHECKED = "measured"

# The source of the size of a function's error. The size is a guess for all other
# functions, and for all functions on chips other than Trainium2.
SIZES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "exp": (
            CHECKED,
            "four attention kernels, with arguments of about -4 to 4; of the 2.8e-6 to"
            " 2.9e-6 that exp adds to their distances, 0.9e-6 to 1.0e-6 are not"
            " explained (all in quadrature)",
        ),
        "rsqrt": (
            CHECKED,
            "two kernels, with arguments of 1.7 to 2.4 and of 1,770 to 2,450; if the"
            " error is rsqrt's and not that of x^2, our distances are within 0.1 % of"
            " the measured ones",
        ),
        "silu": (
            "at most this, by a measurement",
            "a gated layer, for arguments of 2 to 16; with half as many segments, the"
            " layer's distance would be larger than measured",
        ),
        "sin": (
            GUESS,
            "the documented result of sin(9.0) shows how arguments beyond pi are"
            " treated, but not the error",
        ),
    }
)


def section() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table, in the order of `HEADS`."""
    for name, table in sorted(tables().items()):
        label, where = SIZES.get(name, (GUESS, ""))
        yield (name, _segments(table), f"{table.error:.1e}", label, where, _op(name))


def _segments(table: PiecewiseCubic) -> str:
    """Return the smallest and the largest number of segments in an octave."""
    counts = sorted({1 << octave.bits for octave in table.octaves})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _op(name: str) -> str:
    return next((op for op, own in OF_PROGRAMS.items() if own == name), "")


HEADS = (
    "function",
    "segments per octave",
    "error",
    "size of the error",
    "shown by",
    "in programs",
)
