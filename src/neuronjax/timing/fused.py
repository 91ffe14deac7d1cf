"""A block after fusion: its steps, and the regions that run tile by tile.

A *value* is the number of a tensor of the block, an index of `Fused.types`. Some values
are in memory (SBUF, PSUM or HBM). The others exist only as access patterns of values in
memory, such as a reshape (`access`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.program import TensorType
from neuronjax.timing.access import ValueAccess
from neuronjax.timing.masks import MaskedScores
from neuronjax.timing.work import Core

#: Kinds (`FusedStep.form`) of steps that are alone in their region.
ALONE = frozenset({"control", "collective", "other"})


@dataclass(slots=True, eq=False)
class FusedStep:
    """A step of a block: instructions that an engine executes in one pass.

    Attributes:
        instruction: an instruction with the same price as the step.
        members: the instructions that were fused into the step, in order.
        operands: values (tensors of the block) that the step reads, directly or through
            access patterns.
        results: values that the step writes.
        seen: the value for whose shape and dtype the step is priced: the value that a
            fused reduction reduces or, without such a reduction, the first result.
        form: the kind of step, which decides what may be fused with it:
            "tensor_scalar", "tensor_tensor", "activation", "matmul", "reduce", "scan",
            "control", "collective", "register" (one integer of a sequencer, which is
            free), or "other".
        slots: how many more operations with a scalar can be fused into the pass.
        reduces: whether the pass also reduces every row of its result to one element.
        binds_rows: whether the step needs the rows of its tensors on the partitions of
            SBUF.
        masked: the attention scores that the step masks, if the mask hides whole blocks
            of scores; else None.
        sides: for a matmul, three sets: the possible numbers of rows (products of
            leading dimensions) of its result, left operand and right operand; None
            before they are computed.
        sums: results that are sums over the tiles of the step's region, and complete
            only after the last tile.
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
    """A block after fusion. A *value* is the number of a tensor of the block.

    Attributes:
        steps: the steps, in an order that respects dependencies.
        types: by value, the shape and the dtype.
        access: by value, the values in memory that hold it, and the access pattern.
        constants: values that are stored in HBM with the program.
        uses: by value in memory, how many steps and results of the block use the value.
        sizes: by value, the size in bytes.
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

    def roots(self, values: Iterable[int]) -> set[int]:
        """Return the values in memory that hold `values`."""
        return {r for v in values for r in self.access[v].roots}

    def reads(self, step: FusedStep) -> tuple[int, ...]:
        """Return the values in memory that a step reads, directly or through access
        patterns, each once."""
        if (found := self._reads.get(step)) is None:
            roots = (r for v in step.operands for r in self.access[v].roots)
            found = self._reads[step] = tuple(dict.fromkeys(roots))
        return found


@dataclass(slots=True, eq=False)
class TiledRegion:
    """Steps that run tile by tile; a tile is a part of the rows of their tensors.

    Attributes:
        candidates: the numbers of rows (products of leading dimensions) into which the
            tensors of every step can be divided.
        rows: the number of rows that is used, the largest of `candidates`.
        inside: values (tensors of the block) that the steps compute.
        whole: values from outside the region that every tile needs completely.
        streamed: values from outside the region of which each tile needs only its rows.
        lhs_bytes: bytes of the left operands of matmuls, for all rows.
        batches: by value in `whole`, the number of matrices that a batched matmul reads
            from it, one after the other (SBUF holds one and the next); 1 if every tile
            needs the whole value at once.
        sums: results that are sums over the tiles, and complete only after the last.
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
        """Return the kind of the first step (`FusedStep.form`, such as "matmul"); "" if
        the region has no steps, but only transfers."""
        return self.steps[0].form if self.steps else ""

    @property
    def is_lone_matmul(self) -> bool:
        """Return whether a matmul is the region's only step. The tiles of such a matmul
        divide its columns, too, while those of other regions divide only rows."""
        return self.has_matmul and len(self.steps) == 1

    def tiles(self, core: Core) -> int:
        return max(1, ceil(self.rows / core.rows_per_tile))


def output_bytes(fused: Fused) -> dict[int, int]:
    """Return the bytes that are written to HBM for the results of a block, by the value
    in memory that is written. If several results are access patterns of one value, such
    as reshapes or slices, the value has the sum of their bytes."""
    found: dict[int, int] = {}
    for value in fused.results:
        roots = fused.access[value].roots
        for root in roots:
            size = fused.sizes[value] if len(roots) == 1 else fused.sizes[root]
            found[root] = found.get(root, 0) + size
    return found
