"""Fewer instructions with the same bits, for execution only (not for prices or
reports).

A block is rewritten only if nothing depends on how often an instruction runs. Each rule
needs an instruction that is the only reader of another instruction's result:

- A transpose of a product becomes the other product, (A B)^T = B^T A^T. JAX writes the
  gradient of a weight as such a transpose, and XLA would read the product against its
  memory order wherever the optimizer uses it. Each element is the same sum of the same
  products in the same order. The rule does not apply to four passes, whose middle two
  would be swapped, nor to stochastic rounding, where the random bits of an element
  depend on its position.
- A transpose after a multiplication by a scale moves before it.
- The largest of absolute values, and of 0, becomes the largest magnitude.
- A cast after a multiplication by a scale becomes one write: the FP32 product that the
  cast would read is exactly what an engine rounds.

An instruction that repeats an earlier one on the same arrays is not computed again.
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
    """Return the instructions of a block, or fewer that compute the same."""
    rewriting = _Rewriting(block)
    for i in block.instructions:
        rule = _RULES.get(type(i))
        rewriting.add(i if rule is None else rule(i, rewriting))
    return rewriting.result()


class _Rewriting:
    """The rewritten instructions so far, and the instructions that will be removed."""

    def __init__(self, block: Block) -> None:
        self.instructions: list[Instruction] = []
        self._reads = _reads(block)
        self._makers: dict[int, Instruction] = {}
        self._dropped: set[int] = set()

    def add(self, i: Instruction) -> None:
        self.instructions.append(i)
        self._makers.update((b.number, i) for b in i.results)

    def maker(self, view: View) -> Instruction | None:
        return self._makers.get(view.buffer.number)

    def source(self, i: Instruction, kind: type, **attributes: Any) -> Any:
        """Return the instruction that made the first operand of `i`, or None if it does
        not have this class and these attributes or if its result is read elsewhere."""
        maker = self.maker(i.operands[0])
        if not isinstance(maker, kind) or self._reads[i.operands[0].buffer.number] != 1:
            return None
        same = all(getattr(maker, n) == value for n, value in attributes.items())
        return maker if same else None

    def drop(self, i: Instruction) -> None:
        """Remove an instruction whose only reader was removed."""
        self._dropped.add(id(i))

    def result(self) -> list[Instruction]:
        return [i for i in self.instructions if id(i) not in self._dropped]


def _reads(block: Block) -> Counter[int]:
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
    if product is None or i.parameters[0] != _swapped_free_axes(product):
        return i
    r.drop(product)
    d = product.dimensions
    swapped = DotDimensions(d.rhs_batch, d.lhs_batch, d.rhs_contract, d.lhs_contract)
    operands = product.operands[::-1]
    return dataclasses.replace(
        product, operands=operands, results=i.results, dimensions=swapped
    )


def _scaled_transpose(i: Any, scaling: TensorScalar, r: _Rewriting) -> Instruction:
    """Move a transpose before a scaling, but only if it then merges into a product."""
    source, shape = scaling.operands[0], i.results[0].type.shape
    moved = Buffer(scaling.results[0].number, TensorType(shape, source.type.dtype))
    inner = dataclasses.replace(i, operands=(source,), results=(moved,))
    permutation = _transpose(inner, r)
    if permutation is inner:
        return i
    r.drop(scaling)
    r.add(permutation)
    return dataclasses.replace(
        scaling, operands=(View(moved), scaling.operands[1]), results=i.results
    )


def _swapped_free_axes(product: NcMatmul) -> tuple[int, ...]:
    d, (lhs, rhs) = product.dimensions, product.operands
    batch = len(d.lhs_batch)
    first = len(lhs.type.shape) - len(d.lhs_contract)
    end = first + len(rhs.type.shape) - batch - len(d.rhs_contract)
    return (*range(batch), *range(first, end), *range(batch, first))


def _largest(i: Any, r: _Rewriting) -> Instruction:
    everything = tuple(range(len(i.operands[0].type.shape)))
    result = i.results[0].type
    if i.op != "maximum" or i.axes != everything or result.dtype != np.float32:
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
    """Merge a scaling and a cast if the scale is from an amax, which is never NaN."""
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

#: Results of more bytes are computed again, as a program may intend to save memory
#: (`jax.checkpoint`); XLA may still merge equal operations.
REUSED_BYTES = 1 << 20

_SMALL = (BitcastCopy, Compare, DmaCopy, Iota, Memset, Select)
_SMALL_OPS = frozenset({"add", "subtract", "multiply", "maximum", "minimum", "negate"})


def is_small(i: Instruction) -> bool:
    """Return whether an instruction is one or two XLA operations, which are cheaper to
    trace in place than to call."""
    return isinstance(i, _SMALL) or (
        getattr(i, "op", None) in _SMALL_OPS and isinstance(i, TensorTensor)
    )


@dataclasses.dataclass(eq=False)
class KnownResults:
    """A cache of the results of a block's instructions, by computation and arrays. XLA
    would merge equal operations, but only after compiling them, and each elementary
    function is compiled as a kernel: the angles of rotary embeddings, computed in every
    layer, are half of what is compiled for a small GPT."""

    never: Collection[type]
    results: dict[tuple, Arrays] = dataclasses.field(default_factory=dict)

    def of(
        self, i: Instruction, environment: dict, run: Callable[[], Arrays]
    ) -> Arrays:
        """Return an instruction's results; run it unless an equal instruction ran."""
        largest = max((b.type.size_bytes for b in i.results), default=0)
        if type(i) in self.never or largest > REUSED_BYTES:
            return run()
        operands = (id(environment[v.buffer.number]) for v in i.operands)
        key = (i.signed, *operands)
        if key not in self.results:
            self.results[key] = run()
        return self.results[key]
