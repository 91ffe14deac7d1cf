"""Distances of device results from NumPy, published of kernels of `corpus`.

A distance is the relative L2 norm of (device - reference), the reference being
NKIBench's FP32 NumPy `forward` on the same inputs (seed 42). Those of
`nki_kernels.json` are read from there; `OTHERS` has those of kernels that are in no
table of times, from `numeric_rows.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from benchmarks.validation import corpus as corpora
from benchmarks.validation.corpus import CorpusKernel


@dataclass(frozen=True)
class NumericRow(CorpusKernel):
    """A kernel whose result somebody compared with NumPy's.

    Attributes:
        distance: relative L2, of the device's result.
        digits: significant ones of it that were published.
        about: what the figure says something about.
    """

    distance: float
    digits: int
    about: str


def rounding(figure: float, digits: int) -> float:
    """By what part of itself a figure of so many digits may have been rounded."""
    if not figure:
        return 0.0
    return 0.5 * 10.0 ** (math.floor(math.log10(figure)) + 1 - digits) / figure


_FILE = Path(__file__).with_suffix(".json")
OTHERS: tuple[NumericRow, ...] = tuple(
    NumericRow(**row) for row in json.loads(_FILE.read_text())["rows"]
)
_ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "gqa_full": "FP32 or BF16 matmuls around exp and reciprocal",
        "matmul_add_rmsnorm": "three BF16 products, square, sum, rsqrt",
    }
)
#: Kernels that take minutes, which come last.
HEAVY = ("bmm", "gqa_full", "transpose_matmul")


def rows() -> tuple[NumericRow, ...]:
    """All of them, the quick ones first."""
    found = [*OTHERS, *_of_the_file()]
    return tuple(sorted(found, key=lambda row: row.op in HEAVY))


def _of_the_file() -> Iterator[NumericRow]:
    for entry in corpora.entries():
        distance = entry.get("rel_l2")
        # What failed its author's check computes something else.
        if distance is not None and entry["passed"]:
            yield NumericRow(
                op=entry["op"],
                kernel=entry["kernel"],
                chip=entry["chip"],
                distance=distance,
                digits=7,
                about=_ABOUT[entry["op"]],
            )


@dataclass(frozen=True)
class Pieces:
    """How a reference is computed part by part, in less memory.

    Attributes:
        axes: of each input, where it is cut.
        output: the axis of the result that is cut.
        count: of pieces.
    """

    axes: tuple[int, ...]
    output: int
    count: int


#: What does not fit at once: heads and batches are independent.
PIECES: Mapping[str, Pieces] = MappingProxyType(
    {
        "bmm": Pieces(axes=(0, 0), output=0, count=16),
        "gqa_full": Pieces(axes=(2, 2, 2), output=1, count=8),
    }
)


def in_pieces(
    op: str, inputs: Sequence[np.ndarray]
) -> Iterator[tuple[tuple[slice, ...], list[np.ndarray]]]:
    """Where a piece of the result is, and the inputs it is made of."""
    pieces = PIECES.get(op)
    if pieces is None:
        yield (), list(inputs)
        return
    for n in range(pieces.count):
        parts = [
            np.ascontiguousarray(np.split(x, pieces.count, axis)[n])
            for x, axis in zip(inputs, pieces.axes, strict=True)
        ]
        yield (*[slice(None)] * pieces.output, _nth(n, op, parts)), parts


def _nth(n: int, op: str, parts: Sequence[np.ndarray]) -> slice:
    """The part of the cut axis of the result: as long as that of the first input."""
    size = parts[0].shape[PIECES[op].axes[0]]
    return slice(n * size, (n + 1) * size)
