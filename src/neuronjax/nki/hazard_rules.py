"""The rules of `nki.check`; each is a method that a walk calls for every instruction.

The walk follows the order of execution and notes which instruction last wrote every
element. Bodies of device loops are walked once. An access with a runtime offset may go
anywhere, so it is only compared with what other cores do to the same tensor. The
compiler synchronises engines, so findings concern only what it cannot order: races
between cores of a grid, engine state, and what the documents call undefined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from neuronjax.hardware import CoreSpec
from neuronjax.ir.kernel import Access, KernelInstruction, KernelProgram, Storage
from neuronjax.nki.limits.element_maps import ElementNotes
from neuronjax.nki.limits.operands import text

MATMULS = frozenset({"nc_matmul", "nc_matmul_mx"})
# At each of these instructions both cores wait for each other.
MEETINGS = frozenset({"core_barrier", "sendrecv"})
CLOBBERING = frozenset({"exponential", "select_reduce", "range_select"})
CONTINUES = "reduce"
# Iterations of `affine_range` must be independent. The older style's documentation
# allows associative reductions; the vendor's Mamba kernel accumulates a sum in SBUF.
ASSOCIATIVE = frozenset({"add", "multiply", "maximum", "minimum"})


Severity = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True)
class KernelFinding:
    """One finding of `nki.check`.

    Attributes:
        rule: the rule's id, such as "cores-race".
        severity: "error" if every call fails, "warning" if the result may differ.
        op: the instruction, such as "nisa.nc_matmul".
        location: "file:line" in the kernel.
        other: "file:line" of the other instruction concerned, or "".
        count: how often it occurs.
        message: what is wrong.
        remedy: what to write instead.
    """

    rule: str
    severity: Severity = "warning"
    op: str
    location: str
    other: str = ""
    count: int = 1
    message: str
    remedy: str

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        lines = [f"{self.severity} {self.rule}: {self.op}: {self.message}{times}"]
        lines.append(f"  at: {self.location}")
        if self.other:
            lines.append(f"  and: {self.other}")
        return "\n".join([*lines, f"  remedy: {self.remedy}"])


def _distinct(numbers: np.ndarray) -> set[int]:
    """Return the distinct numbers of an array, faster than by sorting all elements."""
    flat = numbers.reshape(-1)
    last_of_run = np.flatnonzero(flat[1:] != flat[:-1])
    return {int(flat[-1]), *flat[last_of_run].tolist()}


class HazardWalk:
    """A walk over one program that applies all rules."""

    def __init__(self, program: KernelProgram, core: CoreSpec) -> None:
        self.program, self.core = program, core
        self.found: list[KernelFinding] = []
        self._instructions: list[KernelInstruction] = []
        # For each instruction, the number of `MEETINGS` that its core had reached.
        self._epochs: list[int] = []
        self._met: dict[int, int] = {}
        # For each element, 1 + the number of the instruction that wrote it, or 0.
        self._writers = ElementNotes(np.int32)
        # The storages whose last writers a rule needs; only those are tracked.
        self._asked: set[Storage] = set()
        for i in program.body.walk():
            self._asked.update(a.storage for a in i.inputs if isinstance(a, Access))
            for a in i.outputs:
                is_shared = program.grid and a.storage.memory == "shared_hbm"
                if is_shared or i.name in MATMULS:
                    self._asked.add(a.storage)
        # For each shared tensor: each core's last write, and its last write at a
        # runtime offset.
        self._last: dict[Storage, dict[int, int]] = {}
        self._scattered: dict[Storage, dict[int, int]] = {}
        self._read: dict[Storage, int] = {}  # last reader of the storage
        self._accumulators: dict[tuple[int, str], KernelInstruction] = {}
        self._idle: dict[tuple[int, str], KernelInstruction] = {}

    def run(self) -> list[KernelFinding]:
        for i in self.program.body.walk():
            if i.name in MEETINGS:
                self._met[i.program] = self._met.get(i.program, 0) + 1
            self._instructions.append(i)
            self._epochs.append(self._met.get(i.program, 0))
            self._reads(i)
            self._engine_state(i)
            self._writes(i)
        self._cycles()
        return self.found

    def _add(
        self,
        rule: str,
        i: KernelInstruction,
        other: KernelInstruction | None,
        why: str,
        remedy: str,
    ) -> None:
        finding = KernelFinding(
            rule=rule,
            op=f"nisa.{i.name}",
            location=i.location,
            other=other.location if other else "",
            message=why,
            remedy=remedy,
        )
        self.found.append(finding)

    def _reads(self, i: KernelInstruction) -> None:
        for access in i.inputs:
            if not isinstance(access, Access):
                continue
            self._read[access.storage] = len(self._instructions)
            self._somewhere(i, access, "reads")
            if not _is_followed(access):
                continue
            for number, writer in self._writers_of(access):
                self._affine(i, access, writer)
                self._between_cores(i, access, number, writer, "reads")
        if i.name in MATMULS and i.attributes.get("accumulate"):
            self._accumulates(i)

    def _writes(self, i: KernelInstruction) -> None:
        for access in i.outputs:
            self._somewhere(i, access, "writes")
            self._note(i, access)
            if not _is_followed(access):
                continue
            if access.storage.memory == "shared_hbm" and self.program.grid:
                for number, writer in self._writers_of(access):
                    self._between_cores(i, access, number, writer, "writes")
            if i.name in MATMULS and not i.attributes.get("accumulate"):
                self._overwrites(i, access)
            if access.storage in self._asked:
                self._writers.write(access, len(self._instructions))

    def _writers_of(self, access: Access) -> Iterator[tuple[int, KernelInstruction]]:
        last = self._writers.get(access.storage, 0)
        is_one = isinstance(last, int)
        numbers = {last} if is_one else _distinct(self._writers.view(access))
        for number in sorted(numbers - {0}):
            yield number - 1, self._instructions[number - 1]

    def _affine(
        self, i: KernelInstruction, access: Access, writer: KernelInstruction
    ) -> None:
        """Report a read of what another iteration of the `affine_range` wrote."""
        for before, now in zip(writer.loops, i.loops, strict=False):
            if before.loop != now.loop:
                return
            if before.turn != now.turn:
                adds = i.name == "tensor_tensor" and i.attributes["op"] in ASSOCIATIVE
                reduces = self.program.older and adds and access in i.outputs
                self._add(
                    "loop-carried-reduction" if reduces else "loop-carried",
                    i,
                    writer,
                    f"iteration {now.turn} of affine_range reads {text(access)}, which "
                    f"iteration {before.turn} wrote; compilers before NKI 0.3 assumed "
                    "that iterations are independent",
                    "use range or nl.sequential_range",
                )
                return

    def _accumulates(self, i: KernelInstruction) -> None:
        """Report a matmul that accumulates onto values that no matmul wrote. In the
        older style `nl.zeros(..., buffer=nl.psum)` may also begin an accumulation: the
        vendor's tutorials of that time add products to it."""
        dst = i.outputs[0]
        if "accumulate_onto_values" in self.core.capabilities or not _is_followed(dst):
            return
        for _, writer in self._writers_of(dst):
            zeros = writer.name == "memset" and not any(writer.parameters)
            begins = self.program.older and zeros
            if writer.name not in MATMULS and not begins:
                self._add(
                    "accumulate-onto-values",
                    i,
                    writer,
                    f"accumulates onto {text(dst)}, which nisa.{writer.name} wrote: "
                    f"undefined on {self.core.name}",
                    "let the first matmul overwrite (accumulate=False) and add the "
                    "values afterwards with nisa.tensor_tensor",
                )

    def _overwrites(self, i: KernelInstruction, dst: Access) -> None:
        """Report a product overwritten before it is read; often a sum was intended."""
        for number, writer in self._writers_of(dst):
            if writer.name in MATMULS and self._read.get(dst.storage, 0) <= number:
                self._add(
                    "product-unread",
                    i,
                    writer,
                    f"overwrites {text(dst)}, a product that nothing has read",
                    "use accumulate=True after the first tile of K, or leave "
                    "accumulate out; write a separate product to another tile",
                )

    def _between_cores(
        self,
        i: KernelInstruction,
        access: Access,
        number: int,
        writer: KernelInstruction,
        verb: str,
    ) -> None:
        """Report access to what the other core wrote since the cores last met."""
        if access.storage.memory != "shared_hbm" or writer.program == i.program:
            return
        if self._epochs[number] < self._epochs[-1]:
            return
        self._add(
            "cores-race",
            i,
            writer,
            f"core {i.program} {verb} {text(access)}, of which core {writer.program} "
            "writes elements, and nothing orders the two accesses",
            "use nisa.core_barrier between them, or let the cores use separate parts",
        )

    def _somewhere(self, i: KernelInstruction, access: Access, verb: str) -> None:
        """Report a race that is possible because an access has a runtime offset."""
        followed = access.dynamic is None
        before = (self._scattered if followed else self._last).get(access.storage, {})
        for number in before.values():
            writer = self._instructions[number]
            self._between_cores(i, access, number, writer, f"{verb} what may be in")

    def _note(self, i: KernelInstruction, access: Access) -> None:
        if access.storage.memory != "shared_hbm" or not self.program.grid:
            return
        number = len(self._instructions) - 1
        self._last.setdefault(access.storage, {})[i.program] = number
        if access.dynamic is not None:
            self._scattered.setdefault(access.storage, {})[i.program] = number

    def _engine_state(self, i: KernelInstruction) -> None:
        """Check that an instruction sets the accumulators before others add to them. No
        instruction of `CLOBBERING` may come between: "Even when reduce_cmd is set to
        idle, the accumulator state may still be modified" (nki.isa.exponential)."""
        command = i.attributes.get("reduce_cmd")
        if command is None or i.engine not in ("vector", "scalar"):
            return
        key = (i.program, i.engine)
        reads_after_idle = command == "idle" and len(i.outputs) > 1
        if command == CONTINUES or reads_after_idle:
            self._continued(i, key)
        if command == "idle":
            if i.name in CLOBBERING:
                self._idle[key] = i
            return
        self._accumulators[key] = i
        if command != CONTINUES:
            self._idle.pop(key, None)

    def _continued(self, i: KernelInstruction, key: tuple[int, str]) -> None:
        begun = self._accumulators.get(key)
        if begun is None:
            self._add(
                "accumulators-not-reset",
                i,
                None,
                f"adds to the {i.engine} engine's accumulators, which nothing has set: "
                "they contain what an earlier kernel left (here: zeros)",
                "use reduce_cmd reset_reduce in the first instruction",
            )
        elif key in self._idle:
            self._add(
                "accumulators-clobbered",
                i,
                self._idle[key],
                "adds to accumulators that an earlier instruction with reduce_cmd idle "
                "may have changed",
                "use reset_reduce, or remove the instruction with idle",
            )

    def _cycles(self) -> None:
        edges = self.program.dependencies
        by_number = {(i.program, i.ordinal): i for i in self._instructions}
        for (program, ordinal), after in edges.items():
            for before in after:
                if before == ordinal or self._leads(program, before, ordinal):
                    self._add(
                        "depends-on-cycle",
                        by_number[program, ordinal],
                        by_number.get((program, before)),
                        "waits for an instruction that waits for this one: a deadlock",
                        "remove one of the depends_on arguments",
                    )

    def _leads(self, program: int, start: int, goal: int) -> bool:
        edges, seen, waiting = self.program.dependencies, {start}, [start]
        while waiting:
            for after in edges.get((program, waiting.pop()), ()):
                if after == goal:
                    return True
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
        return False


def _is_followed(access: Access) -> bool:
    return access.dynamic is None and access.storage.memory != "registers"
