"""Which part of a program's time is its backward pass: what gradients can hide behind.

The name stack says "transpose(" of an instruction of the backward pass, a
rematerialised forward pass included, but inside of loops and callees it starts anew:
what they hold is backward where they are. A callee of both passes counts for both, by
how often each calls it. Shares of the work of all queues, no seconds.
"""

from __future__ import annotations

from collections import Counter

from neuronjax.ir.instruction import Block, Instruction, InstructionProgram
from neuronjax.ir.traversal import entries
from neuronjax.timing.timeline import Timeline


def backward_share(program: InstructionProgram, timeline: Timeline) -> float:
    """The backward pass' share of the work, from 0 to 1.

    Steps that fusion has rewritten count as the others do."""
    visits: Counter[int] = Counter()
    backward: Counter[int] = Counter()
    _visit(program, program.main, False, visits, backward)
    known, behind = 0.0, 0.0
    for total, members in zip(timeline.totals, timeline.fused, strict=True):
        found = [key for member in members if (key := _key(member)) in visits]
        if found:
            spent = sum(total.seconds.values())
            shares = (backward[key] / visits[key] for key in found)
            known += spent
            behind += spent * sum(shares) / len(found)
    return behind / known if known else 0.0


def _key(instruction: Instruction) -> int:
    """What an instruction and its copies at the places of calls have in common."""
    return id(instruction.results)


def _visit(
    program: InstructionProgram,
    block: Block,
    is_backward: bool,
    visits: Counter[int],
    backward: Counter[int],
) -> None:
    """Counts how often each instruction stands in either pass."""
    for instruction in block.instructions:
        inside = is_backward or instruction.location.phase == "backward"
        visits[_key(instruction)] += 1
        backward[_key(instruction)] += inside
        for entry in entries(instruction, program.functions):
            _visit(program, entry.block, inside, visits, backward)
