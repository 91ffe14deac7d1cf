"""The loops: a tabulated program as one function of its argument arrays.

A `Repeat` is a loop over the rows of the tables of its nodes; a column of equal values
is a Python int. A loop carries only the pools that it writes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.kernels import faults, slots, steps
from neuronjax.execution.kernels.rolling import Node, roll, tabulate
from neuronjax.execution.kernels.slots import SlotPool
from neuronjax.execution.kernels.splitting import (
    Counted,
    Dispatch,
    Element,
    KernelStep,
    Repeat,
    Splitter,
)
from neuronjax.execution.kernels.steps import Index, InstanceRow, State
from neuronjax.execution.tiles.registry import TileContext
from neuronjax.hardware import CoreSpec, resolve_target
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import Access, KernelProgram
from neuronjax.ir.kernel_numerics import KernelNumerics
from neuronjax.numerics.exact import opaque, opaque_zero

# The second argument is any uint32 scalar, from which random bits are derived.
Runner = Callable[
    [Sequence[jax.Array], jax.Array, KernelNumerics], tuple[list[jax.Array], ...]
]


class FreshMemory(NamedTuple):
    """The contents of memory that nothing has written, as in the vendor's simulator.

    Attributes:
        of_floats, of_integers: the value of every element.
        shared: whether a tile may reuse an earlier tile's memory and start with what
            that tile left there.
    """

    of_floats: float = np.nan
    of_integers: int = 4
    shared: bool = True


USUAL_MEMORY = FreshMemory()


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelPlan:
    """A program ready to run.

    Attributes:
        initials: data with which a pool starts, by number.
        results: how each result is read: an `AccessPlan`, and the integers it needs.
        written: the numbers of the arguments that the kernel writes.
        ranks: the number of ranks, 0 for a kernel on its own.
        memory: the contents of memory at the start.
    """

    pools: list[SlotPool]
    initials: dict[int, np.ndarray]
    nodes: list[Node]
    results: list[tuple]
    written: list[int]
    registers: int
    core: CoreSpec
    ranks: int = 0
    memory: FreshMemory = USUAL_MEMORY

    @property
    def checks_bounds(self) -> bool:
        """Return whether a runtime index may be an error; never with ranks."""
        return not self.ranks and any(faults.KEY in writes(n) for n in self.nodes)


def prepare(program: KernelProgram, memory: FreshMemory = USUAL_MEMORY) -> KernelPlan:
    """Return the plan of a program: assign slots, split, and roll loops."""
    pools, places = slots.assign(program, shared=memory.shared)
    splitter = Splitter(places)
    elements = _rolled(splitter, program)
    results = [_result(splitter, access) for access in program.results]
    initials = {
        place.pool: storage.initial
        for storage, place in places.items()
        if storage.initial is not None
    }
    written = {a.storage for i in program.body.walk() for a in i.outputs}
    return KernelPlan(
        pools=pools,
        initials=initials,
        nodes=[tabulate([e]) for e in elements],
        results=results,
        written=[n for n, s in enumerate(program.arguments) if s in written],
        registers=program.registers,
        core=resolve_target(program.target).core,
        ranks=program.ranks,
        memory=memory,
    )


def _rolled(splitter: Splitter, program: KernelProgram) -> list[Element]:
    """Return the elements; collectives stay outside the loops that are made of them."""
    elements: list[Element] = []
    every = splitter.block(program.body)
    for joint, run in itertools.groupby(every, lambda e: is_joint(e.kind)):
        elements += list(run) if joint else roll(list(run), splitter.numbering)
    return elements


def is_joint(kind: object) -> bool:
    """Return whether an element is a collective."""
    return isinstance(kind, KernelStep) and kind.signature.engine == "cc"


def _result(splitter: Splitter, access: Access) -> tuple:
    ints: list[int] = []
    return splitter.access(access, ints), ints


def runner(plan: KernelPlan) -> Runner:
    """Return a function (arguments, key, numerics) -> (results, written arguments,
    faults). Arrays have the numeric dtypes; there is one fault if the plan checks
    bounds, else none."""

    def run(
        arguments: Sequence[jax.Array], key: jax.Array, numerics: KernelNumerics
    ) -> tuple[list[jax.Array], ...]:
        zero = opaque_zero()
        state = initial_state(plan, arguments)
        state[faults.KEY] = jnp.int32(0)
        context = TileContext(zero, plan.core, key, **numerics._asdict())
        run_nodes(plan.nodes, 0, state, context)
        results = [steps.read_at(access, ints, state) for access, ints in plan.results]
        written = [argument_value(plan, n, state) for n in plan.written]
        if not plan.checks_bounds:
            return results, written, []
        fault = state[faults.KEY]
        poisoned = [faults.poisoned(values, fault) for values in (results, written)]
        return *poisoned, [fault]

    return run


def initial_state(plan: KernelPlan, arguments: Sequence[jax.Array]) -> State:
    state: State = {"registers": jnp.zeros((max(plan.registers, 1),), jnp.int32)}
    for number, pool in enumerate(plan.pools):
        if pool.argument is not None:
            state[number] = carried(arguments[pool.argument], pool.dtype)[None]
        elif number in plan.initials:
            initial = jnp.asarray(plan.initials[number])
            state[number] = carried(initial, pool.dtype)[None]
        else:
            state[number] = fresh(pool, plan.memory)
    return state


def carried(array: jax.Array, dtype: str) -> jax.Array:
    """Return an array of the numeric dtype as [elements] of the carrier dtype."""
    carrier = dtypes.info(dtype).carrier
    if array.dtype != carrier:
        array = lax.bitcast_convert_type(array, carrier)
    return array.reshape(-1)


def fresh(pool: SlotPool, memory: FreshMemory = USUAL_MEMORY) -> jax.Array:
    """Return a pool's memory before the first write, filled as `memory` says."""
    dtype = dtypes.info(pool.dtype)
    filled = memory.of_floats if dtype.is_float else memory.of_integers
    value = np.array(filled, dtype.numeric)
    if dtype.is_float:
        value = value.view(dtype.carrier)
    return jnp.full((pool.slots, int(np.prod(pool.shape))), value.astype(dtype.carrier))


def argument_value(plan: KernelPlan, argument: int, state: State) -> jax.Array:
    number = next(n for n, p in enumerate(plan.pools) if p.argument == argument)
    pool = plan.pools[number]
    return steps.as_numeric(state[number].reshape(pool.shape), pool.dtype)


# ---- Nodes.


def run_nodes(
    nodes: Sequence[Node], instance: Index, state: State, c: TileContext
) -> None:
    """Execute one instance of every node; `state` is changed in place."""
    for node, later in zip(nodes, _used_later(nodes), strict=True):
        if isinstance(node.kind, KernelStep):
            steps.execute(node.kind, _row(node, instance, c.zero), state, c, later)
        elif isinstance(node.kind, Repeat):
            _run_repeat(node, instance, state, c)
        elif isinstance(node.kind, Dispatch):
            _run_dispatch(node.kind, node, instance, state, c)
        elif isinstance(node.kind, Counted):
            _run_counted(node.kind, node, instance, state, c)
        else:
            _run_while(node, instance, state, c)


def _used_later(nodes: Sequence[Node]) -> list[frozenset[int]]:
    result: list[frozenset[int]] = []
    later: frozenset[int] = frozenset()
    for node in reversed(nodes):
        result.append(later)
        later |= uses(node)
    return result[::-1]


def uses(node: Node) -> set[int]:
    """Return the pools that a node reads or writes."""
    if isinstance(node.kind, KernelStep):
        return steps.uses(node.kind)
    return set().union(*map(uses, node.body))


def _row(node: Node, instance: Index, zero: jax.Array) -> InstanceRow:
    ints = [_column(node.ints, n, instance) for n in range(node.ints.shape[1])]
    floats: list[jax.Array] = []
    if node.floats.shape[1]:
        table = opaque(jnp.asarray(node.floats), zero)
        row = steps.entry(table, instance)
        floats = [row[n] for n in range(node.floats.shape[1])]
    return InstanceRow(iter(ints), iter(floats))


def _column(table: np.ndarray, column: int, instance: Index) -> Index:
    values = table[:, column]
    if isinstance(instance, int):
        return int(values[instance])
    if (values == values[0]).all():
        return int(values[0])
    return _lookup(values, instance)


def _lookup(values: np.ndarray, instance: jax.Array) -> jax.Array:
    """Return an entry of a table; entries of an affine table are computed instead."""
    stride = int(values[1]) - int(values[0])
    if (np.diff(values) == stride).all():
        return instance * stride + int(values[0])
    return steps.entry(jnp.asarray(values), instance)


def _run_repeat(node: Node, instance: Index, state: State, c: TileContext) -> None:
    first = _column(node.starts[:, None], 0, instance)
    count = _column(node.counts[:, None], 0, instance)

    body = functools.partial(run_nodes, node.body, c=c)
    _loop(first, first + count, 1, writes(node), state, body)


def _run_dispatch(
    kind: Dispatch, node: Node, instance: Index, state: State, c: TileContext
) -> None:
    """Run the child that matches each position. Every child is in a loop of one
    iteration, or of none if it does not match: a conditional would copy its results."""
    positions = np.array([kind.kinds, kind.ordinals], np.int32)

    def body(position: jax.Array, inner: State) -> None:
        matching, ordinal = (_lookup(row, position) for row in positions)
        for n, child in enumerate(node.body):
            first = instance * kind.counts[n] + ordinal
            stop = first + (matching == n).astype(jnp.int32)
            run = functools.partial(run_nodes, [child], c=c)
            _loop(first, stop, 1, writes(child), inner, run)

    _loop(0, len(kind.kinds), 1, writes(node), state, body)


def _run_counted(
    kind: Counted, node: Node, instance: Index, state: State, c: TileContext
) -> None:
    register, start, stop = (_column(node.ints, n, instance) for n in range(3))
    if kind.start_register:
        start = steps.register_value(state, start)
    if kind.stop_register:
        stop = steps.register_value(state, stop)

    def body(value: jax.Array, inner: State) -> None:
        inner["registers"] = inner["registers"].at[register].set(value)
        turn = c._replace(key=steps.derived_key(c.key, value))
        run_nodes(node.body, instance, inner, turn)

    _loop(start, stop, kind.step, writes(node), state, body)


def _loop(
    start: Index,
    stop: Index,
    step: int,
    written: set[int | str],
    state: State,
    body: Callable[[jax.Array, State], None],
) -> None:
    """Run a loop over start, start + step, ... below `stop`; it carries the `written`
    part of the state."""
    bound = jnp.asarray(stop, jnp.int32)
    _while(lambda value, _: value < bound, start, step, written, state, body)


def _while(
    goes_on: Callable[[jax.Array, State], jax.Array],
    start: Index,
    step: int,
    written: set[int | str],
    state: State,
    body: Callable[[jax.Array, State], None],
) -> None:
    """Run a loop of start, start + step, ... while `goes_on(value, written state)`."""
    keys = sorted(written & state.keys(), key=str)

    def turn(carry: tuple) -> tuple:
        value, arrays = carry
        inner = {**state, **dict(zip(keys, arrays, strict=True))}
        body(value, inner)
        return value + step, [inner[k] for k in keys]

    def condition(carry: tuple) -> jax.Array:
        return goes_on(carry[0], dict(zip(keys, carry[1], strict=True)))

    first = (jnp.asarray(start, jnp.int32), [state[k] for k in keys])
    _, arrays = lax.while_loop(condition, turn, first)
    state.update(zip(keys, arrays, strict=True))


def _run_while(node: Node, instance: Index, state: State, c: TileContext) -> None:
    register = _column(node.ints, 0, instance)

    def body(count: jax.Array, inner: State) -> None:
        context = c._replace(key=steps.derived_key(c.key, count))
        run_nodes(node.body, instance, inner, context)

    def goes_on(_: jax.Array, held: State) -> jax.Array:
        return steps.register_value(held, register) != 0

    _while(goes_on, 0, 1, writes(node) | {"registers"}, state, body)


def writes(node: Node) -> set[int | str]:
    """Return the pools that a node writes."""
    if isinstance(node.kind, KernelStep):
        written: set[int | str] = {plan.pool for plan in node.kind.outputs}
        written |= {faults.KEY} if faults.checks_bounds(node.kind) else set()
        return written | ({"registers"} if node.kind.register else set())
    inner = set().union(*map(writes, node.body)) if node.body else set()
    return inner | ({"registers"} if isinstance(node.kind, Counted) else set())
