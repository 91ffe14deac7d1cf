"""Lowered and compiled programs: what `jit(f).lower(...)` and `load(...)` return.

A `Lowered` is a program before XLA: StableHLO and the instructions of one chip under
one policy. A `Compiled` is callable, and asks whoever made it (its `Entry`) how
arguments become flat arrays. Beside the arguments travel the call index of stochastic
rounding and the amax history of delayed scaling: a `CallState`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from rich.console import RenderableType

from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.hardware import Target, resolve_target
from neuronjax.ir.instruction import Instruction, InstructionProgram
from neuronjax.ir.program import Program
from neuronjax.ir.text import instruction_text
from neuronjax.policy import Policy
from neuronjax.report.places import place
from neuronjax.report.program_display import program_table
from neuronjax.report.tables import Displayed
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.schedule import schedule
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import Core


@dataclass(frozen=True)
class CallState:
    """What travels beside the arguments of a call.

    Attributes:
        name: of the function, for errors.
        calls: counts the eager calls.
        call_index: a given one, uint32.
        amax_history: of delayed scaling, from the previous call.
    """

    name: str
    calls: Iterator[int] = field(default_factory=itertools.count)
    call_index: jax.Array | None = None
    amax_history: jax.Array | None = None

    def __deepcopy__(self, memo: dict) -> CallState:
        return self  # nothing in it changes, but the count, which copies share

    def with_rounding_seed(self, index: Any) -> CallState:
        """With a given call index."""
        index = jnp.asarray(index).astype(jnp.uint32)
        return dataclasses.replace(self, call_index=index)

    def with_amax_history(self, history: jax.Array) -> CallState:
        """With a given history."""
        return dataclasses.replace(self, amax_history=history)

    def next_index(self, stochastic: bool, *arguments: Any) -> Any:
        """The call index of this call: the one given, the next, or None.

        Raises:
            InvalidProgramError: the call is traced and rounds stochastically.
        """
        if self.call_index is not None:
            return self.call_index
        if not stochastic:
            return None
        if _is_traced(arguments):
            raise InvalidProgramError(
                f"{self.name} rounds stochastically and is traced: every run of the "
                "traced program would draw the same random bits",
                remedy="call with_rounding_seed(i)(...) with i a traced uint32 that "
                "changes with every call, for instance the step number",
            )
        return np.uint32(next(self.calls))


def _is_traced(arguments: Any) -> bool:
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments)):
        return True
    # Inside a trace every new array is a tracer. (This op costs half of jnp.zeros.)
    return isinstance(lax.bitwise_not(np.uint32(0)), Tracer)


def may_round_stochastically(policy: Policy) -> bool:
    """Whether a call under this policy needs a call index."""
    return policy.rounding == "stochastic" or any(
        rule.rounding == "stochastic" for rule in policy.rules
    )


def forward_mode_error(name: str) -> UnsupportedError:
    """What jvp, jacfwd and hessian of an emulated function raise."""
    return UnsupportedError(
        f"forward-mode differentiation (jvp, jacfwd, hessian) of {name}: the chip runs "
        "forward and backward programs",
        remedy="use jax.grad, jax.vjp or jax.jacrev; jacrev(jacrev(f)) for a Hessian",
    )


@dataclass(frozen=True)
class Entry:
    """How a lowered program is compiled and called: `jit` and `load` each make theirs.

    Attributes:
        state: what the compiled program starts with.
        compile: hidden values (or their types) -> `jax.stages.Compiled`.
        run: (executable, hidden values, args, kwargs) -> results.
    """

    state: CallState
    compile: Callable[[tuple], Any]
    run: Callable[[Any, tuple, tuple, dict], Any]


class Lowered(Displayed):
    """A captured and lowered program, before XLA."""

    def __init__(
        self,
        entry: Entry,
        args: tuple,
        kwargs: dict,
        program: Program,
        instructions: InstructionProgram,
        *,
        stochastic: bool,
        target: Target | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.target, self.policy = target, policy
        self._entry = entry
        self._args, self._kwargs = args, kwargs
        self._program = program
        self._instructions = instructions
        self._stochastic = stochastic

    @property
    def name(self) -> str:
        """Of the function or the file."""
        return self._entry.state.name

    @property
    def program(self) -> Program:
        """The StableHLO program."""
        return self._program

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """Every instruction, those of loops and callees included."""
        return tuple(self._instructions.walk())

    @property
    def args_info(self) -> tuple[tuple, dict]:
        """The arguments it is called with: (args, kwargs) of arrays or their types."""
        return self._args, self._kwargs

    def as_text(self, dialect: str = "stablehlo") -> str:
        """The program as text.

        Args:
            dialect: "stablehlo", or "instructions" for the NeuronCore's.
        """
        if dialect == "stablehlo":
            return str(self.program)
        if dialect == "instructions":
            return instruction_text(self._instructions, place)
        raise InvalidProgramError(
            f"dialect {dialect!r}", remedy='choose "stablehlo" or "instructions"'
        )

    def init_amax_history(self) -> jax.Array:
        """The empty amax history for `scaling="delayed"`: zeros, for scales of 1.

        Returns:
            float32 [policy.amax_history_length, scaled tensors].
        """
        program = self._instructions
        shape = (program.amax_history_length, program.amax_slots)
        return jnp.zeros(shape, jnp.float32)

    def timeline(
        self, *, target: str | None = None, lnc: int | None = None
    ) -> Timeline:
        """When every engine would do what, for one logical core; see `profile`.

        Args:
            target: where the program does not know what it was lowered for.
            lnc: physical cores per logical core; None for the target's default.

        Raises:
            InvalidProgramError: the target is not known.
        """
        machine = self.target if target is None else resolve_target(target)
        if machine is None:
            raise InvalidProgramError(
                f"the target that {self.name} was lowered for is not known",
                remedy="name it: timeline(target=...)",
            )
        if lnc is None and self.policy is not None:
            lnc = self.policy.lnc
        core = Core.of(machine, lnc)
        plan = plan_memory(self._instructions, core, self.program.argument_names)
        placement = () if self.policy is None else self.policy.placement
        return schedule(
            self._instructions, core, machine, plan=plan, placement=placement
        )

    def __repr__(self) -> str:
        return f"<neuronjax.Lowered {self._shown}>"

    def __rich__(self) -> RenderableType:
        return program_table(self.name, self._instructions, self._setting)

    @property
    def _setting(self) -> str:
        target = "an unnamed target" if self.target is None else self.target.name
        if self.policy is None:
            return target
        unnamed = "of the SDK" if self.policy == Policy.resolve(None) else "custom"
        return f"{target}, policy {self.policy.name or unnamed}"

    @property
    def _shown(self) -> str:
        return f"{self.name} on {self._setting}, {len(self.instructions)} instructions"

    def compile(self) -> Compiled:
        """Compiles for the host."""
        state = self._entry.state
        index, history = state.call_index, state.amax_history
        if index is None and self._stochastic:
            index = jax.ShapeDtypeStruct((), jnp.uint32)
        if history is None and self._instructions.amax_slots:
            history = jax.eval_shape(self.init_amax_history)
        hidden = (index, history)
        executable = self._entry.compile(hidden)
        takes = (index is not None, history is not None)
        return Compiled(self, executable, state, takes)


class Compiled(Displayed):
    """A program compiled for the host; call it with arguments of the lowered types."""

    def __init__(
        self,
        lowered: Lowered,
        executable: Any,
        state: CallState,
        takes: tuple[bool, bool],
    ) -> None:
        self._lowered = lowered
        self._executable = executable
        self._state = state
        self._takes_index, self._takes_history = takes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hidden = self._hidden(args, kwargs)
        return self._lowered._entry.run(self._executable, hidden, args, kwargs)

    def _hidden(self, args: tuple, kwargs: dict) -> tuple:
        index = history = None
        if self._takes_index:
            index = self._state.next_index(True, args, kwargs)
        if self._takes_history:
            history = self._state.amax_history
            if history is None:
                raise InvalidProgramError(
                    'scaling="delayed" needs the amax history of the previous steps',
                    remedy="history = lowered.init_amax_history(), then outputs, "
                    "history = compiled.with_amax_history(history)(*args)",
                )
        return index, history

    def with_rounding_seed(self, index: Any) -> Compiled:
        """The same program with a given call index for stochastic rounding.

        Args:
            index: an integer or a traced uint32, such as the step number. The same
                index gives the same random bits.
        """
        return self._with(self._state.with_rounding_seed(index))

    def with_amax_history(self, history: jax.Array) -> Compiled:
        """The same program with delayed scaling's state.

        Args:
            history: from `Lowered.init_amax_history` or the previous call.

        Returns:
            A program that returns `(outputs, history of the next call)`.
        """
        return self._with(self._state.with_amax_history(history))

    def _with(self, state: CallState) -> Compiled:
        takes = (self._takes_index, self._takes_history)
        return Compiled(self._lowered, self._executable, state, takes)

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """Every instruction, those of loops and callees included."""
        return self._lowered.instructions

    def as_text(self, dialect: str = "instructions") -> str:
        """The program as text, with a label on every number: see `Lowered.as_text`."""
        return self._lowered.as_text(dialect)

    def timeline(
        self, *, target: str | None = None, lnc: int | None = None
    ) -> Timeline:
        """When every engine would do what: see `Lowered.timeline`."""
        return self._lowered.timeline(target=target, lnc=lnc)

    def __repr__(self) -> str:
        return f"<neuronjax.Compiled {self._lowered._shown}>"

    def __rich__(self) -> RenderableType:
        return self._lowered.__rich__()

    def cost_analysis(self) -> Any:
        """XLA's estimate of what the emulation costs the host."""
        return self._executable.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's plan of the emulation's memory on the host."""
        return self._executable.memory_analysis()
