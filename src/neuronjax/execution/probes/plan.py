"""Find the instructions of a program that a `Collect` measures: its `ProbePlan`.

Casts, MX quantizations and matmuls are instructions of their own, so their operands and
results are visible. For an elementwise operation that rounds, the same instruction with
an FP32 buffer gives the unrounded result. For all other instructions only the written
result is known.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.execution.probes.collect import Collect, Probe, place_of
from neuronjax.execution.probes.kinds import PlanFacts, is_widened, probe_of, widened
from neuronjax.ir.instruction import Block, Instruction, InstructionProgram
from neuronjax.ir.instruction_set import Call, Loop
from neuronjax.ir.program import Location
from neuronjax.ir.traversal import DataFlow, Functions, entries


class ProbePlan:
    """The measured instructions of one program.

    An instruction has one slot, however often its function is called. An instruction
    without a user line, as in a function of JAX, has one slot for each user line that
    calls it.

    Attributes:
        probes: the probes in the order of the program.
        order: their slots.
        edges: [edges, 2], pairs of probes of which the second is computed from the
            first and comes after it.
        results: the probe of every result of main, or None.
    """

    def __init__(
        self,
        program: InstructionProgram,
        collect: Collect,
        argument_names: Sequence[str] = (),
    ) -> None:
        """Find the probes; callees are searched when they are first called.
        `argument_names` is used only if it has a name for each argument of main.

        Raises:
            InvalidProgramError: the patterns of `collect` select nothing.
        """
        self.collect = collect
        self._program = program
        self._facts = PlanFacts.of(program, argument_names, collect.kinds)
        self._known: list[Probe] = []  # by slot
        # By the identity of instructions, except callees and locations.
        self._slots: dict[int, int] = {}
        self._wide: dict[int, Instruction] = {}
        self._before: dict[int, int] = {}
        self._called: dict[int, Slots] = {}
        self._callees: dict[str, list[int]] = {}
        self._locations: dict[int, Location] = {}
        probes = self._found(program.main)
        order = [slot for slot in probes if collect.matches(self._known[slot])]
        if collect.selectors and not order:
            raise InvalidProgramError(
                f"{collect!r} selects no result of the program",
                remedy="compare the patterns with op, scope, source and params of the "
                "sites that neuronjax.Collect() finds",
            )
        self.order = tuple(order)
        self.probes = _numbered([self._known[slot] for slot in order])
        place = {slot: n for n, slot in enumerate(order)}
        finder = _UpstreamFinder(program.functions, self._slots, self.called)
        finder.block(program.main, [finder.nothing] * len(program.main.arguments))
        edges = ((place.get(a, -1), place.get(b, -1)) for a, b in finder.pairs)
        forward = sorted((a, b) for a, b in edges if 0 <= a < b)
        self.edges = np.asarray(forward, np.int32).reshape(-1, 2)
        written = {
            buffer.number: place.get(self._slots.get(id(i), -1))
            for i in program.main.instructions
            for buffer in i.results[:1]
        }
        results = (written.get(view.buffer.number) for view in program.main.results)
        self.results: tuple[int | None, ...] = tuple(results)

    def slot(self, i: Instruction) -> int | None:
        """Return the number of an instruction's probe, or None."""
        return self._slots.get(id(i))

    def probe(self, slot: int) -> Probe:
        return self._known[slot]

    def wide(self, i: Instruction) -> Instruction | None:
        """Return the instruction that writes the result of `i` in FP32, or None."""
        return self._wide.get(id(i))

    def before(self, i: Instruction) -> int | None:
        """Return the buffer that a probe reads in addition to an instruction's result.
        It holds the state before the step, or the operand of a clip."""
        return self._before.get(id(i))

    def reads(self, i: Instruction) -> set[int]:
        """Return the buffers that probes read in addition to the results of an
        instruction and its blocks."""
        inside = (i, *(inner for block in i.blocks for inner in block.walk()))
        return {self._before[id(x)] for x in inside if id(x) in self._before}

    def called(self, i: Call) -> Slots:
        """Return the slot, at this call, of each slot of the called function."""
        return self._called.get(id(i), {})

    def slots(self, blocks: Sequence[Block]) -> tuple[int, ...]:
        """Return the slots of all instructions that blocks run, callees included."""
        return tuple(sorted({s for block in blocks for s in self._slots_of(block)}))

    def _slots_of(self, block: Block) -> Iterator[int]:
        for i in _inside(block):
            if id(i) in self._slots:
                yield self._slots[id(i)]
            if isinstance(i, Call):
                yield from self._called[id(i)].values()

    # -- the search --------------------------------------------------------------------

    def _found(self, block: Block) -> list[int]:
        slots: dict[int, None] = {}
        for i in _inside(block):
            slot = self._own(i)
            slots |= {} if slot is None else {slot: None}
            if isinstance(i, Call):
                if id(i) not in self._called:
                    self._called[id(i)] = self._placed(i)
                slots |= dict.fromkeys(self._called[id(i)].values())
        return list(slots)

    def _own(self, i: Instruction) -> int | None:
        if id(i) not in self._slots:
            probe = probe_of(i, self._facts)
            if probe is None or not self._may_match(probe):
                return None
            self._slots[id(i)] = self._new(probe)
            before = self._facts.before(i) if probe.advances or probe.ends else None
            if before is not None:
                self._before[id(i)] = before
            if is_widened(i) and probe.counted:
                self._wide[id(i)] = widened(i)
        return self._slots[id(i)]

    def _may_match(self, probe: Probe) -> bool:
        """Return whether the selection may include a probe, wherever it is called."""
        if probe.source:
            return self.collect.matches(probe)
        return probe.kind in self.collect.kinds

    def _new(self, probe: Probe) -> int:
        self._known.append(probe)
        return len(self._known) - 1

    def _placed(self, call: Call) -> Slots:
        """Return, for each slot of the called function, the slot at this call."""
        if call.callee not in self._callees:
            self._callees[call.callee] = self._found(
                self._program.functions[call.callee]
            )
        line, placed = call.location.source, {}
        for slot in self._callees[call.callee]:
            probe = self._known[slot]
            here = probe.location.inside(call.location)
            if line and not probe.source:
                probe = dataclasses.replace(probe, **place_of(here))
                if self.collect.matches(probe):
                    placed[slot] = self._new(probe)
            else:
                placed[slot] = slot
                known = self._locations.setdefault(slot, here)
                self._known[slot] = dataclasses.replace(
                    self._known[slot],
                    module=here.module if here.module == known.module else "",
                    phase=here.phase if here.phase == known.phase else "",
                )
        return placed


def _numbered(probes: Sequence[Probe]) -> tuple[Probe, ...]:
    equal: Counter[str] = Counter()
    numbered = []
    for probe in probes:
        numbered.append(dataclasses.replace(probe, number=equal[probe.key]))
        equal[probe.key] += 1
    return tuple(numbered)


@dataclasses.dataclass(eq=False)
class Collector:
    """Makes the plan of a program for a selection, and keeps its probes.

    Attributes:
        setting: target, logical core, policy and SDK, in words.
        probes: the probes of the program that was planned last.
    """

    collect: Collect
    setting: str
    probes: tuple[Probe, ...] = ()

    def plan(self, program: InstructionProgram, names: Sequence[str]) -> ProbePlan:
        """Return the plan of a program; see `ProbePlan`."""
        plan = ProbePlan(program, self.collect, names)
        self.probes = plan.probes
        return plan


def _inside(block: Block) -> Iterator[Instruction]:
    """Yield every instruction, nested blocks included, except loop conditions."""
    for i in block.instructions:
        yield i
        for inner in (i.body,) if isinstance(i, Loop) else i.blocks:
            yield from _inside(inner)


Slots = Mapping[int, int]
_Sources = frozenset[int]


class _UpstreamFinder(DataFlow[_Sources]):
    """Finds the nearest measured results from which a buffer is computed. `pairs` has
    slots of measured results, the second computed from the first. `own` has slots by
    instruction identity; `called` returns the slots at a call."""

    nothing = frozenset()

    def __init__(
        self, functions: Functions, own: Slots, called: Callable[[Call], Slots]
    ) -> None:
        super().__init__(functions)
        self.pairs: set[tuple[int, int]] = set()
        self._own = own
        self._called = called
        self._calls: list[Slots] = []

    def join(self, one: _Sources, other: _Sources) -> _Sources:
        return one | other

    def transfer(self, i: Instruction) -> Sequence[_Sources] | None:
        if entries(i, self.functions):
            return None
        behind = self.nothing.union(*map(self.of, i.operands))
        slot = self._slot(i)
        if slot is not None:
            self.pairs.update((source, slot) for source in behind)
            behind = frozenset((slot,))
        return [behind] * len(i.results)

    def instruction(self, i: Instruction) -> Sequence[_Sources]:
        if not isinstance(i, Call):
            return super().instruction(i)
        self._calls.append(self._called(i))
        behind = super().instruction(i)
        self._calls.pop()
        return behind

    def _slot(self, i: Instruction) -> int | None:
        slot = self._own.get(id(i))
        for called in reversed(self._calls):
            slot = None if slot is None else called.get(slot)
        return slot
