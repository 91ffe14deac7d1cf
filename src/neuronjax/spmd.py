"""A block on every device of a mesh, inside one program.

A value that may differ among devices is an array with a leading device axis; all others
exist once: constants, replicated arguments, what everyone received from a collective,
and what is computed from those alone. Instructions between two collectives run as one
loop over the devices, so that a device's bits are those of the program alone, and
compile time does not depend on how many devices there are. Loops, branches and calls
that hold collectives run for all devices at once: by the rules of SPMD they agree on
every condition, and the first device's is taken. Which values differ is found by
`variance`, without running anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.collectives.splitting import is_replicated, join_array, split_array
from neuronjax.ir.collective_set import Collective, Spmd
from neuronjax.ir.instruction import Block, Instruction
from neuronjax.ir.instruction_set import Branch, Call, Loop
from neuronjax.numerics.random_bits import fold
from neuronjax.variance import Variance

Arrays = Sequence[jax.Array]


class Machine(Protocol):
    """What this file needs of the interpreter."""

    eager: bool
    stochastic: bool

    def step(self, i: Instruction, environment: dict, key: jax.Array) -> Arrays:
        """Executes one instruction whose operands are in the environment."""
        ...

    def exchange(
        self, i: Collective, operands: Arrays, devices: int, key: jax.Array
    ) -> Arrays:
        """Executes a collective on arrays with a device axis."""
        ...


def run(
    machine: Machine, i: Spmd, operands: Arrays, variance: Variance, key: jax.Array
) -> list[jax.Array]:
    """Executes an `Spmd`: global arrays in, global arrays out."""
    scope = _Scope({}, set())
    for buffer, x, split in zip(i.body.arguments, operands, i.splits, strict=True):
        differs = not is_replicated(split, i.mesh)
        x = split_array(x, split, i.mesh) if differs else x
        scope.put(buffer.number, x, differs)
    devices = _Devices(machine, variance, i.mesh.size)
    devices.block(i.body, scope, key)
    results = [
        devices.stacked(*scope.get(view.buffer.number)) for view in i.body.results
    ]
    return [
        join_array(x, split, i.mesh) for x, split in zip(results, i.joins, strict=True)
    ]


class _Scope(NamedTuple):
    """Values by the number of their buffer; those in `varying` have a device axis."""

    arrays: dict[int, jax.Array]
    varying: set[int]

    def get(self, number: int) -> tuple[jax.Array, bool]:
        return self.arrays[number], number in self.varying

    def put(self, number: int, x: jax.Array, differs: bool) -> None:
        self.arrays[number] = x
        (self.varying.add if differs else self.varying.discard)(number)

    def inner(self) -> _Scope:
        return _Scope(dict(self.arrays), set(self.varying))


class _Devices:
    """Executes blocks on all devices of a mesh."""

    def __init__(self, machine: Machine, variance: Variance, count: int) -> None:
        self._machine = machine
        self._variance = variance
        self._count = count

    def stacked(self, x: jax.Array, differs: bool) -> jax.Array:
        """With a device axis, also where all devices have the same."""
        return x if differs else jnp.broadcast_to(x, (self._count, *x.shape))

    def block(self, block: Block, scope: _Scope, key: jax.Array) -> None:
        """Executes the instructions of a block; their results enter the scope."""
        waiting: list[Instruction] = []
        for position, i in enumerate(block.instructions):
            flags = self._variance.results(i, scope.varying, self._count)
            if self._variance.joins(i):
                self._each(waiting, block, position, scope, key)
                waiting = []
                results = self._together(i, flags, scope, key)
            elif any(flags):
                waiting.append(i)
                scope.varying.update(buffer.number for buffer in i.results)
                continue
            else:
                results = self._machine.step(i, scope.arrays, key)
            for buffer, x, differs in zip(i.results, results, flags, strict=True):
                scope.put(buffer.number, x, differs)
        self._each(waiting, block, len(block.instructions), scope, key)

    # -- one device after the other ----------------------------------------------------

    def _each(
        self,
        waiting: list[Instruction],
        block: Block,
        position: int,
        scope: _Scope,
        key: jax.Array,
    ) -> None:
        """Executes instructions for every device in one loop.

        Args:
            waiting: the instructions.
            block: which they are of.
            position: of the first instruction of the block that comes after them.
            scope: has what they read, and gets what is read later.
            key: of the block; a device's number is folded into it.
        """
        if not waiting:
            return
        variance = self._variance
        reads = set().union(*map(variance.reads, waiting)) & scope.arrays.keys()
        later = {view.buffer.number for view in block.results}
        later = later.union(*map(variance.reads, block.instructions[position:]))
        outputs = [b.number for i in waiting for b in i.results if b.number in later]
        once = {n: scope.arrays[n] for n in reads - scope.varying}
        own = {n: scope.arrays[n] for n in reads & scope.varying}

        def one(device: jax.Array, own: dict[int, jax.Array]) -> tuple:
            arrays = {**once, **own}
            device_key = fold(key, device)
            for i in waiting:
                results = self._machine.step(i, arrays, device_key)
                numbers = (buffer.number for buffer in i.results)
                arrays.update(zip(numbers, results, strict=True))
            return tuple(arrays[n] for n in outputs)

        scope.arrays.update(zip(outputs, self._map(one, own), strict=True))

    def _map(self, one: Callable[..., tuple], own: dict[int, jax.Array]) -> Arrays:
        devices = jnp.arange(self._count, dtype=jnp.uint32)
        if not self._machine.eager:
            return lax.map(lambda each: one(*each), (devices, own))
        rows = [
            one(devices[d], {n: x[d] for n, x in own.items()})
            for d in range(self._count)
        ]
        return [jnp.stack(column) for column in zip(*rows, strict=True)]

    # -- all devices together ----------------------------------------------------------

    def _together(
        self, i: Instruction, flags: Sequence[bool], scope: _Scope, key: jax.Array
    ) -> Arrays:
        if self._machine.stochastic and i.ordinal:
            key = fold(key, jnp.uint32(i.ordinal))
        return _TOGETHER[_kind(i)](self, i, flags, scope, key)

    def _collective(
        self, i: Collective, flags: Sequence[bool], scope: _Scope, key: jax.Array
    ) -> Arrays:
        operands = [self.stacked(*scope.get(v.buffer.number)) for v in i.operands]
        results = self._machine.exchange(i, operands, self._count, key)
        return [x if f else x[0] for x, f in zip(results, flags, strict=True)]

    def _inner(
        self,
        block: Block,
        arguments: Sequence[tuple[jax.Array, bool]],
        flags: Sequence[bool],
        scope: _Scope,
        key: jax.Array,
    ) -> list[jax.Array]:
        """The results of a nested block, with a device axis where `flags` says so."""
        scope = scope.inner()
        for buffer, (x, differs) in zip(block.arguments, arguments, strict=True):
            scope.put(buffer.number, x, differs)
        self.block(block, scope, key)
        results = [scope.get(view.buffer.number) for view in block.results]
        return [
            self.stacked(x, differs) if flag else x
            for (x, differs), flag in zip(results, flags, strict=True)
        ]

    def _call(
        self, i: Call, flags: Sequence[bool], scope: _Scope, key: jax.Array
    ) -> Arrays:
        (block,) = self._variance.blocks(i)
        arguments = [scope.get(v.buffer.number) for v in i.operands]
        return self._inner(block, arguments, flags, scope, key)

    def _loop(
        self, i: Loop, flags: Sequence[bool], scope: _Scope, key: jax.Array
    ) -> Arrays:
        def condition(state: tuple) -> jax.Array:
            carry = list(zip(state[1:], flags, strict=True))
            (value,) = self._inner(i.condition, carry, [True], scope, key)
            return value[0]

        def body(state: tuple) -> tuple:
            counter, *values = state
            inner = fold(key, counter) if self._machine.stochastic else key
            carry = list(zip(values, flags, strict=True))
            out = self._inner(i.body, carry, flags, scope, inner)
            return (counter + jnp.uint32(1), *out)

        start = (scope.get(v.buffer.number) for v in i.operands)
        state: tuple = (
            jnp.uint32(0),
            *[
                self.stacked(x, differs) if flag else x
                for (x, differs), flag in zip(start, flags, strict=True)
            ],
        )
        if not self._machine.eager:
            return lax.while_loop(condition, body, state)[1:]
        while bool(condition(state)):
            state = body(state)
        return state[1:]

    def _branch(
        self, i: Branch, flags: Sequence[bool], scope: _Scope, key: jax.Array
    ) -> Arrays:
        index, differs = scope.get(i.operands[0].buffer.number)
        index = (index[0] if differs else index).astype(jnp.int32)
        last = len(i.branches) - 1
        # StableHLO: an index out of range picks the last branch.
        index = jnp.where((index < 0) | (index > last), last, index)
        runs = [
            functools.partial(self._inner, block, (), flags, scope, key)
            for block in i.branches
        ]
        return runs[int(index)]() if self._machine.eager else lax.switch(index, runs)


def _kind(i: Instruction) -> type:
    return Collective if isinstance(i, Collective) else type(i)


_TOGETHER: dict[type, Callable[..., Arrays]] = {
    Collective: _Devices._collective,
    Loop: _Devices._loop,
    Branch: _Devices._branch,
    Call: _Devices._call,
}
