"""Loops with a static trip count, such as those of `lax.scan` and `fori_loop`.

A counted loop compares one of its carries with a loop-invariant bound, and adds a
constant to that carry. The trip count of any other loop depends on data. Facts are
those of `facts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.facts import (
    Fact,
    bounded,
    evaluate,
    is_integer,
    known,
    unknown,
)
from neuronjax.ir.program import Function, Op, Region, Value

Functions = Mapping[str, Function]


def invariant(op: Op, index: int) -> bool:
    """Return whether the body of `op`, a while, returns carry `index` unchanged."""
    body = op.regions[1]
    return body.results[index] is body.arguments[index]


def trip_count(op: Op, initial: Sequence[Fact], functions: Functions) -> int | None:
    """Return how often the body of `op`, a while, runs; None if that is not static.

    `initial` are facts of the while's operands; `functions` are those of the program,
    since the body may call one to compute the counter."""
    condition = op.regions[0]
    arguments = condition.arguments
    kept = {arguments[i]: fact for i, fact in enumerate(initial) if invariant(op, i)}
    comparison = _producer(condition, condition.results[0])
    if comparison is None or comparison.name != "stablehlo.compare":
        return None
    direction: str = comparison.attributes["comparison_direction"]
    a, b = comparison.operands
    for counter, bound, flipped in ((a, b, False), (b, a, True)):
        if counter not in arguments:
            continue
        carry = arguments.index(counter)
        limit, first = _constant(condition, bound, kept), initial[carry].scalar
        step = _step(op, carry, initial, functions)
        if limit is None or first is None or not step:
            continue
        if flipped:
            direction = _FLIPPED.get(direction, direction)
        return _trips(int(first), int(limit), step, direction)
    return None


def carried(
    op: Op, index: int, initial: Sequence[Fact], functions: Functions, trips: int | None
) -> Fact:
    """Return a fact that holds for carry `index` of `op`, a while, in all trips."""
    if invariant(op, index):
        return initial[index]
    type, first = op.operands[index].type, initial[index].scalar
    step = _step(op, index, initial, functions)
    if trips is None or first is None or not step:
        return unknown(type)
    last = int(first) + max(trips - 1, 0) * step
    return bounded(type, min(int(first), last), max(int(first), last))


def _producer(region: Region, value: Value) -> Op | None:
    return next((op for op in region.ops if value in op.results), None)


def _constant(region: Region, value: Value, kept: Mapping[Value, Fact]) -> Any:
    """Return `value` as a scalar if constants and `kept` determine it, else None."""
    if value in kept:
        return kept[value].scalar
    op = _producer(region, value)
    if op is None or op.regions or len(op.results) != 1:
        return None
    facts = []
    for operand in op.operands:
        inner = _constant(region, operand, kept)
        if inner is None:
            return None
        facts.append(known(np.broadcast_to(inner, operand.type.shape)))
    return evaluate(op, facts)[0].scalar


def _step(
    op: Op, carry: int, initial: Sequence[Fact], functions: Functions
) -> int | None:
    """Return the constant that the body adds to an integer carry, or None."""
    body = op.regions[1]
    if not is_integer(op.operands[carry].type.dtype):
        return None
    kept = {body.arguments[i]: f for i, f in enumerate(initial) if invariant(op, i)}
    made = _producer(body, body.results[carry])
    if made is None or made.name != "func.call":
        return _added(body, made, body.arguments[carry], kept)
    callee = functions[made.attributes["callee"]].body
    inner = _producer(callee, callee.results[made.results.index(body.results[carry])])
    for argument, operand in zip(callee.arguments, made.operands, strict=True):
        if operand is body.arguments[carry]:
            return _added(callee, inner, argument, {})
    return None


def _added(
    region: Region, op: Op | None, counter: Value, kept: Mapping[Value, Fact]
) -> int | None:
    signs = {"stablehlo.add": 1, "stablehlo.subtract": -1}
    if op is None or op.name not in signs or counter not in op.operands:
        return None
    a, b = op.operands
    if b is counter and op.name == "stablehlo.subtract":
        return None
    step = _constant(region, b if a is counter else a, kept)
    return None if step is None else signs[op.name] * int(step)


_FLIPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}


def _trips(first: int, limit: int, step: int, direction: str) -> int | None:
    """Return how often a loop runs whose condition is `counter direction limit`, such
    as "i LT n"; None if it does not end."""
    if direction == "NE":
        trips, rest = divmod(limit - first, step)
        return trips if not rest and trips >= 0 else None
    ascending = direction in ("LT", "LE")
    if direction not in _FLIPPED or ascending != (step > 0):
        return None
    distance = (limit - first) if ascending else (first - limit)
    distance += direction in ("LE", "GE")
    return max(0, -(-distance // abs(step)))
