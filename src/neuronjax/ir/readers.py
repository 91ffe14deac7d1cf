"""The ops of one function in program order: who makes a value, and who reads it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from neuronjax.ir.program import Function, Op, Value


class Readers:
    """The edges between the ops of a function, those of regions included.

    Attributes:
        ops: in program order; an op comes before those inside it.
        makers: the op whose result a value is.
        readers: the ops that read a value; an op reads what its regions hand out.
    """

    def __init__(self, function: Function) -> None:
        self.ops: Sequence[Op] = tuple(function.walk())
        self.makers: dict[Value, Op] = {}
        self.readers: dict[Value, list[Op]] = defaultdict(list)
        for op in self.ops:
            self.makers.update((result, op) for result in op.results)
            handed_out = (v for region in op.regions for v in region.results)
            for value in (*op.operands, *handed_out):
                self.readers[value].append(op)

    def after(self, op: Op) -> Iterator[Op]:
        """The ops that read what an op makes."""
        for result in op.results:
            yield from self.readers.get(result, ())

    def before(self, op: Op) -> Iterator[Op]:
        """The ops that make what an op reads."""
        for value in op.operands:
            if value in self.makers:
                yield self.makers[value]

    def beside(self, op: Op) -> Iterator[Op]:
        """The ops that read an operand too."""
        for value in op.operands:
            yield from (other for other in self.readers[value] if other is not op)
