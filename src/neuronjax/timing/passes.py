"""`ReducingPass`, an instruction that does scalar operations and a reduction at once.

`fusion` makes it from several instructions of a lowered program, and the cost rules
price it. In `nki.isa` it is tensor_scalar_reduce on VectorE, and activation_reduce or
activate2 on ScalarE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import TensorCopy, TensorReduce

#: Operators that ScalarE computes by its scale, its bias, or a function that is in
#: every table of functions.
ON_SCALAR = frozenset({"add", "subtract", "multiply", "negate", "abs", "sign"})


@dataclass(frozen=True, kw_only=True)
class ReducingPass(Instruction):
    """A pass that applies scalar operations to operands[0], and reduces each row of the
    result to one number.

    Attributes:
        fold: the operator of the reduction, as in TensorReduce.
        rows: the number of rows, and so of the numbers that the reduction returns.
        is_affine: whether ScalarE can execute the scalar operations.
    """

    fold: str
    rows: int
    is_affine: bool


def operator(i: Instruction) -> str:
    """Return the ALU operator of an instruction; "" if it has none."""
    return getattr(i, "op", "")


def folding_pass(
    main: Instruction, members: Iterable[Instruction], fold: TensorReduce
) -> Instruction:
    """Return a `ReducingPass` that executes `members` and then the reduction `fold`.

    `main` is the instruction from whose operands and results a pass of only `members`
    is priced. Return `main` itself if its results are integers or a member divides."""
    members = list(members)
    integers = main.results[0].type.dtype.kind in "iub"
    if integers or any(operator(m) == "divide" for m in members):
        return main
    return ReducingPass(
        operands=main.operands,
        results=main.results,
        engine="vector",
        fold=fold.op,
        rows=prod(fold.results[0].type.shape),
        is_affine=all(
            isinstance(m, TensorCopy) or operator(m) in ON_SCALAR for m in members
        ),
        location=main.location,
    )
