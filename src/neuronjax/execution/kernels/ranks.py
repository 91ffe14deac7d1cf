"""One kernel on many ranks: the same program on each, joined by its collectives.

The pools of all ranks are stacked. Between collectives one rank runs after the other. A
collective (engine "cc") runs for all ranks at once, under a `vmap` over the axis `AXIS`
of ranks, so that it can gather the data of all ranks. Op by op there is a machine per
rank.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.errors import UnsupportedError, user_line
from neuronjax.execution.kernels import running, steps
from neuronjax.execution.kernels.eager import EagerMachine, Row, StaticPart, run_step
from neuronjax.execution.kernels.rolling import Node
from neuronjax.execution.kernels.running import KernelPlan, Runner, is_joint
from neuronjax.execution.kernels.steps import State
from neuronjax.execution.tiles.collectives import AXIS
from neuronjax.execution.tiles.registry import TileContext
from neuronjax.hardware import CoreSpec
from neuronjax.ir.kernel import Access, KernelInstruction, Register, Storage
from neuronjax.ir.kernel_numerics import USUAL, KernelNumerics
from neuronjax.numerics.exact import opaque_zero


def runner(plan: KernelPlan) -> Runner:
    """Return a runner like `running.runner`, for arrays with a leading rank axis."""

    def run(
        arguments: Sequence[jax.Array], key: jax.Array, numerics: KernelNumerics
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        context = TileContext(opaque_zero(), plan.core, key, **numerics._asdict())
        state = _initial_state(plan, list(arguments))
        keys = rank_keys(key, plan.ranks)
        for joint, nodes in itertools.groupby(plan.nodes, lambda n: is_joint(n.kind)):
            _run(list(nodes), joint, state, keys, context)
        results = [
            _mapped(functools.partial(steps.read_at, access, ints), state)
            for access, ints in plan.results
        ]
        written = [
            _mapped(functools.partial(running.argument_value, plan, n), state)
            for n in plan.written
        ]
        return results, written

    return run


def rank_keys(key: jax.Array, ranks: int) -> jax.Array:
    """Return the keys of random numbers, one per rank."""
    return steps.derived_key(key, jnp.arange(ranks, dtype=jnp.uint32))


def _initial_state(plan: KernelPlan, arguments: list[jax.Array]) -> State:
    def one(number: jax.Array, arrays: list[jax.Array]) -> list[jax.Array]:
        state = running.initial_state(plan, arrays)
        return [state[name] for name in names]

    names: list[int | str] = ["registers", *range(len(plan.pools))]
    arrays = jax.vmap(one)(jnp.arange(plan.ranks), arguments)
    return dict(zip(names, arrays, strict=True))


def _mapped(function: Any, state: State) -> jax.Array:
    names = list(state)
    one = lambda arrays: function(dict(zip(names, arrays, strict=True)))  # noqa: E731
    return jax.vmap(one)([state[name] for name in names])


def _run(
    nodes: list[Node], joint: bool, state: State, keys: jax.Array, c: TileContext
) -> None:
    """Execute nodes on all ranks; `state` is changed in place."""
    names = list(state)
    written = set().union(*map(running.writes, nodes))
    kept = [name for name in names if name in written]

    def one(inputs: tuple[list[jax.Array], jax.Array]) -> list[jax.Array]:
        arrays, key = inputs
        own: State = dict(zip(names, arrays, strict=True))
        running.run_nodes(nodes, 0, own, c._replace(key=key))
        return [own[name] for name in kept]

    inputs = ([state[name] for name in names], keys)
    run = jax.vmap(one, axis_name=AXIS) if joint else functools.partial(lax.map, one)
    state.update(zip(kept, run(inputs), strict=True))


# ---- Op by op.


class RankedMachine:
    """Executes every instruction on all ranks at once; see `eager.EagerMachine`."""

    def __init__(
        self,
        core: CoreSpec,
        key: jax.Array,
        ranks: int,
        numerics: KernelNumerics = USUAL,
    ) -> None:
        self.key = rank_keys(key, ranks)
        self.machines = [EagerMachine(core, key, numerics) for _ in range(ranks)]

    def load(self, storage: Storage, array: Any) -> None:
        """Fill a storage with [ranks, ...]."""
        for machine, part in zip(self.machines, np.asarray(array), strict=True):
            machine.load(storage, part)

    def execute(self, instruction: KernelInstruction) -> None:
        for machine, key in zip(self.machines, np.asarray(self.key), strict=True):
            machine.key = key
        if instruction.engine == "cc":
            self._execute_jointly(instruction)
            return
        for machine in self.machines:
            machine.execute(instruction)

    def _execute_jointly(self, instruction: KernelInstruction) -> None:
        calls = [machine.call_of(instruction) for machine in self.machines]
        first = calls[0]
        with jax.disable_jit(False):
            arrays, registers = _run_jointly(
                first.static,
                [np.stack(every) for every in zip(*(c.arrays for c in calls))],
                np.stack([c.registers for c in calls]),
                first.row,
                self.key,
            )
        # NumPy indexes rows without compiling anything.
        arrays, registers = list(map(np.asarray, arrays)), np.asarray(registers)
        for rank, (machine, call) in enumerate(zip(self.machines, calls, strict=True)):
            machine.finish(call, [array[rank] for array in arrays], registers[rank])

    def read(self, access: Access) -> np.ndarray:
        return np.stack([machine.read(access) for machine in self.machines])

    def value(self, storage: Storage) -> jax.Array:
        values = [np.asarray(machine.value(storage)) for machine in self.machines]
        return jnp.asarray(np.stack(values))

    def register(self, register: Register) -> int:
        """Return the value of a register, which must be equal on all ranks."""
        values = {machine.register(register) for machine in self.machines}
        if len(values) > 1:
            raise UnsupportedError(
                f"iteration counts of a loop differ between ranks: {sorted(values)}",
                location=user_line(),
                remedy="run the kernel without jax.disable_jit()",
            )
        return values.pop()

    def set_register(self, register: Register, value: int) -> None:
        for machine in self.machines:
            machine.set_register(register, value)


@functools.partial(jax.jit, static_argnums=0)
def _run_jointly(
    static: StaticPart,
    arrays: list[jax.Array],
    registers: jax.Array,
    row: Row,
    keys: jax.Array,
) -> tuple[list[jax.Array], jax.Array]:
    def one(own: list[jax.Array], values: jax.Array, key: jax.Array) -> tuple:
        return run_step(static, own, values, row, key)

    return jax.vmap(one, axis_name=AXIS)(arrays, registers, keys)
