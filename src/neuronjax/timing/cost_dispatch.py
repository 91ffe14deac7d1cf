"""`rule`: what an instruction does, by its class; and what a rule is told.

Rules register by instruction class (functools.singledispatch), one file per engine, as
they do in `engines`; they know shapes and dtypes only. Positions are those of operands.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from neuronjax.errors import InternalError
from neuronjax.ir.instruction import Instruction
from neuronjax.timing.work import Core, Way

Positions = frozenset[int]
NONE: Positions = frozenset()

#: What costs nothing, for it is how a consumer looks at bytes that are there already.
FREE: tuple[Way, ...] = ((),)


@dataclass(frozen=True, slots=True)
class Reading:
    """How an instruction meets its operands.

    Attributes:
        scalars: operands of one element per row or in all (an immediate, a vector over
            the partitions): no second stream through the engine.
        in_psum: operands that are still in PSUM.
        to_transpose: operands of a matmul whose contracted axis is not on partitions.
    """

    scalars: Positions = NONE
    in_psum: Positions = NONE
    to_transpose: Positions = NONE


PLAIN = Reading()


@functools.singledispatch
def rule(instruction: Instruction, core: Core, reading: Reading) -> tuple[Way, ...]:
    """The legal ways to execute an instruction, in any order.

    Raises:
        InternalError: the class has no rule; control flow and collectives have none.
    """
    raise InternalError(
        f"no cost of {instruction.name}",
        op=instruction.name,
        location=instruction.location.source,
    )
