"""Choices such as an argmax or a sorting order, and integers whose magnitude matters.

An index is right or wrong, never slightly off. If an index is wrong, the numbers that
were compared are at fault, even if the numbers are as exact as their format allows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Set

from neuronjax.diagnostics.faults.evidence import BOUNDS, ROUNDS
from neuronjax.diagnostics.faults.flow import Flow
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.op_records import MOVING
from neuronjax.ir.program import Op, Value
from neuronjax.ir.value_sources import ValueSources

#: Ops that make choices or pass them on. All other ops do arithmetic with the numbers.
_KEEPS = (
    MOVING
    | BOUNDS
    | {f"stablehlo.{n}" for n in ("select", "sort", "reduce", "convert", "compare")}
    | {"chlo.top_k"}
)
_ORDERS = MOVING | BOUNDS | ROUNDS | {"stablehlo.select", "stablehlo.sort"}
_CASTS = frozenset(("stablehlo.convert", "stablehlo.bitcast_convert"))
_BITS = frozenset(f"stablehlo.{name}" for name in ("and", "or", "xor"))
#: A shift drops too much if one unit of its result is more than this share of the root
#: mean square of its operand.
MOST_DROPPED = 2.0**-4
_BACK = frozenset(f"stablehlo.shift_right_{how}" for how in ("arithmetic", "logical"))
_ARITHMETIC = MOVING | _BACK
_ARITHMETIC |= {f"stablehlo.{n}" for n in ("add", "subtract", "multiply")}


def is_choice(flow: Flow, value: Value) -> bool:
    """Return whether the whole numbers of `value` come only from comparing floats."""
    if value.type.dtype.kind not in "iub":
        return False
    chosen = False
    for op in _whole_ops(flow, value):
        floats = any(_is_float(v) for v in op.operands)
        behind = [op] if op.name in _KEEPS else _whole_ops(flow, op.results[0])
        owes = any(_is_float(v) for op in behind for v in op.operands)
        if owes and (op.name not in _KEEPS or op.name == "stablehlo.convert"):
            return False  # arithmetic with numbers that depend on floats
        if op.name == "stablehlo.reduce" and not floats:
            return False  # a count
        chosen |= floats and op.name not in MOVING
    return chosen


def chosen_by(flow: Flow, value: Value) -> Iterator[tuple[OpTrace, OpTrace]]:
    """Yield (origin, comparison) for each comparison on which `value` depends, if it
    compares floats with errors. The origin is the op that made most of their error."""
    for op in _whole_ops(flow, value):
        makers = (flow.maker(v) for v in op.operands if _is_float(v))
        wrong = [t for t in makers if t is not None and t.worst.result.error]
        if wrong:
            worst = max(wrong, key=lambda t: t.worst.result.error)
            chooser = flow.trace(op.results[0])
            assert chooser is not None
            chain = flow.chain(worst, worst.worst)
            yield max(chain, key=lambda step: step[1].own)[0], chooser


def is_chosen_from(flow: Flow, op: Op, ends: Collection[Value]) -> bool:
    """Return whether only selects read the result of `op`, so that it may be discarded,
    and no such select took an integer outside the range of its type.

    If a reader moves the result, makes Inf or NaN of it, or multiplies it as an
    integer, the readers of that reader's result count instead. (An integer power
    computes a product that a select discards.) Return False for a result in `ends`, the
    values that leave the program.
    """
    seen, left = {op}, [op]
    while left:
        value = left.pop().results[0]
        readers = flow.readers(value)
        selects = {r for r in readers if r.name == "stablehlo.select"}
        others = readers - (selects - flow.takes_outside) - seen
        computing = (flow.trace(r.results[0]) for r in others if r.name not in MOVING)
        if value in ends or not all(t is not None and _passes(t) for t in computing):
            return False
        seen |= others
        left += others
    return True


def only_chooses(graph: ValueSources, op: Op, ends: Set[Value]) -> bool:
    """Return whether the result of `op` affects the values `ends` only by comparisons,
    such as those of an argmin."""

    def is_computed(value: Value, reader: Value) -> bool:
        maker = graph.makers.get(reader)
        is_cast = maker is not None and maker.name in _CASTS
        return is_cast or _is_float(reader) or not _is_float(value)

    return ends.isdisjoint(graph.ahead(op.results, is_computed))


def _passes(trace: OpTrace) -> bool:
    is_product = trace.path.op.name == "stablehlo.multiply"
    return trace.is_broken or (is_product and not _is_float(trace.path.op.results[0]))


def is_bit_field(flow: Flow, op: Op) -> bool:
    """Return whether `op` is a left shift whose result is only combined with other bits
    or shifted back: code that packs small integers drops bits on purpose."""
    if op.name != "stablehlo.shift_left":
        return False
    readers = [r for r in flow.ahead(op, _moves) if not _moves(r)]
    return bool(readers) and all(
        r.name in _BITS or (r.name in _BACK and _bits(flow, r) == _bits(flow, op))
        for r in readers
    )


def _moves(op: Op) -> bool:
    return op.name in MOVING


def _bits(flow: Flow, op: Op) -> float:
    trace = flow.trace(op.results[0])
    return math.nan if trace is None else trace.worst.operands[op.operands[1]].largest


def drops_digits(flow: Flow, trace: OpTrace) -> bool:
    """Return whether `trace` is a right shift that drops large parts of its numbers and
    whose result is later cast to a float, while no other op reads the numbers."""
    op = trace.path.op
    if op.name not in _BACK or flow.readers(op.operands[0]) != {op}:
        return False
    made = flow.maker(op.operands[0])
    if made is not None and made.path.op.name in _BITS | {"stablehlo.shift_left"}:
        return False  # the dropped bits are zero
    numbers, bits = (trace.worst.operands[v] for v in op.operands)
    readers = flow.ahead(op, lambda reader: reader.name in _ARITHMETIC)
    casts = (r.name == "stablehlo.convert" for r in readers if _is_float(r.results[0]))
    return 2**bits.largest > MOST_DROPPED * numbers.norm and any(casts)


def is_magnitude(flow: Flow, op: Op) -> bool:
    """Return whether the integer result of `op` is compared by size, bounded or cast to
    a float before any arithmetic. (A hash does arithmetic first.)"""
    return any(map(_orders, flow.ahead(op, _moves)))


def is_integer(flow: Flow, op: Op) -> bool:
    """Return whether the float result of `op` is cast to an integer."""
    readers = flow.ahead(op, lambda r: r.name in _ORDERS)
    casts = (op for op in readers if op.name == "stablehlo.convert")
    return not all(_is_float(op.results[0]) for op in casts)


def _whole_ops(flow: Flow, value: Value) -> list[Op]:
    """Return the integer ops that compute `value`, back to ops that read floats."""

    def passes(value: Value) -> bool:
        return not _is_float(value)

    traces = (flow.trace(v) for v in flow.behind(value, passes) if passes(v))
    return list(dict.fromkeys(t.path.op for t in traces if t is not None))


def _is_float(value: Value) -> bool:
    return value.type.dtype.kind not in "iub"


def _orders(op: Op) -> bool:
    if op.name == "stablehlo.convert":
        return _is_float(op.results[0])
    if op.name == "stablehlo.compare":
        return op.attributes["comparison_direction"] not in ("EQ", "NE")
    return op.name in BOUNDS
