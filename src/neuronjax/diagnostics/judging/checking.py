"""Problems of a traced candidate kernel that are found without running it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from neuronjax.diagnostics.judging.case import ReferenceCase, ReferenceFailed
from neuronjax.diagnostics.judging.tracing import TracedCandidate
from neuronjax.diagnostics.judging.verdict import Problem
from neuronjax.ir.kernel import (
    Access,
    KernelBlock,
    KernelInstruction,
    KernelProgram,
    KernelWhile,
    Register,
    Storage,
)
from neuronjax.nki.hazards import check

Place = Storage | Register

#: Ids of rules that a kernel may break: either public compilers accept kernels that
#: break the rule, or such kernels gave correct results on chips.
_ADVICE = frozenset({"documented-limit", "loop-carried-reduction", "no-grid"})


def problems(candidate: TracedCandidate) -> dict[str, tuple[Problem, ...]]:
    """Return what `nki.check` finds in `candidate` as "limits", "hazards", "advice"."""
    report = check(candidate.kernel)(*candidate.arguments)
    kinds: dict[str, list[Problem]] = {"limits": [], "hazards": [], "advice": []}
    for f in report.findings:
        kind = "limits" if f.severity == "error" else "hazards"
        kind = "advice" if f.rule in _ADVICE else kind
        message = f"{f.op}: {f.message}" if f.op else f.message
        problem = Problem(
            rule=f.rule,
            location=f.location,
            message=message + (f" (and {f.other})" if f.other else ""),
            remedy=f.remedy,
            count=f.count,
        )
        kinds[kind].append(problem)
    return {kind: tuple(found) for kind, found in kinds.items()}


def ignored_arguments(
    case: ReferenceCase, seeds: Sequence[int], candidate: TracedCandidate
) -> Iterator[Problem]:
    """Yield a problem for each argument that affects a result of the reference `case`,
    but no result of the kernel `candidate`."""
    for n in _unreached(candidate.kernel.program):
        if _matters(case, seeds[0], n):
            text = (
                f"argument {n} affects results of the reference, but not of the kernel"
            )
            remedy = "compute with this argument"
            yield Problem(rule="input-ignored", message=text, remedy=remedy)


def _unreached(program: KernelProgram) -> tuple[int, ...]:
    """Return positions of arguments that `program` does not write, and on which no
    result depends; not all, since the order of instructions is ignored."""
    sources: dict[Place, set[Place]] = defaultdict(set)
    _collect(program.body, sources, frozenset())
    reached = _reached(sources, {a.storage for a in program.results})
    reached |= {a.storage for i in program.body.walk() for a in i.outputs}
    return tuple(n for n, s in enumerate(program.arguments) if s not in reached)


def _collect(
    block: KernelBlock, sources: dict[Place, set[Place]], around: frozenset[Place]
) -> None:
    """Add to `sources`, for each place that an instruction in `block` writes, the
    places that it reads, and the registers `around`, which decide how often `block`
    runs."""
    for item in block.items:
        if isinstance(item, KernelInstruction):
            read = {p for o in (*item.inputs, *item.outputs) for p in _read(o)} | around
            for access in item.outputs:
                sources[access.storage] |= read
            if item.writes_register is not None:
                sources[item.writes_register] |= read
        elif isinstance(item, KernelWhile):
            _collect(item.body, sources, around | {item.condition})
        else:
            bounds = {b for b in (item.start, item.stop) if isinstance(b, Register)}
            _collect(item.body, sources, around | bounds)


def _read(operand: Access | Register) -> list[Place]:
    if isinstance(operand, Register):
        return [operand]
    index = operand.dynamic.index if operand.dynamic is not None else None
    return [operand.storage, *(() if index is None else _read(index))]


def _reached(sources: dict[Place, set[Place]], ends: set[Place]) -> set[Place]:
    found, front = set(ends), list(ends)
    while front:
        new = sources[front.pop()] - found
        found |= new
        front += new
    return found


def _matters(case: ReferenceCase, seed: int, number: int) -> bool:
    """Return whether the reference's results depend on input `number`. Return True if
    this cannot be determined, as for a kernel with a different number of inputs."""
    other = list(case.inputs(seed))
    if len(other) != len(case.kernel_arguments(seed)):
        return True
    before = case.expected(seed)
    other[number] = case.inputs(seed + 1)[number]
    try:
        after = case.answer(other)
    except ReferenceFailed:  # the changed input does not fit the other inputs
        return True
    return any(
        not np.array_equal(b, a, equal_nan=True)
        for b, a in zip(before, after, strict=True)
    )
