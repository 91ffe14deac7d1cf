"""Which results of a block are kept for the next instruction that computes the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import jax

from neuronjax.ir.instruction import Instruction, SignedInstruction
from neuronjax.ir.instruction_set import (
    BitcastCopy,
    Compare,
    DmaCopy,
    Iota,
    Memset,
    Select,
    TensorTensor,
)

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
        key = (SignedInstruction(i), *operands)
        if key not in self._results:
            self._results[key] = run()
        return self._results[key]
