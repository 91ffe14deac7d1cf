"""Which StableHLO and CHLO ops are emulated, on which engines, with which dtypes.

`operations.json` has one row per op of both dialects. The file is made by lowering a
sample of every op (docs/made), and a test compares it with the lowering, so that the
table cannot disagree with the emulator. Nothing is lowered or run here.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from neuronjax.hardware import EMULATOR_ONLY_DTYPES, Target

Status = Literal["emulated", "refused", "missing"]
KINDS = ("float", "integer", "bool", "complex")
MEANINGS: dict[Status, str] = {
    "emulated": "runs",
    "refused": "not run, on purpose; the note says why",
    "missing": "no rule yet",
}


@dataclasses.dataclass(frozen=True)
class Use:
    """The execution of an op for floats, integers, bools or complex numbers.

    Attributes:
        engines: the engines that execute it, in order of first use; empty if none is
            needed, as for the real part of complex numbers, which are stored as pairs.
        label: "exact", or "modelled" if any of its instructions is.
    """

    engines: tuple[str, ...]
    label: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """One row of the table.

    Attributes:
        name: "stablehlo.add".
        status: see `MEANINGS`.
        uses: by class of dtype ("float", "integer", "bool", "complex"); unsupported
            classes are absent.
        note: why it is refused, or what is special.
    """

    name: str
    status: Status
    uses: Mapping[str, Use] = dataclasses.field(default_factory=dict)
    note: str = ""

    def dtypes(self, target: Target) -> tuple[str, ...]:
        """Return those dtypes of the target's engines that `uses` covers."""
        every = (name for engine in target.core.engines for name in engine.dtypes)
        names = dict.fromkeys(n for n in every if n not in EMULATOR_ONLY_DTYPES)
        held = [name for name in names if _kind(name) in self.uses]
        return (*held, "complex64") if "complex" in self.uses else tuple(held)

    def as_dict(self, target: Target) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "dtypes": self.dtypes(target)}


def _kind(dtype: str) -> str:
    if dtype == "bool":
        return "bool"
    return "integer" if dtype.startswith(("int", "uint")) else "float"


@functools.cache
def operations() -> tuple[Operation, ...]:
    """Return the whole table, in the order of the dialects."""
    rows = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    for row in rows:
        uses = row["uses"].items()
        row["uses"] = {k: Use(tuple(u["engines"]), u["label"]) for k, u in uses}
    return tuple(Operation(**row) for row in rows)


def select(text: str = "", *, missing: bool = False) -> Iterator[Operation]:
    """Yield rows with a text in the name; with `missing`, only rows that do not run."""
    for operation in operations():
        if text in operation.name and (not missing or operation.status != "emulated"):
            yield operation
