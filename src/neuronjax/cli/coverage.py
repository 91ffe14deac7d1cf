"""`neuronjax ops`: the coverage table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from neuronjax.cli.application import (
    JsonOption,
    TargetOption,
    print_json,
    table,
)
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.report.operations import (
    KINDS,
    MEANINGS,
    Operation,
    Status,
    Use,
    select,
)


def ops(
    text: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="A part of the name.")
    ] = "",
    missing: Annotated[
        bool, typer.Option("--missing", help="Only what does not run.")
    ] = False,
    target: TargetOption = "trn2",
    as_json: JsonOption = False,
) -> None:
    """Lists every StableHLO and CHLO op: whether it runs, and on which engines.

    The numbers of an op are exact (bit-exact to a published specification) or modelled
    (the vendor is silent): see `neuronjax exactness`. With --json also the dtypes that
    the engines of --target have.

    Examples:

        neuronjax ops
        neuronjax ops reduce
        neuronjax ops --missing
        neuronjax ops --json --target trn3
    """
    chosen = list(select(text, missing=missing))
    if not chosen:
        raise InvalidProgramError(
            f"no op has {text!r} in its name", remedy="list all: neuronjax ops"
        )
    if as_json:
        machine = resolve_target(target)
        print_json([operation.as_dict(machine) for operation in chosen])
        return
    console = Console()
    for status, meaning in MEANINGS.items():
        rows = [operation for operation in chosen if operation.status == status]
        if rows:
            console.print(_table(status, meaning, rows))


def _table(status: Status, meaning: str, rows: Sequence[Operation]) -> Table:
    title = f"{status}: {meaning} ({len(rows)} ops)"
    return _emulated(title, rows) if status == "emulated" else _absent(title, rows)


_LETTERS = {
    "tensor": "T",
    "vector": "V",
    "scalar": "S",
    "gpsimd": "G",
    "dma": "D",
    "sync": "Y",
    "cc": "C",
    "offline": "O",
}
_LEGEND = (
    "T tensor, V vector, S scalar, G gpsimd, D dma, Y sync engine, C CC-cores; - not "
    "taken; 0 no instruction; ~ modelled, all others exact"
)


def _emulated(title: str, rows: Sequence[Operation]) -> Table:
    found = table(title)
    found.add_column("op", no_wrap=True)
    for kind in KINDS:
        found.add_column(kind, no_wrap=True)
    for operation in rows:
        cells = [_cell(operation.uses.get(kind)) for kind in KINDS]
        found.add_row(operation.name, *(cells if operation.uses else "0" * len(KINDS)))
    found.caption = _LEGEND
    return found


def _cell(use: Use | None) -> str:
    if use is None:
        return "-"
    letters = "".join(_LETTERS[engine] for engine in use.engines)
    return (letters or "0") + "~" * (use.label == "modelled")


def _absent(title: str, rows: Sequence[Operation]) -> Table:
    """Ops by the reason that they share."""
    reasons: dict[str, list[str]] = {}
    for operation in rows:
        reasons.setdefault(operation.note, []).append(operation.name)
    found = table(title)
    found.leading = 1
    found.add_column("ops", ratio=1, overflow="fold")
    found.add_column("why", ratio=1)
    for reason, names in reasons.items():
        found.add_row("\n".join(names), reason)
    return found
