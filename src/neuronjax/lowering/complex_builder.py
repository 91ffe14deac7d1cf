"""Real arithmetic that emits ops: the building blocks of formulas of complex numbers.

A `Builder` collects the ops of one region. A `Real` is an SSA value with Python's
operators, each of which appends one StableHLO op; a `Pair` is a complex number. Every
op is an instruction of its own, rounded once, so the formulas are executed exactly as
they are written: nothing is contracted or reassociated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from neuronjax.ir.program import Location, Op, Region, TensorType, Value

FLOAT = np.dtype(np.float32)
BITS = np.dtype(np.uint32)


class Builder:
    """The ops of one region, in order.

    Attributes:
        location: the location of the op that is being rewritten; new ops get it.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self.ops: list[Op] = []
        self.location = Location()
        self._numbers = numbers
        self._constants: dict[tuple, Real] = {}

    def child(self) -> Builder:
        """Return the builder of a nested region."""
        return Builder(self._numbers)

    def value(self, type: TensorType) -> Value:
        """Return a new SSA value."""
        return Value(next(self._numbers), type)

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[Value],
        attributes: Mapping[str, Any] | None = None,
        regions: Sequence[Region] = (),
    ) -> None:
        """Append an op that defines `results`."""
        op = Op(
            name,
            tuple(operands),
            tuple(results),
            attributes or {},
            tuple(regions),
            self.location,
        )
        self.ops.append(op)

    def apply(
        self,
        name: str,
        operands: Sequence[Value],
        shape: tuple[int, ...],
        dtype: Any = FLOAT,
        attributes: Mapping[str, Any] | None = None,
    ) -> Real:
        """Append an op with one result, and return the result."""
        result = self.value(TensorType(shape, np.dtype(dtype)))
        self.emit(name, operands, (result,), attributes)
        return Real(result, self)

    def constant(
        self, number: complex, shape: tuple[int, ...], dtype: Any = FLOAT
    ) -> Real:
        """Return a tensor of one number; equal constants of a region share one op."""
        array = np.array(number, dtype)
        key = (array.dtype, array.tobytes(), shape)
        if key not in self._constants:
            scalar = self.apply(
                "stablehlo.constant", (), (), array.dtype, {"value": array}
            )
            self._constants[key] = scalar.broadcast(shape)
        return self._constants[key]


def _operator(name: str) -> Callable[..., Real]:
    return lambda self, *others: self.apply(f"stablehlo.{name}", *others)


def _comparison(direction: str) -> Callable[..., Real]:
    return lambda self, other: self.compare(direction, other)


class Real:
    """A tensor in the region being built: float32, or intermediate booleans or bits.
    The operands of an operator have one shape; a Python number is broadcast."""

    __slots__ = ("builder", "value")

    def __init__(self, value: Value, builder: Builder) -> None:
        self.value = value
        self.builder = builder

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.type.shape

    def apply(
        self, name: str, *others: Real | float, dtype: Any = None, **attributes: Any
    ) -> Real:
        """Return the elementwise StableHLO op `name` of this tensor and `others`."""
        operands = [self.value, *[self.like(other).value for other in others]]
        dtype = dtype or self.value.type.dtype
        return self.builder.apply(name, operands, self.shape, dtype, attributes)

    def like(self, number: Real | float) -> Real:
        """Return a number as a tensor of this tensor's shape and dtype."""
        if isinstance(number, Real):
            return number
        return self.builder.constant(number, self.shape, self.value.type.dtype)

    def broadcast(self, shape: tuple[int, ...], axes: tuple[int, ...] = ()) -> Real:
        """Return the tensor broadcast to a shape, in which its axes are `axes`."""
        if shape == self.shape:
            return self
        attributes = {"broadcast_dimensions": axes}
        dtype = self.value.type.dtype
        name = "stablehlo.broadcast_in_dim"
        return self.builder.apply(name, (self.value,), shape, dtype, attributes)

    __add__ = __radd__ = _operator("add")
    __sub__ = _operator("subtract")
    __mul__ = __rmul__ = _operator("multiply")
    __truediv__ = _operator("divide")
    __neg__ = _operator("negate")
    __abs__ = _operator("abs")
    __and__, __or__, __xor__ = map(_operator, ("and", "or", "xor"))
    maximum, minimum = map(_operator, ("maximum", "minimum"))

    def __rsub__(self, other: float) -> Real:
        return self.like(other) - self

    def __rtruediv__(self, other: float) -> Real:
        return self.like(other) / self

    def function(self, name: str, *others: Real | float) -> Real:
        """Return an elementary function of StableHLO ("sine") or CHLO ("chlo.sinh")."""
        return self.apply(name if "." in name else f"stablehlo.{name}", *others)

    __lt__, __gt__, __ge__ = map(_comparison, ("LT", "GT", "GE"))
    equals, differs = map(_comparison, ("EQ", "NE"))

    def compare(self, direction: str, other: Real | float) -> Real:
        return self.apply(
            "stablehlo.compare",
            other,
            dtype=np.bool_,
            comparison_direction=direction,
            compare_type="FLOAT" if self.value.type.dtype == FLOAT else "SIGNED",
        )

    def is_infinite(self) -> Real:
        return abs(self).equals(np.inf)

    def is_finite(self) -> Real:
        return self.apply("stablehlo.is_finite", dtype=np.bool_)

    def is_nan(self) -> Real:
        return self.differs(self)

    def bits(self, dtype: Any = BITS) -> Real:
        """Return the same 32 bits as another dtype."""
        return self.apply("stablehlo.bitcast_convert", dtype=dtype)

    def with_sign_of(self, other: Real) -> Real:
        """Return the magnitude with the sign bit of a number, be it a zero or NaN."""
        return where(other.bits(np.int32) < 0, -abs(self), abs(self))


def where(predicate: Real, on_true: Real | float, on_false: Real | float) -> Real:
    """Return elements of `on_true` or `on_false`; both are computed."""
    constant = predicate.builder.constant
    sides = [
        side if isinstance(side, Real) else constant(side, predicate.shape)
        for side in (on_true, on_false)
    ]
    operands = [predicate.value, *[side.value for side in sides]]
    dtype = sides[0].value.type.dtype
    return predicate.builder.apply("stablehlo.select", operands, sides[0].shape, dtype)


class Pair(NamedTuple):
    """A complex number."""

    re: Real
    im: Real

    def times_i(self) -> Pair:
        return Pair(-self.im, self.re)

    def over_i(self) -> Pair:
        return Pair(self.im, -self.re)


def where_pair(predicate: Real, on_true: Pair, on_false: Pair) -> Pair:
    """Apply `where` to both parts."""
    re, im = (where(predicate, t, f) for t, f in zip(on_true, on_false, strict=True))
    return Pair(re, im)


def power_of_two(x: Real) -> tuple[Real, Real]:
    """Return p and 2/p with p = 2^e <= x < 2^(e+1); both are normal and exact. Zeros
    count as the smallest normal number, Inf as the largest."""
    limits = np.finfo(np.float32)
    exponent = 0x7F80_0000
    bounded = x.maximum(float(limits.tiny)).minimum(float(limits.max))
    bits = bounded.bits() & exponent
    # These are the biased exponents E and 255 - E.
    return bits.bits(FLOAT), (bits ^ exponent).bits(FLOAT)
