"""An engine's pass for which lowering has no instruction.

`fusion` makes it from two or three instructions, and the cost rules price it. In
`nki.isa` it is tensor_scalar_reduce on VectorE, and activation_reduce or activate2 on
ScalarE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import TensorCopy, TensorReduce

#: Operators that ScalarE computes by its scale, its bias, or a function that every
#: table has.
ON_SCALAR = frozenset({"add", "subtract", "multiply", "negate", "abs", "sign"})


@dataclass(frozen=True, kw_only=True)
class ReducingPass(Instruction):
    """Scalar operations on operands[0], and a fold of each row of their result.

    Attributes:
        fold: the operator, as in TensorReduce.
        rows: the number of rows, and of results of the fold.
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
    """Return a `ReducingPass` of `main`, the pass of `members`, and the `fold` of its
    rows; `main` itself if a member divides or the results are integers."""
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
