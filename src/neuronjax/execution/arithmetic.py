"""Exact arithmetic in NumPy: the bits that an engine produces, without compiling.

A sum, product, quotient or root of FP32 numbers is rounded once, to nearest even, as
IEEE 754 says, and so is a cast to a narrower float. Integers wrap around. The engines
flush subnormals: an FP32 operand or result smaller than the smallest normal number
counts as zero. The payload of a NaN is not defined. Operations that only move numbers
are in `movement`.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from neuronjax.ir.instruction import Instruction, unrepeated
from neuronjax.ir.instruction_set import (
    Activation,
    Compare,
    Iota,
    Select,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)
from neuronjax.numerics.float_format import FORMATS
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.host_kernels.figures import NORMAL

Arrays = Sequence[np.ndarray]
Rule = Callable[[Arrays], Any]
Function = Callable[..., Any]

_FLOAT32 = np.dtype(np.float32)
#: Results without subnormals, by `id`. They need no second search, because nothing
#: writes to a result. Arguments are not among them: a caller may write to an argument.
_NORMALS: WeakValueDictionary[int, np.ndarray] = WeakValueDictionary()
#: The number of elements that `_has_below` searches at once, so that they fit a cache.
_PART = 1 << 14
_SAME_NAME = "abs add ceil divide floor maximum minimum multiply subtract".split()
#: NumPy's functions by the names of operations; they take FP32 and float64.
FUNCTIONS: Mapping[str, Function] = {
    "and": np.bitwise_and,
    "is_finite": np.isfinite,
    "negate": np.negative,
    "or": np.bitwise_or,
    "round_nearest_even": np.rint,
    "sign": lambda x: np.where(x == 0, x, np.sign(x)),
    "xor": np.bitwise_xor,
    **{name: getattr(np, name) for name in _SAME_NAME},
}
_OF_BOOLEANS = frozenset(("add", "and", "maximum", "minimum", "multiply", "or", "xor"))
_OF_INTEGERS = _OF_BOOLEANS | {"abs", "negate", "subtract"}
#: These look only at the sign or exponent of FP32 numbers: nothing is flushed.
_OF_ANY = frozenset(("abs", "is_finite", "negate"))
#: The operation on the bits of equal operands, which may be zeros of different signs.
_OF_EQUALS = {"maximum": np.bitwise_and, "minimum": np.bitwise_or}
#: The float formats that this module rounds to, by name: signed, one byte or more.
_FLOATS = {
    name: f
    for name, f in FORMATS.items()
    if f.signed and name == f.dtype.name and f.width >= 8
}


def computed(i: Instruction) -> Rule | None:
    """Return a NumPy function that executes an instruction exactly, or None."""
    find, views = _RULES.get(type(i)), (*i.operands, *i.results)
    types = [v.type.dtype for v in views]
    is_known = all(t.kind in "iub" or t.name in _FLOATS for t in types)
    is_exact = getattr(i, "integer_path", "exact") == "exact"
    is_exact &= i.rounding == "rne" and i.write_format is None
    shapes = {v.type.shape for v in views} - {()}
    is_sized = len(shapes) <= 1 or isinstance(i, TensorReduce)
    return find(i) if find and is_known and is_exact and is_sized else None


def flushed(x: np.ndarray) -> np.ndarray:
    """Return floats as an engine reads them, in FP32 and without subnormals."""
    x = x.astype(np.float32, copy=False)
    is_normal = _NORMALS.get(id(x)) is x or not _has_below(x, 0x00800000)
    return x if is_normal else _without(x, x)


def _has_below(x: np.ndarray, code: int) -> bool:
    """Return whether any nonzero number has a magnitude whose code is below `code`."""
    codes = unrepeated(x).ravel(order="K").view(np.uint32)
    if choice.usable():
        least = ctypes.c_uint32()
        choice.on_arrays("least_kernel")(codes, ctypes.byref(least))
        return least.value < 2 * code - 1
    for start in range(0, codes.size, _PART):
        sizes = np.left_shift(codes[start : start + _PART], 1)
        np.subtract(sizes, np.uint32(1), out=sizes)  # a zero becomes the largest code
        if sizes.min() < 2 * code - 1:
            return True
    return False


def _without(x: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return `x`, but zeros where `exact`, the unrounded values, are subnormal."""
    return np.where(np.abs(exact) < NORMAL, np.copysign(np.float32(0), x), x)


def _of_floats(name: str, i: Instruction) -> Rule:
    is_any = name in _OF_ANY and i.operands[0].type.dtype == _FLOAT32
    function, written = FUNCTIONS[name], _writing(i)

    def rule(x: Arrays) -> np.ndarray:
        operands = [*map(np.asarray if is_any else flushed, x)]
        result = np.asarray(function(*operands))
        if name in _OF_EQUALS:
            a, b = (y.view(np.uint32) for y in np.broadcast_arrays(*operands))
            same = _OF_EQUALS[name](a, b).view(np.float32)
            result = np.where(np.equal(*operands), same, result)
        elif result.dtype == _FLOAT32 and not is_any:
            if _has_below(result, 0x00800001):
                exact = function(*(a.astype(np.float64) for a in operands))
                result = _without(result, exact)
            _NORMALS[id(result)] = result
        return written(result)

    return rule


def _writing(i: Instruction) -> Function:
    """Return a function that rounds FP32 numbers to an instruction's result type."""
    dtype, overflow = i.results[0].type.dtype, i.overflow
    largest = _FLOATS[dtype.name].max_finite if dtype.kind not in "iub" else 0.0

    def written(x: np.ndarray) -> np.ndarray:
        if overflow == "saturate" and largest and dtype != _FLOAT32:
            x = np.clip(x, -largest, largest)
        return x.astype(dtype, copy=False)

    return written


def _tensor_tensor(i: TensorTensor | TensorScalar) -> Rule | None:
    kind = i.operands[0].type.dtype.kind
    if kind not in "iub":
        return _of_floats(i.op, i) if i.op in FUNCTIONS else None
    if kind == "u" and i.op in ("shift_left", "shift_right_logical"):
        shift = np.left_shift if i.op == "shift_left" else np.right_shift
        return lambda x: shift(*x)
    names = _OF_BOOLEANS if kind == "b" else _OF_INTEGERS
    return (lambda x: FUNCTIONS[i.op](*x)) if i.op in names else None


def _activation(i: Activation) -> Rule | None:
    if i.transcendentals != "exact" or i.operands[0].type.dtype != _FLOAT32:
        return None
    one, divide, written = np.ones((), _FLOAT32), _of_floats("divide", i), _writing(i)
    rules: Mapping[str, Rule] = {
        "sqrt": lambda x: written(np.sqrt(flushed(x[0]))),
        "rsqrt": lambda x: divide([one, np.asarray(np.sqrt(flushed(x[0])))]),
        "reciprocal": lambda x: divide([one, x[0]]),
    }
    return rules.get(i.function)


def comparison(direction: str) -> Function:
    """Return Python's comparison operator for a direction such as "LT"."""
    return getattr(operator, direction.lower())


def _compare(i: Compare) -> Rule | None:
    function = comparison(i.direction)
    if i.operands[0].type.dtype.kind in "iub":
        return lambda x: function(*x)
    return None if i.total else lambda x: function(*map(flushed, x))


def _copy(i: TensorCopy) -> Rule | None:
    source, target = i.operands[0].type.dtype, i.results[0].type.dtype
    if target.kind in "iub":
        return None if source.kind not in "iub" else lambda x: x[0].astype(target)
    if target == _FLOAT32:
        return lambda x: x[0].astype(target)
    written = _writing(i)
    return lambda x: written(flushed(x[0]))


def _reduce(i: TensorReduce) -> Rule | None:
    dtype, function = i.results[0].type.dtype, FUNCTIONS.get(i.op)
    if i.op not in _OF_BOOLEANS or not function:
        return None
    reduce: Function = function.reduce  # type: ignore[attr-defined]
    if dtype.kind in "iub":
        return lambda x: function(reduce(x[0], axis=i.axes, dtype=dtype), x[1])
    if i.op not in _OF_EQUALS:
        return None  # a sum or product depends on its order
    written, of_zeros = _writing(i), _OF_EQUALS[i.op].reduce

    def rule(x: Arrays) -> np.ndarray:
        a, start = map(flushed, x)
        found = np.asarray(function(reduce(a, axis=i.axes, initial=start), start))
        if not found.all():
            others = np.uint32(0x80000000 * (i.op == "maximum"))
            bits = np.where(a == 0, a.view(np.uint32), others)
            first = np.where(start == 0, start.view(np.uint32), others)
            zero = of_zeros(bits, axis=i.axes, initial=first).view(np.float32)
            found = np.where(found == 0, zero, found)
        return written(found)

    return rule


def _iota(i: Iota) -> Rule:
    kind = i.results[0].type
    sizes = [s if n == i.dimension else 1 for n, s in enumerate(kind.shape)]
    indices = np.arange(kind.shape[i.dimension]).reshape(sizes).astype(kind.dtype)
    return lambda x: np.broadcast_to(indices, kind.shape)


_RULES: Mapping[type[Instruction], Callable[[Any], Rule | None]] = {
    Activation: _activation,
    Compare: _compare,
    Iota: _iota,
    Select: lambda i: lambda x: np.where(*x),
    TensorCopy: _copy,
    TensorReduce: _reduce,
    TensorScalar: _tensor_tensor,
    TensorTensor: _tensor_tensor,
}
