"""One instruction on the pools: read, compute, round, write.

Pools are arrays [slots, elements] of the carrier dtype. `InstanceRow` yields the
integers of an element one by one, as Python ints if they are the same in every
iteration. A read gives the view's array in its numeric dtype; a write goes through the
view's window.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.execution.kernels import faults
from neuronjax.execution.kernels.accesses import (
    AccessBox,
    AccessPlan,
    dimension_of,
    relative_elements,
    used_indices,
)
from neuronjax.execution.kernels.splitting import KernelStep
from neuronjax.execution.tiles import registry
from neuronjax.execution.tiles.copying import moved
from neuronjax.execution.tiles.rounding import rounded
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.numerics.random_bits import fold, random_bits

# Copying a pool of this many bytes takes longer (100 us at 10 GB/s) than an iteration
# of a loop, some microseconds. ASSUMPTION: no size from 4 KiB to 1 MiB was compared.
LONG_COPIED_BYTES = 1 << 20

Index = int | jax.Array
# Pool number -> [slots, elements]; "registers" -> int32 [registers].
State = dict[int | str, jax.Array]


class InstanceRow(NamedTuple):
    """The integers and floats of one execution of an element, in order."""

    ints: Iterator[Index]
    floats: Iterator[jax.Array]


class ResolvedAccess:
    """The elements that one execution of an access reads or writes.

    Attributes:
        starts: the starts of the box, or the offset of a gather.
        index: the value of the runtime offset, an int32 scalar or array, or None.
    """

    def __init__(self, plan: AccessPlan, row: InstanceRow, state: State) -> None:
        self.plan = plan
        self.slot = next(row.ints)
        count = len(plan.box.sizes) if plan.box else 1
        self.starts = [next(row.ints) for _ in range(count)]
        self.index: jax.Array | None = None
        if plan.at == "register":
            self.index = register_value(state, next(row.ints))
        elif isinstance(plan.at, AccessPlan):
            values = read(ResolvedAccess(plan.at, row, state), state)
            self.index = values.astype(jnp.int32)
        if plan.box is not None and self.index is not None:
            self._move(plan.box)

    def _move(self, box: AccessBox) -> None:
        """Move the window along one dimension by a scalar runtime offset."""
        dim = dimension_of(self.plan.stride, box.units)
        self.starts[dim] += self._used() * (self.plan.stride // box.units[dim])

    def elements(self) -> jax.Array:
        """Return the element numbers that a gather reads, in the shape of the view.
        They count from the start of the slot. An index out of bounds gets the number
        after the last element of the slot."""
        plan = self.plan
        numbers = jnp.asarray(relative_elements(plan.static)) + self.starts[0]
        if self.index is None:
            return numbers
        numbers = numbers + self._over_view(self._used()) * plan.stride
        return jnp.where(self._over_view(self.legal()), numbers, plan.total)

    def legal(self) -> jax.Array:
        """Return which of the runtime indices that are used are within bounds."""
        used = self._used()
        return (used >= 0) & (used < self.plan.limit)

    def legal_elements(self) -> jax.Array:
        """Return which elements of the view have an index within bounds."""
        return jnp.broadcast_to(self._over_view(self.legal()), self.plan.shape)

    def _used(self) -> jax.Array:
        plan = self.plan
        return used_indices(self.index, plan.kind, plan.shape, plan.group)

    def _over_view(self, values: jax.Array) -> jax.Array:
        missing = len(self.plan.shape) - values.ndim
        return values.reshape(values.shape + (1,) * missing)


def register_value(state: State, number: Index) -> jax.Array:
    return entry(state["registers"], number)


def entry(array: jax.Array, number: Index) -> jax.Array:
    """Return one entry of an array; a traced number must not be negative."""
    return lax.dynamic_index_in_dim(
        array, number, keepdims=False, allow_negative_indices=False
    )


# ---- Reading.


def read(place: ResolvedAccess, state: State) -> jax.Array:
    """Return the view, in its numeric dtype."""
    return as_numeric(_read_carried(place, state), place.plan.dtype)


def as_numeric(carried: jax.Array, dtype: str) -> jax.Array:
    """Return the bits of `carried` as an array of the numeric dtype of `dtype`."""
    numeric = dtypes.info(dtype).numeric
    same = carried.dtype == numeric
    return carried if same else lax.bitcast_convert_type(carried, numeric)


def read_at(plan: AccessPlan, ints: list[int], state: State) -> jax.Array:
    """Read the elements of an access, given its plan and the integers of its row."""
    return read(ResolvedAccess(plan, InstanceRow(iter(ints), iter(())), state), state)


def _read_carried(place: ResolvedAccess, state: State) -> jax.Array:
    plan = place.plan
    if plan.box is None:
        slot = _slot(place, state)
        return jnp.take(slot, place.elements(), mode="clip")
    window = _window(place, plan.box, _dense(place, plan.box, state))
    return _arranged(window, plan.box)


def _slot(place: ResolvedAccess, state: State) -> jax.Array:
    """Return one slot, [elements], in the carrier of the access's dtype."""
    pool = state[place.plan.pool]
    slot = entry(pool, place.slot)
    return _recast(slot, place.plan.stored, place.plan.dtype)


def _recast(x: jax.Array, stored: str, dtype: str) -> jax.Array:
    """Convert [elements] from the carrier of one dtype to that of another."""
    source, target = dtypes.info(stored), dtypes.info(dtype)
    if source.carrier == target.carrier:
        return x
    ratio = source.itemsize // target.itemsize
    if ratio > 1:
        return lax.bitcast_convert_type(x, target.carrier).reshape(-1)
    if ratio == 1:
        return lax.bitcast_convert_type(x, target.carrier)
    ratio = target.itemsize // source.itemsize
    whole = x.shape[0] // ratio * ratio
    return lax.bitcast_convert_type(x[:whole].reshape(-1, ratio), target.carrier)


def _dense(place: ResolvedAccess, box: AccessBox, state: State) -> jax.Array:
    """Return the pool, or its slot if dtypes differ, as [slots, *box.sizes]."""
    plan = place.plan
    if _same_carrier(plan):
        pool = state[plan.pool]
        return pool.reshape(pool.shape[0], *box.sizes)
    slot = _slot(place, state)
    return slot[: prod(box.sizes)].reshape(1, *box.sizes)


def _same_carrier(plan: AccessPlan) -> bool:
    return dtypes.info(plan.dtype).carrier == dtypes.info(plan.stored).carrier


def _starts(place: ResolvedAccess) -> list[Index]:
    slot = place.slot if _same_carrier(place.plan) else 0
    return [slot, *place.starts]


def _window(place: ResolvedAccess, box: AccessBox, dense: jax.Array) -> jax.Array:
    starts, extents = _starts(place), (1, *box.extents)
    known = [s for s in starts if isinstance(s, int)]
    if len(known) == len(starts):
        ends = [s + e for s, e in zip(known, extents, strict=True)]
        window = lax.slice(dense, known, ends)
    else:
        window = lax.dynamic_slice(dense, slice_sizes=extents, **_beginning(place))
    return window.reshape(box.extents)


def _beginning(place: ResolvedAccess) -> dict[str, Any]:
    """Return the start of a window as keyword arguments of JAX. Only a start with a
    runtime offset may be negative; allowing it costs three more operations."""
    return {
        "start_indices": [jnp.asarray(s, jnp.int32) for s in _starts(place)],
        "allow_negative_indices": place.index is not None,
    }


def _arranged(window: jax.Array, box: AccessBox) -> jax.Array:
    if any(step > 1 for step in box.steps):
        window = lax.slice(window, [0] * window.ndim, window.shape, box.steps)
    used = [d for d in box.source if d is not None]
    kept = window.reshape([window.shape[d] for d in sorted(used)])
    order = [sorted(used).index(d) for d in used]
    if order != sorted(order):
        kept = lax.transpose(kept, order)
    at = [n for n, d in enumerate(box.source) if d is not None]
    if len(at) == len(box.shape):
        return kept
    return lax.broadcast_in_dim(kept, box.shape, at)


# ---- Writing.


def write(
    place: ResolvedAccess, value: jax.Array, state: State, zero: jax.Array | None = None
) -> None:
    """Write `value` into the pool. If the same iteration uses the pool again, an opaque
    `zero` lets `_updated_alone` keep the write apart from that use."""
    plan = place.plan
    value = value.reshape(plan.shape)
    if plan.box is None or plan.box.repeats:
        slot = _slot(place, state)
        slot = slot.at[place.elements()].set(value, mode="drop")
        _put_slot(place, slot, state)
        return
    box = plan.box
    window = _window_of(value, box)
    dense = _dense(place, box, state)
    if any(step > 1 for step in box.steps):
        old = _window(place, box, dense)
        every = tuple(slice(None, None, step) for step in box.steps)
        window = old.at[every].set(window)
    beginning = _beginning(place)
    if zero is None or dense.nbytes < LONG_COPIED_BYTES:
        dense = lax.dynamic_update_slice(dense, window[None], **beginning)
    else:
        dense = _updated_alone(dense, window[None], beginning, zero)
    if _same_carrier(plan):
        state[plan.pool] = dense.reshape(state[plan.pool].shape)
    else:
        _put_slot(place, dense.reshape(-1), state)


def _updated_alone(
    dense: jax.Array, window: jax.Array, beginning: dict[str, Any], zero: jax.Array
) -> jax.Array:
    """Return the array updated in place, in a loop of one iteration. XLA fuses an
    update with later reads and updates of the array, and then copies the whole array
    for each of them. It does not fuse across the end of a loop, and does not unroll a
    loop of unknown length. The loop carries one bit instead of a count, because XLA
    would compile additions and comparisons of a count as functions."""

    def turn(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        updated = lax.dynamic_update_slice(carry[1], window, **beginning)
        return jnp.zeros((), bool), updated

    first = (zero.reshape(()) == 0, dense)
    return lax.while_loop(lambda carry: carry[0], turn, first)[1]


def _window_of(value: jax.Array, box: AccessBox) -> jax.Array:
    """Return a view's elements in the window's order, without skipped steps."""
    used = [d for d in box.source if d is not None]
    kept = value.reshape([n for n, d in zip(box.shape, box.source) if d is not None])
    order = [used.index(d) for d in sorted(used)]
    if order != sorted(order):
        kept = lax.transpose(kept, order)
    counts = [-(-e // s) for e, s in zip(box.extents, box.steps, strict=True)]
    return kept.reshape(counts)


def _put_slot(place: ResolvedAccess, slot: jax.Array, state: State) -> None:
    plan = place.plan
    pool = state[plan.pool]
    slot = _recast(slot, plan.dtype, plan.stored)
    if slot.shape[0] < pool.shape[1]:  # a tail shorter than an element
        old = entry(pool, place.slot)
        slot = jnp.concatenate([slot, old[slot.shape[0] :]])
    state[plan.pool] = lax.dynamic_update_index_in_dim(pool, slot, place.slot, 0)


# ---- The step.


def uses(step: KernelStep) -> set[int]:
    """Return the pools that a step reads or writes."""
    plans = (*step.inputs, *step.outputs)
    indices = [p.at for p in plans if isinstance(p.at, AccessPlan)]
    return {p.pool for p in (*plans, *indices)}


def execute(
    step: KernelStep,
    row: InstanceRow,
    state: State,
    c: registry.TileContext,
    used_again: Set[int] = frozenset(),
) -> None:
    """Execute one instruction; `state` is changed in place. The instruction's key is
    derived from that of `c`. `used_again` are the pools that later instructions of the
    same iteration read or write."""
    signature = step.signature
    ordinal = next(row.ints)
    if c.rounding != "rne":
        # Only stochastic rounding reads the key, which takes twenty operations.
        c = c._replace(key=derived_key(c.key, ordinal))
    outputs = [ResolvedAccess(plan, row, state) for plan in step.outputs]
    target = next(row.ints) if step.register else None
    operands, sources = _operands(step, row, state)
    if faults.checks_bounds(step):
        faults.note((*outputs, *sources), ordinal, state)
    if signature.reads_outputs:
        c = c._replace(previous=tuple(read(p, state) for p in outputs))
    results = registry.semantics_of(signature.name)(signature, operands, c)
    if target is not None:
        registers = state["registers"]
        value = jnp.asarray(results[0], jnp.int32)
        state["registers"] = registers.at[target].set(value)
        return
    skips = dict(signature.items).get("oob_mode") == "skip"
    for n, (place, result) in enumerate(zip(outputs, results, strict=True)):
        dtype = dtypes.info(place.plan.dtype)
        value = rounded(result, dtype, c.zero, _random_bits(result, n, c))
        value = value.reshape(place.plan.shape)
        if skips:
            value = _kept_where_illegal(signature, place, value, sources, state)
        again = place.plan.pool in used_again
        write(place, value, state, c.zero if again else None)


def _random_bits(
    result: jax.Array | registry.Bits, output: int, c: registry.TileContext
) -> jax.Array | None:
    if c.rounding == "rne" or isinstance(result, registry.Bits):
        return None
    return random_bits(result.shape, derived_key(c.key, output + 1))


def derived_key(key: jax.Array, number: Index) -> jax.Array:
    """Return the key of an instruction or of an iteration of a loop."""
    return fold(key, jnp.asarray(number, jnp.uint32))


def _operands(
    step: KernelStep, row: InstanceRow, state: State
) -> tuple[list[Any], list[ResolvedAccess]]:
    """Return the operands, with None for absent ones, and the places of the tensors."""
    plans = iter(step.inputs)
    operands: list[Any] = []
    places: list[ResolvedAccess] = []
    for form in step.signature.forms:
        operand: Any = None
        if form == "t":
            places.append(place := ResolvedAccess(next(plans), row, state))
            operand = read(place, state)
        elif form == "r":
            operand = register_value(state, next(row.ints))
        elif form == "i":
            operand = jnp.asarray(next(row.ints), jnp.int32)
        elif form == "f":
            operand = next(row.floats)
        operands.append(operand)
    return operands, places


def _kept_where_illegal(
    i: registry.Signature,
    target: ResolvedAccess,
    value: jax.Array,
    sources: list[ResolvedAccess],
    state: State,
) -> jax.Array:
    """Return `value`, or the old elements where an index is out of bounds."""
    masks = [moved(i, s.legal_elements()) for s in sources if s.index is not None]
    if target.index is not None:
        masks.append(target.legal_elements())
    for legal in masks:
        value = jnp.where(legal, value, _read_carried(target, state))
    return value
