"""Static facts about integers: values or bounds that are known before the run.

Facts come from a forward evaluation of StableHLO over constants, iotas and loop
counters. A `Fact` has bounds that always hold, at worst those of the dtype, and the
value if it is a constant of at most `LARGEST` elements. Floats have no bounds.
Semantics: docs/spec.md of openxla/stablehlo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from neuronjax.execution.arithmetic import FUNCTIONS, comparison
from neuronjax.ir.program import Op, TensorType

LARGEST = 1 << 16  # elements of the largest value that is evaluated
_LARGEST_KEY = 1 << 12  # bytes of the largest value that is compared by content


@dataclass(frozen=True, eq=False)
class Fact:
    """Static knowledge of one value.

    Attributes:
        low: lower bound of all elements; -inf for floats.
        high: upper bound of all elements; inf for floats.
        value: all elements; None if they are not known.
    """

    low: float
    high: float
    value: np.ndarray | None = None

    @property
    def key(self) -> tuple:
        """Return a key that is equal only for facts with equal content."""
        value = self.value
        if value is None or value.nbytes > _LARGEST_KEY:
            return (self.low, self.high, id(value) if value is not None else None)
        return (self.low, self.high, value.shape, value.tobytes())

    @property
    def scalar(self) -> Any:
        """Return the one value that all elements are known to have, or None."""
        if self.low == self.high:
            return np.asarray(self.low if self.value is None else self.value.flat[0])
        if self.value is None or not self.value.size:
            return None
        first = self.value.flat[0]
        return np.asarray(first) if (self.value == first).all() else None

    def within(self, low: float, high: float) -> bool:
        """Return whether every element is known to be in [low, high]."""
        return low <= self.low and self.high <= high


def is_integer(dtype: np.dtype) -> bool:
    """Return whether a dtype is an integer (also of ml_dtypes) or boolean."""
    return dtype.kind in "iub" or dtype.name in ("int4", "uint4")


def unknown(type: TensorType) -> Fact:
    """Return the fact that follows from the dtype of `type` alone."""
    dtype = type.dtype
    if not is_integer(dtype):
        return Fact(-np.inf, np.inf)
    if dtype == np.bool_:
        return Fact(0, 1)
    limits = ml_dtypes.iinfo(dtype)
    return Fact(int(limits.min), int(limits.max))


def known(value: np.ndarray) -> Fact:
    kept = value if value.size <= LARGEST else None
    if not is_integer(value.dtype) or not value.size:
        return Fact(-np.inf, np.inf, kept)
    return Fact(int(value.min()), int(value.max()), kept)


def bounded(type: TensorType, low: float, high: float) -> Fact:
    """Return a fact with bounds `low` and `high`; if the dtype cannot hold them, with
    the bounds of the dtype, since the integer may then wrap around."""
    widest = unknown(type)
    return Fact(low, high) if Fact(low, high).within(*_pair(widest)) else widest


def evaluate(op: Op, facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the facts of an op's results from those of its operands."""
    if op.name == "stablehlo.optimization_barrier":
        return tuple(facts)
    if len(op.results) != 1:
        return tuple(unknown(result.type) for result in op.results)
    type = op.results[0].type
    name = op.name.removeprefix("stablehlo.")
    value = _value(op, name, facts)
    if value is not None:
        return (known(value.astype(type.dtype).reshape(type.shape)),)
    rule = _BOUNDS.get(name)
    if rule is None or not is_integer(type.dtype):
        return (unknown(type),)
    return (rule(op, facts),)


# -- values ----------------------------------------------------------------------------

Value = Callable[..., np.ndarray]


def _value(op: Op, name: str, facts: Sequence[Fact]) -> np.ndarray | None:
    type = op.results[0].type
    if name == "constant":
        return op.attributes["value"]
    rule = _VALUES.get(name)
    operands = [fact.value for fact in facts]
    if rule is None or np.prod(type.shape, dtype=np.int64) > LARGEST:
        return None
    if name == "select" and facts[0].scalar is not None:
        return facts[1 if facts[0].scalar else 2].value
    if any(value is None for value in operands):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(rule(op, *operands))


def _iota(op: Op) -> np.ndarray:
    shape = op.results[0].type.shape
    indices = np.indices(shape, sparse=True)[op.attributes["iota_dimension"]]
    return np.broadcast_to(indices, shape)


def _broadcast(op: Op, x: np.ndarray) -> np.ndarray:
    shape = op.results[0].type.shape
    spread = [1] * len(shape)
    for axis, size in zip(op.attributes["broadcast_dimensions"], x.shape, strict=True):
        spread[axis] = size
    return np.broadcast_to(x.reshape(spread), shape)


def _slice(op: Op, x: np.ndarray) -> np.ndarray:
    a = op.attributes
    bounds = zip(a["start_indices"], a["limit_indices"], a["strides"], strict=True)
    return x[tuple(slice(*b) for b in bounds)]


def _divide(op: Op, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x / y; for integers, rounded toward zero, and undefined if y is 0."""
    if not is_integer(x.dtype):
        return x / y
    safe = np.where(y == 0, 1, y)
    return (np.sign(x) * np.sign(safe) * (abs(x) // abs(safe))).astype(x.dtype)


def _remainder_value(op: Op, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not is_integer(x.dtype):
        return np.fmod(x, y)
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y)))


#: Operations that NumPy's function of the same name evaluates.
_PLAIN = "abs add and maximum minimum multiply negate or sign subtract".split()
_VALUES: Mapping[str, Value] = {
    **{name: lambda op, *x, f=FUNCTIONS[name]: f(*x) for name in _PLAIN},
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda op, x: x.reshape(op.results[0].type.shape),
    "transpose": lambda op, x: x.transpose(op.attributes["permutation"]),
    "reverse": lambda op, x: np.flip(x, op.attributes["dimensions"]),
    "slice": _slice,
    "concatenate": lambda op, *xs: np.concatenate(xs, op.attributes["dimension"]),
    "convert": lambda op, x: x.astype(op.results[0].type.dtype),
    "compare": lambda op, *xs: comparison(op.attributes["comparison_direction"])(*xs),
    "select": lambda op, p, x, y: np.where(p, x, y),
    "clamp": lambda op, low, x, high: np.minimum(np.maximum(x, low), high),
    "divide": _divide,
    "remainder": _remainder_value,
    "not": lambda op, x: ~x,
}

# -- bounds ----------------------------------------------------------------------------


def _pair(fact: Fact) -> tuple[float, float]:
    return fact.low, fact.high


def _union(op: Op, facts: Sequence[Fact]) -> Fact:
    low, high = min(f.low for f in facts), max(f.high for f in facts)
    return bounded(op.results[0].type, low, high)


def _iota_bounds(op: Op, facts: Sequence[Fact]) -> Fact:
    type = op.results[0].type
    return bounded(type, 0, max(0, type.shape[op.attributes["iota_dimension"]] - 1))


def _moved(op: Op, facts: Sequence[Fact]) -> Fact:
    return bounded(op.results[0].type, *_pair(facts[0]))


def _select(op: Op, facts: Sequence[Fact]) -> Fact:
    if facts[0].scalar is not None:
        return facts[1 if facts[0].scalar else 2]
    return _union(op, facts[1:])


def _clamp(op: Op, facts: Sequence[Fact]) -> Fact:
    low, x, high = facts
    least, most = min(max(x.low, low.low), high.low), min(x.high, high.high)
    return bounded(op.results[0].type, least, max(most, least, low.high))


def _corners(function: Callable[[Any, Any], Any]) -> Callable[..., Fact]:
    """Return a rule for the bounds of `function`, which is monotone in each operand."""

    def rule(op: Op, facts: Sequence[Fact]) -> Fact:
        a, b = facts
        values = [function(x, y) for x in _pair(a) for y in _pair(b)]
        return bounded(op.results[0].type, min(values), max(values))

    return rule


def _compared(op: Op, facts: Sequence[Fact]) -> Fact:
    direction = op.attributes["comparison_direction"]
    if not is_integer(op.operands[0].type.dtype) or direction in ("EQ", "NE"):
        return Fact(0, 1)
    return _corners(comparison(direction))(op, facts)


def _remainder(op: Op, facts: Sequence[Fact]) -> Fact:
    """Return bounds of a remainder, from the dividend's sign and the divisor's size."""
    x, y = facts
    most = max(abs(y.low), abs(y.high)) - 1
    low = max(x.low, -most) if x.low < 0 else 0
    high = min(x.high, most) if x.high > 0 else 0
    return bounded(op.results[0].type, low, max(high, low))


def _and(op: Op, facts: Sequence[Fact]) -> Fact:
    limits = [f.high for f in facts if f.low >= 0]
    type = op.results[0].type
    return bounded(type, 0, min(limits)) if limits else unknown(type)


_BOUNDS: Mapping[str, Callable[[Op, Sequence[Fact]], Fact]] = {
    "iota": _iota_bounds,
    **dict.fromkeys(("broadcast_in_dim", "reshape", "transpose", "reverse"), _moved),
    **dict.fromkeys(("slice", "dynamic_slice", "gather", "convert"), _moved),
    "concatenate": _union,
    "dynamic_update_slice": lambda op, facts: _union(op, facts[:2]),
    "pad": _union,
    "select": _select,
    "clamp": _clamp,
    "compare": _compared,
    "add": _corners(lambda x, y: x + y),
    "subtract": _corners(lambda x, y: x - y),
    "multiply": _corners(lambda x, y: x * y),
    "maximum": _corners(max),
    "minimum": _corners(min),
    "negate": lambda op, facts: bounded(
        op.results[0].type, -facts[0].high, -facts[0].low
    ),
    "remainder": _remainder,
    "and": _and,
}
