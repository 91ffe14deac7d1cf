"""Collectives of kernels (`neuronjax.collectives`) on the arrays of all ranks.

They run under a `vmap` over `AXIS` (see `kernels.ranks`): every rank gathers the
operands of all ranks, the exchange is computed once, and each rank keeps its row. The
arithmetic is that of `nj.jit`'s collectives: FP32 in the order of a fold plan, rounded
to the tensor's dtype where a rank stores a partial sum.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.exchange import exchange
from neuronjax.execution.tiles.registry import (
    Bits,
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.ir.collective_set import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectivePermute,
    Groups,
    ReduceScatter,
)
from neuronjax.ir.fold_plan import star

AXIS = "neuronjax_nki_ranks"
# No collective of a kernel rounds stochastically.
_NO_KEY = np.uint32(0)


def _all(x: jax.Array) -> jax.Array:
    return lax.all_gather(x, AXIS)


def _own(x: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(x, lax.axis_index(AXIS), keepdims=False)


def _exchanged(collective: Any, x: Operands, c: TileContext) -> Results:
    rows = tuple(map(_all, x))
    results = exchange(collective, rows, rows[0].shape[0], c.zero, jnp.asarray(_NO_KEY))
    return tuple(Bits(_own(array)) for array in results)


def _made(cls: type, **fields: Any) -> Any:
    return cls(operands=(), results=(), engine="cc", **fields)


#: name -> (class of the collective, field -> the attribute that has its value).
_IN_GROUPS: dict[str, tuple[type, dict[str, str]]] = {
    "all_reduce": (AllReduce, {"op": "op", "plan": "plan"}),
    "reduce_scatter": (
        ReduceScatter,
        {"op": "op", "plan": "plan", "dimension": "collective_dim"},
    ),
    "all_gather": (AllGather, {"dimension": "collective_dim"}),
    "all_to_all": (
        AllToAll,
        {"split_dimension": "collective_dim", "concat_dimension": "collective_dim"},
    ),
}


@executes(*_IN_GROUPS)
def in_groups(i: Signature, x: Operands, c: TileContext) -> Results:
    """Exchange within groups of ranks."""
    cls, names = _IN_GROUPS[i.name]
    fields = {field: i.attributes[name] for field, name in names.items()}
    return _exchanged(_made(cls, groups=i.attributes["groups"], **fields), x, c)


# ---- Point to point.


@executes("collective_permute")
def collective_permute(i: Signature, x: Operands, c: TileContext) -> Results:
    """Send data between pairs of ranks. ASSUMPTION: the dst of a rank that receives
    nothing keeps its contents."""
    pairs = i.attributes["source_target_pairs"]
    [sent] = _exchanged(_made(CollectivePermute, pairs=pairs), x, c)
    assert isinstance(sent, Bits)
    receives = jnp.isin(lax.axis_index(AXIS), np.array([t for _, t in pairs]))
    return (Bits(jnp.where(receives, sent.array, c.previous[0])),)


@executes("collective_permute_implicit")
def collective_permute_implicit(i: Signature, x: Operands, c: TileContext) -> Results:
    """Send each channel along its own ring."""
    return tuple(
        _exchanged(_made(CollectivePermute, pairs=_successors(rings)), [operand], c)[0]
        for rings, operand in zip(i.attributes["rings"], x, strict=True)
    )


@executes("collective_permute_implicit_reduce")
def collective_permute_implicit_reduce(
    i: Signature, x: Operands, c: TileContext
) -> Results:
    """Round the sum of the rank's operands to their dtype, then send the sum."""
    channels, key = len(x) // 2, jnp.asarray(_NO_KEY)
    # Add the two operands of a channel as one step of an all-reduce does.
    made = _made(AllReduce, op=i.attributes["op"], groups=((0, 1),), plan=star(2))
    pairs = (jnp.stack([x[n], x[channels + n]]) for n in range(channels))
    sums = [exchange(made, (both,), 2, c.zero, key)[0][0] for both in pairs]
    return collective_permute_implicit(i, sums, c)


def _successors(rings: Groups) -> Groups:
    """Return (sender, receiver) pairs: each rank of a ring sends to the next rank."""
    pairs: list[tuple[int, int]] = []
    for ring in rings:
        pairs += zip(ring, (*ring[1:], ring[0]), strict=True)
    return tuple(pairs)


@executes("collective_permute_implicit_current_processing_rank_id")
def current_processing_rank_id(i: Signature, x: Operands, c: TileContext) -> Results:
    """Return the rank whose data this rank has after t steps: the t-th before this rank
    in its ring."""
    rings = i.attributes["rings"]
    size = len(rings[0])
    table = np.zeros((sum(map(len, rings)), size), np.int32)
    for ring in rings:
        for place, rank in enumerate(ring):
            table[rank] = [ring[(place - step) % size] for step in range(size)]
    return (_own(jnp.asarray(table))[x[0] % size],)


@executes("rank_id")
def rank_id(i: Signature, x: Operands, c: TileContext) -> Results:
    return (lax.axis_index(AXIS).astype(jnp.int32),)


# ---- Lengths known only at run time. The rows of the metadata are: counts to send,
# their starts in src, counts to receive, their starts in dst.


@executes("all_gather_v", "all_to_all_v")
def of_any_length(i: Signature, x: Operands, c: TileContext) -> Results:
    """Exchange chunks of flat buffers; cut off what exceeds the end of a slot."""
    groups, to_all = i.attributes["groups"], i.name == "all_gather_v"
    size = len(groups[0])
    table = x[1].reshape(-1, size).astype(jnp.int32)
    rows, tables = _all(x[0].reshape(-1)), _all(table)
    members, place = _membership(groups)
    own_place = _own(place)
    column = 0 if to_all else own_place
    before = c.previous[0].reshape(-1)
    result, slot = before, before.shape[0] // size
    at = jnp.arange(before.shape[0], dtype=jnp.int32)
    counts = []
    for number in range(size):
        sender = _own(members)[number]
        sent = lax.dynamic_index_in_dim(tables, sender, keepdims=False)
        count, start = sent[0, column], sent[1, column]
        places = i.attributes["has_rdispls"]
        target = table[3, number] if places else jnp.int32(slot * number)
        room = before.shape[0] if places else slot
        inside = (at >= target) & (at < target + jnp.minimum(count, room))
        source = start + at - target
        inside &= (source >= 0) & (source < rows.shape[1])
        row = lax.dynamic_index_in_dim(rows, sender, keepdims=False)
        result = jnp.where(inside, jnp.take(row, source, mode="clip"), result)
        counts.append(count)
    if i.attributes["recv_counts_known"]:
        return (Bits(result),)
    known = table.at[2].set(jnp.stack(counts)).astype(jnp.uint32)
    return Bits(result), Bits(known)


def _membership(groups: Groups) -> tuple[jax.Array, jax.Array]:
    """Return for every rank the members of its group, and its position among them."""
    ranks = sum(map(len, groups))
    members = np.zeros((ranks, len(groups[0])), np.int32)
    place = np.zeros(ranks, np.int32)
    for group in groups:
        for number, rank in enumerate(group):
            members[rank], place[rank] = group, number
    return jnp.asarray(members), jnp.asarray(place)
