"""Which instructions of a program are measured: the `ProbePlan` of a `Collect`.

Casts, MX quantizations and matmuls are instructions of their own, so what they are
given and what they make is seen from outside. Of an elementwise operation that rounds
the FP32 result is had by the same instruction with an FP32 buffer; of all others only
what was written is known.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.execution.probes.collect import Collect, Probe
from neuronjax.execution.probes.kinds import PlanFacts, is_widened, probe_of, widened
from neuronjax.execution.probes.upstream import Slots, upstream
from neuronjax.ir.instruction import Block, Instruction, InstructionProgram
from neuronjax.ir.instruction_set import Call, Loop
from neuronjax.ir.program import Location


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbePlan:
    """What is measured in one program.

    An instruction has one slot, however often its function is called; but one without a
    line of the user, as in a function of JAX, has one for each line that calls it.

    Attributes:
        collect: the selection.
        probes: in the order of the program.
        order: their slots.
        edges: [edges, 2], pairs of probes of which the second is computed from the
            first, and comes after it.
        results: of every result of main its probe, or None.
    """

    program: InstructionProgram
    collect: Collect
    probes: tuple[Probe, ...]
    order: tuple[int, ...]
    edges: np.ndarray
    results: tuple[int | None, ...]
    _known: Sequence[Probe]
    _slots: Slots
    _wide: Mapping[int, Instruction]
    _called: Mapping[int, Slots]

    @classmethod
    def of(
        cls,
        program: InstructionProgram,
        collect: Collect,
        argument_names: Sequence[str] = (),
    ) -> ProbePlan:
        """Finds the probes.

        Args:
            program: the instructions.
            collect: what to measure.
            argument_names: of main's arguments; none if they are not one each.

        Raises:
            InvalidProgramError: patterns that select nothing.
        """
        found = _ProbeSearch(program, collect, argument_names)
        order = [s for s in found.block(program.main) if found.is_wanted(s)]
        if collect.selectors and not order:
            raise InvalidProgramError(
                f"{collect!r} selects no result of the program",
                remedy="see the sites of neuronjax.Collect(): their op, scope, source "
                "and params are what the patterns are tried on",
            )
        return cls(
            program=program,
            collect=collect,
            probes=_numbered([found.probes[slot] for slot in order]),
            order=tuple(order),
            edges=found.edges(order),
            results=found.results(order),
            _known=found.probes,
            _slots=found.slots,
            _wide=found.wide,
            _called=found.called,
        )

    def slot(self, i: Instruction) -> int | None:
        """The number of an instruction's probe."""
        return self._slots.get(id(i))

    def probe(self, slot: int) -> Probe:
        """What is measured there."""
        return self._known[slot]

    def wide(self, i: Instruction) -> Instruction | None:
        """The instruction that writes in FP32 what this one rounds, where that is one
        of its own."""
        return self._wide.get(id(i))

    def called(self, i: Call) -> Slots:
        """Where a call counts what its function has counted."""
        return self._called.get(id(i), {})

    def slots(self, blocks: Sequence[Block]) -> tuple[int, ...]:
        """The slots of all that blocks run, callees included."""
        return tuple(sorted({s for block in blocks for s in self._slots_of(block)}))

    def _slots_of(self, block: Block) -> Iterator[int]:
        for i in _inside(block):
            if id(i) in self._slots:
                yield self._slots[id(i)]
            if isinstance(i, Call):
                yield from self._called[id(i)].values()


class _ProbeSearch:
    """Finds the probes of a program, callees when they are first called.

    Attributes:
        probes: by slot.
        slots: of instructions, by their identity.
        wide: as `ProbePlan.wide`, by identity.
        called: as `ProbePlan.called`, by identity.
    """

    def __init__(
        self, program: InstructionProgram, collect: Collect, names: Sequence[str]
    ) -> None:
        self.probes: list[Probe] = []
        self.slots: dict[int, int] = {}
        self.wide: dict[int, Instruction] = {}
        self.called: dict[int, Slots] = {}
        self._program = program
        self._collect = collect
        self._facts = PlanFacts.of(program, names, collect.kinds)
        self._callees: dict[str, list[int]] = {}
        self._told: dict[int, Location] = {}

    def block(self, block: Block) -> list[int]:
        """The slots of a block, each once, in order."""
        found: dict[int, None] = {}
        for i in _inside(block):
            slot = self._own(i)
            found |= {} if slot is None else {slot: None}
            if isinstance(i, Call):
                if id(i) not in self.called:
                    self.called[id(i)] = self._placed(i)
                found |= dict.fromkeys(self.called[id(i)].values())
        return list(found)

    def is_wanted(self, slot: int) -> bool:
        """Whether the selection has it, as far as its line is known."""
        return self._collect.matches(self.probes[slot])

    def edges(self, order: Sequence[int]) -> np.ndarray:
        """As `ProbePlan.edges`."""
        place = {slot: n for n, slot in enumerate(order)}
        pairs = upstream(
            self._program, self.slots, lambda call: self.called.get(id(call), {})
        )
        edges = [(place.get(a, -1), place.get(b, -1)) for a, b in pairs]
        forward = sorted((a, b) for a, b in edges if 0 <= a < b)
        return np.asarray(forward, np.int32).reshape(-1, 2)

    def results(self, order: Sequence[int]) -> tuple[int | None, ...]:
        """As `ProbePlan.results`."""
        main = self._program.main
        place = {slot: n for n, slot in enumerate(order)}
        written = {
            buffer.number: place.get(self.slots.get(id(i), -1))
            for i in main.instructions
            for buffer in i.results[:1]
        }
        return tuple([written.get(view.buffer.number) for view in main.results])

    def _own(self, i: Instruction) -> int | None:
        if id(i) not in self.slots:
            probe = probe_of(i, self._facts)
            if probe is None or not self._may_match(probe):
                return None
            self.slots[id(i)] = self._new(probe)
            if is_widened(i) and probe.counted:
                self.wide[id(i)] = widened(i)
        return self.slots[id(i)]

    def _may_match(self, probe: Probe) -> bool:
        """Whether the selection has it, wherever it is called."""
        if probe.source:
            return self._collect.matches(probe)
        return probe.kind in self._collect.kinds

    def _new(self, probe: Probe) -> int:
        self.probes.append(probe)
        return len(self.probes) - 1

    def _placed(self, call: Call) -> Slots:
        """The slots of a function's probes where it is called from here."""
        if call.callee not in self._callees:
            self._callees[call.callee] = self.block(
                self._program.functions[call.callee]
            )
        line, placed = call.location.source, {}
        for slot in self._callees[call.callee]:
            probe = self.probes[slot]
            here = probe.location.inside(call.location)
            if line and not probe.source:
                probe = _at(probe, here)
                if self._collect.matches(probe):
                    placed[slot] = self._new(probe)
            else:
                placed[slot] = slot
                self._tell(slot, here)
        return placed

    def _tell(self, slot: int, here: Location) -> None:
        """Gives a probe that all calls share the part of the model they agree on."""
        known = self._told.setdefault(slot, here)
        self.probes[slot] = dataclasses.replace(
            self.probes[slot],
            module=here.module if here.module == known.module else "",
            phase=here.phase if here.phase == known.phase else "",
        )


def _at(probe: Probe, here: Location) -> Probe:
    """A probe where a call has led to it."""
    return dataclasses.replace(
        probe,
        source=here.source,
        scope=here.scope,
        module=here.module,
        functions=here.functions,
        phase=here.phase,
    )


def _numbered(probes: Sequence[Probe]) -> tuple[Probe, ...]:
    """With numbers that tell equal ones apart."""
    equal: Counter[str] = Counter()
    numbered = []
    for probe in probes:
        numbered.append(dataclasses.replace(probe, number=equal[probe.key]))
        equal[probe.key] += 1
    return tuple(numbered)


class Collector:
    """Carries a selection to where a program is lowered, and its probes back.

    Attributes:
        collect: the selection.
        setting: target, logical core, policy and SDK, in words.
        probes: of the program that was planned last.
    """

    def __init__(self, collect: Collect, setting: str) -> None:
        self.collect = collect
        self.setting = setting
        self.probes: tuple[Probe, ...] = ()

    def plan(self, program: InstructionProgram, names: Sequence[str]) -> ProbePlan:
        """The plan of a program; see `ProbePlan.of`."""
        plan = ProbePlan.of(program, self.collect, names)
        self.probes = plan.probes
        return plan


def _inside(block: Block) -> Iterator[Instruction]:
    """Every instruction, nested blocks included, but those of loops' conditions."""
    for i in block.instructions:
        yield i
        for inner in (i.body,) if isinstance(i, Loop) else i.blocks:
            yield from _inside(inner)
