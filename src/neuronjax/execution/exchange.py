"""`exchange`: a collective instruction on the arrays of all devices.

Arrays have a leading device axis, [devices, *local shape]. Reductions of floats follow
the instruction's `FoldPlan`: they add in FP32 and round once where a rank stores a
partial sum (`exchange_fold`). Movement changes no bit. Groups are vectorized: static
indices bring [devices, ...] into [groups, ranks, ...] and back. Time is modelled in
`timing`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.errors import InternalError, InvalidProgramError
from neuronjax.execution.engines.dispatch import wide
from neuronjax.execution.exchange_fold import SumStorage, fold_ranks
from neuronjax.ir.collective_set import (
    GROUPS_REMEDY,
    PAIRS_REMEDY,
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    CollectiveBroadcast,
    CollectivePermute,
    Groups,
    PartitionId,
    RaggedAllToAll,
    ReduceScatter,
    Reduction,
    fault_of_groups,
    fault_of_pairs,
)
from neuronjax.numerics.exact import opaque
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.order_free import REDUCTIONS, reduce_extreme, reduce_integers
from neuronjax.numerics.random_bits import fold as fold_key
from neuronjax.numerics.rounding import cast, round_to_int

Arrays = tuple[jax.Array, ...]
Operands = Sequence[jax.Array]

EXTREMES = ("minimum", "maximum")
BITWISE = ("and", "or", "xor")


def exchange(
    i: Collective,
    operands: Sequence[jax.Array],
    devices: int,
    zero: jax.Array,
    key: jax.Array,
) -> Arrays:
    """Execute a collective on the operands of all devices, [devices, *local shape], and
    return such an array for each result.

    Raises:
        InvalidProgramError: groups or pairs do not fit the devices, a dimension does
            not divide, or the dtype does not have the op.
    """
    return _exchanged(i, operands, _ExchangeContext(devices, zero, key))


class _ExchangeContext(NamedTuple):
    """The number of devices, the opaque -0.0 and the key of the instruction."""

    devices: int
    zero: jax.Array
    key: jax.Array

    def of_operand(self, number: int) -> _ExchangeContext:
        return self._replace(key=fold_key(self.key, jnp.uint32(number)))


@functools.singledispatch
def _exchanged(i: Collective, operands: Operands, d: _ExchangeContext) -> Arrays:
    raise InternalError(f"no rule exchanges {i.name}")


def is_same_for_all(i: Collective, devices: int) -> bool:
    """Return whether every device gets the same result, whatever the operands are."""
    if not isinstance(i, AllReduce | AllGather | CollectiveBroadcast):
        return False
    return len(i.groups) == 1 and len(i.groups[0]) == devices


# -- groups ----------------------------------------------------------------------------


class _Members:
    """The devices of an instruction whose groups contain every device once."""

    def __init__(self, i: Collective, groups: Groups, devices: int) -> None:
        _check(i, fault_of_groups(groups, devices), GROUPS_REMEDY)
        self.count, self.size = len(groups), len(groups[0])
        self._devices = np.asarray(groups).reshape(-1)
        self._instruction = i

    def gathered(self, x: jax.Array) -> jax.Array:
        """Sort [devices, *local] into [groups, ranks, *local]."""
        shape = (self.count, self.size, *x.shape[1:])
        return lax.reshape(_rows(x, self._devices), shape)

    def parts(self, x: jax.Array, dimension: int) -> jax.Array:
        """Cut [devices, *local] into [groups, ranks, parts, *part], a part per rank."""
        x, at = self.gathered(x), dimension + 2
        length, n = x.shape[at], self.size
        fault = f"{length} elements of a dimension do not form {n} equal parts"
        _check(self._instruction, fault if length % n else "", f"use a multiple of {n}")
        x = lax.reshape(x, (*x.shape[:at], self.size, length // n, *x.shape[at + 1 :]))
        return jnp.moveaxis(x, at, 2)

    def returned(self, x: jax.Array) -> jax.Array:
        """Sort [groups, ranks, *local] into [devices, *local]."""
        x = lax.reshape(x, (self.count * self.size, *x.shape[2:]))
        return _rows(x, np.argsort(self._devices))

    def to_all(self, x: jax.Array) -> jax.Array:
        """Give each device its group's array: [groups, *local] to [devices, *local]."""
        shape = (self.count, self.size, *x.shape[1:])
        return self.returned(lax.broadcast_in_dim(x, shape, (0, *range(2, len(shape)))))


def _rows(x: jax.Array, rows: np.ndarray) -> jax.Array:
    """Return x[rows] for static, legal row numbers."""
    if np.array_equal(rows, np.arange(x.shape[0])):
        return x
    return x.at[rows].get(mode="promise_in_bounds")


def _check(i: Collective, fault: str, remedy: str) -> None:
    if fault:
        location = i.location.source or None
        raise InvalidProgramError(fault, op=i.name, location=location, remedy=remedy)


# -- movement --------------------------------------------------------------------------


@_exchanged.register
def partition_id(i: PartitionId, operands: Operands, d: _ExchangeContext) -> Arrays:
    return (lax.iota(jnp.uint32, d.devices),)


@_exchanged.register
def all_gather(i: AllGather, operands: Operands, d: _ExchangeContext) -> Arrays:
    members = _Members(i, i.groups, d.devices)
    return tuple(
        members.to_all(_concatenated(members.gathered(x), i.dimension))
        for x in operands
    )


@_exchanged.register
def all_to_all(i: AllToAll, operands: Operands, d: _ExchangeContext) -> Arrays:
    members = _Members(i, i.groups, d.devices)
    joined = functools.partial(_concatenated, dimension=i.concat_dimension)
    results = []
    for x in operands:
        x = members.parts(x, i.split_dimension)
        x = jnp.swapaxes(x, 1, 2)  # [groups, receiver, sender, *part]
        results.append(members.returned(jax.vmap(joined, 1, 1)(x)))
    return tuple(results)


def _concatenated(x: jax.Array, dimension: int) -> jax.Array:
    """Join the n arrays of each group, [groups, n, *local], along `dimension`."""
    n, local = x.shape[1], x.shape[2:]
    x = jnp.moveaxis(x, 1, dimension + 1)
    before, after = local[:dimension], local[dimension + 1 :]
    return lax.reshape(x, (x.shape[0], *before, n * local[dimension], *after))


@_exchanged.register
def collective_permute(
    i: CollectivePermute, operands: Operands, d: _ExchangeContext
) -> Arrays:
    _check(i, fault_of_pairs(i.pairs, d.devices), PAIRS_REMEDY)
    return tuple(_sent(x, i.pairs, d.devices) for x in operands)


@_exchanged.register
def collective_broadcast(
    i: CollectiveBroadcast, operands: Operands, d: _ExchangeContext
) -> Arrays:
    _check(i, fault_of_groups(i.groups, d.devices, complete=False), PAIRS_REMEDY)
    pairs = [(group[0], member) for group in i.groups for member in group]
    return tuple(_sent(x, pairs, d.devices) for x in operands)


@_exchanged.register
def ragged_all_to_all(
    i: RaggedAllToAll, operands: Operands, d: _ExchangeContext
) -> Arrays:
    """Send parts of different sizes to all members. ASSUMPTION: `recv_sizes` equal the
    senders' sizes, as they must; parts that reach over the end are cut off; where parts
    overlap the last one is kept."""
    members = _Members(i, i.groups, d.devices)
    data, output = map(members.gathered, operands[:2])
    # For all parts that a member receives: [parts, groups, receiver].
    starts, sizes, targets = (_received(members, x) for x in operands[2:5])
    parts, n, length = starts.shape[0], members.size, data.shape[2]
    if not length:
        return (operands[1],)
    senders = jnp.repeat(jnp.arange(n, dtype=jnp.int32), parts // n)
    row = jnp.arange(output.shape[2], dtype=jnp.int32)

    def step(origin: jax.Array, part: tuple) -> tuple[jax.Array, None]:
        sender, start, size, target = part
        offset = row - target[..., None]
        inside = (offset >= 0) & (offset < size[..., None])
        source = start[..., None] + offset
        inside &= (source >= 0) & (source < length)
        return jnp.where(inside, sender * length + source, origin), None

    # The row of the group's data from which each row of the result comes, or -1.
    nowhere = jnp.full((members.count, n, output.shape[2]), -1, jnp.int32)
    origin, _ = lax.scan(step, nowhere, (senders, starts, sizes, targets))
    rows = lax.reshape(data, (members.count, n * length, *data.shape[3:]))
    moved = jax.vmap(lambda x, at: x.at[at].get(mode="clip"))(rows, origin)
    arrives = lax.reshape(origin >= 0, (*origin.shape, *[1] * (data.ndim - 3)))
    return (members.returned(jnp.where(arrives, moved, output)),)


def _received(members: _Members, x: jax.Array) -> jax.Array:
    """Sort the senders' [devices, parts] into the receivers' [parts, groups, rank]."""
    x = members.parts(x.astype(jnp.int32), 0)  # [groups, sender, receiver, k]
    x = jnp.transpose(x, (1, 3, 0, 2))
    return lax.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _sent(x: jax.Array, pairs: Sequence[tuple[int, int]], devices: int) -> jax.Array:
    """Return each source's row at its target; rows without a source are zeros."""
    targets = [target for _, target in pairs]
    source = np.zeros(devices, np.int64)
    for sender, target in pairs:
        source[target] = sender
    moved = _rows(x, source)
    if len(targets) == devices:
        return moved
    receives = np.isin(np.arange(devices), targets)
    mask = receives.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(mask, moved, jnp.zeros((), x.dtype))


# -- reductions ------------------------------------------------------------------------


@_exchanged.register
def all_reduce(i: AllReduce, operands: Operands, d: _ExchangeContext) -> Arrays:
    """Reduce the operands. ASSUMPTION: chunks are equal parts of the flattened tensor,
    the last one padded."""
    members = _Members(i, i.groups, d.devices)
    results = []
    for k, x in enumerate(operands):
        local = x.shape[1:]
        x = lax.reshape(
            members.gathered(x), (members.count, members.size, 1, prod(local))
        )
        total = _in_pieces(i, x, i.plan.chunks, d.of_operand(k))
        results.append(members.to_all(lax.reshape(total, (members.count, *local))))
    return tuple(results)


@_exchanged.register
def reduce_scatter(i: ReduceScatter, operands: Operands, d: _ExchangeContext) -> Arrays:
    members = _Members(i, i.groups, d.devices)
    results = []
    for k, x in enumerate(operands):
        x = members.parts(x, i.dimension)  # [groups, ranks, parts, *part]
        shape = (members.count, members.size, *x.shape[3:])
        x = lax.reshape(x, (*x.shape[:3], prod(x.shape[3:])))
        # Channels divide the elements of each part.
        total = _in_pieces(i, x, i.plan.channels, d.of_operand(k))
        results.append(members.returned(lax.reshape(total, shape)))
    return tuple(results)


def _in_pieces(
    i: Reduction, x: jax.Array, pieces: int, d: _ExchangeContext
) -> jax.Array:
    """Reduce [groups, ranks, parts, m] over ranks, with the m elements cut in pieces
    of one size, of which the last is padded."""
    if pieces == 1:
        return _reduced(i, x, d)
    groups, ranks, parts, length = x.shape
    share = -(-length // pieces)
    x = filled(x, pieces * share)
    x = lax.reshape(x, (groups, ranks, parts * pieces, share))
    total = _reduced(i, x, d)
    return lax.reshape(total, (groups, parts, pieces * share))[..., :length]


def filled(x: jax.Array, length: int) -> jax.Array:
    """Return the array with its last dimension filled up with zeros."""
    padding = [*[(0, 0, 0)] * (x.ndim - 1), (0, length - x.shape[-1], 0)]
    return lax.pad(x, jnp.zeros((), x.dtype), padding) if padding[-1][1] else x


def _reduced(i: Reduction, x: jax.Array, d: _ExchangeContext) -> jax.Array:
    """Reduce [groups, ranks, chunks, m] over ranks, by the plan of the instruction."""
    if i.plan.ranks != x.shape[1]:
        raise InternalError(f"{i.name}: {i.plan} is no plan for {x.shape[1]} ranks")
    if i.op not in REDUCTIONS:
        raise InternalError(f"{i.name}: no reduction by {i.op!r}")
    if x.shape[1] == 1:
        return x[:, 0]
    if x.dtype.kind in "iub":
        if i.integer_path != "fp32" or x.dtype == jnp.bool_ or i.op in BITWISE:
            return reduce_integers(i.op, x, (1,))
        floats = opaque(x.astype(jnp.float32), d.zero)
        if i.op in EXTREMES:
            total = reduce_extreme(i.op, floats, (1,))
        else:
            total = fold_ranks(floats, i.plan, i.op, SumStorage(), d.zero, d.key)
        return round_to_int(total, x.dtype, mode="rne")
    if i.op in BITWISE or x.dtype.kind == "c":
        fault = f"devices cannot reduce {x.dtype} by {i.op}"
        _check(i, fault, "reduce integers, or the real and imaginary parts")
    if i.op in EXTREMES:
        overflow: Any = i.overflow
        extreme = reduce_extreme(i.op, wide(x), (1,))
        return cast(extreme, get_format(x.dtype), overflow=overflow)
    return _reduced_floats(i, x, d)


def _reduced_floats(i: Reduction, x: jax.Array, d: _ExchangeContext) -> jax.Array:
    """Reduce floats by a sum or a product. Stochastic rounding folds the numbers of
    stage and hop into its keys. The number after the last stage is for rounding the
    result to its dtype, the next number for rounding the operands to the dtype in which
    they are sent."""
    dtype, last = x.dtype, len(i.plan.stages)
    travels = get_format(i.reduce_dtype or i.write_format or dtype)
    own = get_format(dtype)
    # Everything is made opaque, also constants and products, which XLA would contract.
    x = opaque(x, d.zero)
    storage = SumStorage(travels, i.rounding, i.overflow)
    if travels != own:
        x = storage.stored(wide(x), d.key, last + 1)
    total = fold_ranks(x, i.plan, i.op, storage, d.zero, d.key)
    if travels == own:
        return total
    return storage._replace(format=own).stored(wide(total), d.key, last)
