"""A transpose that is the only reader of a product is computed as the other product.

(A B)^T = B^T A^T: the gradient of a weight is one, as JAX writes it. XLA would read the
product against its memory order wherever it is used, several times by an optimizer.
Each element is the same sum of the same products in the same order, so no bit changes:
not of four passes, whose middle two would change places, and not of sums that round
stochastically, for an element's random bits depend on where it stands. The program that
is priced and shown stays as it was.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from neuronjax.ir.instruction import Block, Instruction, Rounding
from neuronjax.ir.instruction_set import DmaCopy, DotDimensions, NcMatmul

NEAREST: Rounding = "rne"


def with_transposed_products(block: Block) -> Sequence[Instruction]:
    """The instructions of a block, such products in the place of their transposes."""
    products = {
        i.results[0].number: i
        for i in block.instructions
        if isinstance(i, NcMatmul) and i.passes == 1 and i.rounding == NEAREST
    }
    if not products:
        return block.instructions
    reads = _reads(block)
    exchanged: dict[int, Instruction] = {}  # by the number of a transpose's result
    unread = set()
    for i in block.instructions:
        if isinstance(i, DmaCopy) and i.kind == "transpose":
            source = i.operands[0].buffer.number
            product = products.get(source)
            if product and reads[source] == 1 and i.parameters[0] == _exchange(product):
                exchanged[i.results[0].number] = _exchanged(product, i)
                unread.add(source)
    numbered = (
        (i.results[0].number if i.results else -1, i) for i in block.instructions
    )
    return [exchanged.get(n, i) for n, i in numbered if n not in unread]


def _reads(block: Block) -> Counter[int]:
    """How often each buffer is read, by nested blocks too."""
    views = [*block.results]
    for i in block.walk():
        views += i.operands
        for nested in i.blocks:
            views += nested.results
    return Counter(view.buffer.number for view in views)


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


def _exchanged(product: NcMatmul, transpose: DmaCopy) -> NcMatmul:
    d = product.dimensions
    dimensions = DotDimensions(d.rhs_batch, d.lhs_batch, d.rhs_contract, d.lhs_contract)
    return dataclasses.replace(
        product,
        operands=product.operands[::-1],
        results=transpose.results,
        dimensions=dimensions,
    )
