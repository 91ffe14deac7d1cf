"""How far ScalarE's functions err, one by one: a table of docs/exactness.md.

The tables of the numerics say how far each function may err; this one says where that
size comes from. docs/scalar-engine.md has the evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from neuronjax.numerics.scalar_engine import OF_PROGRAMS, PiecewiseCubic, tables

TITLE = "ScalarE's functions"
GUESS = "guess"
CHECKED = "checked on silicon"

# Where the size of a function's error comes from; of all others it is a guess, as are
# all functions on chips other than Trainium2.
SIZES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "exp": (
            CHECKED,
            "arguments of about -4 to 0 and 0 to 4: three attention kernels; 1.2e-6 of"
            " their 2.9e-6 is left",
        ),
        "rsqrt": (
            CHECKED,
            "arguments of 1.7 to 2.4 and 1,770 to 2,450: two kernels, to 0.05 %",
        ),
        "silu": (
            "bounded on silicon",
            "arguments of 2 to 16: a gated layer; half as many would err visibly",
        ),
        "sin": (GUESS, "beyond pi the documented cubic"),
    }
)


def section() -> Iterator[tuple[str, ...]]:
    """The rows of the table: function, segments, error, where its size comes from."""
    for name, table in sorted(tables().items()):
        label, where = SIZES.get(name, (GUESS, ""))
        yield (name, _segments(table), f"{table.error:.1e}", label, where, _op(name))


def _segments(table: PiecewiseCubic) -> str:
    """How many to an octave: the fewest and the most."""
    counts = sorted({1 << octave.bits for octave in table.octaves})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _op(name: str) -> str:
    return next((op for op, own in OF_PROGRAMS.items() if own == name), "")


HEADS = (
    "function",
    "segments to an octave",
    "error",
    "size of the error",
    "shown by",
    "in programs",
)
