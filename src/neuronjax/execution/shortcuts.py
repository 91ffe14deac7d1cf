"""Fewer instructions with the same bits: what is executed, not what is priced or shown.

A block is rewritten where nobody watches, each time an instruction is the only reader
of another one's result:

- A transpose of a product is the other product, (A B)^T = B^T A^T. The gradient of a
  weight is one, as JAX writes it, and XLA would read the product against its memory
  order wherever it is used, several times by an optimizer. Each element is the same
  sum of the same products in the same order; not in four passes, whose middle two would
  change places, nor where sums round stochastically, for an element's random bits
  depend on where it stands.
- A transpose behind a multiplication with a scale stands in front of it.
- The largest of absolute values, and of 0, is the largest magnitude.
- An element times its scale is rounded as it is written: the product in FP32 that the
  cast would read is exactly what an engine rounds.

What an instruction computes of the same arrays as an earlier one is not computed again.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from neuronjax.execution.engines import host_scale
from neuronjax.ir.instruction import Block, Buffer, Instruction, View
from neuronjax.ir.instruction_set import (
    BitcastCopy,
    Compare,
    DmaCopy,
    DotDimensions,
    Iota,
    Memset,
    NcMatmul,
    ScaleFromAmax,
    Select,
    TensorCopy,
    TensorReduce,
    TensorScalar,
    TensorTensor,
)
from neuronjax.ir.program import TensorType


def shortened(block: Block) -> Sequence[Instruction]:
    """The instructions of a block, or fewer that compute the same."""
    rewriting = _Rewriting(block)
    for i in block.instructions:
        rule = _RULES.get(type(i))
        rewriting.add(i if rule is None else rule(i, rewriting))
    return rewriting.result()


class _Rewriting:
    """The instructions so far, and what may be taken out of them."""

    def __init__(self, block: Block) -> None:
        self.instructions: list[Instruction] = []
        self._reads = _reads(block)
        self._makers: dict[int, Instruction] = {}
        self._dropped: set[int] = set()

    def add(self, i: Instruction) -> None:
        """Another one, that may read what others made."""
        self.instructions.append(i)
        self._makers.update((b.number, i) for b in i.results)

    def maker(self, view: View) -> Instruction | None:
        """Which of them made it."""
        return self._makers.get(view.buffer.number)

    def source(self, i: Instruction, kind: type, **attributes: Any) -> Any:
        """What made the first operand of an instruction, read by it alone; or None."""
        found = self.maker(i.operands[0])
        if not isinstance(found, kind) or self._reads[i.operands[0].buffer.number] != 1:
            return None
        same = all(getattr(found, n) == value for n, value in attributes.items())
        return found if same else None

    def instead(self, i: Instruction, source: Instruction, **changes: Any) -> Any:
        """The source, so changed that it makes the result of its only reader."""
        self.drop(source)
        return dataclasses.replace(source, results=i.results, **changes)

    def drop(self, i: Instruction) -> None:
        """Takes out an instruction whose reader has gone."""
        self._dropped.add(id(i))

    def result(self) -> list[Instruction]:
        """What is left."""
        return [i for i in self.instructions if id(i) not in self._dropped]


def _reads(block: Block) -> Counter[int]:
    """How often each buffer is read, by nested blocks too."""
    views = [*block.results]
    for i in block.walk():
        views += i.operands
        for nested in i.blocks:
            views += nested.results
    return Counter(view.buffer.number for view in views)


def _transpose(i: Any, r: _Rewriting) -> Instruction:
    if i.kind != "transpose":
        return i
    scaling = r.source(i, TensorScalar, rounding="rne", write_format=None)
    if scaling is not None and scaling.results[0].type.dtype == np.float32:
        return _scaled_transpose(i, scaling, r)
    product = r.source(i, NcMatmul, passes=1, rounding="rne")
    if product is None or i.parameters[0] != _exchange(product):
        return i
    d = product.dimensions
    swapped = DotDimensions(d.rhs_batch, d.lhs_batch, d.rhs_contract, d.lhs_contract)
    return r.instead(i, product, operands=product.operands[::-1], dimensions=swapped)


def _scaled_transpose(i: Any, scaling: TensorScalar, r: _Rewriting) -> Instruction:
    """Behind products alone, where the transpose is one of them in the end."""
    source = scaling.operands[0]
    moved = Buffer(
        scaling.results[0].number,
        TensorType(i.results[0].type.shape, source.type.dtype),
    )
    inner = dataclasses.replace(i, operands=(source,), results=(moved,))
    found = _transpose(inner, r)
    if found is inner:
        return i
    r.drop(scaling)
    r.add(found)
    return dataclasses.replace(
        scaling, operands=(View(moved), scaling.operands[1]), results=i.results
    )


def _exchange(product: NcMatmul) -> tuple[int, ...]:
    """The permutation that puts the right operand's free axes before the left's."""
    d = product.dimensions
    batch = len(d.lhs_batch)
    left, right = (
        len(view.type.shape) - batch - len(contract)
        for view, contract in zip(
            product.operands, (d.lhs_contract, d.rhs_contract), strict=True
        )
    )
    first = batch + left
    return (*range(batch), *range(first, first + right), *range(batch, first))


def _largest(i: Any, r: _Rewriting) -> Instruction:
    everything = tuple(range(len(i.operands[0].type.shape)))
    if (
        i.op != "maximum"
        or i.axes != everything
        or i.results[0].type.dtype != np.float32
    ):
        return i
    start = r.maker(i.operands[1])
    if not isinstance(start, Memset) or start.value.any():
        return i
    magnitude = r.source(i, TensorTensor, op="abs")
    if magnitude is None or not host_scale.reads(magnitude.operands[0].type.dtype):
        return i
    operands = (magnitude.operands[0], i.operands[1])
    r.drop(magnitude)
    return dataclasses.replace(i, op=host_scale.LARGEST_MAGNITUDE, operands=operands)


def _rounded(i: Any, r: _Rewriting) -> Instruction:
    """Of an amax's scale alone: it is never NaN."""
    scaling = r.source(
        i, TensorScalar, op="multiply", rounding="rne", write_format=None
    )
    if scaling is None or scaling.results[0].type.dtype != np.float32:
        return i
    if not isinstance(r.maker(scaling.operands[1]), ScaleFromAmax):
        return i
    written = dataclasses.replace(
        scaling,
        results=i.results,
        rounding=i.rounding,
        overflow=i.overflow,
        ordinal=i.ordinal,
        write_format=i.write_format,
    )
    if not host_scale.casts(written):
        return i
    r.drop(scaling)
    return written


_RULES: dict[type, Callable[[Any, _Rewriting], Instruction]] = {
    DmaCopy: _transpose,
    TensorReduce: _largest,
    TensorCopy: _rounded,
}


# -- results that are used again -------------------------------------------------------

Arrays = Sequence[jax.Array]

#: Larger results are made again: a program may say so to save memory
#: (`jax.checkpoint`), and XLA merges what it likes.
REUSED_BYTES = 1 << 20

_SMALL = (BitcastCopy, Compare, DmaCopy, Iota, Memset, Select)
_SMALL_OPS = frozenset({"add", "subtract", "multiply", "maximum", "minimum", "negate"})


def is_small(i: Instruction) -> bool:
    """Whether it is one or two XLA ops, cheaper to trace in place than to call."""
    return isinstance(i, _SMALL) or (
        getattr(i, "op", None) in _SMALL_OPS and isinstance(i, TensorTensor)
    )


class KnownResults:
    """Results of a block's instructions, by what they compute of which arrays.

    XLA would merge equal operations, but compiles them first, and an elementary
    function is a kernel of its own: the angles of rotary embeddings, made in every
    layer, are half of what there is to compile of a small GPT.
    """

    def __init__(self, never: Collection[type]) -> None:
        self._never = never
        self._results: dict[tuple, Arrays] = {}

    def of(
        self, i: Instruction, environment: dict, run: Callable[[], Arrays]
    ) -> Arrays:
        """The results of an instruction, which is run if none of its kind was."""
        largest = max((b.type.size_bytes for b in i.results), default=0)
        if type(i) in self._never or largest > REUSED_BYTES:
            return run()
        operands = (id(environment[v.buffer.number]) for v in i.operands)
        key = (i.signed, *operands)
        if key not in self._results:
            self._results[key] = run()
        return self._results[key]
