"""What a DMA moves whose rows the run chooses, one element after the other.

Written from the public reference of NKI 0.6 (`dma_copy`, `dma_transpose`,
`dma_compute`, `NkiTensor.ap`): memory is a list of numbers, a view is a list of
(stride, count) pairs, and Python's loops visit every element.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple


class View(NamedTuple):
    """Elements of a memory.

    Attributes:
        pattern: (stride, count) pairs.
        offset: of the first element.
        chosen: None, an int (`scalar_offset`), or rows of ints (`vector_offset`).
        stride: elements that one unit of the index stands for.
        limit: legal are 0 to limit - 1.
    """

    pattern: list
    offset: int = 0
    chosen: int | list | None = None
    stride: int = 0
    limit: int = 0


def positions(view):
    """The multi-indices of a view, in row-major order."""
    return list(product(*(range(count) for _, count in view.pattern)))


def place(view, at, size):
    """The element number of a multi-index; None where the index is out of bounds.

    An index is within bounds if it is legal and all elements that it names exist.
    """
    if view.chosen is None:
        number = _number(view.offset, view.pattern, at)
        assert 0 <= number < size
        return number
    chosen, pairs, where = view.chosen, list(view.pattern), list(at)
    if isinstance(view.chosen, list):
        # Element p of the index, column by column.
        partitions = len(view.chosen)
        chosen = view.chosen[at[0] % partitions][at[0] // partitions]
        pairs, where = pairs[1:], where[1:]
    start = view.offset + chosen * view.stride
    named = [_number(start, pairs, one) for one in positions(View(pairs))]
    if not 0 <= chosen < view.limit or min(named) < 0 or max(named) >= size:
        return None
    return _number(start, pairs, where)


def _number(start, pairs, at):
    return start + sum(stride * i for (stride, _), i in zip(pairs, at, strict=True))


def move(memory, target, source, view, axes=None, add=False):
    """The target's memory after elements were moved; illegal ones are left out.

    Args:
        memory: of the target.
        target: the view that is written.
        source: the memory that is read.
        view: of the source.
        axes: of `dma_transpose`.
        add: whether the old element is added (`dma_compute`).
    """
    result = list(memory)
    order = list(axes or range(len(view.pattern)))
    counts = [view.pattern[a][1] for a in order]
    turned = product(*map(range, counts))
    for at, moved in zip(positions(target), turned, strict=True):
        from_ = [0] * len(order)
        for a, i in zip(order, moved, strict=True):
            from_[a] = i
        read = place(view, from_, len(source))
        written = place(target, at, len(memory))
        if read is None or written is None:
            continue
        result[written] = source[read] + (memory[written] if add else 0)
    return result


def has_illegal(view, size):
    """Whether an index of a view is out of bounds."""
    return any(place(view, at, size) is None for at in positions(view))
