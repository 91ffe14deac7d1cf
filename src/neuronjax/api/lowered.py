"""Lowered and compiled programs: what `jit(f).lower(...)` and `load(...)` return.

A `Lowered` is a program before XLA: StableHLO and the instructions of one chip under
one policy. A `Compiled` is callable, and asks whoever made it (its `CallEntry`) how
arguments become flat arrays.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import RenderableType

from neuronjax.api.calls import CallState, Stateful, boundary, may_round_stochastically
from neuronjax.capture.trace import capturing
from neuronjax.errors import InvalidProgramError
from neuronjax.execution import host_process, stages
from neuronjax.execution.captured import CapturedProgram
from neuronjax.execution.inputs_outputs import CallContext
from neuronjax.hardware import Target, resolve_target
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.program import Program
from neuronjax.policy import Policy
from neuronjax.policy.values import check_word
from neuronjax.report.setting import setting_line
from neuronjax.report.tables import Displayed


@dataclass(frozen=True)
class CallEntry:
    """How a lowered program is compiled and called: `jit` and `load` each make theirs.

    Attributes:
        state: what the compiled program starts with.
        compile: what accompanies the arguments (or its types) -> a
            `jax.stages.Compiled`.
        run: (executable, what accompanies the arguments, args, kwargs) -> results.
        inside: the call inside of another emulated function.
        leaves: (args, kwargs) -> the flat arguments that the program's main takes.
        under: (target, policy) -> the entry of the same program for these.
    """

    state: CallState
    compile: Callable[[CallContext], Any]
    run: Callable[[Any, CallContext, tuple, dict], Any]
    inside: Callable[..., Any]
    leaves: Callable[[tuple, dict], list[Any]]
    under: Callable[[Target, Policy], CallEntry]


#: What a program is priced and shown by. It is imported when somebody asks: who only
#: runs programs needs neither the time model nor the report.
_READINGS = "neuronjax.api.readings"


def _reading(name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(_READINGS), name)


class _Readable(Displayed):
    """What a lowered program and a compiled one can be asked without being run."""

    lowered: Lowered

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """Every instruction, those of loops and callees included."""
        return tuple(self.lowered.captured.instructions.walk())

    def timeline(self, *, target: str | None = None, lnc: int | None = None) -> Any:
        """When every engine would do what, for one logical core; see `profile`.

        Args:
            target: another machine than the one it was lowered for.
            lnc: physical cores per logical core; None for the policy's, else the
                target's default.

        Returns:
            A `neuronjax.timing.timeline.Timeline`.
        """
        machine = None if target is None else resolve_target(target)
        return _reading("timeline")(self.lowered.under(target=machine), lnc)

    def __rich__(self) -> RenderableType:
        return _reading("table")(self.lowered)

    def __repr__(self) -> str:
        lowered, count = self.lowered, len(self.instructions)
        what = f"{lowered.name} on {lowered.setting}, {count} instructions"
        return f"<neuronjax.{type(self).__name__} {what}>"


class Lowered(_Readable):
    """A captured and lowered program, before XLA.

    Attributes:
        captured: the program, its arguments and results, and what it was lowered for.
        entry: how it is compiled and called.
        args_info: the arguments it is called with: (args, kwargs) of arrays or types.
        donated: positions of the program's arguments that a call gives away.
    """

    def __init__(
        self,
        entry: CallEntry,
        args: tuple,
        kwargs: dict,
        captured: CapturedProgram,
        *,
        donated: frozenset[int] = frozenset(),
    ) -> None:
        self.entry = entry
        self.captured = captured
        self.args_info = args, kwargs
        self.donated = donated
        self.lowered = self

    @property
    def target(self) -> Target:
        """The machine that it was lowered for."""
        return self.captured.emulation.target

    @property
    def policy(self) -> Policy:
        """The numerics that it was lowered under."""
        return self.captured.emulation.policy

    @property
    def name(self) -> str:
        """Of the function or the file."""
        return self.entry.state.name

    @property
    def program(self) -> Program:
        """The StableHLO program."""
        return self.captured.program

    @property
    def setting(self) -> str:
        """Target, logical core, policy and SDK, in words."""
        return setting_line(self.target, self.policy)

    def as_text(self, dialect: str = "stablehlo") -> str:
        """The program as text.

        Args:
            dialect: "stablehlo", or "instructions" for the NeuronCore's.
        """
        check_word("dialect", dialect, ("stablehlo", "instructions"))
        if dialect == "stablehlo":
            return str(self.program)
        return _reading("instructions")(self)

    def under(
        self, *, target: Target | None = None, policy: Policy | None = None
    ) -> Lowered:
        """Return the same program, lowered for another target or policy."""
        if target is None and policy is None:
            return self
        setting = target or self.target, policy or self.policy
        entry, captured = self.entry.under(*setting), self.captured.under(*setting)
        return Lowered(entry, *self.args_info, captured, donated=self.donated)

    def bound(self, *args: Any, **kwargs: Any) -> CapturedProgram:
        """Return the program with the arguments of a call as its inputs.

        Raises:
            InvalidProgramError: they are not of the types that it was lowered for.
        """
        leaves = self.entry.leaves(args, kwargs)
        found, wanted = (
            [(x.shape, x.dtype) for x in every]
            for every in (leaves, self.captured.inputs)
        )
        if found != wanted:
            raise InvalidProgramError(
                f"arguments {types_text(leaves)}",
                op=self.name,
                remedy=f"give {types_text(self.captured.inputs)}",
            )
        return dataclasses.replace(self.captured, inputs=leaves)

    def init_amax_history(self) -> jax.Array:
        """The empty amax history for `scaling="delayed"`: zeros, for scales of 1.

        Returns:
            float32 [policy.amax_history_length, scaled tensors].
        """
        program = self.captured.instructions
        shape = (program.amax_history_length, program.amax_slots)
        return jnp.zeros(shape, jnp.float32)

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compile, at the first call, and run: see `Compiled`."""
        if capturing():
            return self.entry.inside(*args, **kwargs)
        return self._compiled(*args, **kwargs)

    @functools.cached_property
    def _compiled(self) -> Compiled:
        return self.compile()

    @property
    def _is_stochastic(self) -> bool:
        instructions = self.captured.instructions
        return may_round_stochastically(self.policy) or instructions.stochastic

    @boundary
    def compile(self) -> Compiled:
        """Compiles for the host."""
        state = self.entry.state
        index, history = state.call_index, state.amax_history
        if index is None and self._is_stochastic:
            index = jax.ShapeDtypeStruct((), jnp.uint32)
        if history is None and self.captured.instructions.amax_slots:
            history = jax.eval_shape(self.init_amax_history)
        takes = CallContext(index, history)
        with stages.watching(f"{self.name} on {self.target.name}", "compiling"):
            return Compiled(self, self.entry.compile(takes), state, takes)


def types_text(arrays: Sequence[Any]) -> str:
    """Return dtypes and shapes, as messages show them."""
    texts = (f"{x.dtype}[{','.join(map(str, x.shape))}]" for x in arrays)
    return ", ".join(texts) or "without any array"


class Compiled(_Readable, Stateful):
    """A program compiled for the host; call it with arguments of the lowered types.

    Attributes:
        lowered: what it was compiled from.
    """

    def __init__(
        self, lowered: Lowered, executable: Any, state: CallState, takes: CallContext
    ) -> None:
        self.lowered = lowered
        self._executable = executable
        self._state = state
        self._takes = takes

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if capturing():
            return self.lowered.entry.inside(*args, **kwargs)
        host_process.check()
        context = self._context(args, kwargs)
        return self.lowered.entry.run(self._executable, context, args, kwargs)

    def _context(self, args: tuple, kwargs: dict) -> CallContext:
        """What of the state the program takes."""
        index = history = None
        if self._takes.call_index is not None:
            index = self._state.next_index(True, args, kwargs)
        if self._takes.amax_history is not None:
            history = self._state.amax_history
            if history is None:
                raise InvalidProgramError(
                    'scaling="delayed" needs the amax history of the previous steps',
                    remedy="history = lowered.init_amax_history(), then outputs, "
                    "history = compiled.with_amax_history(history)(*args)",
                )
        return CallContext(index, history)

    def as_text(self, dialect: str = "instructions") -> str:
        """The program as text, with a label on every number: see `Lowered.as_text`."""
        return self.lowered.as_text(dialect)

    def cost_analysis(self) -> Any:
        """XLA's estimate of what the emulation costs the host."""
        return self._executable.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's plan of the emulation's memory on the host."""
        return self._executable.memory_analysis()
