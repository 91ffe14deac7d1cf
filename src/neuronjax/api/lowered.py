"""Lowered and compiled programs: the results of `jit(f).lower(...)` and `load(...)`.

A `Lowered` is a program before XLA: StableHLO and the instructions of one chip under
one policy. A `Compiled` is callable; its arguments are flattened by a `CallEntry`.
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
    """The functions that compile and call a lowered program, made by `jit` or `load`.

    Attributes:
        state: the call state with which the compiled program starts.
        compile: makes a `jax.stages.Compiled` for a call context or its types.
        run: returns the results for (executable, call context, args, kwargs).
        inside: the function to call inside another emulated function.
        leaves: returns the flat arguments of the program for (args, kwargs).
        under: returns the `CallEntry` of the same program for (target, policy).
    """

    state: CallState
    compile: Callable[[CallContext], Any]
    run: Callable[[Any, CallContext, tuple, dict], Any]
    inside: Callable[..., Any]
    leaves: Callable[[tuple, dict], list[Any]]
    under: Callable[[Target, Policy], CallEntry]


#: The module that prices and shows programs. It is imported when it is first used,
#: because running a program needs neither the time model nor the report.
_READINGS = "neuronjax.api.readings"


def _reading(name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(_READINGS), name)


class _Readable(Displayed):
    """The attributes of lowered and compiled programs. Reading them runs nothing."""

    lowered: Lowered

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions, including those of loops and callees."""
        return tuple(self.lowered.captured.instructions.walk())

    def timeline(self, *, target: str | None = None, lnc: int | None = None) -> Any:
        """Return the predicted schedule of each engine of a logical core; see
        `profile`.

        Args:
            target: the target, if not that for which the program was lowered.
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
        captured: the program, its arguments and results, and its target and policy.
        entry: the functions that compile and call the program.
        args_info: the arguments of calls: (args, kwargs) of arrays or types.
        donated: positions of the program's arguments that a call donates.
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
        """The machine for which the program was lowered."""
        return self.captured.emulation.target

    @property
    def policy(self) -> Policy:
        """The numerics under which the program was lowered."""
        return self.captured.emulation.policy

    @property
    def name(self) -> str:
        """The name of the function or file."""
        return self.entry.state.name

    @property
    def program(self) -> Program:
        """The StableHLO program."""
        return self.captured.program

    @property
    def setting(self) -> str:
        """Target, logical core, policy and SDK as text."""
        return setting_line(self.target, self.policy)

    def as_text(self, dialect: str = "stablehlo") -> str:
        """Return the program as text.

        Args:
            dialect: "stablehlo", or "instructions" for the NeuronCore's instructions.
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
        """Return the program with the arguments of a call as its inputs; refuse
        arguments of other types than the program's."""
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
        """Return the empty amax history of `scaling="delayed"`: zeros (scales of 1).

        Returns:
            float32 [policy.amax_history_length, scaled tensors].
        """
        program = self.captured.instructions
        shape = (program.amax_history_length, program.amax_slots)
        return jnp.zeros(shape, jnp.float32)

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program, and compile it at the first call; see `Compiled`."""
        if capturing():
            return self.entry.inside(*args, **kwargs)
        return self._compiled(*args, **kwargs)

    @functools.cached_property
    def _compiled(self) -> Compiled:
        return self.compile()

    @boundary
    def compile(self) -> Compiled:
        """Compile the program for the host."""
        state = self.entry.state
        index, history = state.call_index, state.amax_history
        program = self.captured.instructions
        is_stochastic = may_round_stochastically(self.policy) or program.stochastic
        if index is None and is_stochastic:
            index = jax.ShapeDtypeStruct((), jnp.uint32)
        if history is None and program.amax_slots:
            history = jax.eval_shape(self.init_amax_history)
        takes = CallContext(index, history)
        with stages.watching(f"{self.name} on {self.target.name}", "compiling"):
            return Compiled(self, self.entry.compile(takes), state, takes)


def types_text(arrays: Sequence[Any]) -> str:
    """Return dtypes and shapes as text for messages."""
    texts = (f"{x.dtype}[{','.join(map(str, x.shape))}]" for x in arrays)
    return ", ".join(texts) or "without any array"


class Compiled(_Readable, Stateful):
    """A program compiled for the host; its arguments must have the lowered types.

    Attributes:
        lowered: the program before compilation.
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
        index = history = None
        if self._takes.call_index is not None:
            index = self._state.next_index(True, args, kwargs)
        if self._takes.amax_history is not None:
            history = self._state.amax_history
            if history is None:
                raise InvalidProgramError(
                    'scaling="delayed" needs the amax history of the previous steps',
                    remedy="write history = lowered.init_amax_history(), then outputs, "
                    "history = compiled.with_amax_history(history)(*args)",
                )
        context = CallContext(index, history)
        return self.lowered.entry.run(self._executable, context, args, kwargs)

    def as_text(self, dialect: str = "instructions") -> str:
        """Return the program as text, as `Lowered.as_text` does."""
        return self.lowered.as_text(dialect)

    def cost_analysis(self) -> Any:
        """Return XLA's estimate of the emulation's cost on the host."""
        return self._executable.cost_analysis()

    def memory_analysis(self) -> Any:
        """Return XLA's plan of the emulation's memory on the host."""
        return self._executable.memory_analysis()
