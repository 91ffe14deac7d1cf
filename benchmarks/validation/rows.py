"""Published times of whole programs, read from the data files beside this one.

Seconds of one logical NeuronCore. Single instructions and transfers are in
`micro_rows`, collectives in `benchmarks.collective_measurements`. A row says what was
measured and names the program that `programs` writes for it; nothing is computed here.

A third of the rows, chosen by a hash of their names, is **held out**: no rule or
constant of the model may be chosen with them in view. One workload has several times as
its kernel was tuned; the model predicts the best, and the others are shown as variants.
Sources, besides those of `timing/assumptions.py`: QoR, the baselines in nki-library's
integration tests at d2ad3a5 (times in picoseconds there); SAM, the thresholds in
nki-samples' tests; MAM, the tutorial of the fused Mamba kernel; LN, that of LayerNorm
at v2.26.1; MM, that of matrix multiplication at v2.26.1; NRT, nrtpy's benchmark
tutorial; BMM, the vendor's BF16 products of A[M, K] and B[N, K] transposed on trn3
(`hardware/chips.py`; no instance is named), with the bytes of HBM that their counters
give. Both operands of a product have the contracted axis last, so that the time holds
their transposes.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

#: best: the best time of its workload; variant: a time of a workload that has a better
#: one; bound: an upper bound in a test, or a target; suspicious: a figure that looks
#: entered by hand (the same for different programs, or round), or an illustration.
Kind = Literal["best", "variant", "bound", "suspicious"]

HELD_OUT_ONE_IN = 3
_US = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One published time.

    Attributes:
        name: what was measured; unique.
        workload: the class for medians.
        chip: the chip.
        lnc: physical cores of the logical core.
        seconds: published time.
        kind: one of `Kind`.
        section: section of the list of hardware measurements.
        source: the page, picture or test.
        program: name of the function in `programs` that writes the program.
        arguments: arguments of that function.
        moved_bytes: bytes of HBM by the counters; None if not published.
    """

    name: str
    workload: str
    chip: str
    lnc: int
    seconds: float
    kind: Kind
    section: str
    source: str
    program: str
    arguments: Mapping[str, Any]
    moved_bytes: float | None = None

    @property
    def is_held_out(self) -> bool:
        """Whether the model may not be tuned with this row."""
        digest = hashlib.sha256(self.name.encode()).digest()
        return digest[0] % HELD_OUT_ONE_IN == 0


def _row(us: float, arguments: Mapping[str, Any], **about: Any) -> Row:
    plain = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in arguments.items()
    }
    return Row(seconds=us * _US, arguments=MappingProxyType(plain), **about)


def _product(given: Mapping[str, str]) -> Row:
    shape = {name: int(given[name]) for name in ("m", "k", "n")}
    return _row(
        float(given["us"]),
        shape,
        name="BF16 product {m}x{k}x{n}".format(**shape),
        workload="matmul trn3",
        chip="trn3",
        lnc=2,
        kind="best",
        section="9.4",
        source="BMM",
        program="matmul_by_rows",
        moved_bytes=float(given["megabytes"]) * 1e6,
    )


_GIVEN = json.loads(Path(__file__).with_name("published_times.json").read_text())
_PRODUCTS = Path(__file__).with_name("trn3_matmuls.csv").read_text().splitlines()
ROWS: tuple[Row, ...] = (
    *(_row(**given) for given in _GIVEN["rows"]),
    *map(_product, csv.DictReader(_PRODUCTS)),
)
#: Published times for which no program can be written, and the reason.
UNEXPRESSED: Mapping[str, str] = MappingProxyType(_GIVEN["unexpressed"])
