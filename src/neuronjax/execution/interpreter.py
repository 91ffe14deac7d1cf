"""The interpreter's loop: environment, regions, loop counters and listeners.

Inside a trace the instructions become one XLA program. Under `jax.disable_jit()` the
same loop is eager: every instruction is a compiled program of its own, loops and
branches run in Python on concrete values, and the bits are those of the compiled run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from neuronjax.errors import UnsupportedError
from neuronjax.execution import device_sharding, host_process, inputs_outputs, spmd
from neuronjax.execution.engines import Registers, execute, host_scale
from neuronjax.execution.exchange import exchange
from neuronjax.execution.inputs_outputs import CallContext, Outcome
from neuronjax.execution.probes.accumulator import StepAccumulator
from neuronjax.execution.probes.plan import ProbePlan
from neuronjax.execution.shortcuts import KnownResults, is_small, shortened
from neuronjax.execution.uniformity import Uniformity
from neuronjax.ir.algebra_set import HostCall
from neuronjax.ir.collection import no_collection
from neuronjax.ir.collective_set import Collective, Spmd
from neuronjax.ir.instruction import (
    Block,
    Buffer,
    Instruction,
    InstructionProgram,
    SignedInstruction,
    is_64_bit,
)
from neuronjax.ir.instruction_set import (
    Activation,
    Branch,
    Call,
    DmaCopy,
    Loop,
    Memset,
    ReadAmax,
    RecordAmax,
    ScaleFromAmax,
)
from neuronjax.numerics.exact import kept_apart
from neuronjax.numerics.random_bits import fold

Arrays = Sequence[jax.Array]


class Listener(Protocol):
    """Sees every executed instruction with its operand and result arrays."""

    def did_execute(
        self, instruction: Instruction, operands: Arrays, results: Arrays
    ) -> None: ...


def run(
    program: InstructionProgram,
    arguments: Arrays,
    context: CallContext = CallContext(),
    listeners: Sequence[Listener] = (),
    plan: ProbePlan | None = None,
) -> Outcome:
    """Execute a program that `lowering` made; a call index of None counts as 0. The
    listeners are called after each instruction, in program order. The probes of `plan`
    are counted."""
    host_process.check()
    host_process.make_room()
    # The flag is public, its type stub is not complete.
    disabled = jax.config.jax_disable_jit  # type: ignore[attr-defined]
    eager = disabled and not any(isinstance(a, Tracer) for a in arguments)
    mesh = device_sharding.active_real_devices()
    one = functools.partial(_run, program, eager, listeners, plan)
    if mesh is None:
        return one(device_sharding.ALONE, arguments, context)
    if eager or listeners or plan:
        raise UnsupportedError(
            "on several real devices no program runs op by op or collects statistics",
            remedy="call the program outside of real_devices; its bits are the same",
        )
    return device_sharding.spread(mesh, program, one, arguments, context)


def _run(
    program: InstructionProgram,
    eager: bool,
    listeners: Sequence[Listener],
    plan: ProbePlan | None,
    real: device_sharding.RealDevices,
    arguments: Arrays,
    context: CallContext,
) -> Outcome:
    history = context.amax_history
    previous = None
    if history is not None and program.amax_slots:
        previous = jnp.max(history, axis=0)
    tracing = contextlib.nullcontext() if eager else no_collection()
    with jax.disable_jit(False), tracing:
        zero = inputs_outputs.make_zero(eager)
        key = first_key(program, context.call_index)
        seen = StepAccumulator(plan, previous)
        run = Interpretation(program, zero, eager, tuple(listeners), seen, real=real)
        arguments = inputs_outputs.entering(program.main, arguments, zero)
        results = run.block(program.main, arguments, {}, key)
        amaxes = seen.observed.amaxes
        if history is not None and amaxes is not None:  # drop the oldest step
            history = jnp.vstack([amaxes, history[:-1]])
        return Outcome(
            results=inputs_outputs.leaving(program.main, results),
            amax_history=history,
            statistics=None if plan is None else seen.arrays(arguments, results),
        )


def first_key(program: InstructionProgram, call_index: jax.Array | None) -> jax.Array:
    """Return the rounding key of main, from which all other keys derive."""
    if not program.stochastic:
        return jnp.uint32(0)
    index = jnp.uint32(0) if call_index is None else call_index
    return fold(fold(jnp.uint32(0), jnp.uint32(program.seed)), index)


@dataclass(eq=False)
class Interpretation:
    """One run of one program.

    Attributes:
        accumulator: observations of the part of the program that is being run.
        callees: compiled callees by name, shared with nested interpretations.
    """

    program: InstructionProgram
    zero: jax.Array
    eager: bool
    listeners: tuple[Listener, ...] = ()
    accumulator: StepAccumulator = field(default_factory=lambda: StepAccumulator(None))
    callees: dict[str, Callable[..., Any]] = field(default_factory=dict)
    real: device_sharding.RealDevices = device_sharding.ALONE

    def __post_init__(self) -> None:
        self.stochastic = self.program.stochastic

    @functools.cached_property
    def _uniformity(self) -> Uniformity:
        return Uniformity(self.program.functions)

    def record_amax(
        self, i: RecordAmax, operands: Arrays, environment: dict, key: jax.Array
    ) -> Arrays:
        """Record the largest magnitude of this step."""
        self.accumulator.record_amax(i.slot, operands[0])
        return ()

    def read_amax(
        self, i: ReadAmax, operands: Arrays, environment: dict, key: jax.Array
    ) -> Arrays:
        """Return the largest magnitude of the previous steps."""
        assert self.accumulator.previous_amaxes is not None
        return (self.accumulator.previous_amaxes[i.slot],)

    def block(
        self, block: Block, arguments: Arrays, outer: dict, key: jax.Array
    ) -> list[jax.Array]:
        """Execute a block; `outer` holds the values that it captures."""
        environment = dict(outer)
        environment.update(_by_number(block.arguments, arguments))
        known, instructions = None, block.instructions
        # Unless something depends on how often an instruction is executed.
        accumulator = self.accumulator
        records = accumulator.plan or accumulator.previous_amaxes is not None
        if not (self.eager or self.stochastic or self.listeners or records):
            known = KnownResults(_NOT_REUSED)
            instructions = shortened(block)
        for i in instructions:
            run = functools.partial(self.step, i, environment, key)
            results = known.of(i, environment, run) if known else run()
            environment.update(_by_number(i.results, results))
        return [environment[view.buffer.number] for view in block.results]

    def step(self, i: Instruction, environment: dict, key: jax.Array) -> Arrays:
        """Execute an instruction whose operands are in the environment."""
        operands = [environment[v.buffer.number] for v in i.operands]
        results = self.execute(i, operands, environment, key)
        self._notify(i, operands, results)
        again = lambda i: self.execute(i, operands, {}, key)  # noqa: E731
        self.accumulator.count(i, operands, results, again, environment)
        return results

    def _notify(self, i: Instruction, operands: Arrays, results: Arrays) -> None:
        for listener in self.listeners:
            listener.did_execute(i, operands, results)

    def execute(
        self, i: Instruction, operands: Arrays, environment: dict, key: jax.Array
    ) -> Arrays:
        if self.stochastic and i.ordinal:
            key = fold(key, jnp.uint32(i.ordinal))
        control = _CONTROL.get(type(i))
        if control is not None:
            return control(self, i, operands, environment, key)
        registers = Registers(self.zero, key, self._run_scalars)
        if self.eager:
            return _execute_alone(i, operands, registers)
        return _execute(i, operands, registers)

    def _run_scalars(self, block: Block, arguments: Arrays, key: jax.Array) -> Arrays:
        inner = Interpretation(self.program, self.zero, False)
        return inner.block(block, arguments, {}, key)

    # -- many devices ------------------------------------------------------------------

    def spmd(
        self, i: Spmd, operands: Arrays, environment: dict, key: jax.Array
    ) -> Arrays:
        """Execute a block on every device of a mesh."""
        return spmd.run(self, i, operands, self._uniformity, key)

    def exchange(
        self, i: Collective, operands: Arrays, devices: int, key: jax.Array
    ) -> Arrays:
        """Execute a collective on arrays with a device axis."""
        kernel = _exchange_kernel(i.signed, devices)
        with jax.enable_x64(is_64_bit(i)):
            results = kernel(operands, self.zero, key)
        self._notify(i, operands, results)
        return results

    # -- control -----------------------------------------------------------------------

    def loop(self, i: Loop, carry: Arrays, environment: dict, key: jax.Array) -> Arrays:
        """Execute a loop, for one device, or for all devices with equal values."""

        def condition(carry: Arrays) -> jax.Array:
            return self.block(i.condition, carry, environment, key)[0]

        def body(carry: Arrays, key: jax.Array) -> Arrays:
            return self.block(i.body, carry, environment, key)

        return self.iterate(i, carry, key, condition, body)

    def branch(
        self, i: Branch, operands: Arrays, environment: dict, key: jax.Array
    ) -> Arrays:
        """Execute a branch, for one device, or for all devices with equal values."""

        def run(block: Block) -> Arrays:
            return self.block(block, (), environment, key)

        return self.chosen(i, operands[0], run)

    def iterate(
        self,
        i: Loop,
        carry: Arrays,
        key: jax.Array,
        condition: Callable[[Arrays], jax.Array],
        body: Callable[[Arrays, jax.Array], Arrays],
    ) -> Arrays:
        """Run a loop, in XLA or, op by op, in Python.

        The state of the loop is the number of iterations, from which the rounding keys
        derive, the observations so far, and the carry. `condition` says whether there
        is another iteration. `body` executes one; its key is `key`, the key of the
        loop, with the number of the iteration folded in.
        """

        def iteration(state: tuple) -> tuple:
            counter, observed, *carry = state
            inner = fold(key, counter) if self.stochastic else key
            out, more = self.accumulator.apart(functools.partial(body, carry, inner))
            return (counter + jnp.uint32(1), observed.with_more(more), *out)

        def with_condition(state: tuple) -> tuple:
            holds, more = self.accumulator.apart(lambda: condition(state[2:]))
            return (holds, state[0], state[1].with_more(more), *state[2:])

        state = (jnp.uint32(0), self.accumulator.nothing([i.body]), *carry)
        if self.eager:
            while bool(condition(state[2:])):
                state = iteration(state)
        elif self.accumulator.previous_amaxes is not None:
            start = with_condition(state)
            _, *state = lax.while_loop(
                lambda x: x[0], lambda x: with_condition(iteration(x[1:])), start
            )
        else:
            state = lax.while_loop(lambda x: condition(x[2:]), iteration, state)
        self.accumulator.add(state[1])
        return state[2:]

    def chosen(
        self, i: Branch, index: jax.Array, run: Callable[[Block], Arrays]
    ) -> Arrays:
        """Run block `index` of a branch with `run`, the last one if out of range."""
        last, index = len(i.branches) - 1, index.astype(jnp.int32)
        index = jnp.where((index < 0) | (index > last), last, index)
        if self.eager:
            return run(i.branches[int(index)])
        nothing = self.accumulator.nothing(i.branches)

        def apart(block: Block) -> tuple:
            out, observed = self.accumulator.apart(lambda: run(block))
            return (nothing.with_more(observed), *out)

        branches = [functools.partial(apart, block) for block in i.branches]
        observed, *out = lax.switch(index, branches)
        self.accumulator.add(observed)
        return out

    def call(
        self, i: Call, operands: Arrays, environment: dict, key: jax.Array
    ) -> Arrays:
        if self.eager or self.listeners:
            run = functools.partial(self.block, self.callee(i), operands, {}, key)
            return self.accumulator.around(i, run)
        if i.callee not in self.callees:
            self.callees[i.callee] = self._compiled(i.callee)
        previous, compiled = self.accumulator.previous_amaxes, self.callees[i.callee]
        observed, out = compiled(self.zero, key, previous, *operands)
        self.accumulator.add_called(i, observed)
        return out

    def callee(self, i: Call) -> Block:
        """Return the block that a call runs."""
        return self.program.functions[i.callee]

    def _compiled(self, name: str) -> Callable[..., Any]:
        """Return a callee under `jax.jit`, which traces it once for all its calls."""
        program, callees, real = self.program, self.callees, self.real
        plan = self.accumulator.plan

        def body(zero: Any, key: Any, previous: Any, *operands: Any) -> tuple:
            seen = StepAccumulator(plan, previous)
            inner = Interpretation(program, zero, False, (), seen, callees, real)
            out = inner.block(program.functions[name], operands, {}, key)
            return seen.observed, out

        body.__name__ = name
        return jax.jit(body)


def _by_number(buffers: Sequence[Buffer], arrays: Arrays) -> dict[int, jax.Array]:
    return {b.number: array for b, array in zip(buffers, arrays, strict=True)}


_CONTROL: dict[type, Callable[..., Arrays]] = {
    Loop: Interpretation.loop,
    Branch: Interpretation.branch,
    Call: Interpretation.call,
    RecordAmax: Interpretation.record_amax,
    ReadAmax: Interpretation.read_amax,
    Spmd: Interpretation.spmd,
}


# A host call may print, so two equal calls must both run.
_NOT_REUSED = (frozenset(_CONTROL) - {Call}) | {HostCall}


def _execute(i: Instruction, operands: Arrays, registers: Registers) -> Arrays:
    """Execute an instruction in the current trace; trace equal instructions once."""
    if not is_small(i):
        results = _execute_alone(i, operands, registers)
        return kept_apart(results) if _has_own_kernel(i) else results
    with jax.enable_x64(True) if is_64_bit(i) else contextlib.nullcontext():
        return execute(i, operands, registers)


#: Functions that XLA computes by one operation, which it knows to be expensive.
_ROOTS = frozenset({"sqrt", "rsqrt", "reciprocal"})


def _has_own_kernel(i: Instruction) -> bool:
    """Return whether an instruction is a long chain of operations, which XLA considers
    cheap and would compute again for every reader."""
    if isinstance(i, ScaleFromAmax):
        return not host_scale.reads(i.operands[0].type.dtype)
    if isinstance(i, Activation):
        return i.function not in _ROOTS
    return getattr(i, "op", None) in ("power", "atan2")


def _execute_alone(i: Instruction, operands: Arrays, registers: Registers) -> Arrays:
    quick = isinstance(i, Memset | DmaCopy)
    with inputs_outputs.unchecked() if quick else contextlib.nullcontext():
        if type(i) is Memset:  # a kernel per constant would be slow
            with jax.enable_x64(is_64_bit(i)):
                return execute(i, operands, registers)
        with jax.enable_x64(True) if is_64_bit(i) else contextlib.nullcontext():
            return _kernel(i.signed)(operands, *registers[:2])


@functools.lru_cache(maxsize=8192)
def _kernel(signed: SignedInstruction) -> Callable[..., Any]:
    host_process.make_room()
    i = signed.instruction

    def body(operands: Arrays, zero: jax.Array, key: jax.Array) -> Arrays:
        program = InstructionProgram(Block((), (), ()), {}, stochastic=True)
        run_scalars = Interpretation(program, zero, False)._run_scalars
        return execute(i, operands, Registers(zero, key, run_scalars))

    return jax.jit(body)


@functools.lru_cache(maxsize=1024)
def _exchange_kernel(signed: SignedInstruction, devices: int) -> Callable[..., Any]:
    i: Any = signed.instruction
    return jax.jit(lambda x, zero, key: exchange(i, x, devices, zero, key))


def forget_kernels() -> None:
    """Free the compiled single instructions of op-by-op execution."""
    _kernel.cache_clear()
    _exchange_kernel.cache_clear()
