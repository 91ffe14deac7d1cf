"""Groups of instructions that several passes of the time model treat alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import (
    Activation,
    Compare,
    Memset,
    NcMatmul,
    NcMatmulMx,
    NcMatmulSparse,
    ReducePrecision,
    Select,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)

MATMULS = (NcMatmul, NcMatmulMx, NcMatmulSparse)
#: Elementwise instructions: an operand has the shape of the result, or one element.
ELEMENTWISE = (
    TensorTensor,
    TensorScalar,
    Activation,
    TensorCopy,
    Compare,
    Memset,
    Select,
    ReducePrecision,
)


@cache
def is_kind(kind: type[Instruction], kinds: tuple[type[Instruction], ...]) -> bool:
    return issubclass(kind, kinds)


def is_stored(instruction: Memset) -> bool:
    """Return whether the elements of a constant differ. Such a constant is stored in
    HBM, since a memset can only repeat one value."""
    value = instruction.value
    if value.size < 2:
        return False
    bits = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    item = value.dtype.itemsize
    return bits[item:].tobytes() != bits[:-item].tobytes()


#: Fields of every instruction except `engine`; `kind_of` does not return these fields.
_COMMON = {f.name for f in dataclasses.fields(Instruction)} - {"engine"}


def kind_of(i: Instruction) -> tuple:
    """Return the class and the attributes of an instruction, without its tensors."""
    kind = type(i)
    return kind, _attributes(kind)(i)


@cache
def _attributes(kind: type[Instruction]) -> Callable[[Instruction], Any]:
    fields = [f.name for f in dataclasses.fields(kind) if f.name not in _COMMON]
    return attrgetter(*fields) if fields else (lambda _: ())
