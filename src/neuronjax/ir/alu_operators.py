"""Names of ALU operators and activation functions: `nl.add` as an `op=`.

In NKI an operator is passed as the nki.language function of its name (`op=nl.add`).
`op_name` takes such a function, a name, or a NumPy ufunc of older kernels, and returns
the name. The operators that an instruction accepts are data in this file
(nki/api/nki.api.shared.rst, "Supported Math Operators").
"""

from __future__ import annotations

from typing import Any

from neuronjax.errors import InvalidProgramError, user_line

BITVEC = frozenset(
    "invert bitwise_and bitwise_or bitwise_xor left_shift right_shift".split()
)
#: Operators whose result is 1 or 0.
COMPARISONS = frozenset(
    "equal not_equal greater_equal greater less_equal less logical_and logical_or "
    "logical_xor".split()
)
BINARY_ARITHMETIC = COMPARISONS | frozenset(
    "add subtract multiply maximum minimum power abs_max abs_min divide mod".split()
)
UNARY_ARITHMETIC = frozenset("abs square relu rsqrt reciprocal".split())
ALU = BITVEC | BINARY_ARITHMETIC | UNARY_ARITHMETIC
REDUCTIONS = frozenset(
    "bitwise_and bitwise_or bitwise_xor add subtract multiply maximum minimum "
    "logical_and logical_or logical_xor".split()
)

#: Other names of operators: those of NumPy, and short ones of the vendor.
_OTHER_NAMES = {
    "bitwise_not": "invert",
    "absolute": "abs",
    "mult": "multiply",
    "sum": "add",
    "max": "maximum",
    "amax": "maximum",
    "min": "minimum",
    "amin": "minimum",
    "all": "logical_and",
}

#: The attribute with an operator's name, if it is not the name of the function.
ATTRIBUTE = "nki_op"


class NamedOperator:
    """An operator that is not a function of nki.language by itself (`nl.bypass`)."""

    def __init__(self, name: str) -> None:
        self.nki_op = name

    def __repr__(self) -> str:
        return f"nl.{self.nki_op}"


def op_name(op: Any) -> str:
    """Return the name of an operator; refuse anything else."""
    if isinstance(op, str):
        name = op.rpartition(".")[2]
    else:
        name = getattr(op, ATTRIBUTE, None) or getattr(op, "__name__", None)
    if name is None:
        raise InvalidProgramError(
            f"{op!r} is no operator",
            location=user_line(),
            remedy="pass a function of nki.language, such as nl.add",
        )
    return _OTHER_NAMES.get(str(name), str(name))


def checked_op(op: Any, allowed: frozenset[str], where: str) -> str:
    """Return the name of an operator; refuse one that the instruction lacks."""
    name = op_name(op)
    if name not in allowed:
        raise InvalidProgramError(
            f"operator {name}",
            op=where,
            location=user_line(),
            remedy=f"one of nl.{', nl.'.join(sorted(allowed))}",
        )
    return name
