"""Loops that Python unrolls, and loops that the device executes.

`affine_range`, `sequential_range` and `static_range` loop in Python. `dynamic_range`,
`fori_loop`, `while_loop` and `while register:` record their body once
(nki/deep-dives/nki-dynamic-loops.rst); in op by op execution they loop in Python.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import jax.numpy as jnp

from neuronjax.errors import user_line
from neuronjax.ir.kernel import KernelLoop, KernelWhile, LoopTurn, Register
from neuronjax.nki import active, trace as tracing
from neuronjax.nki.isa import register_alloc, register_move
from neuronjax.nki.refusing import refuse
from neuronjax.nki.registers import VirtualRegister, as_register
from neuronjax.nki.trace import Trace
from neuronjax.numerics.random_bits import fold

Bound = int | VirtualRegister


def sequential_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Return a `range`: the loop is unrolled. The name is kept for older kernels."""
    return range(start) if stop is None else range(start, stop, step)


static_range = sequential_range


def affine_range(
    start: int, stop: int | None = None, step: int = 1
) -> AffineRange | range:
    """Return a range; `nki.check` reports its iterations that depend on one another.

    Compilers before NKI 0.3 took the name as a promise that iterations are independent.
    """
    numbers = sequential_range(start, stop, step)
    return AffineRange(numbers) if active.in_kernel() else numbers


class AffineRange(Sequence[int]):
    """A range that notes the current iteration in the trace."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        return self._numbers[index]

    def __iter__(self) -> Iterator[int]:
        trace = tracing.current()
        outer, loop = trace.loops, trace.notes.get("affine loops", 0)
        trace.notes["affine loops"] = loop + 1
        try:
            for turn, number in enumerate(self._numbers):
                trace.loops = (*outer, LoopTurn(loop, turn))
                yield number
        finally:
            trace.loops = outer


def dynamic_range(
    start: Bound, stop: Bound | None = None, step: int = 1
) -> Iterator[VirtualRegister]:
    """Yield the frozen induction register of a loop on the device, once.

    Args:
        start: the first value, an int or a register; a single argument is `stop`.
        stop: an int or a register, before which the loop ends.
        step: a positive int.

    Raises:
        InvalidProgramError: the step is not a positive int.
    """
    if stop is None:
        start, stop = 0, start
    if not isinstance(step, int) or step < 1:
        refuse(
            "dynamic_range",
            f"step {step!r}",
            "the step must be a positive int known at compile time",
        )
    return _turns(start, stop, step)


def _turns(start: Bound, stop: Bound, step: int) -> Iterator[VirtualRegister]:
    trace, line = tracing.current(), user_line()
    register = trace.new_register()
    if trace.machine is not None:
        machine, first, key = trace.machine, trace.count, trace.machine.key
        for turn in range(_now(trace, start), _now(trace, stop), step):
            _begin_turn(trace, first, key, turn)
            machine.set_register(register, turn)
            yield VirtualRegister(register, frozen=True)
        machine.key = key
        return
    trace.open_block()
    yield VirtualRegister(register, frozen=True)
    body = trace.close_block()
    trace.append(KernelLoop(register, _bound(start), _bound(stop), step, body, line))


def _begin_turn(trace: Trace, first: int, key: Any, turn: int) -> None:
    """Begin an iteration in op by op execution, with the ordinals of the first
    iteration but a random key of its own."""
    assert trace.machine is not None
    trace.count = first
    trace.machine.key = fold(key, jnp.asarray(turn, jnp.uint32))


def _now(trace: Trace, bound: Bound) -> int:
    assert trace.machine is not None
    if isinstance(bound, VirtualRegister):
        return trace.machine.register(as_register(bound))
    return bound


def _bound(bound: Bound) -> int | Register:
    return as_register(bound) if isinstance(bound, VirtualRegister) else int(bound)


def fori_loop(
    lower: Bound,
    upper: Bound,
    body_fun: Callable[[VirtualRegister], Any],
    step: int = 1,
) -> None:
    """Run `body_fun(i)` on the device for i from `lower` to `upper`, exclusive."""
    for i in dynamic_range(lower, upper, step):
        body_fun(i)


def while_loop(
    init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]
) -> None:
    """Run `register = body_fun(register)` on the device while the register is not 0."""
    trace, line = tracing.current(), user_line()
    condition = register_alloc()
    register_move(condition, init)

    def iterate() -> None:
        result = body_fun(condition)
        if result is not condition:
            register_move(condition, result)

    if trace.machine is not None:
        first, key, turn = trace.count, trace.machine.key, 0
        while trace.machine.register(as_register(condition)):
            _begin_turn(trace, first, key, turn)
            iterate()
            turn += 1
        trace.machine.key = key
        return
    trace.open_block()
    iterate()
    trace.append(KernelWhile(as_register(condition), trace.close_block(), line))


def while_condition(register: VirtualRegister) -> bool:
    """Return the value of the test `while register:`.

    The first test opens a device loop; the second test at the same place in the code
    closes it."""
    trace = tracing.current()
    place = _place()
    if trace.machine is not None:
        return _python_condition(trace, place, as_register(register))
    open_loops = trace.notes.setdefault("while", [])
    if open_loops and open_loops[-1] == (place, as_register(register), trace.depth):
        open_loops.pop()
        body = trace.close_block()
        trace.append(KernelWhile(as_register(register), body, user_line()))
        return False
    trace.open_block()
    open_loops.append((place, as_register(register), trace.depth))
    return True


def _python_condition(trace: Trace, place: tuple[Any, ...], register: Register) -> bool:
    """Return the value of `while register:` in op by op execution."""
    assert trace.machine is not None
    open_loops = trace.notes.setdefault("while", [])
    if not open_loops or open_loops[-1][0] != place:
        open_loops.append([place, trace.count, trace.machine.key, 0])
    _, first, key, turn = open_loops[-1]
    if trace.machine.register(register):
        _begin_turn(trace, first, key, turn)
        open_loops[-1][3] += 1
        return True
    open_loops.pop()
    trace.machine.key = key
    return False


# Frames from `_place` to the user's test: `while_condition`, the register's `__bool__`.
_TEST_DEPTH = 3


def _place() -> tuple[Any, ...]:
    """Return the frame and source position of the test, which must be a `while`."""
    frame = sys._getframe(_TEST_DEPTH)
    code = frame.f_code
    position = list(code.co_positions())[frame.f_lasti // 2]
    if not _is_while(code, position):
        raise TypeError(
            "a register as a condition of `if`, `and` or `not`: its value is not known "
            f"while the kernel is traced\n  at: {user_line()}\n  remedy: use "
            "`while reg:` with nothing else in the condition, or nl.while_loop"
        )
    return (id(frame), position)


@functools.cache
def _is_while(code: CodeType, position: tuple[Any, ...]) -> bool:
    """Return whether the condition at a position is compiled twice, as for `while`."""
    instructions = [
        i
        for i in dis.get_instructions(code)
        if i.positions is not None and tuple(i.positions) == position
    ]
    return sum("JUMP" in i.opname and "IF" in i.opname for i in instructions) > 1
