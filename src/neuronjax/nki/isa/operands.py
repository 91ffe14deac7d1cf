"""Checks on single operands, which the user's words are at hand for.

What depends on the chip is in `limits`.
"""

from __future__ import annotations

import enum
from typing import Any, NoReturn

from neuronjax.errors import InvalidProgramError, user_line
from neuronjax.ir.nki_spec import ON_CHIP as ON_CHIP
from neuronjax.nki.registers import VirtualRegister
from neuronjax.nki.tensor import NkiTensor


def refuse(op: str, what: str, remedy: str) -> NoReturn:
    """Raises the error of an instruction that cannot be."""
    raise InvalidProgramError(
        what, op=f"nisa.{op}", location=user_line(), remedy=remedy
    )


def name_of(op: str, what: str, value: Any, legal: tuple[str, ...]) -> str:
    """The name of an enumeration's member, or of an engine, that is accepted."""
    name = value.name if isinstance(value, enum.Enum) else str(value)
    if name not in legal:
        refuse(op, f"{what} {name}", f"one of {', '.join(legal)}")
    return name


def in_psum(*tensors: Any) -> bool:
    """Whether any operand is in PSUM, which GpSimd cannot reach."""
    return any(isinstance(t, NkiTensor) and t.storage.memory == "psum" for t in tensors)


def check_tensor(op: str, name: str, value: Any, *memories: str) -> None:
    """An operand is a tensor, in one of these memories if any are named."""
    if not isinstance(value, NkiTensor):
        refuse(op, f"{name} is {value!r}", f"{name} must be a tensor")
    memory = value.storage.memory
    if memories and memory not in memories:
        refuse(
            op, f"{name} is in {memory}", f"{name} must be in {' or '.join(memories)}"
        )


def per_partition(tile: NkiTensor) -> int:
    """Elements."""
    return tile.size // tile.shape[0]


def check_same_shape(op: str, dst: NkiTensor, *sources: tuple[str, NkiTensor]) -> None:
    """Equal partitions, and equal numbers of elements per partition."""
    for name, t in sources:
        if t.shape[0] != dst.shape[0] or t.size != dst.size:
            refuse(
                op,
                f"{name} has shape {t.shape}, dst {dst.shape}",
                "give equal partitions and equal elements per partition",
            )


def check_one_dtype(op: str, dst: NkiTensor, source: NkiTensor) -> None:
    """What is moved and not computed."""
    if dst.dtype != source.dtype:
        refuse(op, f"{source.dtype} into {dst.dtype}", "give both one dtype")


def check_scalar_operand(op: str, name: str, value: Any, partitions: int) -> None:
    """A number, a register, or a vector of one element per partition."""
    if value is None or isinstance(value, int | float | VirtualRegister):
        return
    if not isinstance(value, NkiTensor):
        if not hasattr(value, "dtype"):  # a NumPy scalar is a number
            refuse(op, f"{name} is {value!r}", f"{name} must be a number or a tensor")
        return
    if value.shape[0] != partitions or value.size != partitions:
        refuse(
            op,
            f"{name} has shape {value.shape}",
            f"{name} must be a number or a tensor of shape ({partitions}, 1)",
        )
