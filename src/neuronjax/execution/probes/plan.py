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
from typing import NamedTuple

import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.execution.probes.collect import WATCHED, Collect, Probe
from neuronjax.execution.probes.integers import may_wrap
from neuronjax.execution.probes.running_sums import running_sums
from neuronjax.execution.probes.signs import MAKERS
from neuronjax.execution.probes.upstream import Slots, upstream
from neuronjax.ir.instruction import (
    Block,
    Buffer,
    Instruction,
    InstructionProgram,
    View,
)
from neuronjax.ir.instruction_set import (
    Activation,
    Call,
    DmaCopy,
    LocalScatter,
    Loop,
    Memset,
    NcMatmul,
    NcMatmulMx,
    NcMatmulSparse,
    Pool,
    QuantizeMx,
    Select,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
    TensorTensorScan,
)
from neuronjax.ir.program import Location
from neuronjax.ir.provenance import Provenance, find_provenance
from neuronjax.numerics.float_format import FORMATS, get_format

_MATMULS = (NcMatmul, NcMatmulMx, NcMatmulSparse)
_ARITHMETIC = (
    *_MATMULS,
    Activation,
    LocalScatter,
    Pool,
    TensorReduce,
    TensorScalar,
    TensorTensor,
    TensorTensorScan,
)
# Elementwise, so that the same instruction can write its result in FP32.
_WIDENED = frozenset({"add", "subtract", "multiply", "divide"})


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
        self._facts = _PlanFacts.of(program, names, collect.kinds)
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
            probe = _probe(i, self._facts)
            if probe is None or not self._may_match(probe):
                return None
            self.slots[id(i)] = self._new(probe)
            if _is_widened(i) and probe.counted:
                self.wide[id(i)] = _widened(i)
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


class _PlanFacts(NamedTuple):
    """What is known of a program's buffers and instructions.

    Attributes:
        provenance: the arguments that buffers descend from.
        running: the carried operands of running sums, by the sums' identity.
        kinds: that are selected.
        constants: numbers of the buffers that repeat one number of the program.
        chosen: of those that nothing but a choice reads, which may leave them out.
    """

    provenance: Provenance
    running: Mapping[int, tuple[int, ...]]
    kinds: Sequence[str]
    constants: frozenset[int]
    chosen: frozenset[int]

    @classmethod
    def of(
        cls, program: InstructionProgram, names: Sequence[str], kinds: Sequence[str]
    ) -> _PlanFacts:
        constants: set[int] = set()
        for i in program.walk():
            read = {view.buffer.number for view in i.operands}
            moves = isinstance(i, DmaCopy | TensorCopy)
            if isinstance(i, Memset) or (moves and read <= constants):
                constants.update(buffer.number for buffer in i.results)
        provenance = find_provenance(program, names)
        return cls(
            provenance=provenance,
            running=running_sums(program),
            kinds=kinds,
            constants=frozenset(constants),
            chosen=frozenset(_chosen(program)),
        )

    def is_constant(self, view: View) -> bool:
        """Whether a view repeats one number of the program."""
        return view.buffer.number in self.constants


def _chosen(program: InstructionProgram) -> set[int]:
    """Numbers of the buffers that nothing but a choice reads, here or in a function."""
    choices: set[int] = set()
    others = {view.buffer.number for view in program.main.results}
    handed: list[tuple[int, int]] = []
    for i in program.walk():
        if isinstance(i, Call):
            arguments = program.functions[i.callee].arguments
            pairs = zip(i.operands, arguments, strict=True)
            handed += [(view.buffer.number, inner.number) for view, inner in pairs]
        else:
            read = {view.buffer.number for view in i.operands}
            (choices if isinstance(i, Select) else others).update(read)
    choices |= {outer for outer, inner in handed if inner in choices}
    others |= {outer for outer, inner in handed if inner not in choices}
    return choices - others


def _probe(i: Instruction, facts: _PlanFacts) -> Probe | None:
    kind = _kind(i, facts)
    if kind is None:
        return None
    op = getattr(i, "op", None) or getattr(i, "function", None)
    blocked = i.axis if isinstance(i, QuantizeMx) else None
    names = {n for v in i.operands for n in facts.provenance.of(v)}
    return Probe(
        kind=kind,
        op=f"{i.name}.{op}" if op else i.name,
        scope=i.location.scope,
        source=i.location.source,
        format=i.format if isinstance(i, QuantizeMx) else _written(i),
        shape=i.results[0].type.shape,
        params=tuple(sorted(names)),
        module=i.location.module,
        functions=i.location.functions,
        phase=i.location.phase,
        compared=kind in ("cast", "mx") or (_is_widened(i) and kind not in WATCHED),
        updates=() if kind in WATCHED else _updated(i, facts),
        blocked=blocked,
        running=id(i) in facts.running,
    )


def _kind(i: Instruction, facts: _PlanFacts) -> str | None:
    if isinstance(i, QuantizeMx):
        return "mx"
    if may_wrap(i):
        left_out = i.results[0].number in facts.chosen
        return None if left_out or _is_counter(i, facts) else "integer"
    if not isinstance(i, (TensorCopy, *_ARITHMETIC)) or not _is_float(i.results[0]):
        return None
    if isinstance(i, TensorCopy):
        return "cast" if _narrows(i) else None
    if isinstance(i, _MATMULS):
        return "matmul"
    if _is_update(i, facts):
        return "update"
    if get_format(_written(i)).mantissa_bits < get_format("float32").mantissa_bits:
        return "write"
    return _of_fp32(i, facts)


def _is_counter(i: Instruction, facts: _PlanFacts) -> bool:
    """Whether it counts turns, of which a word holds enough."""
    type = i.results[0].type
    is_word = not type.shape and type.dtype.itemsize == 4
    return is_word and _is_sum(i) and any(map(facts.is_constant, i.operands))


def _of_fp32(i: Instruction, facts: _PlanFacts) -> str:
    """The kind of an FP32 result: counted if that was asked for, else only looked at
    where it may make Inf or NaN."""
    kind = "add" if _is_sum(i) else "result"
    function = getattr(i, "op", getattr(i, "function", ""))
    scales = function == "divide" and facts.is_constant(i.operands[1])
    squares = function == "multiply" and i.operands[0] == i.operands[1]
    watched = squares or (function in MAKERS and not scales)
    return "finite" if watched and kind not in facts.kinds else kind


def _is_update(i: Instruction, facts: _PlanFacts) -> bool:
    if not _is_sum(i) or not i.results[0].type.shape:
        return id(i) in facts.running
    return id(i) in facts.running or (
        len(_updated(i, facts)) == 1 and bool(_changed(i, facts.provenance))
    )


def _is_float(buffer: Buffer) -> bool:
    return buffer.type.dtype.name in FORMATS


def _written(i: Instruction) -> str:
    return i.write_format or i.results[0].type.dtype.name


def _narrows(i: TensorCopy) -> bool:
    """Whether the copy may lose something."""
    if not _is_float(i.operands[0].buffer):
        return False
    source = get_format(i.operands[0].type.dtype)
    written = get_format(_written(i))
    return (
        written.mantissa_bits < source.mantissa_bits
        or written.max_finite < source.max_finite
        or written.min_subnormal > source.min_subnormal
    )


def _is_sum(i: Instruction) -> bool:
    return isinstance(i, TensorTensor) and i.op in ("add", "subtract")


def _is_widened(i: Instruction) -> bool:
    """Whether the result is rounded, and its FP32 can be had by doing it again."""
    return (
        isinstance(i, (TensorTensor, TensorScalar))
        and i.op in _WIDENED
        and _written(i) != "float32"
    )


def _widened(i: Instruction) -> Instruction:
    (result,) = i.results
    wide = dataclasses.replace(result.type, dtype=np.dtype(np.float32))
    return dataclasses.replace(
        i,
        results=(dataclasses.replace(result, type=wide),),
        write_format=None,
        rounding="rne",
    )


def _changed(i: Instruction, provenance: Provenance) -> tuple[int, ...]:
    """Which operands of a sum are a whole argument of the program."""
    whole = tuple(n for n, view in enumerate(i.operands) if provenance.is_whole(view))
    return whole if i.results[0].type.shape else ()


def _updated(i: Instruction, facts: _PlanFacts) -> tuple[int, ...]:
    """Which operands of a sum the other may be an update of: what a loop carries, or
    the argument of the program, if one is; both, if none is or both are. A difference
    updates the first."""
    if not _is_sum(i):
        return ()
    if id(i) in facts.running:
        return facts.running[id(i)]
    candidates = (0, 1) if getattr(i, "op", None) == "add" else (0,)
    changed = tuple(n for n in _changed(i, facts.provenance) if n in candidates)
    return changed or candidates
