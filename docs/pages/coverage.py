"""The StableHLO and CHLO ops, as `neuronjax ops` lists them."""

from __future__ import annotations

from collections.abc import Iterable

from neuronjax.report.operations import KINDS, MEANINGS, Operation, Use, operations

from .markdown import code, table

_INTRODUCTION = """---
hide: [toc]
---

# StableHLO coverage

This page lists every op of StableHLO and CHLO, whether it runs, and on which engines.
The table is derived from the lowering when the page is built. `neuronjax ops` prints
the same table for your installed version.

{counts}

JAX lowers a program for platform neuron, so it has these ops on every host. An engine's
arithmetic is *exact* or *modelled*; see [what is exact, what is
modelled](exactness.md).
"""
_LEGEND = """Each column is a kind of operand. A cell lists the engines that execute the
op, in the order in which they work. A dash means that the op has no operands of this
kind. "none" means that only the description of a value changes. A tilde (~) marks
modelled arithmetic; everything else is exact.
"""


def page() -> str:
    """The page."""
    parts = [_INTRODUCTION.format(counts=_counts())]
    parts += [_emulated(), _absent("refused"), _absent("missing")]
    return "\n".join(part for part in parts if part)


def _of(status: str) -> list[Operation]:
    return [operation for operation in operations() if operation.status == status]


def _counts() -> str:
    rows = ((code(s), len(_of(s)), m) for s, m in MEANINGS.items())
    return table(("status", "ops:", "meaning"), rows)


def _emulated() -> str:
    rows = (
        (
            code(operation.name),
            *(_use(operation.uses.get(kind)) for kind in KINDS),
            operation.note,
        )
        for operation in _of("emulated")
    )
    return f"## Emulated\n\n{_LEGEND}\n{table(('op', *KINDS, 'note'), rows)}"


def _use(use: Use | None) -> str:
    if use is None:
        return "-"
    return ", ".join(use.engines or ("none",)) + " ~" * (use.label == "modelled")


def _absent(status: str) -> str:
    """Ops by the reason that they share; nothing where there are none."""
    reasons: dict[str, list[str]] = {}
    for operation in _of(status):
        reasons.setdefault(operation.note, []).append(operation.name)
    if not reasons:
        return ""
    rows = ((_names(names), reason) for reason, names in reasons.items())
    return f"## {status.capitalize()}\n\n{table(('ops', 'why'), rows)}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))
