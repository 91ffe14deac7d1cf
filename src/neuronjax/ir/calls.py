"""Which ops call a function, and which one."""

from __future__ import annotations

from neuronjax.ir.program import Op

CALLEES = {"func.call": "callee", "stablehlo.composite": "decomposition"}
"""Ops that call a function, and the attribute that names it."""


def callee_of(op: Op) -> str | None:
    """The function that an op calls, or None."""
    attribute = CALLEES.get(op.name)
    return None if attribute is None else op.attributes[attribute]
