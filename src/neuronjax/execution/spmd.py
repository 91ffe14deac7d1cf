"""A block on every device of a mesh, inside one program.

A value that may differ among devices is an array with a leading device axis. All other
values exist once: constants, replicated arguments, results that all devices receive
from a collective, and what is computed from those alone. Instructions between two
collectives run as one loop over the devices, so a device's bits are those of the
program alone, and the compile time does not depend on the number of devices. Loops,
branches and calls that contain collectives run for all devices at once: by the rules of
SPMD every condition has the same value on all devices, so the first device's is used.
`uniformity` finds which values differ, without running anything.

If several real devices run the emulated devices, each real device does this with its
own; see `device_sharding`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.device_sharding import (
    RealDevices,
    carried_dimension,
    is_replicated,
    is_spread,
    join_array,
    part_of,
    split_array,
)
from neuronjax.execution.exchange import filled
from neuronjax.execution.probes.accumulator import Observed, StepAccumulator, total
from neuronjax.execution.uniformity import Uniformity
from neuronjax.ir.collective_set import AllReduce, Collective, DeviceMesh, Split, Spmd
from neuronjax.ir.instruction import Block, Instruction
from neuronjax.ir.instruction_set import Branch, Call, Loop
from neuronjax.ir.kernel_call import NkiKernel
from neuronjax.numerics.random_bits import fold

Arrays = Sequence[jax.Array]
RunBlock = Callable[[Block], Arrays]
#: carry -> whether a loop has another iteration.
Condition = Callable[[Arrays], jax.Array]
#: (carry, rounding key) -> the carry after one iteration.
Iteration = Callable[[Arrays, jax.Array], Arrays]


class Interpreter(Protocol):
    """The parts of the interpreter that this file uses."""

    eager: bool
    stochastic: bool
    listeners: tuple
    real: RealDevices
    accumulator: StepAccumulator

    def step(self, i: Instruction, environment: dict, key: jax.Array) -> Arrays: ...
    def callee(self, i: Call) -> Block: ...
    def chosen(self, i: Branch, index: jax.Array, run: RunBlock) -> Arrays: ...
    def iterate(
        self,
        i: Loop,
        carry: Arrays,
        key: jax.Array,
        condition: Condition,
        body: Iteration,
    ) -> Arrays: ...
    def exchange(
        self, i: Collective, operands: Arrays, devices: int, key: jax.Array
    ) -> Arrays: ...


def run(
    interpreter: Interpreter,
    i: Spmd,
    operands: Arrays,
    uniformity: Uniformity,
    key: jax.Array,
) -> list[jax.Array]:
    """Execute an `Spmd` on global arrays and return global arrays. For buffers in
    `real.parts`, arrays are this real device's parts."""
    real, scope = interpreter.real, _Scope({}, set())
    arguments = zip(i.body.arguments, i.operands, operands, i.splits, strict=True)
    for buffer, view, x, split in arguments:
        differs = not is_replicated(split, i.mesh)
        if differs:
            whole = view.buffer.number not in real.parts
            x = _rows(x, split, i.mesh, real, whole=whole)
        scope.put(buffer.number, x, differs)
    devices = _Devices(interpreter, uniformity, i.mesh.size)
    devices.block(i.body, scope, key)
    results = []
    for view, buffer, split in zip(i.body.results, i.results, i.joins, strict=True):
        x, differs = scope.get(view.buffer.number)
        if differs or not is_replicated(split, i.mesh):
            x, whole = devices.stacked(x, differs), buffer.number not in real.parts
            x = _joined(x, split, i.mesh, real, whole=whole)
        results.append(x)
    return results


def _rows(
    x: jax.Array, split: Split, mesh: DeviceMesh, real: RealDevices, *, whole: bool
) -> jax.Array:
    """Cut a global array, or this device's part, to [own devices, *local shape]."""
    if is_spread(split, mesh, real.count):
        return real.own(split_array(x, split, mesh))
    cut = carried_dimension(split, mesh, real.count)
    if whole and cut is not None:
        x = real.own(x, cut)
    return split_array(x, split, part_of(mesh, real.count))


def _joined(
    x: jax.Array, split: Split, mesh: DeviceMesh, real: RealDevices, *, whole: bool
) -> jax.Array:
    """Join [own devices, *local] to the global array, or this real device's part."""
    if is_spread(split, mesh, real.count):
        return join_array(real.everyone(x), split, mesh)
    x = join_array(x, split, part_of(mesh, real.count))
    cut = carried_dimension(split, mesh, real.count)
    if cut is None:
        return real.first(x)
    return real.everyone(x, cut) if whole else x


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
    """Executes blocks on the devices of a mesh that this real device runs."""

    def __init__(
        self, interpreter: Interpreter, uniformity: Uniformity, count: int
    ) -> None:
        self._interpreter = interpreter
        self._uniformity = uniformity
        self._count = count
        self._real = interpreter.real
        self._carried = interpreter.real.share(count)

    def stacked(self, x: jax.Array, differs: bool) -> jax.Array:
        """Return `x` with a device axis, repeated along it unless it `differs`."""
        return x if differs else jnp.broadcast_to(x, (self._carried, *x.shape))

    def _everyone(self, x: jax.Array, differs: bool) -> jax.Array:
        if differs:
            return self._real.everyone(x)
        return jnp.broadcast_to(x, (self._count, *x.shape))

    def _agreed(self, x: jax.Array, differs: bool) -> jax.Array:
        return self._real.first(x[0]) if differs else x

    def block(self, block: Block, scope: _Scope, key: jax.Array) -> None:
        waiting: list[Instruction] = []
        for position, i in enumerate(block.instructions):
            flags = self._uniformity.results(i, scope.varying, self._count)
            if self._uniformity.joins(i):
                self._each(waiting, block, position, scope, key)
                waiting = []
                results = self._together(i, flags, scope, key)
            elif any(flags) or not i.results:
                # Every device has the effects of an instruction without results.
                waiting.append(i)
                scope.varying.update(buffer.number for buffer in i.results)
                continue
            else:
                results = self._interpreter.step(i, scope.arrays, key)
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
        """Execute the `waiting` instructions, which `block` has before `position`, for
        every device in one loop. Results that are read later are added to the scope. A
        device's number is folded into the key."""
        if not waiting:
            return
        reads = set().union(*map(self._reads, waiting)) & scope.arrays.keys()
        later = {view.buffer.number for view in block.results}
        later = later.union(*map(self._reads, block.instructions[position:]))
        outputs = [b.number for i in waiting for b in i.results if b.number in later]
        once = {n: scope.arrays[n] for n in reads - scope.varying}
        own = {n: scope.arrays[n] for n in reads & scope.varying}

        def one(device: jax.Array, own: dict[int, jax.Array]) -> tuple:
            arrays = {**once, **own}
            device_key = fold(key, device)

            def run() -> None:
                for i in waiting:
                    results = self._interpreter.step(i, arrays, device_key)
                    numbers = (buffer.number for buffer in i.results)
                    arrays.update(zip(numbers, results, strict=True))

            _, observed = self._interpreter.accumulator.apart(run)
            return tuple(arrays[n] for n in outputs), observed

        results, observed = self._map(one, own)
        scope.arrays.update(zip(outputs, results, strict=True))
        self._interpreter.accumulator.add(self._of_all(observed))

    def _reads(self, i: Instruction) -> frozenset[int]:
        plan = self._interpreter.accumulator.plan
        beside = set() if plan is None else plan.reads(i)
        return self._uniformity.reads(i) | beside

    def _of_all(self, observed: Observed) -> Observed:
        rows = {slot: total(row) for slot, row in observed.rows.items()}
        amaxes = observed.amaxes
        if amaxes is not None:
            amaxes = jnp.max(self._real.everyone(amaxes), axis=0)
        return Observed(rows, amaxes)

    def _map(
        self, one: Callable[..., tuple], own: dict[int, jax.Array]
    ) -> tuple[Arrays, Observed]:
        first = self._real.number() * jnp.uint32(self._carried)
        devices = first + jnp.arange(self._carried, dtype=jnp.uint32)
        if not self._interpreter.eager:
            return lax.map(lambda each: one(*each), (devices, own))
        rows = [
            one(devices[d], {n: x[d] for n, x in own.items()})
            for d in range(self._carried)
        ]
        return jax.tree.map(lambda *column: jnp.stack(column), *rows)

    # -- all devices together ----------------------------------------------------------

    def _together(
        self, i: Instruction, flags: Sequence[bool], scope: _Scope, key: jax.Array
    ) -> Arrays:
        if self._interpreter.stochastic and i.ordinal:
            key = fold(key, jnp.uint32(i.ordinal))
        kind = Collective if isinstance(i, Collective) else type(i)
        return _TOGETHER[kind](self, i, flags, scope, key)

    def _collective(
        self, i: Collective, flags: Sequence[bool], scope: _Scope, key: jax.Array
    ) -> Arrays:
        whole = self._interpreter.eager or self._interpreter.listeners
        if isinstance(i, AllReduce) and i.rounding != "stochastic" and not whole:

            def reduce(x: jax.Array) -> jax.Array:
                (total,) = self._interpreter.exchange(i, [x], self._count, key)
                return total if flags[0] else total[0]

            return [
                all_reduced(i, self.stacked(*values), self._real, reduce)
                for values in (scope.get(v.buffer.number) for v in i.operands)
            ]
        return self._joint(i, flags, scope, key)

    def _joint(
        self, i: Instruction, flags: Sequence[bool], scope: _Scope, key: jax.Array
    ) -> Arrays:
        """Execute a collective or a kernel with collectives on all devices' arrays."""
        numbers = [view.buffer.number for view in i.operands]
        arrays = {number: self._everyone(*scope.get(number)) for number in numbers}
        if isinstance(i, Collective):
            operands = [arrays[number] for number in numbers]
            results = self._interpreter.exchange(i, operands, self._count, key)
        else:
            results = self._interpreter.step(i, arrays, key)
        pairs = zip(results, flags, strict=True)
        return [self._real.own(x) if f else x[0] for x, f in pairs]

    def _inner(
        self,
        block: Block,
        arguments: Sequence[tuple[jax.Array, bool]],
        scope: _Scope,
        key: jax.Array,
    ) -> list[tuple[jax.Array, bool]]:
        """Return the results of a nested block, and whether they have a device axis."""
        scope = scope.inner()
        for buffer, (x, differs) in zip(block.arguments, arguments, strict=True):
            scope.put(buffer.number, x, differs)
        self.block(block, scope, key)
        return [scope.get(view.buffer.number) for view in block.results]

    def _as_flagged(
        self, values: Iterable[tuple[jax.Array, bool]], flags: Sequence[bool]
    ) -> list[jax.Array]:
        return [
            self.stacked(x, differs) if flag else x
            for (x, differs), flag in zip(values, flags, strict=True)
        ]

    def _call(
        self, i: Call, flags: Sequence[bool], scope: _Scope, key: jax.Array
    ) -> Arrays:
        block = self._interpreter.callee(i)
        arguments = [scope.get(v.buffer.number) for v in i.operands]
        run = functools.partial(self._inner, block, arguments, scope, key)
        return self._as_flagged(self._interpreter.accumulator.around(i, run), flags)

    def _loop(
        self, i: Loop, flags: Sequence[bool], scope: _Scope, key: jax.Array
    ) -> Arrays:
        def condition(carry: Arrays) -> jax.Array:
            pairs = list(zip(carry, flags, strict=True))
            (value,) = self._inner(i.condition, pairs, scope, key)
            return self._agreed(*value)

        def body(carry: Arrays, key: jax.Array) -> Arrays:
            pairs = list(zip(carry, flags, strict=True))
            return self._as_flagged(self._inner(i.body, pairs, scope, key), flags)

        start = (scope.get(v.buffer.number) for v in i.operands)
        carry = self._as_flagged(start, flags)
        return self._interpreter.iterate(i, carry, key, condition, body)

    def _branch(
        self, i: Branch, flags: Sequence[bool], scope: _Scope, key: jax.Array
    ) -> Arrays:
        def run(block: Block) -> Arrays:
            return self._as_flagged(self._inner(block, (), scope, key), flags)

        index = self._agreed(*scope.get(i.operands[0].buffer.number))
        return self._interpreter.chosen(i, index, run)


_TOGETHER: dict[type, Callable[..., Arrays]] = {
    Collective: _Devices._collective,
    Loop: _Devices._loop,
    Branch: _Devices._branch,
    Call: _Devices._call,
    NkiKernel: _Devices._joint,
}


# -- reductions in slices --------------------------------------------------------------

# A reduction over devices is elementwise: the k-th element of every chunk depends only
# on the k-th elements. So real devices divide the elements among themselves, instead of
# each folding all of them. A fold of large arrays works on slices, whose reordered
# copies are small. This is not possible with stochastic rounding, whose bits depend on
# an element's position in the whole array.


# Bytes of a slice over all devices. Larger slices gain nothing, smaller ones cost time.
_SLICE_BYTES = 4 << 20


def all_reduced(
    i: AllReduce,
    x: jax.Array,
    real: RealDevices,
    reduce: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Return one operand of an all-reduce, [own devices, *local shape], reduced:
    [*local shape] if all devices get the same, else [own devices, *local shape].
    `reduce` reduces [devices, elements] of all emulated devices."""
    local = x.shape[1:]
    count, chunks = prod(local), i.plan.chunks
    length = -(-count // chunks)
    x = filled(lax.reshape(x, (x.shape[0], count)), chunks * length)
    x = lax.reshape(x, (x.shape[0], chunks, length))
    x = real.exchanged(filled(x, real.share_of(length) * real.count), 2, 0)
    total = _in_slices(x, reduce)
    total = real.everyone(total, 1) if total.ndim == 2 else real.exchanged(total, 0, 2)
    lead = total.shape[:-2]
    total = lax.reshape(total[..., :length], (*lead, chunks * length))
    return lax.reshape(total[..., :count], (*lead, *local))


def _in_slices(x: jax.Array, reduce: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Apply `reduce` to [devices, chunks, length], slice by slice along the length.
    Return an array of this shape, or [chunks, length] if `reduce` drops the devices."""
    devices, chunks, length = x.shape
    slices = slices_of(length, x.size * x.dtype.itemsize)
    width = length // slices
    # Dimensions of 1 are avoided, because XLA would copy the whole array for them.
    x = lax.reshape(x, (devices * chunks, slices, width))

    def one(number: jax.Array) -> jax.Array:
        own = lax.dynamic_index_in_dim(x, number, 1, keepdims=False)
        total = reduce(lax.reshape(own, (devices, chunks * width)))
        return lax.reshape(total, (*total.shape[:-1], chunks, width))

    if slices == 1:
        return one(jnp.int32(0))
    total = lax.map(one, jnp.arange(slices, dtype=jnp.int32))
    total = jnp.moveaxis(total, 0, -2)
    return lax.reshape(total, (*total.shape[:-2], length))


def slices_of(length: int, size_bytes: int) -> int:
    """Return the number of equal slices into which the elements of every chunk are cut.
    It is 1 if no number close to the wanted number divides the length."""
    wanted = max(-(-size_bytes // _SLICE_BYTES), 1)
    legal = (n for n in range(wanted, 4 * wanted + 1) if length % n == 0)
    return next(legal, 1)
