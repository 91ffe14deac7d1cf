"""A 32-bit hash of every instruction's result, as a program runs.

What a golden keeps so that a later run can say which op changed first. The compiled
program hands every result to the host, in the order of execution, iterations of loops
included, and the host hashes it: in the program that would be far more to compile. NaNs
count as one: which payload an intermediate has is not promised.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from neuronjax.api.jit import NATIVE_JIT
from neuronjax.ir.instruction import Instruction, InstructionProgram

#: Of one program; what runs later is not kept. Four bytes each.
MOST_EXECUTIONS = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpHashes:
    """The instructions of a program and what they computed.

    Attributes:
        lines: every instruction in program order: name, result types, source line.
        sequence: int32, the indices of those executed, in order; the first
            `MOST_EXECUTIONS`.
        hashes: uint32, of their results.
    """

    lines: tuple[str, ...]
    sequence: np.ndarray
    hashes: np.ndarray

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the instructions without their source lines, which move."""
        return tuple(line.split("  # ")[0] for line in self.lines)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstChange:
    """The first op whose result, or kind, is another than before.

    Attributes:
        line: the instruction now: name, result types, source line.
        before: the instruction then, where it was another one, else "".
        execution: how many times it had run before: the iteration of its loop.
        position: how many instructions had run before it, all equal.
    """

    line: str
    before: str = ""
    execution: int = 0
    position: int = 0

    def __str__(self) -> str:
        times = f", on run {self.execution + 1} of it" if self.execution else ""
        was = f"\n    it was {self.before}" if self.before else ""
        return f"{self.line}{times} (after {self.position} equal results){was}"


def first_change(before: OpHashes, now: OpHashes) -> FirstChange | None:
    """The first op that changed between two runs, or None."""
    count = min(before.hashes.size, now.hashes.size)
    kinds = zip(before.kinds, now.kinds, strict=False)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], kinds)
    limit = sum(1 for _ in same)
    same_op = before.sequence[:count] == now.sequence[:count]
    # Beyond the first instruction that is another one, indices mean something else.
    known = same_op & (now.sequence[:count] < limit)
    equal = known & (before.hashes[:count] == now.hashes[:count])
    wrong = np.flatnonzero(~equal)
    if not wrong.size:
        return None
    at = int(wrong[0])
    index, old = int(now.sequence[at]), int(before.sequence[at])
    line, was = now.lines[index], before.lines[old]
    return FirstChange(
        line=line,
        before="" if line == was else was,
        execution=int(np.count_nonzero(now.sequence[:at] == index)),
        position=at,
    )


def watched(
    program: InstructionProgram, run: Callable[..., Any]
) -> Callable[..., tuple[Any, OpHashes]]:
    """A program's run, which returns what it did and the hashes.

    `run(listeners, *arrays)` calls the interpreter, and can be traced.
    """
    lines, numbers = [], {}
    for number, instruction in enumerate(program.walk()):
        numbers.setdefault(id(instruction), number)
        lines.append(line_of(instruction))
    seen: list[tuple[int, int]] = []

    def record(number: int, *results: Any) -> None:
        if len(seen) < MOST_EXECUTIONS:
            seen.append((number, hash32(*map(np.asarray, results))))

    def did_execute(instruction: Instruction, operands: Any, results: Any) -> None:
        if results:
            told = functools.partial(record, numbers[id(instruction)])
            io_callback(told, None, *results, ordered=True)

    listener = types.SimpleNamespace(did_execute=did_execute)
    jitted = NATIVE_JIT(lambda *arrays: run((listener,), *arrays))

    def watched_run(*arrays: Any) -> tuple[Any, OpHashes]:
        seen.clear()
        results = jax.block_until_ready(jitted(*arrays))
        jax.effects_barrier()
        sequence, hashes = zip(*seen, strict=True) if seen else ((), ())
        return results, OpHashes(
            lines=tuple(lines),
            sequence=np.array(sequence, np.int32),
            hashes=np.array(hashes, np.uint32),
        )

    return watched_run


def line_of(instruction: Instruction) -> str:
    """An instruction in one line, without numbers that shift when others change."""
    types = ", ".join(str(buffer.type) for buffer in instruction.results)
    source = instruction.location.source
    return f"{instruction.name} {types}" + (f"  # {source}" if source else "")


def hash32(*arrays: np.ndarray) -> int:
    """CRC-32 of the elements' bits, in row-major order; all NaNs are one."""
    found = 0
    for array in arrays:
        found = zlib.crc32(_canonical(np.ascontiguousarray(array)).tobytes(), found)
    return found


def _canonical(array: np.ndarray) -> np.ndarray:
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    nan = np.isnan(array.astype(np.float32))
    codes = array.view(f"u{array.dtype.itemsize}")
    return np.where(nan, np.zeros((), np.uint8), codes) if nan.any() else array
