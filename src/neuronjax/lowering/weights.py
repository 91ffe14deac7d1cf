"""Which operand of a contraction is the weight: what a checkpoint holds, prepared
before the program runs (MXFP4 elements, compressed sparse values).

A program does not say so. Taken for a weight is an operand that descends, through casts
and movement, from the argument that a `Rule` names by `param`; else from a program
argument inside a pytree ("params/head/kernel"); of two, the right one, as in `x @ w`.
Where no argument is inside a pytree it is the right operand if that is an argument, in
contractions without gradients.
"""

from __future__ import annotations

import re

from neuronjax.ir.program import Op
from neuronjax.lowering.context import Context, Facts


def weight_index(op: Op, context: Context) -> int | None:
    """0 or 1, the operand of a contraction that is its weight; None for neither."""
    facts = [context.fact(value) for value in op.operands]
    is_backward = any(fact.cotangent for fact in facts)
    facts = [f._replace(parameter="") if f.cotangent else f for f in facts]
    pattern = context.param_pattern
    named = [i for i, f in enumerate(facts) if f.parameter and _is(pattern, f)]
    if named:
        return named[-1]
    inside = [i for i, fact in enumerate(facts) if "/" in fact.parameter]
    if inside:
        return inside[-1]
    return 1 if facts[1].parameter and not is_backward else None


def _is(pattern: str | None, fact: Facts) -> bool:
    return pattern is not None and re.search(pattern, fact.parameter) is not None
