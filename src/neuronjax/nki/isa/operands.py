"""What front-end functions have in common: engines, and checks on operands.

Checks of one instruction alone are made here, where the user's words are at hand; what
depends on the chip is in `limits`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from neuronjax.errors import InvalidProgramError, user_line
from neuronjax.nki.isa.constants import engine as Engine
from neuronjax.nki.memory import region_name
from neuronjax.nki.registers import VirtualRegister
from neuronjax.nki.tensor import NkiTensor


def refuse(op: str, what: str, remedy: str) -> NoReturn:
    """Raises the error of an instruction that cannot be."""
    raise InvalidProgramError(
        what, op=f"nisa.{op}", location=user_line(), remedy=remedy
    )


def engine_name(op: str, engine: Any, allowed: tuple[str, ...], default: str) -> str:
    """The engine asked for, or the default where that is left to the compiler."""
    if engine is None or engine == Engine.unknown:
        return default
    name = engine.name if isinstance(engine, Engine) else str(engine)
    if name not in allowed:
        refuse(op, f"engine {name}", f"one of {', '.join(allowed)}")
    return name


def in_psum(*tensors: Any) -> bool:
    """Whether any operand is in PSUM, which GpSimd cannot reach."""
    return any(isinstance(t, NkiTensor) and t.storage.memory == "psum" for t in tensors)


def check_tensor(op: str, name: str, value: Any, *memories: str) -> None:
    """An operand is a tensor, in one of these memories if any are named."""
    if not isinstance(value, NkiTensor):
        refuse(op, f"{name} is {value!r}", f"{name} must be a tensor")
    memory = region_name(value.buffer)
    if memories and memory not in memories:
        refuse(
            op, f"{name} is in {memory}", f"{name} must be in {' or '.join(memories)}"
        )


ON_CHIP = ("sbuf", "psum")


def check_same_shape(op: str, dst: NkiTensor, *sources: tuple[str, NkiTensor]) -> None:
    """Equal partitions, and equal numbers of elements per partition."""
    for name, t in sources:
        if t.shape[0] != dst.shape[0] or t.size != dst.size:
            refuse(
                op,
                f"{name} has shape {t.shape}, dst {dst.shape}",
                "give equal partitions and equal elements per partition",
            )


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


def as_float(value: Any) -> Any:
    """Numbers as FP32 immediates, everything else as it is."""
    return float(value) if isinstance(value, int | float) else value
