"""Loops rewritten as scans, which VectorE computes in one instruction.

`tensor_tensor_scan` is r[i] = (d0[i] op0 r[i - 1]) op1 d1[i] along the free axis, with
its state in FP32 [ISA]. A selective scan, for example, is a loop over tokens whose
carry is h = a h + b. In the rewritten program, as in the vendor's tutorial of a fused
Mamba kernel [MAM], each instruction of the loop's body processes all iterations
together, along an additional last axis, and scans compute the carry. This needs
transpositions; a loop is rewritten if they take less time than the latencies of its
iterations. Only the predicted time changes: execution still runs the loop.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from neuronjax.ir.collective_set import Spmd
from neuronjax.ir.instruction import Block, Instruction, InstructionProgram
from neuronjax.ir.instruction_set import Branch, DmaCopy, Loop, Memset
from neuronjax.timing.cost_rules import nbytes
from neuronjax.timing.engines.dma import hbm_bytes_per_second
from neuronjax.timing.engines.lanes import latency_seconds
from neuronjax.timing.loop_vectorization import (
    LoopVectorization,
    composed,
    is_loop_of_slices,
)
from neuronjax.timing.trips import all_writers, static_trips
from neuronjax.timing.work import Core


def with_scans(program: InstructionProgram, core: Core) -> InstructionProgram:
    """Return the program with scans instead of the recurrent loops that become quicker
    as scans; `program` itself if there is no such loop."""
    if not any(isinstance(i, Loop) for i in program.walk()):
        return program
    rewriting = _ScanRewriting(program, core)
    main = rewriting.block(program.main)
    functions = {n: rewriting.block(b) for n, b in program.functions.items()}
    changed = main is not program.main or any(
        functions[n] is not b for n, b in program.functions.items()
    )
    if not changed:
        return program
    return dataclasses.replace(program, main=main, functions=functions)


def scanned_loops(
    before: InstructionProgram, after: InstructionProgram
) -> tuple[str, ...]:
    """Return the source lines of the loops of `before` that are scans in `after`, the
    result of `with_scans(before, ...)`."""
    if after is before:
        return ()
    left = {i.location.source for i in after.walk() if isinstance(i, Loop)}
    all_of_them = [i.location.source for i in before.walk() if isinstance(i, Loop)]
    return tuple(dict.fromkeys(s for s in all_of_them if s not in left))


class _ScanRewriting:
    def __init__(self, program: InstructionProgram, core: Core) -> None:
        self.functions, self.core = program.functions, core
        self.written = all_writers(program)
        self.fresh = itertools.count(_free_number(program))

    def block(self, block: Block) -> Block:
        instructions: list[Instruction] = []
        changed = False
        for i in block.instructions:
            found = self._instruction(block, i)
            changed = changed or found != [i]
            instructions += found
        if not changed:
            return block
        return dataclasses.replace(
            block, instructions=tuple(_turned_once(instructions))
        )

    def _instruction(self, block: Block, i: Instruction) -> list[Instruction]:
        if isinstance(i, Loop) and (found := self._scan(block, i)) is not None:
            return found
        return [self._inside(i)] if i.blocks else [i]

    def _inside(self, i: Instruction) -> Instruction:
        blocks = tuple(map(self.block, i.blocks))
        if all(new is old for new, old in zip(blocks, i.blocks, strict=True)):
            return i
        if isinstance(i, Branch):
            return dataclasses.replace(i, branches=blocks)
        if isinstance(i, Loop | Spmd):
            return dataclasses.replace(i, body=blocks[-1])
        return i

    def _scan(self, block: Block, loop: Loop) -> list[Instruction] | None:
        if not is_loop_of_slices(loop, self.functions):
            return None
        trips = static_trips(loop, self.written, self.functions)
        if trips is None or trips < 2:
            return None
        found = LoopVectorization(
            loop, trips, self.functions, self.fresh
        ).instructions()
        if found is None:
            return None
        passes = sum(not isinstance(i, DmaCopy | Memset) for i in found)
        waits = trips * passes * latency_seconds(self.core, "vector")
        turned = self._turned_bytes(block, found)
        return found if turned / hbm_bytes_per_second(self.core) < waits else None

    def _turned_bytes(self, block: Block, found: list[Instruction]) -> float:
        """Return the bytes that the transpositions in `found` move. A transposition
        does not count if it undoes the one before it, or if all instructions that read
        its result undo it; results of the block always count."""
        results = {v.buffer.number for v in block.results}
        total = 0.0
        for i in found:
            if not isinstance(i, DmaCopy) or i.kind != "transpose":
                continue
            before = self.written.get(i.operands[0].buffer.number)
            target = i.results[0].number
            both = (*block.instructions, *found)
            readers = [
                r for r in both if target in {v.buffer.number for v in r.operands}
            ]
            undone = _undo(before, i) or all(_undo(i, r) for r in readers)
            if not undone or target in results:
                total += nbytes(i.results)
        return total


def _free_number(program: InstructionProgram) -> int:
    inner = [block for i in program.walk() for block in i.blocks]
    blocks = (program.main, *program.functions.values(), *inner)
    numbers = [b.number for block in blocks for b in block.arguments]
    numbers += [b.number for i in program.walk() for b in i.results]
    return 1 + max(numbers, default=0)


def _undo(first: Instruction | None, then: Instruction) -> bool:
    both = [
        i for i in (first, then) if isinstance(i, DmaCopy) and i.kind == "transpose"
    ]
    return len(both) == 2 and composed(*both).kind == "reshape"


def _turned_once(instructions: list[Instruction]) -> Iterator[Instruction]:
    """Yield the instructions. If one transposes the result of another transposition, it
    is replaced by one transposition of the original tensor, or by a reshape."""
    turned: dict[int, DmaCopy] = {}
    for i in instructions:
        if isinstance(i, DmaCopy) and i.kind == "transpose":
            before = turned.get(i.operands[0].buffer.number)
            i = i if before is None else composed(before, i)
            if i.kind == "transpose":
                turned[i.results[0].number] = i
        yield i
