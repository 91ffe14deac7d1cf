"""Which part of a train step an op belongs to: forward, backward, or the optimizer.

JAX's name stack tells what is differentiated, "jvp(", and what is transposed,
"transpose(". What is neither, and comes after a backward pass has begun, uses its
gradients. The body of a loop that is rematerialised has a stack of its own, which
begins with "checkpoint": it belongs to the backward pass that asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Phase = Literal["forward", "backward", "optimizer", ""]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")


def phases(scopes: Sequence[str]) -> tuple[Phase, ...]:
    """The phase of each op, by the name stacks of all in the order in which they run;
    "" of programs without gradients, and of what comes before them."""
    found: list[Phase] = []
    has_gradients = False
    for scope in scopes:
        has_gradients |= "transpose(" in scope
        if "transpose(" in scope or (has_gradients and scope.startswith("checkpoint/")):
            found.append("backward")
        elif "jvp(" in scope:
            found.append("forward")
        else:
            found.append("optimizer" if has_gradients else "")
    return tuple(found)
