"""Which ops run other ops: calls, and those whose regions are parts of the program."""

from __future__ import annotations

from neuronjax.ir.program import Op

CALLEES = {"func.call": "callee", "stablehlo.composite": "decomposition"}
"""Ops that call a function, and the attribute that names it."""

CHOICES = ("stablehlo.case", "stablehlo.if")
CONTROL_FLOW = ("stablehlo.while", *CHOICES, "sdy.manual_computation")
"""Ops whose regions are parts of the program; those of all others are combiners."""


def callee_of(op: Op) -> str | None:
    """The function that an op calls, or None."""
    attribute = CALLEES.get(op.name)
    return None if attribute is None else op.attributes[attribute]
