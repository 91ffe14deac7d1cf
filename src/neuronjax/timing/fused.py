"""A block after fusion: its steps, and the regions that run tile by tile."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.program import TensorType
from neuronjax.timing.access import ValueAccess
from neuronjax.timing.masks import MaskedScores
from neuronjax.timing.work import Core

#: `FusedStep.form` of steps that share a region with no other step.
ALONE = frozenset({"control", "collective", "other"})


@dataclass(slots=True, eq=False)
class FusedStep:
    """A step of a block: instructions that an engine executes in one pass.

    Attributes:
        instruction: the instruction that is priced.
        members: the instructions that were fused into the step, in order.
        operands: values that `instruction` reads, directly or through access patterns.
        results: values that are written.
        seen: the value for whose shape and dtype the step is priced: the value that a
            fused reduction reduces or, without such a reduction, the first result.
        form: the kind of step, which decides what may be fused with it:
            "tensor_scalar", "tensor_tensor", "activation", "matmul", "reduce", "scan",
            "control", "collective", "register" (one integer of a sequencer, which is
            free), or "other".
        slots: how many further scalar operations fit in the pass.
        reduces: whether the step also reduces its result along the rows.
        binds_rows: whether rows have to be on the partitions of SBUF.
        masked: the attention scores whose blocks the step masks; None if it masks none.
        sides: the row counts (products of leading dimensions) of a matmul's result,
            left operand and right operand; None before they are computed.
        sums: results that add up over the rows of the step's region, and are complete
            after the region's last tile.
    """

    instruction: Instruction
    members: list[Instruction]
    operands: tuple[int, ...]
    results: list[int]
    form: str
    seen: int
    slots: int = 0
    reduces: bool = False
    binds_rows: bool = False
    masked: MaskedScores | None = None
    sides: tuple[frozenset[int], ...] | None = None
    sums: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Fused:
    """A block after fusion.

    Attributes:
        steps: the steps, in an order that respects dependencies.
        access: by value, the tensors in memory from which the value is read.
        constants: values that are in HBM with the program.
        uses: by value in memory, how many steps and results of the block use the value.
        sizes: bytes of every value.
    """

    steps: list[FusedStep] = field(default_factory=list)
    types: list[TensorType] = field(default_factory=list)
    access: list[ValueAccess] = field(default_factory=list)
    arguments: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    constants: frozenset[int] = frozenset()
    uses: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    _reads: dict[FusedStep, tuple[int, ...]] = field(default_factory=dict, repr=False)

    def reads(self, step: FusedStep) -> tuple[int, ...]:
        """Return the values in memory that a step reads, each once."""
        if (found := self._reads.get(step)) is None:
            roots = (r for v in step.operands for r in self.access[v].roots)
            found = self._reads[step] = tuple(dict.fromkeys(roots))
        return found


@dataclass(slots=True, eq=False)
class TiledRegion:
    """Steps that run tile by tile.

    Attributes:
        candidates: row counts (products of leading dimensions) that all steps have.
        rows: the number of rows, the largest of `candidates`.
        inside: values that the steps compute.
        whole: loaded values that every tile needs completely.
        streamed: values that are loaded row by row.
        lhs_bytes: bytes of the left operands of matmuls, for all rows.
        batches: for each of `whole`, the number of parts into which the batch of its
            matmul splits the value, 1 if unsplit; two parts are in SBUF at a time.
        sums: results that are complete after the last tile.
    """

    steps: list[FusedStep] = field(default_factory=list)
    candidates: frozenset[int] = frozenset()
    rows: int = 1
    inside: set[int] = field(default_factory=set)
    whole: dict[int, None] = field(default_factory=dict)
    streamed: dict[int, None] = field(default_factory=dict)
    lhs_bytes: int = 0
    batches: dict[int, int] = field(default_factory=dict)
    has_matmul: bool = False
    sums: set[int] = field(default_factory=set)

    @property
    def form(self) -> str:
        """Return the form of the first step; "" if the region has only transfers."""
        return self.steps[0].form if self.steps else ""

    @property
    def is_single(self) -> bool:
        """Return whether the region is control flow or a collective."""
        return self.form in ("control", "collective")

    @property
    def is_lone_matmul(self) -> bool:
        """Return whether the region is one matmul, whose tiles also divide columns."""
        return self.has_matmul and len(self.steps) == 1

    def tiles(self, core: Core) -> int:
        return max(1, ceil(self.rows / core.rows_per_tile))


def output_bytes(fused: Fused) -> dict[int, int]:
    """Return the bytes written to HBM for a block's results, by tensor in memory: one
    tensor may be written for several results."""
    found: dict[int, int] = {}
    for value in fused.results:
        roots = fused.access[value].roots
        for root in roots:
            size = fused.sizes[value] if len(roots) == 1 else fused.sizes[root]
            found[root] = found.get(root, 0) + size
    return found
