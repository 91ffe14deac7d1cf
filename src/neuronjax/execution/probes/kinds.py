"""Decide how an instruction is measured: the kind and the fields of its probe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from neuronjax.execution.probes.bounds import Clip, quantizing_bounds
from neuronjax.execution.probes.collect import WATCHED, Probe, place_of
from neuronjax.execution.probes.signs import MAKERS
from neuronjax.execution.probes.states import StateWrites, is_narrow, written_format
from neuronjax.execution.probes.watching import may_wrap
from neuronjax.ir.instruction import Buffer, Instruction, InstructionProgram, View
from neuronjax.ir.instruction_set import (
    Activation,
    Call,
    LocalScatter,
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
# Elementwise operations: the same instruction can also write its result in FP32.
_WIDENED = frozenset({"add", "subtract", "multiply", "divide"})


class PlanFacts(NamedTuple):
    """The facts about a program's buffers and instructions that choose its probes.

    Attributes:
        provenance: the arguments from which buffers descend.
        states: the writes of the next values of states.
        bounds: the clips of quantizers, by identity.
        chosen: the numbers of the buffers read by nothing but selects, which may drop a
            NaN.
    """

    provenance: Provenance
    states: StateWrites
    bounds: Mapping[int, Clip]
    kinds: Sequence[str]
    chosen: frozenset[int]

    @classmethod
    def of(
        cls, program: InstructionProgram, names: Sequence[str], kinds: Sequence[str]
    ) -> PlanFacts:
        """Return the facts of a program whose arguments have these names."""
        provenance = find_provenance(program, names)
        watched = "quantize" in kinds
        return cls(
            provenance=provenance,
            states=StateWrites.of(program, provenance),
            bounds=quantizing_bounds(program, provenance) if watched else {},
            kinds=kinds,
            chosen=frozenset(_chosen(program)),
        )

    def is_constant(self, view: View) -> bool:
        """Return whether a view repeats constants of the program."""
        return bool(self.provenance.numbers(view))

    def advances(self, i: Instruction) -> bool:
        """Return whether an instruction writes the next value of a state that is not
        its operand."""
        return id(i) in self.states.before and i in self.states and not _dithers(i)

    def before(self, i: Instruction) -> int | None:
        """Return the buffer that a probe reads in addition to an instruction's result:
        the state before its step, the operand of a clip, or None."""
        if id(i) in self.bounds:
            return self.bounds[id(i)].before
        return self.states.before[id(i)] if self.advances(i) else None


def _chosen(program: InstructionProgram) -> set[int]:
    """Return the buffers that nothing but selects reads, also in called functions."""
    choices: set[int] = set()
    others = {view.buffer.number for view in program.main.results}
    handed: list[tuple[int, int]] = []
    for i in program.walk():
        if isinstance(i, Call):
            pairs = zip(i.operands, program.functions[i.callee].arguments, strict=True)
            handed += [(view.buffer.number, inner.number) for view, inner in pairs]
        else:
            read = {view.buffer.number for view in i.operands}
            (choices if isinstance(i, Select) else others).update(read)
    choices |= {outer for outer, inner in handed if inner in choices}
    others |= {outer for outer, inner in handed if inner not in choices}
    return choices - others


def probe_of(i: Instruction, facts: PlanFacts) -> Probe | None:
    """Return the probe of an instruction, or None if it is not measured."""
    kind = _kind(i, facts)
    if kind is None:
        return None
    op = getattr(i, "op", None) or getattr(i, "function", None)
    blocked = i.axis if isinstance(i, QuantizeMx) else None
    names = {n for v in i.operands for n in facts.provenance.of(v)}
    return Probe(
        kind=kind,
        op=f"{i.name}.{op}" if op else i.name,
        format=i.format if isinstance(i, QuantizeMx) else written_format(i),
        shape=i.results[0].type.shape,
        params=tuple(sorted(names)),
        compared=kind in ("cast", "mx") or (is_widened(i) and kind not in WATCHED),
        updates=() if kind in WATCHED else _updated(i, facts),
        advances=facts.advances(i),
        ends=tuple(sorted(facts.bounds[id(i)].ends)) if kind == "quantize" else (),
        blocked=blocked,
        running=id(i) in facts.states.running,
        **place_of(i.location),
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
    if id(i) in facts.bounds:
        return "quantize"
    if isinstance(i, _MATMULS):
        return "matmul"
    if _is_update(i, facts):
        return "update"
    if is_narrow(i):
        return "write"
    # "finite": elements are not counted, but the instruction may make an Inf or NaN.
    kind = "add" if _is_sum(i) else "result"
    function = getattr(i, "op", getattr(i, "function", ""))
    scales = function == "divide" and facts.is_constant(i.operands[1])
    squares = function == "multiply" and i.operands[0] == i.operands[1]
    watched = squares or (function in MAKERS and not scales)
    return "finite" if watched and kind not in facts.kinds else kind


def _is_counter(i: Instruction, facts: PlanFacts) -> bool:
    """Return whether an instruction counts iterations, which 32 bits are enough for."""
    type = i.results[0].type
    is_word = not type.shape and type.dtype.itemsize == 4
    return is_word and _is_sum(i) and any(map(facts.is_constant, i.operands))


def _is_update(i: Instruction, facts: PlanFacts) -> bool:
    if not _is_sum(i) or _dithers(i):
        return False
    if id(i) in facts.states.running or facts.advances(i):
        return True
    kept, shape = i in facts.states, i.results[0].type.shape
    # Adding one number, such as an epsilon, only guards a division. `numbers` has NaN
    # for a constant whose elements differ.
    guards = any(n == n for v in i.operands for n in facts.provenance.numbers(v))
    if not kept and (guards or not shape):
        return False
    is_argument = kept or bool(_changed(i, facts.provenance))
    return is_argument and len(_updated(i, facts)) == 1


def _dithers(i: Instruction) -> bool:
    """Return whether an instruction rounds stochastically to a narrow format. A state
    that such a rounding leaves unchanged has lost nothing on average."""
    return is_narrow(i) and i.rounding == "stochastic"


def _is_float(buffer: Buffer) -> bool:
    return buffer.type.dtype.name in FORMATS


def _narrows(i: TensorCopy) -> bool:
    """Return whether a copy may change a float."""
    if not _is_float(i.operands[0].buffer):
        return False
    source = get_format(i.operands[0].type.dtype)
    written = get_format(written_format(i))
    return (
        written.mantissa_bits < source.mantissa_bits
        or written.max_finite < source.max_finite
        or written.min_subnormal > source.min_subnormal
    )


def _is_sum(i: Instruction) -> bool:
    return isinstance(i, TensorTensor) and i.op in ("add", "subtract")


def is_widened(i: Instruction) -> bool:
    """Return whether an instruction rounds a result that it can also write in FP32."""
    return (
        isinstance(i, (TensorTensor, TensorScalar))
        and i.op in _WIDENED
        and written_format(i) != "float32"
    )


def widened(i: Instruction) -> Instruction:
    """Return the same instruction with an FP32 buffer for its result."""
    (result,) = i.results
    wide = dataclasses.replace(result.type, dtype=np.dtype(np.float32))
    return dataclasses.replace(
        i,
        results=(dataclasses.replace(result, type=wide),),
        write_format=None,
        rounding="rne",
    )


def _changed(i: Instruction, provenance: Provenance) -> tuple[int, ...]:
    """Return which operands of a sum are a whole argument of the program."""
    whole = tuple(n for n, view in enumerate(i.operands) if provenance.is_whole(view))
    return whole if i.results[0].type.shape else ()


def _updated(i: Instruction, facts: PlanFacts) -> tuple[int, ...]:
    """Return which operands a sum may update: the only one that is a state or an
    argument of the program, else both. A difference updates its first operand."""
    if not _is_sum(i) or facts.advances(i):
        return ()
    if i in facts.states and id(i) in facts.states.sums:
        return facts.states.sums[id(i)]
    candidates = (0, 1) if getattr(i, "op", None) == "add" else (0,)
    changed = tuple(n for n in _changed(i, facts.provenance) if n in candidates)
    return changed or candidates
