"""Computations that ops carry as regions: reducers, combiners, comparators.

A region of one binary op on its two arguments is that op, which has an instruction of
its own. Any other region becomes a block of scalar instructions (`ir.block_set`): calls
are inlined, and values captured from the surrounding block become further arguments.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from neuronjax.ir.instruction import Block, Buffer, View
from neuronjax.ir.program import CALLEES, Function, Op, Region, Value
from neuronjax.ir.traversal import read_outside
from neuronjax.lowering.context import Context
from neuronjax.lowering.moves import converted
from neuronjax.lowering.registry import lower_region

# All of these are commutative, so the order of the two arguments does not matter.
COMBINERS = ("add", "multiply", "minimum", "maximum", "and", "or", "xor")


def simple_combiner(region: Region) -> str | None:
    """Return the name of the binary op that a region applies to its two arguments, or
    None. "assign" is the region that returns its second argument."""
    arguments, results = region.arguments, region.results
    if not region.ops and results == arguments[1:]:
        return "assign"
    if len(region.ops) != 1 or len(arguments) != 2:
        return None
    (op,) = region.ops
    name = op.name.removeprefix("stablehlo.")
    plain = op.results == results and set(op.operands) == set(arguments)
    return name if plain and name in COMBINERS else None


def lowered_bodies(
    regions: Sequence[Region], context: Context
) -> tuple[list[Block], tuple[View, ...]]:
    """Return the blocks of regions, and the captured views, which are further arguments
    of every block."""
    blocks = [_lowered(region, context) for region in regions]
    captured: dict[int, Buffer] = {}
    for block in blocks:
        captured |= read_outside(block)
    buffers = tuple(captured.values())
    taking = ((*block.arguments, *buffers) for block in blocks)
    pairs = zip(taking, blocks, strict=True)
    taken = [Block(given, b.instructions, b.results) for given, b in pairs]
    return taken, tuple(map(View, buffers))


def _lowered(region: Region, context: Context) -> Block:
    child = context.child()
    child.memo = ChainMap()  # the block writes its constants, and captures none
    return lower_region(inlined(region, context.shared.program.functions), child)


def inlined(region: Region, functions: Mapping[str, Function]) -> Region:
    """Return the region with the ops of callees in place of calls."""
    names = {op.name for outer in region.ops for op in outer.walk()}
    return _Inliner(functions, {}).region(region) if names & set(CALLEES) else region


@dataclass(frozen=True)
class _Inliner:
    """Copies ops; `values` maps the values of the original to those of the copy."""

    functions: Mapping[str, Function]
    values: dict[Value, Value]

    def region(self, region: Region) -> Region:
        return self._body(region, tuple([self._fresh(v) for v in region.arguments]))

    def _body(self, region: Region, arguments: tuple[Value, ...]) -> Region:
        ops = tuple([new for op in region.ops for new in self._op(op)])
        return Region(arguments, ops, self._mapped(region.results))

    def _fresh(self, value: Value) -> Value:
        self.values[value] = Value(value.number, value.type)
        return self.values[value]

    def _mapped(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple([self.values.get(v, v) for v in values])

    def _op(self, op: Op) -> Iterator[Op]:
        operands = self._mapped(op.operands)
        name = op.callee
        if name is None:
            regions = tuple([self.region(r) for r in op.regions])
            results = tuple([self._fresh(v) for v in op.results])
            yield Op(op.name, operands, results, op.attributes, regions, op.location)
            return
        callee = self.functions[name].body
        given = dict(zip(callee.arguments, operands, strict=True))
        inner = _Inliner(self.functions, given)
        body = inner._body(callee, operands)
        yield from body.ops
        self.values.update(zip(op.results, body.results, strict=True))


def promoted(
    context: Context, views: Sequence[View], arguments: Sequence[Value]
) -> tuple[View, ...]:
    """Return operands cast to the dtypes of a body's arguments, which may be wider, for
    accumulation."""
    pairs = zip(views, arguments, strict=True)
    return tuple([converted(context, view, a.type.dtype) for view, a in pairs])
