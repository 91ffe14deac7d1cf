"""The share of a program's work that is in its backward pass.

Gradients can be communicated while the backward pass runs. An instruction is in the
backward pass, which includes rematerialised forward operations, if its name stack
contains "transpose(". An instruction inside a loop or a callee has a new name stack: it
is in the backward pass if the loop or the call is. A callee's work is divided in
proportion to the calls from each pass. Work is the sum of the busy seconds of all
queues.
"""

from __future__ import annotations

from collections import Counter

from neuronjax.ir.instruction import Block, Instruction, InstructionProgram
from neuronjax.ir.traversal import entries
from neuronjax.timing.timeline import Timeline


def backward_share(program: InstructionProgram, timeline: Timeline) -> float:
    """Return the share of a program's work that is in the backward pass (0 to 1)."""
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
    """Return a key that an instruction shares with its copies in inlined callees."""
    return id(instruction.results)


def _visit(
    program: InstructionProgram,
    block: Block,
    is_backward: bool,
    visits: Counter[int],
    backward: Counter[int],
) -> None:
    """Count in `visits` how often each instruction occurs, and in `backward` how often
    it occurs in the backward pass."""
    for instruction in block.instructions:
        inside = is_backward or instruction.location.phase == "backward"
        visits[_key(instruction)] += 1
        backward[_key(instruction)] += inside
        for entry in entries(instruction, program.functions):
            _visit(program, entry.block, inside, visits, backward)
