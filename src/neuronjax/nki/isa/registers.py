"""Registers: `register_alloc`, `_move`, `_load`, `_store`."""

from __future__ import annotations

from typing import Any

from neuronjax.errors import InvalidProgramError, user_line
from neuronjax.nki import trace as tracing
from neuronjax.nki.registers import VirtualRegister, as_register
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import emit


def register_alloc(x: int | None = None) -> VirtualRegister:
    """A register, holding an int if one is given."""
    register = VirtualRegister(tracing.current().new_register())
    if isinstance(x, NkiTensor):  # the older form
        register_load(register, x)
    elif x is not None:
        register_move(register, x)
    return register


def register_move(dst: VirtualRegister, src: int | VirtualRegister) -> None:
    """dst = src, an int or a register."""
    _check_writable("register_move", dst)
    emit("register_move", "sync", (), (src,), register=as_register(dst))


def register_load(dst: VirtualRegister, src: NkiTensor) -> None:
    """dst = the one element of a tensor."""
    _check_writable("register_load", dst)
    _check_single("register_load", src)
    emit("register_load", "sync", (), (src,), register=as_register(dst))


def register_store(dst: NkiTensor, src: VirtualRegister) -> None:
    """The one element of a tensor = src."""
    _check_single("register_store", dst)
    emit("register_store", "sync", (dst,), (src,))


def _check_writable(op: str, dst: Any) -> None:
    if as_register(dst) is not None and dst.frozen:
        raise InvalidProgramError(
            "writes the induction variable of a loop",
            op=f"nisa.{op}",
            location=user_line(),
            remedy="copy it to a register of your own first",
        )


def _check_single(op: str, t: NkiTensor) -> None:
    if t.size != 1:
        raise InvalidProgramError(
            f"a tensor of shape {t.shape}",
            op=f"nisa.{op}",
            location=user_line(),
            remedy="give a tensor of one element, t[0:1, i:i+1]",
        )
