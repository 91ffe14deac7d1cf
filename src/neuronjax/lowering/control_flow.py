"""Rules of control flow: loops, branches and calls keep their structure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from neuronjax.errors import NeuronJaxError, is_library
from neuronjax.ir.instruction_set import Branch, Call, Loop
from neuronjax.ir.program import Op, Region
from neuronjax.lowering.context import Context, Facts, Instructions
from neuronjax.lowering.registry import lower_region, lowers


@lowers("stablehlo.while")
def while_(op: Op, context: Context) -> Instructions:
    unrolled = "unroll the loop (jax.lax.scan(..., unroll=True))"
    context.require("control_flow", "control flow, which a loop needs", unrolled)
    condition, body = op.regions
    carried = list(map(context.passed_on, op.operands))
    yield context.make(
        Loop,
        context.operands(op),
        context.results(op),
        engine="sync",
        ordinal=context.new_ordinal(),
        condition=_region(condition, context, carried),
        body=_region(body, context, carried),
    )
    context.facts.update(zip(op.results, carried, strict=True))


def _region(region: Region, context: Context, facts: list[Facts]) -> Any:
    child = context.child()
    child.facts.update(zip(region.arguments, facts, strict=True))
    return lower_region(region, child)


@lowers("stablehlo.case", "stablehlo.if")
def case(op: Op, context: Context) -> Instructions:
    both = "compute all branches and choose with jnp.where"
    context.require("control_flow", "control flow, which a branch needs", both)
    regions = op.regions[::-1] if op.name == "stablehlo.if" else op.regions
    yield context.make(
        Branch,
        context.operands(op),
        context.results(op),
        engine="sync",
        ordinal=context.new_ordinal(),
        branches=tuple([_region(r, context, []) for r in regions]),
    )


@lowers("func.call", "stablehlo.composite")
def call(op: Op, context: Context) -> Instructions:
    callee, results = _callee(op, context)
    yield context.whole(op, Call, "sync", ordinal=context.new_ordinal(), callee=callee)
    context.facts.update(zip(op.results, results, strict=True))


@contextlib.contextmanager
def _placed_at(op: Op) -> Iterator[None]:
    """Give an error in a library's function the user's line that calls it."""
    try:
        yield
    except NeuronJaxError as error:
        has_line = error.location and not is_library(error.location)
        if has_line or not op.location.source or is_library(op.location.file):
            raise
        raise error.changed(location=op.location.source) from error


def _callee(op: Op, context: Context) -> tuple[str, tuple[Facts, ...]]:
    """Return the name of a lowered callee, and the provenance of its results. A callee
    is lowered once for each mesh, policy and provenance of its calls."""
    shared, name = context.shared, op.callee
    assert name is not None
    scope = context.scope
    arguments = tuple([context.fact(v) for v in op.operands])
    caller = op.location.inside(context.caller)
    key: tuple = (name, shared.mesh)
    if shared.tracks_provenance:
        key = (name, shared.mesh, scope, arguments, caller.part)
    if key not in shared.callees:
        body = shared.program.functions[name].body
        child = Context(shared, prefix=scope, caller=caller)
        child.facts.update(zip(body.arguments, arguments, strict=True))
        with _placed_at(op):
            block = lower_region(body, child)
        unique = name + f".{len(shared.callees)}" * (name in shared.functions)
        shared.functions[unique] = block
        facts = tuple([child.fact(v) for v in body.results])
        shared.callees[key] = (unique, facts)
    return shared.callees[key]
