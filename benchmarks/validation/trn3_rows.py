"""Matrix products that the vendor measured on trn3, as rows: the chip's first times.

`trn3_matmuls.csv` holds BF16 products of A[M, K] and B[N, K] transposed, each a program
that the vendor's compiler made for LNC 2 (BMM in `hardware/chips.py`; no instance is
named): microseconds of the profile, and the bytes of HBM that its counters give. Both
operands have the contracted axis last, so that the time holds their transposes.
"""

from __future__ import annotations

import csv
from pathlib import Path
from types import MappingProxyType

from benchmarks.validation.rows import US, Row

FILE = Path(__file__).with_name("trn3_matmuls.csv")


def _row(given: dict[str, str]) -> Row:
    shape = {name: int(given[name]) for name in ("m", "k", "n")}
    return Row(
        name="BF16 product {m}x{k}x{n}".format(**shape),
        workload="matmul trn3",
        chip="trn3",
        lnc=2,
        seconds=float(given["us"]) * US,
        kind="best",
        section="9.4",
        source="BMM",
        program="matmul_by_rows",
        arguments=MappingProxyType(shape),
    )


def traffic() -> dict[str, float]:
    """Return the bytes of HBM that each row's counters give, by its name."""
    return {_row(given).name: float(given["megabytes"]) * 1e6 for given in _read()}


def _read() -> list[dict[str, str]]:
    with FILE.open(newline="") as lines:
        return list(csv.DictReader(lines))


ROWS: tuple[Row, ...] = tuple(map(_row, _read()))
"""All that were given, in the order of the file."""
