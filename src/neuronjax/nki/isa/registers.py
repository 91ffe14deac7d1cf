"""Registers: `register_alloc`, `_move`, `_load`, `_store`."""

from __future__ import annotations

from typing import Any

from neuronjax.nki import trace as tracing
from neuronjax.nki.isa.request import Request, instruction
from neuronjax.nki.registers import VirtualRegister, as_register
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import emit


@instruction
def register_alloc(call: Request) -> VirtualRegister:
    """Return a new register with the value of `x`, a number or tensor, if given."""
    register, x = VirtualRegister(tracing.current().new_register()), call.values["x"]
    if x is not None:
        name = "register_load" if isinstance(x, NkiTensor) else "register_move"
        _into_register(Request(name, {"dst": register, "src": x}))
    return register


@instruction("register_move", "register_load")
def _into_register(call: Request) -> None:
    dst, src = call.of("dst", "src")
    register = as_register(dst)
    if dst.frozen:
        call.refuse(
            "writes the induction variable of a loop",
            "copy the variable to another register first",
        )
    if call.spec.name == "register_load":
        _check_single(call, src)
    emit(call.spec.name, "sync", (), (src,), register=register)


@instruction
def register_store(call: Request) -> None:
    dst, src = call.of("dst", "src")
    _check_single(call, dst)
    emit("register_store", "sync", (dst,), (src,))


def _check_single(call: Request, t: Any) -> None:
    if t.size != 1:
        remedy = "give a tensor of one element, t[0:1, i:i+1]"
        call.refuse(f"a tensor of shape {t.shape}", remedy)
