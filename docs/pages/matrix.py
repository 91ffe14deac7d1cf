"""Every verb on every kind of program, with counts: the table of tests/composition."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from .markdown import code, table

ROOT = Path(__file__).parents[2]
_ANSWER, _PENDING = "✓", "–"


def matrix_table() -> str:
    """Return a row for every kind of program, and the refusals below, each with the
    reason that docs/errors.md gives."""
    if str(ROOT) not in sys.path:  # mkdocs runs from the folder of its own script
        sys.path.insert(0, str(ROOT))
    programs, refusals, verbs = (
        importlib.import_module(f"tests.composition.{name}")
        for name in ("programs", "refusals", "verbs")
    )
    shown = {
        (verb, kind): _shown(refusals, verb, kind)
        for kind in programs.KINDS
        for verb in verbs.VERBS
    }
    answers = list(shown.values()).count(_ANSWER)
    pending = list(shown.values()).count(_PENDING)
    refused = len(shown) - answers - pending
    counts = f"{len(shown)} cells: {answers} answers, {refused} refusals"
    if pending:
        counts += f", {pending} that are not right yet ({_PENDING})"
    kinds = programs.KINDS.items()
    rows = [
        (kind.title, *(shown[verb, name] for verb in verbs.VERBS))
        for name, kind in kinds
    ]
    reasons = [
        f"{number}. {_row(refusal.row)}"
        for number, refusal in enumerate(refusals.REFUSALS, 1)
    ]
    heads = ("program", *map(code, verbs.VERBS))
    return f"{counts}.\n\n{table(heads, rows)}\n" + "\n".join(reasons) + "\n"


def _shown(refusals: object, verb: str, kind: str) -> str:
    """Return what stands in a cell: an answer, or the number of a refusal."""
    refusal = refusals.refusal_of(verb, kind)  # type: ignore[attr-defined]
    if refusal is not None:
        return str(refusals.REFUSALS.index(refusal) + 1)  # type: ignore[attr-defined]
    pending = (verb, kind) in refusals.PENDING  # type: ignore[attr-defined]
    return _PENDING if pending else _ANSWER


def _row(start: str) -> str:
    """Return what is refused, why, and what to write instead, from docs/errors.md."""
    lines = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {start}"))
    what, why, remedy = line.strip("| ").split(" | ")
    return f"{what}: {why}. Instead: {remedy}."
