"""Ops on complex values as ops on their parts, with one rule per op.

An op that moves its operands is applied to each part; so is a reduction or a scatter
that adds or assigns. Any other op with regions takes all parts at once: operands,
results and region arguments are expanded in place, a complex one into two. Arithmetic
follows the formulas of `complex_functions`. Every new op has the location of the old
one, so policies and provenance apply to it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from neuronjax.errors import UnsupportedError
from neuronjax.ir.program import Op, Region, TensorType, Value
from neuronjax.lowering import complex_functions as functions
from neuronjax.lowering.complex_builder import FLOAT, Builder, Pair, Real

Values = tuple[Value, ...]


def is_complex(value: Value) -> bool:
    return value.type.dtype.kind == "c"


def per_part(shardings: tuple, values: Values) -> tuple:
    """Return the shardings, twice for each complex value; () if there are none."""
    pairs = zip(shardings, values, strict=bool(shardings))
    return tuple(s for s, value in pairs for _ in range(1 + is_complex(value)))


def defined_values(region: Region) -> Iterator[Value]:
    """Yield the values that a region and its nested regions define."""
    yield from region.arguments
    for op in region.ops:
        yield from op.results
        for nested in op.regions:
            yield from defined_values(nested)


class ComplexRewriting:
    """The rewriting of one function, with the pair of parts for each complex value."""

    def __init__(self) -> None:
        self._parts: dict[Value, tuple[Value, Value]] = {}

    def region(self, region: Region, builder: Builder) -> Region:
        """Return the rewritten region, with two arguments for each complex argument."""
        return self.body(region, self.define(region.arguments, builder), builder)

    def body(self, region: Region, arguments: Values, builder: Builder) -> Region:
        """Return the rewritten region; its arguments already have their parts."""
        for op in region.ops:
            builder.location = op.location
            if not _concerns(op):
                builder.ops.append(op)
            elif op.name in RULES:
                RULES[op.name](self, op, builder)
            else:
                raise refused(op, "is not defined for complex numbers")
        return Region(arguments, tuple(builder.ops), self.expand(region.results))

    # -- values ------------------------------------------------------------------------

    def define(self, values: Iterable[Value], builder: Builder) -> Values:
        """Create the parts of new values, and return the expanded values."""
        for value in values:
            if is_complex(value):
                type = TensorType(value.type.shape, FLOAT)
                self._parts[value] = builder.value(type), builder.value(type)
        return self.expand(values)

    def expand(self, values: Iterable[Value]) -> Values:
        """Return the values with each complex one replaced by its parts."""
        return tuple([v for value in values for v in self._parts.get(value, (value,))])

    def part(self, value: Value, index: int) -> Value:
        """Return the real (0) or imaginary (1) part; a real value is its own part."""
        return self._parts[value][index] if is_complex(value) else value

    def pair(self, value: Value, builder: Builder) -> Pair:
        """Return a complex value as the `Pair` that formulas take."""
        re, im = self._parts[value]
        return Pair(Real(re, builder), Real(im, builder))

    def bind(self, value: Value, result: Pair | Real, builder: Builder) -> None:
        """Use the result of a formula as the result of an op."""
        if isinstance(result, Pair):
            self._parts[value] = result.re.value, result.im.value
        else:
            builder.emit("stablehlo.reshape", (result.value,), (value,))


def _concerns(op: Op) -> bool:
    values = (v for x in op.walk() for v in (*x.operands, *x.results))
    regions = (region for x in op.walk() for region in x.regions)
    inside = (v for region in regions for v in (*region.arguments, *region.results))
    return any(map(is_complex, itertools.chain(values, inside)))


def refused(op: Op, what: str) -> UnsupportedError:
    """Return the error for an op that does not take these complex numbers."""
    remedy = "apply the op to the real and the imaginary part"
    return op.error(UnsupportedError, what, remedy)


# -- structure -------------------------------------------------------------------------


def _each_part(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    results = rewriting.define(op.results, builder)
    for i in range(2):
        operands = [rewriting.part(value, i) for value in op.operands]
        regions = [_region_of_part(region, builder.child()) for region in op.regions]
        builder.emit(op.name, operands, results[i::2], op.attributes, regions)


def _region_of_part(region: Region, builder: Builder) -> Region:
    """Return a separable region with float32 in place of complex values."""
    type = TensorType((), FLOAT)
    new = {value: builder.value(type) for value in defined_values(region)}
    for op in region.ops:
        builder.location = op.location
        operands, results = ([new[v] for v in vs] for vs in (op.operands, op.results))
        builder.emit(op.name, operands, results, op.attributes)
    arguments, results = (
        tuple([new[v] for v in vs]) for vs in (region.arguments, region.results)
    )
    return Region(arguments, tuple(builder.ops), results)


def _is_separable(op: Op) -> bool:
    """Return whether a reduction or scatter works on each part of a complex number."""
    (region,) = op.regions
    names = [inner.name for inner in region.ops]
    if len(op.results) != 1 or names not in ([], ["stablehlo.add"]):
        return False
    known = set(defined_values(region))
    read = (*region.results, *(v for inner in region.ops for v in inner.operands))
    return known.issuperset(read)


def _combination(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    rule = _each_part if _is_separable(op) else _in_place
    rule(rewriting, op, builder)


def _in_place(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    regions = [rewriting.region(region, builder.child()) for region in op.regions]
    operands = rewriting.expand(op.operands)
    results = rewriting.define(op.results, builder)
    name = RENAMED.get(op.name, op.name)
    builder.emit(name, operands, results, op.attributes, regions)


def _manual_computation(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    """Rewrite in place; both parts of a value are split as the value was."""
    attributes = dict(op.attributes)
    for name, values in (("in_shardings", op.operands), ("out_shardings", op.results)):
        attributes[name] = per_part(attributes[name], values)
    _in_place(rewriting, dataclasses.replace(op, attributes=attributes), builder)


def _sort(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    """Rewrite a sort: two parts replace an operand. The comparator takes left and right
    real part, then left and right imaginary part, operand after operand."""
    (region,) = op.regions
    inner = builder.child()
    parts = [rewriting.define([a], inner) for a in region.arguments]
    sides = zip(parts[0::2], parts[1::2], strict=True)
    pairs = (pair for side in sides for pair in zip(*side, strict=True))
    arguments = tuple(itertools.chain.from_iterable(pairs))
    comparator = rewriting.body(region, arguments, inner)
    operands = rewriting.expand(op.operands)
    results = rewriting.define(op.results, builder)
    builder.emit(op.name, operands, results, op.attributes, [comparator])


def _custom_call(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    flags = tuple([tuple(map(is_complex, vs)) for vs in (op.operands, op.results)])
    attributes = {**op.attributes, COMPLEX: flags}
    _in_place(rewriting, dataclasses.replace(op, attributes=attributes), builder)


# -- arithmetic ------------------------------------------------------------------------


def _formula(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    operands = [rewriting.pair(value, builder) for value in op.operands]
    rewriting.bind(op.results[0], FORMULAS[op.name](*operands), builder)


def _broadcasting(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    """Rewrite `chlo.broadcast_*`; by default shapes are aligned at their ends."""
    shape = op.results[0].type.shape

    def spread(value: Value) -> Pair:
        rank = len(value.type.shape)
        dimensions = tuple(range(len(shape) - rank, len(shape)))
        if rank < len(shape):
            dimensions = op.attributes.get("broadcast_dimensions", dimensions)
        parts = (Real(rewriting.part(value, i), builder) for i in range(2))
        re, im = (part.broadcast(shape, dimensions) for part in parts)
        return Pair(re, im)

    formula = FORMULAS[op.name.replace("chlo.broadcast_", "stablehlo.")]
    rewriting.bind(op.results[0], formula(*map(spread, op.operands)), builder)


def _compare(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    direction = op.attributes["comparison_direction"]
    if direction not in COMPARISONS:
        raise refused(op, f"complex numbers have no order: comparison {direction}")
    operands = [rewriting.pair(value, builder) for value in op.operands]
    rewriting.bind(op.results[0], COMPARISONS[direction](*operands), builder)


def _four_products(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    """Rewrite a contraction as re re - im im and re im + im re, four real products."""
    if not all(map(is_complex, op.operands)):
        raise refused(op, "one operand is complex and the other is real")
    (result,) = op.results

    def product(i: int, j: int) -> Real:
        lhs, rhs = op.operands
        operands = (rewriting.part(lhs, i), rewriting.part(rhs, j))
        return builder.apply(op.name, operands, result.type.shape, FLOAT, op.attributes)

    re = product(0, 0) - product(1, 1)
    im = product(0, 1) + product(1, 0)
    rewriting.bind(result, Pair(re, im), builder)


def _make(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    re, im = (Real(value, builder) for value in op.operands)
    rewriting.bind(op.results[0], Pair(re, im), builder)


def _constant(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    results = rewriting.define(op.results, builder)
    number = op.attributes["value"]
    for part, result in zip((number.real, number.imag), results, strict=True):
        value = np.ascontiguousarray(part).reshape(number.shape)
        builder.emit(op.name, (), (result,), {"value": value})


def _iota(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    re = builder.apply(op.name, (), op.results[0].type.shape, FLOAT, op.attributes)
    rewriting.bind(op.results[0], Pair(re, re.like(0.0)), builder)


def _convert(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    (source,), (result,) = op.operands, op.results
    re = rewriting.part(source, 0)
    if not is_complex(result):
        builder.emit(op.name, (re,), op.results, op.attributes)
        return
    converted = builder.apply(op.name, (re,), result.type.shape, FLOAT, op.attributes)
    im = converted.like(0.0)
    if is_complex(source):
        im = Real(rewriting.part(source, 1), builder)
    rewriting.bind(result, Pair(converted, im), builder)


def _bitcast(rewriting: ComplexRewriting, op: Op, builder: Builder) -> None:
    (source,), (result,) = op.operands, op.results
    if source.type != result.type:
        raise refused(op, f"the bits of {source.type} cannot be read as {result.type}")
    rewriting.bind(result, rewriting.pair(source, builder), builder)


# -- tables ----------------------------------------------------------------------------

# The attribute that lists which operands and results of a custom call were complex.
COMPLEX = "neuronjax.complex"

# Ops that get another name on pairs of parts, under which they have a lowering rule.
RENAMED = {
    "stablehlo.fft": "neuronjax.fft",
    "stablehlo.cholesky": "neuronjax.complex_cholesky",
    "stablehlo.triangular_solve": "neuronjax.complex_triangular_solve",
}

FORMULAS: dict[str, Callable[..., Pair | Real]] = {
    "stablehlo.real": lambda z: z.re,
    "stablehlo.imag": lambda z: z.im,
    "stablehlo.add": functions.add,
    "stablehlo.subtract": lambda z, w: Pair(z.re - w.re, z.im - w.im),
    "stablehlo.multiply": functions.multiply,
    "stablehlo.divide": functions.divide,
    "stablehlo.negate": lambda z: Pair(-z.re, -z.im),
    "stablehlo.abs": functions.modulus,
    "stablehlo.sign": functions.sign,
    "stablehlo.maximum": lambda z, w: functions.extreme(z, w, "GT"),
    "stablehlo.minimum": lambda z, w: functions.extreme(z, w, "LT"),
    "stablehlo.exponential": functions.exponential,
    "stablehlo.exponential_minus_one": functions.exponential_minus_one,
    "stablehlo.log": functions.logarithm,
    "stablehlo.log_plus_one": functions.log_plus_one,
    "stablehlo.logistic": functions.logistic,
    "stablehlo.sqrt": functions.square_root,
    "stablehlo.rsqrt": functions.reciprocal_square_root,
    "stablehlo.cbrt": functions.cube_root,
    "stablehlo.power": functions.power,
    "stablehlo.atan2": functions.arc_tangent_2,
    "stablehlo.sine": functions.sine,
    "stablehlo.cosine": functions.cosine,
    "stablehlo.tan": functions.tangent,
    "stablehlo.tanh": functions.tanh,
    "chlo.conj": lambda z: Pair(z.re, -z.im),
    "chlo.square": functions.square,
    "chlo.tan": functions.tangent,
    "chlo.sinh": functions.sinh,
    "chlo.cosh": functions.cosh,
    "chlo.acos": functions.arc_cosine,
    "chlo.acosh": functions.arc_cosh,
    "chlo.asin": functions.arc_sine,
    "chlo.asinh": functions.arc_sinh,
    "chlo.atan": functions.arc_tangent,
    "chlo.atanh": functions.arc_tanh,
}

COMPARISONS: dict[str, Callable[[Pair, Pair], Real]] = {
    "EQ": lambda z, w: z.re.equals(w.re) & z.im.equals(w.im),
    "NE": lambda z, w: z.re.differs(w.re) | z.im.differs(w.im),
}

MOVEMENT = (
    "all_gather all_to_all broadcast broadcast_in_dim collective_broadcast "
    "collective_permute concatenate dynamic_broadcast_in_dim dynamic_gather "
    "dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice gather pad "
    "real_dynamic_slice reshape reverse select slice torch_index_select transpose"
).split()
COMBINATIONS = ("all_reduce", "reduce", "reduce_scatter", "reduce_window", "scatter")
STRUCTURES = ("case", "composite", "if", "map", "optimization_barrier", "while")

BROADCASTING = ("add", "atan2", "divide", "multiply", "power", "subtract")

Rule = Callable[[ComplexRewriting, Op, Builder], None]

RULES: dict[str, Rule] = {
    **dict.fromkeys(FORMULAS, _formula),
    **{f"stablehlo.{name}": _each_part for name in MOVEMENT},
    **{f"stablehlo.{name}": _combination for name in COMBINATIONS},
    **{f"stablehlo.{name}": _in_place for name in STRUCTURES},
    **dict.fromkeys(RENAMED, _in_place),
    **{f"chlo.broadcast_{name}": _broadcasting for name in BROADCASTING},
    "chlo.constant": _constant,
    "func.call": _in_place,
    "sdy.manual_computation": _manual_computation,
    "sdy.sharding_constraint": _in_place,
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.compare": _compare,
    "stablehlo.complex": _make,
    "stablehlo.constant": _constant,
    "stablehlo.convert": _convert,
    "stablehlo.convolution": _four_products,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.dot": _four_products,
    "stablehlo.dot_general": _four_products,
    "stablehlo.iota": _iota,
    "stablehlo.sort": _sort,
}
