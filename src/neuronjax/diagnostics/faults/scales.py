"""The op that made a wrong scale: the scale of a quantizer or of a loss.

If a cast cuts numbers off because their scale is wrong, the line to change is the line
that computes the scale. But if the scale was computed from other numbers, such as those
of an earlier step, the scale may be right, and the cast is the first line to examine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from neuronjax.diagnostics.faults.evidence import (
    ADDS,
    CLIPS,
    ROUNDS,
    OpEvidence,
    largest_of,
)
from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.op_records import MOVING
from neuronjax.ir.program import Op, Value
from neuronjax.numerics.float_format import get_format

#: At most this many ops are between cast and scaling, or between scale and reduction.
NEARBY = 8
#: A bound that changes the norm of a scale by this factor or more is at fault.
REPLACED = 4.0
SCALES = frozenset(("stablehlo.multiply", "stablehlo.divide"))
_KEEPS = MOVING | SCALES | CLIPS | ROUNDS
#: If the operands of these ops are scaled, so is the result, except at constant bounds.
LINEAR = _KEEPS | ADDS
LINEAR |= {f"stablehlo.{n}" for n in ("convert", "dot_general", "convolution")}
LINEAR |= {f"stablehlo.{n}" for n in ("reduce", "negate")}
_TRANSFERS = frozenset(
    f"stablehlo.{n}" for n in ("convert", "collective_permute", "all_gather")
)
_SUMS = MOVING | SCALES | ADDS
_SUMS |= {
    f"stablehlo.{n}" for n in ("convert", "reduce", "all_reduce", "reduce_scatter")
}
_STORES = MOVING | {"stablehlo.scatter", "stablehlo.select", "stablehlo.convert"}


def unfit_scale(
    flow: Flow, trace: OpTrace, *, cuts: bool
) -> tuple[OpTrace, bool] | None:
    """Return the op that made a wrong scale, zero point or range, and whether that op
    depends on the scaled numbers; None if there is no such op. `trace` (a cast, bound
    or rounding) cuts off the numbers if `cuts`, else makes some of them zero.

    If the scale is computed from a statistic (a reduction), return the op of the
    statistic. But if the statistic is right (a maximum as large as the numbers), return
    the first later op on another source line.
    """
    if is_fixed_point(flow, trace.path.op):
        return None  # the scale is a constant
    dtype = trace.path.op.results[0].type.dtype
    end = largest_of(dtype)
    for near in (trace, *flow.near(trace, NEARBY)):
        name = near.path.op.name
        if name in CLIPS and near.worst.result.largest > end:
            return None  # the bound does not fit the format
        for made, numbers, is_of_numbers in _factors(flow, near):
            if dtype in (op.results[0].type.dtype for op in _casts(flow, made)):
                continue  # data cast to this dtype is no scale
            is_range = name in CLIPS and is_of_numbers
            if is_range or _is_used_again(flow, made, near, trace):
                largest = near.worst.operands[numbers].largest if cuts else 0.0
                blamed = made if name in ADDS else _blamed(flow, made, largest)
                return None if blamed is None else (blamed, is_of_numbers)
    return None


def is_fixed_point(flow: Flow, op: Op) -> bool:
    """Return whether `op` rounds numbers that are multiplied by a constant before it,
    and divided by this constant after it."""
    before = flow.maker(op.operands[0])
    readers = map(flow.trace, (r.results[0] for r in flow.ahead(op, _is_sum)))
    scales = (_constant_factor(flow, r) for r in readers if r is not None)
    scale = 0.0 if before is None else _constant_factor(flow, before)
    return any(math.isclose(scale * s, 1, rel_tol=1e-6) for s in scales)


def _is_sum(reader: Op) -> bool:
    return reader.name in _SUMS


def _constant_factor(flow: Flow, trace: OpTrace) -> float:
    """Return the constant by which an op multiplies; 0 if it multiplies by none."""
    op = trace.path.op
    sizes = [s.largest for v, s in trace.worst.operands.items() if flow.is_constant(v)]
    if op.name not in SCALES or len(sizes) != 1 or not sizes[0]:
        return 0.0
    return sizes[0] if op.name == "stablehlo.multiply" else 1 / sizes[0]


def is_quantile(flow: Flow, trace: OpTrace) -> bool:
    """Return whether a scale or range of the numbers of `trace` comes from sorted
    numbers, as a percentile does; then the largest numbers are cut off on purpose."""
    steps = (trace, *flow.near(trace, NEARBY))
    scales = (made for step in steps for made, _, _ in _factors(flow, step))
    behind = (t for made in scales for t in (made, *flow.near(made, NEARBY)))
    return any(t.path.op.name == "stablehlo.sort" for t in behind)


def fill(flow: Flow, trace: OpTrace) -> OpTrace | None:
    """Return the select that gives the matmul of `trace` a constant (a mask's -1e9) so
    large that a policy's scaled cast makes the other numbers zero; else None."""
    if trace.cast is None or not trace.cast.is_scaled:
        return None
    fmt = get_format(trace.cast.format)
    for made in filter(None, map(flow.maker, trace.path.op.operands)):
        shares = made.worst.operands.items()
        operands = [(v, s) for v, s in shares if v.type.dtype.kind != "b"]
        fills = [s.largest for v, s in operands if flow.is_constant(v)]
        others = [s.largest for v, s in operands if not flow.is_constant(v)]
        if made.path.op.name == "stablehlo.select" and fills and others:
            if max(fills) * fmt.min_normal > max(others) * fmt.max_finite:
                return made
    return None


def one_maximum(flow: Flow, trace: OpTrace) -> OpTrace | None:
    """Return the reduction along several axes that finds the maximum m of exp(x - m),
    if this exponential, or a policy's scaled cast of it for the matmul of `trace`,
    makes numbers zero; else None. With a maximum per row, each row would have a 1."""
    is_cast = trace.cast is not None and trace.cast.is_scaled
    made = [flow.maker(v) for v in trace.path.op.operands] if is_cast else [trace]
    for exponential in filter(None, made):
        if exponential.path.op.name != "stablehlo.exponential" or not trace.zeros:
            continue
        shift = flow.maker(exponential.path.op.operands[0])
        if shift is None or shift.path.op.name != "stablehlo.subtract":
            continue
        largest = flow.maker(shift.path.op.operands[1])
        if largest is not None and largest.path.op.name == "stablehlo.reduce":
            is_maximum = _folds(largest.path.op) == "stablehlo.maximum"
            if is_maximum and len(largest.path.op.attributes["dimensions"]) > 1:
                return largest
    return None


def loss_scale(flow: Flow, trace: OpTrace, evidence: OpEvidence) -> OpTrace | None:
    """Return the op that multiplies two constants into the scale of a loss, if `trace`
    overflows only because of this scale; None otherwise."""
    end = largest_of(trace.path.op.results[0].type.dtype)
    if not evidence.result.beyond or math.isinf(end):
        return None

    def passes(value: Value) -> bool:
        made = flow.trace(value)
        if made is None:
            return True
        # The product of a gradient and itself has the square of the scale.
        operands = made.path.op.operands
        return made.path.op.name in LINEAR and len({*operands}) == len(operands)

    values = flow.behind(trace.path.op.results[0], passes)
    for made in filter(None, map(flow.trace, values)):
        is_seed = all(map(flow.is_constant, made.path.op.operands))
        scales = made.path.op.name == "stablehlo.multiply" and is_seed
        if scales and made.largest * end >= evidence.result.largest:
            return made
    return None


def _factors(flow: Flow, trace: OpTrace) -> Iterator[tuple[OpTrace, Value, bool]]:
    """Yield (op that made a scale, scaled operand, whether the scale depends on this
    operand) for the operands of `trace` that may be scales: arrays smaller than the
    result, and arrays computed from the other operand by a reduction."""
    if trace.path.op.name not in SCALES | ADDS | CLIPS:
        return
    for value, numbers in itertools.permutations(trace.worst.operands, 2):
        constant = _constant(flow, value, trace)
        made = constant or flow.maker(value)
        if made is None or made is trace:  # a loop's counter depends on itself
            continue
        dtype = made.path.op.results[0].type.dtype
        if dtype == value.type.dtype:  # else `made` computes the index of a slice
            behind = set(flow.behind(value, lambda v: True))
            is_of_numbers = not behind.isdisjoint(same_numbers(flow, numbers))
            is_small = made.worst.result.elements < trace.worst.result.elements
            is_small |= constant is not None
            if is_small or (is_of_numbers and _statistics(flow, made)):
                yield made, numbers, is_of_numbers


def _constant(flow: Flow, value: Value, near: OpTrace) -> OpTrace | None:
    """Return the op that made the constant array by which op `near` scales numbers, if
    the op is on another source line than `near`; else None."""
    if near.path.op.name not in SCALES or not flow.is_constant(value):
        return None
    steps = filter(None, map(flow.trace, flow.behind(value, lambda v: True)))
    made = (t for t in steps if t.path.op.operands)
    return next((t for t in made if t.path.source != near.path.source), None)


def _casts(flow: Flow, made: OpTrace) -> list[Op]:
    """Return the casts and transfers between devices that end at `made`, last first."""
    found: list[Op] = []
    step: OpTrace | None = made
    while step is not None and step.path.op.name in _TRANSFERS:
        found.append(step.path.op)
        step = flow.maker(step.path.op.operands[0])
    return found


def same_numbers(flow: Flow, numbers: Value) -> list[Value]:
    """Return `numbers` and its earlier values, before moves, scalings and roundings."""

    def passes(value: Value) -> bool:
        trace = flow.trace(value)
        return trace is None or trace.path.op.name in _KEEPS

    def leaves_out(value: Value) -> list[Value]:
        trace, size = flow.trace(value), math.prod(value.type.shape)
        operands = () if trace is None else trace.path.op.operands
        return [v for v in operands if math.prod(v.type.shape) < size]

    return flow.behind(numbers, passes, leaves_out)


def _statistics(flow: Flow, made: OpTrace) -> list[OpTrace]:
    steps = (made, *flow.near(made, NEARBY))
    return [t for t in steps if t.path.op.name == "stablehlo.reduce"]


def _is_used_again(flow: Flow, made: OpTrace, near: OpTrace, cast: OpTrace) -> bool:
    readers = flow.ahead(made.path.op, lambda r: r.name in _STORES)
    again = (r for r in readers if r is not near.path.op and r.name in SCALES | ADDS)
    return any(cast.path.op in flow.ops_behind(r.results[0]) for r in again)


def _blamed(flow: Flow, made: OpTrace, largest: float) -> OpTrace | None:
    """Return the op at fault for the scale that `made` computes; None if the scale is
    computed from a span (maximum minus minimum): such a scale is right, and only a zero
    point is missing. `largest` is the largest scaled number."""
    steps, statistics = [made, *flow.near(made, NEARBY)], _statistics(flow, made)
    for step in steps:
        if step.path.op.name in CLIPS and _replaces(flow, step):
            return step
        if _is_span(flow, step, statistics):
            return None
    if not statistics:
        return made
    statistic = statistics[0]
    is_largest = _folds(statistic.path.op) == "stablehlo.maximum"
    if not is_largest or not 0 < largest <= statistic.largest:
        return statistic
    op, line = statistic.path.op, statistic.path.source
    steps = [t for t in steps if t.path.op.name not in _STORES]
    between = [t for t in steps if op in flow.ops_behind(t.path.op.results[0])]
    return next((t for t in reversed(between) if t.path.source != line), made)


def _replaces(flow: Flow, bound: OpTrace) -> bool:
    shares, norm = bound.worst.operands, bound.worst.result.norm
    norms = [shares[v].norm for v in bound.worst.cut_off if not flow.is_constant(v)]
    return bool(norms) and not norm / REPLACED < max(norms) < norm * REPLACED


def _is_span(flow: Flow, trace: OpTrace, statistics: list[OpTrace]) -> bool:
    if trace.path.op.name != "stablehlo.subtract":
        return False
    makers = [t for v in trace.path.op.operands if (t := flow.maker(v)) in statistics]
    return len({_folds(t.path.op) for t in makers if t is not None}) == 2


def _folds(op: Op) -> str:
    return op.regions[0].ops[0].name
