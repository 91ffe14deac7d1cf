"""Every verb on every kind of program, with counts: the table of tests/composition."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from .markdown import code, table

ROOT = Path(__file__).parents[2]
_ANSWER = "✓"


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
    refused = len(shown) - answers
    counts = f"The table has {len(shown)} cells: {answers} answers, {refused} refusals"
    kinds = programs.KINDS.items()
    rows = [
        (kind.title, *(shown[verb, name] for verb in verbs.VERBS))
        for name, kind in kinds
    ]
    reasons = [f"{n}. {row}" for n, row in enumerate(_reasons(refusals), 1)]
    heads = ("program", *map(code, verbs.VERBS))
    return f"{counts}.\n\n{table(heads, rows)}\n" + "\n".join(reasons) + "\n"


def _shown(refusals: object, verb: str, kind: str) -> str:
    """Return what stands in a cell: an answer, or the number of a refusal."""
    refusal = refusals.refusal_of(verb, kind)  # type: ignore[attr-defined]
    if refusal is None:
        return _ANSWER
    return str(_reasons(refusals).index(_row(refusal.row)) + 1)


def _reasons(refusals: object) -> list[str]:
    """Return every reason once, though several errors may have it."""
    found = (_row(r.row) for r in refusals.REFUSALS)  # type: ignore[attr-defined]
    return [*dict.fromkeys(found)]


def _row(start: str) -> str:
    """Return what is refused, why, and what to write instead, from docs/errors.md."""
    lines = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {start}"))
    what, why, remedy = line.strip("| ").split(" | ")
    return f"{what}: {why}. Instead: {remedy}."
