"""Published distances of device results from NumPy, for kernels of `corpus`.

A distance is the relative L2 norm of (device - reference). The reference is NKIBench's
FP32 NumPy `forward` on the same inputs (seed 42). Distances of kernels with published
times are read from `nki_kernels.json`; `OTHERS` has the rest, from `numeric_rows.json`.
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
    """A kernel with a published distance of its result from NumPy's.

    Attributes:
        distance: relative L2 distance of the device's result.
        digits: number of significant digits that were published.
        about: the operations to which the distance relates.
    """

    distance: float
    digits: int
    about: str


def rounding(figure: float, digits: int) -> float:
    """Return the largest relative rounding error of a figure with so many digits."""
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
#: Ops whose kernels take minutes; they come last.
HEAVY = ("bmm", "gqa_full", "transpose_matmul")


def rows() -> tuple[NumericRow, ...]:
    """Return all rows, quick ones first."""
    found = [*OTHERS, *_of_the_file()]
    return tuple(sorted(found, key=lambda row: row.op in HEAVY))


def _of_the_file() -> Iterator[NumericRow]:
    for entry in corpora.entries():
        distance = entry.get("rel_l2")
        # A kernel that failed its author's check computes something else.
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
    """A division of a reference into parts that need less memory.

    Attributes:
        axes: for each input, the axis that is divided.
        output: the axis of the result that is divided.
        count: number of pieces.
    """

    axes: tuple[int, ...]
    output: int
    count: int


#: Ops that need too much memory; their heads and batches are independent.
PIECES: Mapping[str, Pieces] = MappingProxyType(
    {
        "bmm": Pieces(axes=(0, 0), output=0, count=16),
        "gqa_full": Pieces(axes=(2, 2, 2), output=1, count=8),
    }
)


def in_pieces(
    op: str, inputs: Sequence[np.ndarray]
) -> Iterator[tuple[tuple[slice, ...], list[np.ndarray]]]:
    """Yield the index of each piece of the result, and its inputs."""
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
    """Return the slice of piece n along the divided axis of the result."""
    size = parts[0].shape[PIECES[op].axes[0]]
    return slice(n * size, (n + 1) * size)
