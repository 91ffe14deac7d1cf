"""`nki.collectives`: operations that join the ranks of a launch.

    kernel.with_ranks(4)(x)        # rank r gets x[r]; x and the results are [4, ...]

    jax.shard_map(kernel, mesh=...)  # in nj.jit: device r of the mesh is rank r

A rank is one logical NeuronCore of the kernel's target, placed as the devices of
`nj.jit` are. With a launch grid of two, each core of a rank joins the same core of the
others; in shared HBM both cores of a rank act together. Names and signatures are those
of the vendor's nki.collectives, which its simulator lacks. Algorithms of reductions
are chosen as for `nj.jit`: by size and group, in a `neuronjax.collective_algorithm`
scope, or by NEURONJAX_CC_ALGORITHM.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.alu_operators import checked_op
from neuronjax.ir.collective_set import PAIRS_REMEDY, Groups, fault_of_pairs
from neuronjax.ir.collectives.algorithms import ALL_REDUCE, REDUCE_SCATTER
from neuronjax.ir.collectives.placement import Placement
from neuronjax.ir.collectives.selection import select
from neuronjax.nki import trace as tracing
from neuronjax.nki.collective_checks import (
    ReplicaGroup as ReplicaGroup,
    Tensors,
    by_channel,
    check_alike,
    check_dimension,
    check_not_in_loop,
    check_shape,
    check_tensors,
    groups_of,
    part_of,
    ranks_of_launch,
    refuse,
    rings_of,
)
from neuronjax.nki.documentation import describer
from neuronjax.nki.memory import is_sbuf
from neuronjax.nki.registers import VirtualRegister, as_register
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit

OPERATORS = frozenset({"add", "minimum", "maximum"})

# The descriptions of arguments that most of the functions share.
_described = describer(
    srcs="one tensor in HBM",
    dsts="one tensor in HBM; elements that no chunk covers are unchanged",
    dsts_by_channel="tensors of the same shapes as the sources",
    replica_group="the groups of ranks that form rings",
    collective_dim="0",
    op="nl.add, nl.minimum or nl.maximum",
    priority="class of service of the DMA, 0 (highest) to 3, on NeuronCore-v4",
    name="label of the instruction",
)


@_described(
    srcs="tensors in HBM, or one tensor in SBUF",
    dsts="tensors of the shapes and dtypes of srcs",
    replica_group="the groups of ranks that reduce together",
)
def all_reduce(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Give every member the reduction of all members' tensors."""
    where = ALL_REDUCE
    groups = groups_of(where, replica_group)
    check_tensors(where, srcs, dsts)
    for src, dst in zip(srcs, dsts, strict=True):
        check_shape(where, dst, src.shape)
    attributes = _reduction(where, srcs, groups, op)
    return _emit(where, dsts, srcs, attributes, priority, name)


@_described(
    srcs="tensors in HBM, or one tensor in SBUF",
    dsts="as srcs, with the first size divided by the number of ranks in a group",
    replica_group="the groups of ranks that reduce together",
)
def reduce_scatter(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Give the k-th member the k-th part of the reduction of all members' tensors."""
    where = REDUCE_SCATTER
    groups = groups_of(where, replica_group)
    check_tensors(where, srcs, dsts)
    check_dimension(where, collective_dim, (0,))
    for src, dst in zip(srcs, dsts, strict=True):
        check_shape(where, dst, part_of(where, src, len(groups[0])))
    attributes = {"collective_dim": 0, **_reduction(where, srcs, groups, op)}
    return _emit(where, dsts, srcs, attributes, priority, name)


def _reduction(where: str, srcs: Tensors, groups: Groups, op: Any) -> dict[str, Any]:
    """Return the attributes of a reduction."""
    operator = _operator(where, op, srcs)
    launch, target = tracing.current().launch, tracing.current().target
    # ASSUMPTION: the sum of the sizes of several tensors determines the algorithm.
    size = sum(prod(t.shape) * dtypes.itemsize(t.dtype) for t in srcs)
    plan = select(
        where, size, groups, Placement.of(target), override=launch.collective_algorithm
    )
    return {"op": operator, "groups": groups, "plan": plan}


def _operator(where: str, op: Any, srcs: Tensors) -> str:
    for t in srcs:
        if dtypes.info(t.dtype).kind in ("packed", "bool") or t.dtype == "tfloat32":
            refuse(where, f"a reduction of {t.dtype}", "view the tile as numbers")
    return checked_op(op, OPERATORS, f"nki.collectives.{where}")


@_described(
    srcs="tensors in HBM, or one tensor in SBUF of two dimensions",
    dsts="as srcs, with collective_dim multiplied by the number of ranks in a group",
    replica_group="the groups of ranks that gather together",
    collective_dim="the dimension to gather along: 0; in SBUF 0 or 1",
)
def all_gather(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Give every member the tensors of all members, one after the other."""
    where = "all_gather"
    groups = groups_of(where, replica_group)
    check_tensors(where, srcs, dsts)
    in_sbuf = is_sbuf(srcs[0].buffer)
    check_dimension(where, collective_dim, (0, 1) if in_sbuf else (0,))
    for src, dst in zip(srcs, dsts, strict=True):
        if in_sbuf and src.ndim != 2:
            shape = f"a tensor of shape {src.shape} in SBUF"
            refuse(where, shape, "use two dimensions, partitions and free")
        shape = list(src.shape)
        shape[collective_dim] *= len(groups[0])
        check_shape(where, dst, tuple(shape))
    attributes = {"collective_dim": collective_dim, "groups": groups}
    return _emit(where, dsts, srcs, attributes, priority, name)


@_described(
    srcs="tensors in HBM",
    dsts="tensors in HBM, of the shapes of srcs",
    replica_group="the groups of ranks that exchange data",
)
def all_to_all(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Give the k-th member the k-th part of every member's tensor."""
    where = "all_to_all"
    groups = groups_of(where, replica_group)
    check_tensors(where, srcs, dsts, sbuf=False)
    check_dimension(where, collective_dim, (0,))
    for src, dst in zip(srcs, dsts, strict=True):
        part_of(where, src, len(groups[0]))
        check_shape(where, dst, src.shape)
    attributes = {"collective_dim": 0, "groups": groups}
    return _emit(where, dsts, srcs, attributes, priority, name)


@_described(
    dsts="of srcs' shape; unchanged on a rank that is no target (ASSUMPTION)",
    source_target_pairs="(source, target) ranks; no two have equal sources or targets",
)
def collective_permute(
    srcs: Tensors,
    dsts: Tensors,
    source_target_pairs: Sequence[tuple[int, int]],
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Give the second member of each pair the tensor of the first."""
    where = "collective_permute"
    check_tensors(where, srcs, dsts, sbuf=False, most=1)
    check_shape(where, dsts[0], srcs[0].shape)
    pairs = tuple((int(a), int(b)) for a, b in source_target_pairs)
    fault = fault_of_pairs(pairs, ranks_of_launch(where))
    if fault:
        refuse(where, fault, PAIRS_REMEDY)
    attributes = {"source_target_pairs": pairs}
    return _emit(where, dsts, srcs, attributes, priority, name, reads_outputs=True)


@_described(
    srcs_by_channel="one tensor per channel",
    channel_ids="0, 1, ...; at most 2 ids, or 4 if each group has all chips of a node",
)
def collective_permute_implicit(
    srcs_by_channel: Sequence[Tensors],
    dsts_by_channel: Sequence[Tensors],
    replica_group: ReplicaGroup,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Send every member's tensor to its successor in a ring, for each channel."""
    where = "collective_permute_implicit"
    rings = rings_of(where, replica_group, channel_ids)
    srcs = by_channel(where, srcs_by_channel, rings)
    dsts = by_channel(where, dsts_by_channel, rings)
    check_alike(where, srcs, dsts)
    return _emit(where, dsts, srcs, {"rings": rings}, priority, name)


@_described(
    srcs0_by_channel="one tensor per channel",
    srcs1_by_channel="the same shapes",
    channel_ids="as in `collective_permute_implicit`",
)
def collective_permute_implicit_reduce(
    srcs0_by_channel: Sequence[Tensors],
    srcs1_by_channel: Sequence[Tensors],
    dsts_by_channel: Sequence[Tensors],
    replica_group: ReplicaGroup,
    op: Any,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Send every member's op(src0, src1) to its successor in a ring, per channel."""
    where = "collective_permute_implicit_reduce"
    rings = rings_of(where, replica_group, channel_ids)
    sources = [
        by_channel(where, every, rings)
        for every in (srcs0_by_channel, srcs1_by_channel)
    ]
    dsts = by_channel(where, dsts_by_channel, rings)
    for srcs in sources:
        check_alike(where, srcs, dsts)
    attributes = {"rings": rings, "op": _operator(where, op, dsts)}
    return _emit(where, dsts, [*sources[0], *sources[1]], attributes, priority, name)


@_described(
    iteration_id="the number of steps so far; after 0 steps, the result is this rank",
    channel_id="the channel of the ring",
)
def collective_permute_implicit_current_processing_rank_id(
    iteration_id: int | VirtualRegister,
    replica_group: ReplicaGroup,
    channel_id: int = 0,
    name: str | None = None,
) -> VirtualRegister:
    """Return the rank whose data this rank has after `iteration_id` steps of a ring."""
    where = "collective_permute_implicit_current_processing_rank_id"
    rings = rings_of(where, replica_group, range(channel_id + 1))[channel_id]
    return _register(where, [iteration_id], {"rings": rings}, name)


def rank_id(name: str | None = None) -> VirtualRegister:
    """Return the number of the rank, in a register."""
    ranks_of_launch("rank_id")
    return _register("rank_id", [], {}, name)


def _register(
    where: str, inputs: list[Any], attributes: dict[str, Any], name: str | None
) -> VirtualRegister:
    check_not_in_loop(where)
    register = VirtualRegister(tracing.current().new_register())
    emit(
        where,
        "cc",
        (),
        inputs,
        attributes=attributes,
        register=as_register(register),
        label=name,
    )
    return register


@_described(
    replica_group="groups of 4 ranks; the launch must have a grid of two (both are "
    "the vendor's limits)",
    metadata_tensor="uint32 [3, 4] in HBM or [1, 3, 4] in SBUF. In column 0, row 0 is "
    "the number and row 1 the offset of the elements to send. Row 2 receives the "
    "number of elements from each member",
    recv_counts_known="whether row 2 has these numbers already and is not written",
    has_rdispls="must be False; the vendor's library refuses True too",
)
def all_gather_v(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Give every member one chunk of each member's flat buffer, in separate slots."""
    where = "all_gather_v"
    groups = groups_of(where, replica_group)
    if has_rdispls:
        refuse(where, "has_rdispls=True", "use has_rdispls=False")
    if len(groups[0]) != 4:
        refuse(where, f"groups of {len(groups[0])} ranks", "use groups of 4")
    if prod(tracing.current().grid) != 2:
        programs = f"a launch of {prod(tracing.current().grid)} programs per rank"
        refuse(where, programs, "launch it as kernel[2] (LNC 2)")
    flags = (bool(recv_counts_known), False)
    return _of_any_length(
        where, srcs, dsts, groups, metadata_tensor, flags, priority, name
    )


@_described(
    replica_group="the groups of ranks that exchange data",
    metadata_tensor="uint32 [rows, members] in HBM or [1, rows, members] in SBUF: send "
    "counts, send displacements, receive counts, and with `has_rdispls` "
    "receive displacements; columns are members in their order",
    recv_counts_known="whether the receive counts in row 2 are given, so that the "
    "collective does not write them",
    has_rdispls="whether row 3 has the offsets of chunks in dst; if not, each sender "
    "has an equal part of dst",
)
def all_to_all_v(
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Send every member one chunk of each member's flat buffer."""
    where = "all_to_all_v"
    groups = groups_of(where, replica_group)
    flags = (bool(recv_counts_known), bool(has_rdispls))
    return _of_any_length(
        where, srcs, dsts, groups, metadata_tensor, flags, priority, name
    )


def _of_any_length(
    where: str,
    srcs: Tensors,
    dsts: Tensors,
    groups: Groups,
    metadata: NkiTensor,
    flags: tuple[bool, bool],
    priority: int | None,
    name: str | None,
) -> NkiInstruction:
    check_tensors(where, srcs, dsts, sbuf=False, most=1)
    known, placed = flags
    rows = (4 if placed else 3, len(groups[0]))
    shape = (1, *rows) if is_sbuf(metadata.buffer) else rows
    if metadata.dtype != "uint32" or metadata.shape != shape:
        problem = f"metadata_tensor is {metadata.dtype}{list(metadata.shape)}"
        refuse(where, problem, f"give uint32{list(shape)}")
    attributes = {"groups": groups, "recv_counts_known": known, "has_rdispls": placed}
    written = [*dsts] if known else [*dsts, metadata]
    read = [*srcs, metadata]
    return _emit(where, written, read, attributes, priority, name, reads_outputs=True)


def _emit(
    where: str,
    dsts: Tensors,
    srcs: Tensors,
    attributes: dict[str, Any],
    priority: int | None,
    name: str | None,
    reads_outputs: bool = False,
) -> NkiInstruction:
    check_not_in_loop(where)
    trace = tracing.current()
    core = trace.core
    if priority is not None:
        if "dma_priority" not in core.capabilities:
            refuse(where, f"priority={priority} on {core.name}", "use target trn3")
        if priority not in range(4):
            refuse(where, f"priority={priority}", "use 0 (highest) to 3")
    attributes = {**attributes, "priority": -1 if priority is None else priority}
    make = functools.partial(
        emit,
        where,
        "cc",
        [*dsts],
        [*srcs],
        attributes=attributes,
        reads_outputs=reads_outputs,
        label=name,
    )
    tensors = [*dsts, *srcs]
    if prod(trace.grid) > 1 and any(t.storage.memory == "shared_hbm" for t in tensors):
        return _once(where, tensors, make)
    return make()


def _once(
    where: str, tensors: Tensors, make: Callable[[], NkiInstruction]
) -> NkiInstruction:
    """Emit one instruction for all cores of a rank when every core has reached it.
    ASSUMPTION: if all cores name the same tensors, they make one transfer together."""
    trace, what = tracing.current(), f"nki.collectives.{where}"
    mine = [t.access() for t in tensors]
    same = all(accesses == mine for accesses in trace.meet(what, mine))
    done = None if same and trace.program else make()
    first, *_ = trace.meet(f"{what}, done", done)
    return done or first
