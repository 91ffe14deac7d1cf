"""What one instruction is measured as: the kind of its probe, and what it knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from neuronjax.execution.probes.collect import WATCHED, Probe
from neuronjax.execution.probes.signs import MAKERS
from neuronjax.execution.probes.watching import may_wrap
from neuronjax.ir.instruction import Buffer, Instruction, InstructionProgram, View
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
from neuronjax.ir.provenance import Provenance, find_provenance
from neuronjax.ir.traversal import DataFlow, Functions, entries
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


class PlanFacts(NamedTuple):
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
    ) -> PlanFacts:
        """Those of a program whose arguments have these names."""
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


def probe_of(i: Instruction, facts: PlanFacts) -> Probe | None:
    """What is measured at an instruction; None where nothing is."""
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
        compared=kind in ("cast", "mx") or (is_widened(i) and kind not in WATCHED),
        updates=() if kind in WATCHED else _updated(i, facts),
        blocked=blocked,
        running=id(i) in facts.running,
    )


def _kind(i: Instruction, facts: PlanFacts) -> str | None:
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


def _is_counter(i: Instruction, facts: PlanFacts) -> bool:
    """Whether it counts turns, of which a word holds enough."""
    type = i.results[0].type
    is_word = not type.shape and type.dtype.itemsize == 4
    return is_word and _is_sum(i) and any(map(facts.is_constant, i.operands))


def _of_fp32(i: Instruction, facts: PlanFacts) -> str:
    """The kind of an FP32 result: counted if that was asked for, else only looked at
    where it may make Inf or NaN."""
    kind = "add" if _is_sum(i) else "result"
    function = getattr(i, "op", getattr(i, "function", ""))
    scales = function == "divide" and facts.is_constant(i.operands[1])
    squares = function == "multiply" and i.operands[0] == i.operands[1]
    watched = squares or (function in MAKERS and not scales)
    return "finite" if watched and kind not in facts.kinds else kind


def _is_update(i: Instruction, facts: PlanFacts) -> bool:
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


def is_widened(i: Instruction) -> bool:
    """Whether the result is rounded, and its FP32 can be had by doing it again."""
    return (
        isinstance(i, (TensorTensor, TensorScalar))
        and i.op in _WIDENED
        and _written(i) != "float32"
    )


def widened(i: Instruction) -> Instruction:
    """The same instruction with an FP32 buffer for its result."""
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


def _updated(i: Instruction, facts: PlanFacts) -> tuple[int, ...]:
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


# -- running sums ----------------------------------------------------------------------

# The sums that a loop carries to its next turn: losses, moments, gradients. Such a sum
# has an operand that the loop has carried, as it was or cast, and its result is carried
# on in the same place.


class _Carried(NamedTuple):
    """Places in the carry of a loop that a value is from.

    Attributes:
        places: the loop by its identity, and the number.
        sums: a place, and the addition to it on the way, by its identity.
    """

    places: frozenset[tuple[int, int]] = frozenset()
    sums: frozenset[tuple[tuple[int, int], int]] = frozenset()


def running_sums(program: InstructionProgram) -> dict[int, tuple[int, ...]]:
    """Of every running sum, by its identity, the operands that were carried."""
    finder = _CarryFinder(program.functions)
    finder.block(program.main, [_Carried()] * len(program.main.arguments))
    return {id(i): finder.carried[id(i)] for i in finder.running}


class _CarryFinder(DataFlow[_Carried]):
    nothing = _Carried()

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.carried: dict[int, tuple[int, ...]] = {}
        self.running: list[Instruction] = []
        self._sums: dict[int, Instruction] = {}

    def join(self, one: _Carried, other: _Carried) -> _Carried:
        return _Carried(one.places | other.places, one.sums | other.sums)

    def transfer(self, i: Instruction) -> Sequence[_Carried] | None:
        if i.blocks or entries(i, self.functions):
            return None
        if isinstance(i, TensorTensor) and i.op in ("add", "subtract"):
            return [self._sum(i)]
        moves = isinstance(i, TensorCopy | DmaCopy) and len(i.operands) == 1
        moved = self.of(i.operands[0]) if moves else self.nothing
        return [moved] * len(i.results)

    def _sum(self, i: TensorTensor) -> _Carried:
        operands = i.operands if i.op == "add" else i.operands[:1]
        added = tuple(n for n, view in enumerate(operands) if self.of(view).places)
        if not added:
            return self.nothing
        self.carried[id(i)], self._sums[id(i)] = added, i
        sums = frozenset((p, id(i)) for n in added for p in self.of(operands[n]).places)
        before = frozenset(s for n in added for s in self.of(operands[n]).sums)
        places = frozenset(place for place, _ in sums)
        return _Carried(places, before | sums)

    def nested(self, i: Instruction) -> Sequence[_Carried]:
        """A loop's turn is looked at once: what a sum is added to is in its carry."""
        if not isinstance(i, Loop):
            outs = [self.enter(entry) for entry in entries(i, self.functions)]
            return list(outs[0]) if len(outs) == 1 and outs[0] else self._unknown(i)
        places = [(id(i), n) for n in range(len(i.operands))]
        carry = [_Carried(frozenset((place,))) for place in places]
        for place, out in zip(places, self.block(i.body, carry), strict=True):
            self.running += [self._sums[s] for p, s in out.sums if p == place]
        return self._unknown(i)

    def _unknown(self, i: Instruction) -> Sequence[_Carried]:
        return [self.nothing] * len(i.results)
