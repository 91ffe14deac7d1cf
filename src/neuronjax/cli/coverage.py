"""`neuronjax ops`: the coverage tables, of StableHLO and of the kernel interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from neuronjax.cli.application import JsonOption, TargetOption, print_json, table
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.report.operations import KINDS, MEANINGS, Operation, Use, select
from neuronjax.report.tables import TEXT, WORD

if TYPE_CHECKING:
    from neuronjax.report.nki_operations import KernelOperation


def ops(
    text: Annotated[
        str, typer.Argument(metavar="FILTER", help="List only names with this text.")
    ] = "",
    missing: Annotated[
        bool, typer.Option("--missing", help="List only names that do not run.")
    ] = False,
    target: TargetOption = "trn2",
    nki: Annotated[
        bool, typer.Option("--nki", help="List the names of NKI, not ops of programs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List every StableHLO and CHLO op: whether it runs, and on which engines.

    The numbers of an op are exact (equal to a published specification) or modelled (AWS
    does not document them): see `neuronjax exactness`. --json adds the dtypes that the
    engines of --target have.

    With --nki, the list has the names of nki.isa, nki.language and nki.collectives:
    whether kernels can use a name, whether it runs, and whether its time is known.

    Examples:

        neuronjax ops
        neuronjax ops reduce
        neuronjax ops --missing
        neuronjax ops --json --target trn3
        neuronjax ops --nki
        neuronjax ops --nki --missing
    """
    if nki:
        _kernel_operations(text, missing=missing, as_json=as_json)
        return
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
            shown = _emulated if status == "emulated" else _absent
            console.print(shown(f"{status}: {meaning} ({len(rows)} ops)", rows))


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
    "T tensor, V vector, S scalar, G gpsimd, D dma, Y sync engine, C CC-cores; - dtype "
    "not accepted; 0 no instruction needed; ~ modelled, all others exact"
)


def _emulated(title: str, rows: Sequence[Operation]) -> Table:
    cells = (
        (o.name, *(_cell(o.uses.get(kind)) if o.uses else "0" for kind in KINDS))
        for o in rows
    )
    rows_table = table(title, dict.fromkeys(("op", *KINDS), WORD), cells)
    rows_table.caption = _LEGEND
    return rows_table


def _cell(use: Use | None) -> str:
    if use is None:
        return "-"
    letters = "".join(_LETTERS[engine] for engine in use.engines)
    return (letters or "0") + "~" * (use.label == "modelled")


def _absent(title: str, rows: Sequence[Operation]) -> Table:
    """Return a table of unsupported ops, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for operation in rows:
        reasons.setdefault(operation.note, []).append(operation.name)
    cells = (("\n".join(names), reason) for reason, names in reasons.items())
    return table(title, {"ops": TEXT, "why": {"ratio": 1}}, cells, leading=1)


def _kernel_operations(text: str, *, missing: bool, as_json: bool) -> None:
    from neuronjax.report.nki_operations import kernel_operations

    found = [o for o in kernel_operations() if text in o.name]
    chosen = [o for o in found if o.missing or not missing]
    if as_json:
        print_json([operation.as_dict() for operation in chosen])
        return
    if not chosen and missing:
        print("Nothing is missing.")
        return
    if not chosen:
        raise InvalidProgramError(
            f"no name of nki has {text!r} in it", remedy="list all: neuronjax ops --nki"
        )
    console = Console()
    instructions = [o for o in chosen if o.kind == "instruction"]
    if instructions:
        console.print(_instructions(instructions))
    for group in ("isa", "language", "collectives"):
        rows = [o for o in chosen if o.group == group and o.kind != "instruction"]
        if rows:
            console.print(_names(f"nki.{group}: other names ({len(rows)})", rows))


_KERNEL_LEGEND = (
    "T tensor, V vector, S scalar, G gpsimd engine, D dma, Q sequencers; since: first "
    "NeuronCore that has it; ~ modelled, all others exact; - nothing to run"
)


def _instructions(rows: Sequence[KernelOperation]) -> Table:
    columns = ("instruction", "engines", "since", "kernels", "runs", "timed")
    cells = (
        (
            o.name,
            o.engines + "~" * (o.label == "modelled"),
            o.generation,
            *(_STATES[known] for known in (o.front_end, o.semantics, o.cost)),
        )
        for o in rows
    )
    title = f"nki.isa: instructions ({len(rows)})"
    rows_table = table(title, dict.fromkeys(columns, WORD), cells)
    rows_table.caption = _KERNEL_LEGEND
    return rows_table


_STATES = {None: "-", True: "yes", False: "no"}


def _names(title: str, rows: Sequence[KernelOperation]) -> Table:
    rows_table = table(title, {"kind": WORD, "names": {"ratio": 1}}, leading=1)
    for kind in ("function", "constant"):
        for there, word in ((True, ""), (False, "missing ")):
            names = [o.name for o in rows if (o.kind, o.front_end) == (kind, there)]
            if names:
                rows_table.add_row(f"{word}{kind}s", " ".join(names))
    return rows_table
