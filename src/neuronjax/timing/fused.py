"""A block after fusion: its steps, and the regions that run tile by tile.

Made by `fusion` and `tiling`, read by the planner, by pricing and by the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.program import TensorType
from neuronjax.timing.access import ValueAccess
from neuronjax.timing.masks import MaskedScores
from neuronjax.timing.work import Core

#: Forms of steps that share a region with no other.
ALONE = frozenset({"control", "collective", "other"})


@dataclass(slots=True, eq=False)
class FusedStep:
    """What an engine does in one pass.

    Attributes:
        instruction: the one that is priced.
        members: the instructions that it stands for, in order.
        operands: values that `instruction` reads, as they are seen.
        results: values that are written.
        seen: type that `instruction` writes, where it is not that of its first result
            (a reduction is absorbed).
        form: what may be fused with it: "tensor_scalar", "tensor_tensor", "activation",
            "matmul", "reduce", "scan", "control", "collective", "register" (of a
            sequencer: one integer, which costs nothing), or "other".
        slots: scalar operations that fit in the pass still.
        reduces: whether it reduces along its rows what it computes.
        binds_rows: whether rows have to lie on the partitions.
        masked: scores of which it hides some blocks; None where it hides none.
        sides: of a matmul, the row counts of its result, left and right side, when
            they have been found out.
        sums: of its results those that add up over the rows of its region, so that
            they are there after the last tile.
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
        steps: in an order that respects dependencies.
        access: how every value is read: where its bytes really are.
        constants: values that lie in HBM with the program.
        uses: for every value in memory, how many steps and results read it.
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
        """The values in memory that a step reads, each once."""
        if (found := self._reads.get(step)) is None:
            roots = (r for v in step.operands for r in self.access[v].roots)
            found = self._reads[step] = tuple(dict.fromkeys(roots))
        return found


@dataclass(slots=True, eq=False)
class TiledRegion:
    """Steps that run tile by tile.

    Attributes:
        candidates: row counts that all of them have.
        rows: how many rows there are: the most of these.
        inside: values that they compute.
        whole: values from outside that every tile needs all of.
        streamed: values from outside that come with the rows.
        lhs_bytes: of what matmuls contract with `whole` values, for all rows.
        whole_bytes: of `whole`, as much as is needed at a time.
        batches: of values of `whole`, into how many parts the rows' batch splits them,
            of which two are needed at a time.
        sums: results that are there after the last tile.
    """

    steps: list[FusedStep] = field(default_factory=list)
    candidates: frozenset[int] = frozenset()
    rows: int = 1
    inside: set[int] = field(default_factory=set)
    whole: dict[int, None] = field(default_factory=dict)
    streamed: dict[int, None] = field(default_factory=dict)
    lhs_bytes: int = 0
    whole_bytes: int = 0
    batches: dict[int, int] = field(default_factory=dict)
    has_matmul: bool = False
    sums: set[int] = field(default_factory=set)

    @property
    def form(self) -> str:
        """That of its first step; "" where it has none and only moves bytes."""
        return self.steps[0].form if self.steps else ""

    @property
    def is_single(self) -> bool:
        """Whether it is control flow or a collective."""
        return self.form in ("control", "collective")

    @property
    def is_lone_matmul(self) -> bool:
        """Whether it is one matmul, whose result has tiles of columns too."""
        return self.has_matmul and len(self.steps) == 1

    def tiles(self, core: Core) -> int:
        """How many tiles the rows make."""
        return max(1, ceil(self.rows / core.rows_per_tile))


def output_bytes(fused: Fused) -> dict[int, int]:
    """What is written for results: every one is a tensor of its own in HBM."""
    found: dict[int, int] = {}
    for value in fused.results:
        roots = fused.access[value].roots
        for root in roots:
            size = fused.sizes[value] if len(roots) == 1 else fused.sizes[root]
            found[root] = found.get(root, 0) + size
    return found
