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
from neuronjax.ir.instruction import Block, Buffer, Instruction, InstructionProgram
from neuronjax.ir.instruction_set import (
    Activation,
    Call,
    LocalScatter,
    Loop,
    NcMatmul,
    NcMatmulMx,
    NcMatmulSparse,
    Pool,
    QuantizeMx,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
    TensorTensorScan,
)
from neuronjax.ir.provenance import Provenance, find_provenance
from neuronjax.numerics.float_format import FORMATS, FloatFormat, get_format

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

    Attributes:
        collect: the selection.
        probes: in the order of the program.
    """

    program: InstructionProgram
    collect: Collect
    probes: tuple[Probe, ...]
    _slots: Mapping[int, int]
    _wide: Mapping[int, Instruction]

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
        provenance = find_provenance(program, argument_names)
        probes: list[Probe] = []
        slots: dict[int, int] = {}
        wide: dict[int, Instruction] = {}
        equal: Counter[str] = Counter()
        for i in _instructions(program):
            probe = _probe(i, provenance)
            if probe is None or id(i) in slots or not collect.matches(probe):
                continue
            number = equal[probe.key]
            equal[probe.key] += 1
            slots[id(i)] = len(probes)
            probes.append(dataclasses.replace(probe, number=number))
            if _is_widened(i):
                wide[id(i)] = _widened(i)
        if collect.selectors and not probes:
            raise InvalidProgramError(
                f"{collect!r} selects no result of the program",
                remedy="see the sites of neuronjax.Collect(): their op, scope, source "
                "and params are what the patterns are tried on",
            )
        return cls(
            program=program,
            collect=collect,
            probes=tuple(probes),
            _slots=slots,
            _wide=wide,
        )

    def slot(self, i: Instruction) -> int | None:
        """The number of an instruction's probe."""
        return self._slots.get(id(i))

    def wide(self, i: Instruction) -> Instruction | None:
        """The instruction that writes in FP32 what this one rounds, where that is one
        of its own."""
        return self._wide.get(id(i))

    def slots(self, blocks: Sequence[Block]) -> tuple[int, ...]:
        """Of all that blocks run, callees included."""
        return tuple(sorted({s for block in blocks for s in self._slots_of(block)}))

    def _slots_of(self, block: Block) -> Iterator[int]:
        for i in _inside(block):
            if id(i) in self._slots:
                yield self._slots[id(i)]
            if isinstance(i, Call):
                yield from self._slots_of(self.program.functions[i.callee])


class Collector:
    """Carries a selection to where a program is lowered, and its probes back.

    Attributes:
        collect: the selection.
        probes: of the program that was planned last.
    """

    def __init__(self, collect: Collect) -> None:
        self.collect = collect
        self.probes: tuple[Probe, ...] = ()

    def plan(self, program: InstructionProgram, names: Sequence[str]) -> ProbePlan:
        """The plan of a program; see `ProbePlan.of`."""
        plan = ProbePlan.of(program, self.collect, names)
        self.probes = plan.probes
        return plan


def _instructions(program: InstructionProgram) -> Iterator[Instruction]:
    for block in (program.main, *program.functions.values()):
        yield from _inside(block)


def _inside(block: Block) -> Iterator[Instruction]:
    """Every instruction, nested blocks included, but those of loops' conditions."""
    for i in block.instructions:
        yield i
        for inner in (i.body,) if isinstance(i, Loop) else i.blocks:
            yield from _inside(inner)


def _probe(i: Instruction, provenance: Provenance) -> Probe | None:
    kind = _kind(i, provenance)
    if kind is None:
        return None
    op = getattr(i, "op", None) or getattr(i, "function", None)
    blocked = i.axis if isinstance(i, QuantizeMx) else None
    return Probe(
        kind=kind,
        op=f"{i.name}.{op}" if op else i.name,
        scope=i.location.scope,
        source=i.location.source,
        format=i.format if isinstance(i, QuantizeMx) else _written(i).name,
        shape=i.results[0].type.shape,
        params=tuple(sorted({n for v in i.operands for n in provenance.of(v)})),
        compared=kind in ("cast", "mx") or _is_widened(i),
        updates=_updated(i, provenance),
        blocked=blocked,
    )


def _kind(i: Instruction, provenance: Provenance) -> str | None:
    if isinstance(i, QuantizeMx):
        return "mx"
    if not isinstance(i, (TensorCopy, *_ARITHMETIC)) or not _is_float(i.results[0]):
        return None
    if isinstance(i, TensorCopy):
        return "cast" if _narrows(i) else None
    if isinstance(i, _MATMULS):
        return "matmul"
    if _is_sum(i) and len(_updated(i, provenance)) == 1 and _changed(i, provenance):
        return "update"
    if _written(i).mantissa_bits < get_format("float32").mantissa_bits:
        return "write"
    return "add" if _is_sum(i) else "result"


def _is_float(buffer: Buffer) -> bool:
    return buffer.type.dtype.name in FORMATS


def _written(i: Instruction) -> FloatFormat:
    return get_format(i.write_format or i.results[0].type.dtype)


def _narrows(i: TensorCopy) -> bool:
    """Whether the copy may lose something."""
    if not _is_float(i.operands[0].buffer):
        return False
    source, written = get_format(i.operands[0].type.dtype), _written(i)
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
        and _written(i).name != "float32"
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


def _updated(i: Instruction, provenance: Provenance) -> tuple[int, ...]:
    """Which operands of a sum the other may be an update of: the argument of the
    program, if one is; both, if none is or both are. A difference updates the first."""
    if not _is_sum(i):
        return ()
    candidates = (0, 1) if getattr(i, "op", None) == "add" else (0,)
    changed = tuple(n for n in _changed(i, provenance) if n in candidates)
    return changed or candidates
