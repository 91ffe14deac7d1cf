"""The planning of the contents of SBUF and PSUM, and of transfers to and from HBM.

A region (steps that run as one loop over tiles) needs two tiles of each value in SBUF,
since one is computed while the other is used. A value that every tile reads completely
needs its whole size. `sbuf_allocation` chooses the values that stay on chip, `hbm`
finds the contents of HBM over time. Tensors are saved to HBM and reloaded as a whole;
bytes are those of a logical core, over all partitions.

The names (pytree paths) of a program's arguments show which of them are parameters and
optimizer state. If they show none, an argument counts as a parameter if it is the right
operand of a matmul or the table of a gather, and never a left operand. An operand is
followed back to its argument through movements, casts and scales, so a weight that is
cast before the matmul counts. It is not followed through updates, so a KV cache does
not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from neuronjax.ir.collection import no_collection
from neuronjax.ir.collective_set import Spmd
from neuronjax.ir.instruction import Block, Instruction, InstructionProgram, View
from neuronjax.ir.instruction_set import (
    BitcastCopy,
    Branch,
    Call,
    DmaCopy,
    LocalGather,
    Loop,
    NcMatmul,
    NcMatmulMx,
    NcMatmulSparse,
    NcTranspose,
    QuantizeMx,
    Sparsify,
    TensorCopy,
    TensorScalar,
)
from neuronjax.ir.program import Location
from neuronjax.ir.traversal import BlockEntry, DataFlow, Functions, entries
from neuronjax.timing.access import unchanged_carries
from neuronjax.timing.assumptions import CARRY_SHARE
from neuronjax.timing.fusion import fuse
from neuronjax.timing.hbm import categories_of, device_bytes, peak_of
from neuronjax.timing.library_calls import with_chip_instructions
from neuronjax.timing.memory_plan import BlockPlan, Category, MemoryPlan, Tensor, Unit
from neuronjax.timing.recurrences import scanned_loops, with_scans
from neuronjax.timing.sbuf_allocation import SbufAllocation
from neuronjax.timing.tiling import group
from neuronjax.timing.work import Core


@no_collection()
def plan_memory(
    program: InstructionProgram, core: Core, names: Sequence[str] = ()
) -> MemoryPlan:
    """Plan SBUF, PSUM and HBM of a program, and return the plan.

    `names` are the pytree paths of the arguments, as in `Program.argument_names`."""
    given = with_chip_instructions(program, core)
    program = with_scans(given, core)
    planner = _Planner(program, core)
    block = program.main
    categories = categories_of(names[: len(block.arguments)])
    plan = planner.block(block, categories=dict(enumerate(categories)))
    arguments = _arguments(plan, names, categories, given)
    notes = tuple(
        f"loop at {source or '?'}: planned as a scan of VectorE"
        for source in scanned_loops(given, program)
    )
    return MemoryPlan(plan, peak_of(plan, arguments), arguments, notes)


def _arguments(
    plan: BlockPlan,
    names: Sequence[str],
    categories: Sequence[Category | None],
    program: InstructionProgram,
) -> tuple[Tensor, ...]:
    fused = plan.fused
    sizes = device_bytes(plan)
    weights = frozenset() if any(categories) else arguments_like_parameters(program)
    tensors = []
    for n, value in enumerate(fused.arguments):
        category = categories[n] if n < len(categories) else None
        if category is None:
            category = "parameters" if n in weights else "inputs"
        label = (names[n] if n < len(names) else "") or f"argument {n}"
        size = sizes.get(value, fused.sizes[value])
        tensors.append(Tensor(label, size, category, str(fused.types[value])))
    return tuple(tensors)


class _Planner:
    """The planning of a program's blocks; equal callees are planned once."""

    def __init__(self, program: InstructionProgram, core: Core) -> None:
        self.program, self.core = program, core
        self.capacity = core.sbuf_bytes
        self._called: dict[str, BlockPlan] = {}
        self._calls = Counter(i.callee for i in program.walk() if isinstance(i, Call))

    def block(
        self,
        block: Block,
        *,
        resident: frozenset[int] = frozenset(),
        categories: Mapping[int, str | None] | None = None,
        share: float = 1.0,
        call: Location | None = None,
    ) -> BlockPlan:
        """Return the plan of a block that may use the fraction `share` of SBUF. The
        block's arguments at the positions `resident` are already in SBUF.

        If the block is a function that is called once, `call` is the location of the
        call. The locations of the function's instructions then name the call too."""
        fused = fuse(block, self.program.functions, self.core, call)
        return SbufAllocation(
            self.core,
            fused,
            group(fused, self.core),
            int(self.capacity * share),
            resident,
            categories,
            self.inner,
            is_nested=block is not self.program.main,
        ).run()

    def inner(self, unit: Unit) -> None:
        i = unit.region.steps[0].instruction
        if isinstance(i, Loop):
            sizes = [b.type.size_bytes for b in i.body.arguments]
            unit.resident = _smallest(sizes, self.capacity * CARRY_SHARE.value)
            # The body gets 1 - `CARRY_SHARE` of SBUF, plus the bytes of the carried
            # tensors that stay in SBUF.
            carried = sum(sizes[position] for position in unit.resident)
            share = 1 - CARRY_SHARE.value + carried / self.capacity
            body = self.block(i.body, resident=unit.resident, share=share)
            unit.inner = (body,)  # the condition needs no SBUF: sequencers run it
        elif isinstance(i, Branch):
            unit.inner = tuple([self.block(b) for b in i.branches])
        elif isinstance(i, Spmd):
            unit.inner = (self.block(i.body),)
        elif isinstance(i, Call):
            name, call = i.callee, i.location if self._calls[i.callee] == 1 else None
            if name not in self._called:
                body = self.program.functions[name]
                self._called[name] = self.block(body, call=call)
            unit.inner = (self._called[name],)


def _smallest(sizes: Sequence[int], room: float) -> frozenset[int]:
    """Return the positions of the smallest `sizes` that fit in `room` together."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    sums = accumulate(sizes[n] for n in order)
    return frozenset(n for n, size in zip(order, sums, strict=True) if size <= room)


_DERIVING = (BitcastCopy, NcTranspose, QuantizeMx, Sparsify, TensorCopy, TensorScalar)
_MOVED = frozenset(
    "broadcast concatenate dynamic_slice pad reshape reverse slice transpose".split()
)


def arguments_like_parameters(program: InstructionProgram) -> frozenset[int]:
    """Return the positions of main's arguments that are right operands of matmuls or
    tables of gathers, and never left operands, as is usual for parameters."""
    main = program.main
    finder = _ParameterFinder(program.functions)
    finder.block(main, [frozenset({n}) for n in range(len(main.arguments))])
    return finder.right - finder.left


class _ParameterFinder(DataFlow[frozenset[int]]):
    """A search that follows each buffer back to the arguments of main that were moved,
    cast or scaled to make it. Arguments are given by their positions.

    `left` has the arguments that are left operands of matmuls, `right` has the
    arguments that are right operands of matmuls or tables of gathers."""

    nothing = frozenset()

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.left: frozenset[int] = frozenset()
        self.right: frozenset[int] = frozenset()
        self._called: dict[tuple, list[frozenset[int]]] = {}

    def join(self, one: frozenset[int], other: frozenset[int]) -> frozenset[int]:
        return one | other

    def transfer(self, i: Instruction) -> Sequence[frozenset[int]] | None:
        left, right = _sides(i)
        self.left = self.left.union(*map(self.of, left))
        self.right = self.right.union(*map(self.of, right))
        if isinstance(i, Call) or i.blocks:
            return None
        roots = self.nothing.union(*map(self.of, _derived_from(i)))
        return [roots] * len(i.results)

    def nested(self, i: Instruction) -> Sequence[frozenset[int]]:
        """Return, for each result of a loop, branch, call or Spmd, the arguments of
        main that were moved, cast or scaled to make it. A loop's result has such
        arguments only if no iteration changes it; a branch's results have none."""
        found = [self.enter(entry) for entry in entries(i, self.functions)]
        if isinstance(i, Loop):
            kept, roots = unchanged_carries(i), map(self.of, i.operands)
            return [r if n in kept else self.nothing for n, r in enumerate(roots)]
        if isinstance(i, Call | Spmd):
            return found[0]
        return [self.nothing] * len(i.results)

    def enter(self, entry: BlockEntry) -> list[frozenset[int]]:
        given = self.given(entry)
        known = (id(entry.block), given)
        if known not in self._called:
            self._called[known] = self.block(entry.block, given)
        return self._called[known]


def _sides(i: Instruction) -> tuple[Sequence[View], Sequence[View]]:
    if isinstance(i, NcMatmulSparse):
        stationary, moving = i.operands[:1], i.operands[2:]
        is_left = i.stationary == "lhs"
        return (stationary, moving) if is_left else (moving, stationary)
    if isinstance(i, NcMatmul | NcMatmulMx):
        return i.operands[:1], i.operands[1:2]
    if isinstance(i, LocalGather):
        return (), i.operands[:1]
    return (), ()


def _derived_from(i: Instruction) -> Sequence[View]:
    if isinstance(i, _DERIVING):
        return i.operands[:1]
    if isinstance(i, DmaCopy) and i.kind in _MOVED:
        return i.operands if i.kind == "concatenate" else i.operands[:1]
    return ()
