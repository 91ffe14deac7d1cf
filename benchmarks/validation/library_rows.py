"""More regression baselines of the vendor's kernel library, as rows.

`library_kernels.json` has what its integration tests hold; rows that `rows` has are
left out. Of one program with several times, as columns were tiled, the best counts.
Figures that stand for several programs, or are round, are suspicious.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.validation import trn3_rows
from benchmarks.validation.rows import BY_HAND, PAGES, US, Kind, Row

_FILE = Path(__file__).parent / "library_kernels.json"
_WORKLOADS = {"mlp_prefill": "mlp prefill", "qkv_decode": "qkv decode"}
_OPTIONS = {"GELU": "gelu", "GELU_Tanh_Approx": "gelu_tanh", "bb": "b", "bbb": "b"}


def _rows() -> tuple[Row, ...]:
    given = json.loads(_FILE.read_text())["rows"]
    known = {row.name for row in PAGES}
    read = [_Baseline(fields) for fields in given]
    read = [b for b in read if b.name not in known]
    often = Counter(b.us for b in read)
    best: dict[str, float] = {}
    for b in read:
        best[b.program_name] = min(b.us, best.get(b.program_name, b.us))
    return tuple(b.row(_kind(b, best[b.program_name], often[b.us])) for b in read)


def _kind(b: _Baseline, best: float, often: int) -> Kind:
    if b.us in BY_HAND or often > 1:
        return "suspicious"
    return "best" if b.us == best else "variant"


class _Baseline:
    """One entry of the file."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.kind, self.us = fields["kind"], float(fields["us"])
        words = fields["flags"].replace("+", " ").split()
        self.tiling = next((w for w in words if w.startswith("tile=")), "")
        skipped = {"-", "static", self.tiling}
        options = [w for w in words if w not in skipped and not w[1:].isdecimal()]
        if self.kind == "mlp_decode_skipgate":
            options.append("sg")
        self.options = tuple(_OPTIONS.get(w, w) for w in options)
        self.workload = _WORKLOADS.get(self.kind, "mlp decode")
        if self.kind == "mlp_decode_fp8":
            self.workload = "mlp decode fp8"
        self.lnc = fields["lnc"]
        self.batch, self.rows = fields["batch"], fields["seq"]
        self.hidden, self.width = fields["hidden"], fields["inner"]

    @property
    def program_name(self) -> str:
        """Equal for equal programs."""
        shape = f"B{self.batch} S{self.rows} H{self.hidden} I{self.width}"
        options = "+".join(self.options) or "-"
        return f"{self.workload} LNC{self.lnc} {shape} {options}"

    @property
    def name(self) -> str:
        """Of the row."""
        return f"{self.program_name} {self.tiling}".strip()

    def row(self, kind: Kind) -> Row:
        """The row of the kind."""
        program = "qkv" if self.kind == "qkv_decode" else "mlp"
        fp8 = {"fp8": True} if self.kind == "mlp_decode_fp8" else {}
        return Row(
            name=self.name,
            workload=self.workload,
            chip="trn2",
            lnc=self.lnc,
            seconds=self.us * US,
            kind=kind,
            section="9.4",
            source="QoR",
            program=program,
            arguments=MappingProxyType(
                {
                    "rows": self.batch * self.rows,
                    "hidden": self.hidden,
                    "width": self.width,
                    "options": self.options,
                    **fp8,
                }
            ),
        )


ROWS: tuple[Row, ...] = (*PAGES, *_rows(), *trn3_rows.ROWS)
"""Every published time."""
