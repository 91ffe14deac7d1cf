"""What a kernel leaves to chance: each rule is a method that sees every instruction.

The walk follows the order of execution and remembers which instruction wrote every
element last; bodies of device loops are read once. A runtime offset may be any: of such
accesses only what other cores do to the tensor is looked for. Engines are synchronised
by the compiler, so that only what it does not see is a finding: cores of a grid, engine
state, what the documents call undefined.
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
# Each is where both cores meet.
MEETINGS = frozenset({"core_barrier", "sendrecv"})
CLOBBERING = frozenset({"exponential", "select_reduce", "range_select"})
CONTINUES = "reduce"
# The older style's documents except associative reductions from the independence of
# turns, and the vendor's own Mamba kernel has one in SBUF.
ASSOCIATIVE = frozenset({"add", "multiply", "maximum", "minimum"})


Severity = Literal["error", "warning"]


@dataclass(frozen=True, kw_only=True)
class KernelFinding:
    """One thing found in a kernel.

    Attributes:
        rule: its id, "cores-race" and so on.
        severity: "error": every call raises it. "warning": the result may differ.
        op: the instruction, "nisa.nc_matmul".
        location: "file:line" in the kernel.
        other: "file:line" of the other instruction concerned, or "".
        count: how often.
        message: what is wrong.
        remedy: what to write instead.
    """

    rule: str
    severity: Severity
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


def _asked_about(program: KernelProgram) -> set[Storage]:
    """Storages whose last writers are asked for: one knows an element's for each."""
    found: set[Storage] = set()
    for i in program.body.walk():
        found.update(a.storage for a in i.inputs if isinstance(a, Access))
        found.update(
            a.storage
            for a in i.outputs
            if i.name in MATMULS or (program.grid and a.storage.memory == "shared_hbm")
        )
    return found


def _distinct(numbers: np.ndarray) -> set[int]:
    """Of an array in which neighbours are mostly equal: sorting it takes longer."""
    flat = numbers.reshape(-1)
    last_of_run = np.flatnonzero(flat[1:] != flat[:-1])
    return {int(flat[-1]), *flat[last_of_run].tolist()}


class HazardWalk:
    """All rules over one program.

    Args:
        program: a traced kernel.
        core: of its target.
    """

    def __init__(self, program: KernelProgram, core: CoreSpec) -> None:
        self.program, self.core = program, core
        self.found: list[KernelFinding] = []
        self._instructions: list[KernelInstruction] = []
        self._epochs: list[int] = []  # how often its core had met the other
        self._met: dict[int, int] = {}
        self._writers = ElementNotes(np.int32)  # instruction number + 1, or 0
        self._asked = _asked_about(program)
        # Of tensors that cores share, each core's last write, and last write to a place
        # that the run decides.
        self._last: dict[Storage, dict[int, int]] = {}
        self._scattered: dict[Storage, dict[int, int]] = {}
        self._read: dict[Storage, int] = {}  # number of the last instruction that did
        self._accumulators: dict[tuple[int, str], KernelInstruction] = {}
        self._idle: dict[tuple[int, str], KernelInstruction] = {}

    def run(self) -> list[KernelFinding]:
        """Return everything found, in the order of the program."""
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
        """Find something: what reads or continues, what wrote before, why, a remedy."""
        finding = KernelFinding(
            rule=rule,
            severity="warning",
            op=f"nisa.{i.name}",
            location=i.location,
            other=other.location if other else "",
            message=why,
            remedy=remedy,
        )
        self.found.append(finding)

    # ---- Elements.

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
        """The instructions that wrote elements of a view last."""
        found = self._writers.get(access.storage, 0)
        is_one = isinstance(found, int)
        numbers = {found} if is_one else _distinct(self._writers.view(access))
        for number in sorted(numbers - {0}):
            yield number - 1, self._instructions[number - 1]

    def _affine(
        self, i: KernelInstruction, access: Access, writer: KernelInstruction
    ) -> None:
        """A turn of `affine_range` reads what an earlier one wrote."""
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
                    f"turn {now.turn} of affine_range reads {text(access)}, which turn "
                    f"{before.turn} wrote; compilers before NKI 0.3 assumed that turns "
                    "are independent",
                    "range or nl.sequential_range",
                )
                return

    def _accumulates(self, i: KernelInstruction) -> None:
        """Only a matmul begins an accumulation that a matmul goes on with.

        In the older style that is `nl.zeros(..., buffer=nl.psum)`, which the vendor's
        tutorials of that time add products to: its compiler begins the sum there.
        """
        dst = i.outputs[0]
        if "accumulate_onto_values" in self.core.capabilities or not _is_followed(dst):
            return
        for _, writer in self._writers_of(dst):
            # Zeros are where an accumulation of the older style begins.
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
        """A product that nothing has read is lost: most often a sum was meant."""
        for number, writer in self._writers_of(dst):
            if writer.name in MATMULS and self._read.get(dst.storage, 0) <= number:
                self._add(
                    "product-unread",
                    i,
                    writer,
                    f"overwrites {text(dst)}, a product that nothing has read",
                    "accumulate=True after the first tile of K, or leave accumulate "
                    "out; a product of its own needs a tile of its own",
                )

    def _between_cores(
        self,
        i: KernelInstruction,
        access: Access,
        number: int,
        writer: KernelInstruction,
        verb: str,
    ) -> None:
        """Another core's elements, with no meeting in between."""
        if access.storage.memory != "shared_hbm" or writer.program == i.program:
            return
        if self._epochs[number] < self._epochs[-1]:
            return
        self._add(
            "cores-race",
            i,
            writer,
            f"core {i.program} {verb} {text(access)}, of which core {writer.program} "
            "writes elements, and nothing orders them",
            "nisa.core_barrier between them, or another part for each core",
        )

    def _somewhere(self, i: KernelInstruction, access: Access, verb: str) -> None:
        """One of two cores goes where the run decides, with no meeting in between."""
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

    # ---- Engine state.

    def _engine_state(self, i: KernelInstruction) -> None:
        """Accumulators that are continued must have been begun, with nothing between.

        nki.isa.exponential: "Even when reduce_cmd is set to idle, the accumulator state
        may still be modified."
        """
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
                f"goes on with the {i.engine} engine's accumulators, which nothing has "
                "set: they hold what an earlier kernel left (here: zeros)",
                "reduce_cmd reset_reduce in the first instruction",
            )
        elif key in self._idle:
            self._add(
                "accumulators-clobbered",
                i,
                self._idle[key],
                "goes on with accumulators after an instruction with reduce_cmd idle, "
                "which may have changed them",
                "reset_reduce, or no such instruction in between",
            )

    # ---- depends_on.

    def _cycles(self) -> None:
        """Find instructions that wait for themselves, or for what waits for them."""
        edges = self.program.dependencies
        by_number = {(i.program, i.ordinal): i for i in self._instructions}
        for (program, ordinal), after in edges.items():
            for before in after:
                if before == ordinal or self._leads(program, before, ordinal):
                    self._add(
                        "depends-on-cycle",
                        by_number[program, ordinal],
                        by_number.get((program, before)),
                        "waits for an instruction that waits for it: a deadlock",
                        "remove one of the depends_on",
                    )

    def _leads(self, program: int, start: int, goal: int) -> bool:
        """Whether `start` waits, directly or not, for `goal`."""
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
