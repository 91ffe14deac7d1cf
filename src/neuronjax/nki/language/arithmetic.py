"""Binary operators of `nki.language`, element by element.

Each is one instruction: `tensor_tensor` of two tiles (free dimensions broadcast),
`tensor_scalar` where one operand is a number or one element per partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuronjax.ir.alu_operators import BITVEC
from neuronjax.nki.documentation import describer, named
from neuronjax.nki.isa import tensor_copy, tensor_scalar, tensor_tensor
from neuronjax.nki.language.creation import ndarray
from neuronjax.nki.language.promotion import common_shape, is_column, promoted, spread
from neuronjax.nki.refusing import refuse
from neuronjax.nki.tensor import NkiTensor

Binary = Callable[..., NkiTensor]

_described = describer(
    x="a tile, or a number",
    y="a tile, or a number",
    dtype="of the result; by default the promoted dtype of x and y",
)


def apply(op: str, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Return x <op> y as a new tile in SBUF."""
    if not isinstance(x, NkiTensor):
        if not isinstance(y, NkiTensor):
            refuse(
                f"nl.{op}",
                f"operands {x!r} and {y!r}",
                "at least one operand must be a tile",
            )
        return _with_scalar(op, y, x, dtype, reverse=True)
    if not isinstance(y, NkiTensor):
        return _with_scalar(op, x, y, dtype, reverse=False)
    return _of_tiles(op, x, y, dtype)


def _with_scalar(
    op: str, tile: NkiTensor, operand: Any, dtype: Any, *, reverse: bool
) -> NkiTensor:
    out = ndarray(tile.shape, dtype or tile.dtype)
    operand = fp32_column(operand) if isinstance(operand, NkiTensor) else operand
    tensor_scalar(out, tile, op, operand, reverse0=reverse)
    return out


def fp32_column(t: NkiTensor) -> NkiTensor:
    """Return `t`, one element per partition, in FP32 for nisa.tensor_scalar."""
    return t if t.dtype == "float32" else copied(t, "float32")


def copied(t: NkiTensor, dtype: Any) -> NkiTensor:
    """Return a copy of `t` in SBUF."""
    out = ndarray(t.shape, dtype)
    tensor_copy(out, t)
    return out


def _of_tiles(op: str, x: NkiTensor, y: NkiTensor, dtype: Any) -> NkiTensor:
    dtype = dtype or promoted(x.dtype, y.dtype)
    columns = (is_column(x, y), is_column(y, x))
    if op not in BITVEC and any(columns) and x.shape[0] == y.shape[0]:
        tile, operand = (y, x) if columns[0] else (x, y)
        return _with_scalar(op, tile, operand, dtype, reverse=columns[0])
    shape = common_shape(x, y, op)
    out = ndarray(shape, dtype)
    # VectorE reads only one operand from PSUM.
    if x.storage.memory == y.storage.memory == "psum":
        y = copied(y, y.dtype)
    tensor_tensor(out, spread(x, shape), spread(y, shape), op)
    return out


def _operator(name: str, meaning: str) -> Binary:
    def function(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        return apply(name, x, y, dtype)

    meaning = f"{meaning}, element by element; also for `op=` in nki.isa."
    return _described()(named(function, name, meaning))


add = _operator("add", "x + y")
subtract = _operator("subtract", "x - y")
multiply = _operator("multiply", "x * y")
divide = _operator("divide", "x / y")
maximum = _operator("maximum", "The larger of x and y")
minimum = _operator("minimum", "The smaller of x and y")
abs_max = _operator("abs_max", "The larger of x and y in magnitude; y if they tie")
abs_min = _operator("abs_min", "The smaller of x and y in magnitude; y if they tie")
power = _operator("power", "x to the power of y")
mod = _operator("mod", "The remainder of x / y with the sign of y")
equal = _operator("equal", "1 where x == y, else 0")
not_equal = _operator("not_equal", "1 where x != y, else 0")
less = _operator("less", "1 where x < y, else 0")
less_equal = _operator("less_equal", "1 where x <= y, else 0")
greater = _operator("greater", "1 where x > y, else 0")
greater_equal = _operator("greater_equal", "1 where x >= y, else 0")
bitwise_and = _operator("bitwise_and", "The bits that are 1 in x and in y")
bitwise_or = _operator("bitwise_or", "The bits that are 1 in x or y")
bitwise_xor = _operator("bitwise_xor", "The bits that differ between x and y")
left_shift = _operator("left_shift", "x shifted to the left by y bits")
right_shift = _operator("right_shift", "x shifted right by y bits, filled with zeros")
logical_and = _operator("logical_and", "1 where x and y are nonzero, else 0")
logical_or = _operator("logical_or", "1 where x or y is nonzero, else 0")
logical_xor = _operator("logical_xor", "1 where only x or only y is nonzero, else 0")


@_described()
def fmod(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Return the remainder of x / y with the sign of x."""
    size = apply("mod", _magnitude(x), _magnitude(y), "float32")
    if not isinstance(x, NkiTensor):
        return apply("multiply", size, -1.0 if x < 0 else 1.0, dtype or y.dtype)
    signs = apply("subtract", apply("greater_equal", x, 0.0, "float32"), 0.5)
    both = isinstance(y, NkiTensor)
    chosen = dtype or (promoted(x.dtype, y.dtype) if both else x.dtype)
    return apply("multiply", size, apply("multiply", signs, 2.0), chosen)


def _magnitude(x: Any) -> Any:
    if not isinstance(x, NkiTensor):
        return -x if x < 0 else x
    out = ndarray(x.shape, "float32")
    tensor_scalar(out, x, "abs", None)
    return out
