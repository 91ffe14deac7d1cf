"""Find the instructions that write the next value of a state.

A state is an argument of the program, or a value that a loop carries. Its next value is
a sum: one addend is the state as it was, perhaps cast or times one number. The loop
carries the sum, or a cast of it, as the next value, or the program returns it with the
type of the argument. Weights, moments, averages and running losses are such states.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neuronjax.ir.collective_set import Spmd
from neuronjax.ir.instruction import Block, Instruction, InstructionProgram, View
from neuronjax.ir.instruction_set import (
    Call,
    DmaCopy,
    Loop,
    Select,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)
from neuronjax.ir.program import TensorType
from neuronjax.ir.provenance import Provenance
from neuronjax.ir.traversal import DataFlow, Functions, entries
from neuronjax.numerics.float_format import FORMATS, get_format

#: Smallest decay factor of a state; a smaller factor loses more than rounding does.
_LEAST_DECAY = 0.5
#: An argument of main, or of a loop's or mesh's body: its owner's identity, its number.
Place = tuple[int, int]
_MAIN = 0


@dataclass(frozen=True)
class StateWrites:
    """The writes of states, by the identity of their instructions.

    Attributes:
        sums: for sums that read the state unchanged, which operands are the state.
        before: for other writes, the number of the buffer that holds the state.
        running: the writes that a loop carries to its next iteration.
        returned: the writes that the program, or the function of a mesh, returns.
    """

    sums: Mapping[int, tuple[int, ...]]
    before: Mapping[int, int]
    running: frozenset[int]
    returned: frozenset[int]

    @classmethod
    def of(cls, program: InstructionProgram, provenance: Provenance) -> StateWrites:
        """Find the instructions of a program that write its states."""
        finder = _StateFinder(program.functions, provenance)
        finder.returning(_MAIN, program.main)
        return cls(
            finder.sums,
            finder.before,
            frozenset(finder.running),
            frozenset(finder.returned),
        )

    def __contains__(self, i: Instruction) -> bool:
        return id(i) in self.running or id(i) in self.returned


class _Carried(NamedTuple):
    """How a value depends on states.

    Attributes:
        exact: the states that it equals, perhaps after a cast.
        scaled: the states of which it is a multiple, by a single number.
        stepped: the states to which something was added, with this value as the sum.
        writes: pairs of a state and the identity of a write to it, for all writes from
            which the value is computed.
    """

    exact: frozenset[Place] = frozenset()
    scaled: frozenset[Place] = frozenset()
    stepped: frozenset[Place] = frozenset()
    writes: frozenset[tuple[Place, int]] = frozenset()


def written_format(i: Instruction) -> str:
    """Return the name of the format to which the first result is rounded."""
    return i.write_format or i.results[0].type.dtype.name


def is_narrow(i: Instruction) -> bool:
    """Return whether the first result is a float with fewer digits than FP32."""
    written = written_format(i)
    digits = get_format("float32").mantissa_bits
    return written in FORMATS and get_format(written).mantissa_bits < digits


class _StateFinder(DataFlow[_Carried]):
    nothing = _Carried()

    def __init__(self, functions: Functions, provenance: Provenance) -> None:
        super().__init__(functions)
        self.sums: dict[int, tuple[int, ...]] = {}
        self.before: dict[int, int] = {}
        self.running: set[int] = set()
        self.returned: set[int] = set()
        self._provenance = provenance
        self._types: dict[Place, TensorType] = {}
        # The buffers of this block, and of those around it, that hold unchanged states.
        self._holders: dict[Place, int] = {}
        self._repeated: set[int] = set()  # buffers that repeat one number

    def join(self, one: _Carried, other: _Carried) -> _Carried:
        return _Carried(*map(operator.or_, one, other))

    def block(self, block: Block, arguments: Sequence[_Carried]) -> list[_Carried]:
        outer = self._holders
        held = {
            place: buffer.number
            for buffer, fact in zip(block.arguments, arguments, strict=True)
            for place in fact.exact
            if buffer.type == self._types[place]
        }
        self._holders = outer | held
        facts = super().block(block, arguments)
        self._holders = outer
        return facts

    def returning(self, owner: int, block: Block) -> None:
        """Analyse a block with states as arguments and the next states as results."""
        outs = self._given_states(owner, block)
        for out, view in zip(outs, block.results, strict=True):
            self.returned.update(
                n for place, n in out.writes if self._types[place] == view.type
            )

    def _given_states(self, owner: int, block: Block) -> list[_Carried]:
        places = [(owner, n) for n in range(len(block.arguments))]
        types = (buffer.type for buffer in block.arguments)
        self._types |= dict(zip(places, types, strict=True))
        return self.block(block, [_Carried(frozenset((p,))) for p in places])

    def transfer(self, i: Instruction) -> Sequence[_Carried] | None:
        if entries(i, self.functions):
            return None
        carried, op = self.nothing, getattr(i, "op", "")
        if isinstance(i, TensorTensor) and op in ("add", "subtract"):
            carried = self._sum(i)
        elif isinstance(i, TensorTensor | TensorScalar) and op == "multiply":
            carried = self._scaled(i)
        elif isinstance(i, TensorCopy | DmaCopy) and len(i.operands) == 1:
            carried = self._moved(i)
        elif isinstance(i, Select) or op in ("maximum", "minimum"):
            writes = (self.of(view).writes for view in i.operands)
            carried = _Carried(writes=frozenset().union(*writes))
        return [carried] * len(i.results)

    def _sum(self, i: TensorTensor) -> _Carried:
        facts = list(map(self.of, i.operands if i.op == "add" else i.operands[:1]))
        exact = tuple(n for n, fact in enumerate(facts) if fact.exact or fact.stepped)
        if exact:
            self.sums[id(i)] = exact
            places = frozenset().union(
                *(facts[n].exact | facts[n].stepped for n in exact)
            )
            writes = frozenset().union(*(facts[n].writes for n in exact))
            writes |= {(place, id(i)) for place in places}
            return _Carried(stepped=places, writes=writes)
        scaled = [fact.scaled for fact in facts if fact.scaled]
        if len(scaled) != 1:
            return self.nothing
        writes = self._writes(i, scaled[0]) if is_narrow(i) else frozenset()
        return _Carried(stepped=scaled[0], writes=writes)

    def _writes(
        self, i: Instruction, places: frozenset[Place]
    ) -> frozenset[tuple[Place, int]]:
        """Return (state, write) pairs of an instruction, for those of `places` that
        have the type of its result and are in a buffer of an enclosing block."""
        type = i.results[0].type
        held = [p for p in places if p in self._holders and self._types[p] == type]
        if not held:
            return frozenset()
        self.before[id(i)] = self._holders[held[0]]
        return frozenset((place, id(i)) for place in held)

    def _scaled(self, i: Instruction) -> _Carried:
        for n, view in enumerate(i.operands):
            fact, factor = self.of(view), i.operands[1 - n]
            if fact.exact and self._may_decay(factor):
                return _Carried(scaled=fact.exact)
        return self.nothing

    def _may_decay(self, factor: View) -> bool:
        numbers = self._provenance.numbers(factor)
        if numbers:
            return any(_LEAST_DECAY < number <= 1 for number in numbers)
        return not factor.type.shape or factor.buffer.number in self._repeated

    def _moved(self, i: Instruction) -> _Carried:
        fact, given = self.of(i.operands[0]), i.operands[0].buffer
        if math.prod(given.type.shape) == 1 or given.number in self._repeated:
            self._repeated.add(i.results[0].number)
        if isinstance(i, TensorCopy) and is_narrow(i):
            return fact._replace(writes=fact.writes | self._writes(i, fact.stepped))
        return fact

    def nested(self, i: Instruction) -> Sequence[_Carried]:
        if isinstance(i, Loop):
            for n, out in enumerate(self._given_states(id(i), i.body)):
                self.running.update(w for p, w in out.writes if p == (id(i), n))
            return [self.nothing] * len(i.results)
        outer = self._holders
        self._holders = {} if isinstance(i, Call | Spmd) else outer
        facts: Sequence[_Carried] = [self.nothing] * len(i.results)
        if isinstance(i, Spmd):
            self.returning(id(i), i.body)
        else:
            facts = super().nested(i)
        self._holders = outer
        return facts
