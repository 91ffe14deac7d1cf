"""Instructions that run a block of scalar instructions on every element.

`tensor_reduce`, `pool`, `local_scatter` and others do one arithmetic op; these do the
same for any computation that a program gives (the *body*). The body takes and returns
scalars and is executed on whole tensors at once. Values that it captures are the last
operands of the instruction and the last arguments of the body. The engine is GpSimdE,
which can be programmed freely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from neuronjax.ir.instruction import Block, Instruction, Label
from neuronjax.ir.instruction_set import Window


@dataclass(frozen=True, kw_only=True)
class _OneBody(Instruction):
    """The common fields of instructions with one body."""

    body: Block  # the block that is executed on elements
    captures: int = 0  # the number of captured operands, which are the last ones
    label: ClassVar[Label] = "modelled"

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.body,)


@dataclass(frozen=True, kw_only=True)
class MapBlock(_OneBody):
    """The body applied to the elements of operands of one shape (`stablehlo.map`)."""


@dataclass(frozen=True, kw_only=True)
class ReduceBlock(_OneBody):
    """A left fold of n tensors from n initial values.

    operands: n inputs, n initial values. Several axes count as one, row-major. body:
    takes n partial results, then n elements."""

    axes: tuple[int, ...]  # the reduced axes


@dataclass(frozen=True, kw_only=True)
class PoolBlock(_OneBody):
    """A reduction of n tensors over sliding windows, in the fold order of Pool.

    operands: n inputs, n initial values, which are the padding too. body: takes n
    partial results, then n elements."""

    window: Window


@dataclass(frozen=True, kw_only=True)
class ScanBlock(_OneBody):
    """The running fold of n tensors along `axis`, in the order of TensorTensorScan.

    operands: n inputs, n initial values. body: takes n values that come earlier along
    the axis, then n that come later."""

    axis: int  # the axis of the fold
    reverse: bool = False  # whether the fold runs from the last element to the first


@dataclass(frozen=True, kw_only=True)
class ScatterBlock(_OneBody):
    """`stablehlo.scatter` of n tensors, one window after another in the order of the
    indices.

    operands: n tensors, the indices, n updates. A window that does not fit is dropped.
    body: takes n elements of the tensors, then n elements of the updates."""

    dimension_numbers: tuple[tuple[str, Any], ...]  # as in LocalScatter


@dataclass(frozen=True, kw_only=True)
class SelectAndScatterBlock(Instruction):
    """SelectAndScatter with any selection and any combination."""

    window: Window
    #: Takes the element chosen so far and the next one; true keeps the former.
    select: Block
    scatter: Block  # takes what an element has collected so far, then a source value
    captures: int = 0  # the number of captured operands; both blocks take all of them
    label: ClassVar[Label] = "modelled"

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.select, self.scatter)


@dataclass(frozen=True, kw_only=True)
class SortBlock(_OneBody):
    """A stable sort of n tensors along `dimension` by any comparator.

    A merge network sorts, so that the result is a permutation even if the comparator is
    not a strict weak order. body: takes (a0, b0, a1, b1, ...), true where a belongs
    before b."""

    dimension: int  # the sorted axis
    label: ClassVar[Label] = "exact"
