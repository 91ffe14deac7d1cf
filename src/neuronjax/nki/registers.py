"""`VirtualRegister`: a number that is known only at run time.

Reading a register in Python is an error, except in `while register:`, which records a
device loop (see `loops`).
"""

from __future__ import annotations

from typing import Any, NoReturn

from neuronjax.errors import user_line
from neuronjax.ir.kernel import Register
from neuronjax.nki import active
from neuronjax.nki.memory import NKIObject


class VirtualRegister(NKIObject):
    """A 32-bit register of the device, made by `nisa.register_alloc`.

    Attributes:
        register: its number in the trace.
        frozen: whether it is a loop's induction variable, which must not be written.
    """

    def __init__(self, state: Register | None = None, frozen: bool = False) -> None:
        self.register = state
        self.frozen = frozen

    def __bool__(self) -> bool:
        return active.current().condition(self)

    def __int__(self) -> int:
        self._refuse("int() of a register")

    def __index__(self) -> int:
        self._refuse("a register where Python needs a number (range, a list index)")

    def __repr__(self) -> str:
        number = self.register.number if self.register else "?"
        return f"VirtualRegister({number}{', frozen' if self.frozen else ''})"

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(
            f"{what}: its value is not known while the kernel is traced\n"
            f"  at: {user_line()}\n"
            "  remedy: loop with nl.fori_loop, nl.dynamic_range or `while reg:`, index "
            "with t.select(dim, reg) or t.ap(..., scalar_offset=reg)"
        )


def as_register(value: Any) -> Register:
    if not isinstance(value, VirtualRegister) or value.register is None:
        raise TypeError(f"{value!r} is no register\n  at: {user_line()}")
    return value.register
