"""Programs of many devices: `sdy.manual_computation`, and the collectives in it.

A manual computation becomes one `Spmd` instruction; its body is lowered as a block of
one device. Which fold a reduction over devices has, by size, group and policy, is
decided here (`collectives.selection`) and part of the instruction. Groups of StableHLO
name partitions, which are the devices of the mesh.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from neuronjax.collectives.algorithms import ALL_REDUCE, REDUCE_SCATTER
from neuronjax.collectives.placement import Placement
from neuronjax.collectives.selection import select
from neuronjax.errors import (
    InvalidProgramError,
    NeuronJaxError,
    UnimplementedError,
    UnsupportedError,
)
from neuronjax.hardware import INSTANCES, TARGETS, Target
from neuronjax.ir.collective_set import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    CollectiveBroadcast,
    CollectivePermute,
    DeviceMesh,
    Groups,
    PartitionId,
    ReduceScatter,
    Split,
    Spmd,
)
from neuronjax.ir.instruction import Instruction, View
from neuronjax.ir.program import AxisGroups, Mesh, Op, Region, Sharding, TensorType
from neuronjax.lowering.bodies import COMBINERS, promoted, simple_combiner
from neuronjax.lowering.context import Context, ProgramContext
from neuronjax.lowering.control_flow import carried_facts
from neuronjax.lowering.elementwise import integer_path
from neuronjax.lowering.registry import lower_region, lowers

Instructions = Iterator[Instruction]


def _error(
    category: type[NeuronJaxError], op: Op, what: str, remedy: str
) -> NeuronJaxError:
    return category(what, op=op.name, location=_source(op), remedy=remedy)


_PACKAGE = str(Path(__file__).parents[1])


def _source(op: Op) -> str | None:
    """The user's line: for a call that `pmap` or `jit` made, the first one inside."""
    places = (inner.location for inner in op.walk())
    users = (p.source for p in places if not p.file.startswith(_PACKAGE))
    return next(filter(None, users), None)


# -- the block of every device ---------------------------------------------------------


@lowers("sdy.manual_computation")
def manual_computation(op: Op, context: Context) -> Instructions:
    """One `Spmd`; without operands and results there is nothing to compute."""
    attributes = op.attributes
    shardings = (*attributes["in_shardings"], *attributes["out_shardings"])
    if not shardings:
        return
    shared = context.shared
    mesh = _device_mesh(op, shared, shardings)
    (region,) = op.regions
    count = len(op.operands)
    outside = (*op.operands, *op.results)
    inside = (*region.arguments, *region.results)
    splits = tuple(
        _split(op, mesh, s, whole.type, part.type)
        for s, whole, part in zip(shardings, outside, inside, strict=True)
    )
    child = Context(shared, prefix=context.scope)
    facts = [carried_facts(context, value) for value in op.operands]
    child.facts.update(zip(region.arguments, facts, strict=True))
    with _devices(shared, mesh):
        body = lower_region(region, child)
    yield context.make(
        Spmd,
        context.operands(op),
        context.results(op),
        engine="cc",
        ordinal=context.nested_ordinal(),
        body=body,
        mesh=mesh,
        splits=splits[:count],
        joins=splits[count:],
    )
    for result, value in zip(op.results, region.results, strict=True):
        context.facts[result] = child.fact(value)


@contextlib.contextmanager
def _devices(shared: ProgramContext, mesh: DeviceMesh) -> Iterator[None]:
    """Inside, collectives are those of this mesh."""
    shared.mesh = mesh
    try:
        yield
    finally:
        shared.mesh = None


def _device_mesh(
    op: Op, shared: ProgramContext, shardings: tuple[Sharding, ...]
) -> DeviceMesh:
    """The mesh of a manual computation, all of whose axes are manual."""
    if shared.mesh is not None:
        raise _error(
            UnimplementedError,
            op,
            "a manual computation inside another one",
            "write one jax.shard_map over all axes of the mesh, or one pmap",
        )
    meshes = {_mesh(op, shared, sharding.mesh) for sharding in shardings}
    if len(meshes) > 1:
        raise _error(
            InvalidProgramError,
            op,
            f"{len(meshes)} different meshes in one manual computation",
            "use one mesh",
        )
    mesh = meshes.pop()
    _check_manual(op, mesh)
    devices = DeviceMesh(mesh.axes)
    _check_size(op, devices.size, shared)
    return devices


def _mesh(op: Op, shared: ProgramContext, mesh: str | Mesh) -> Mesh:
    """A mesh of the program, whose devices are in order."""
    if isinstance(mesh, str):
        if mesh not in shared.program.meshes:
            raise _error(
                InvalidProgramError,
                op,
                f"the mesh @{mesh} does not exist",
                "save the whole module, with its sdy.mesh",
            )
        mesh = shared.program.meshes[mesh]
    size = prod(n for _, n in mesh.axes)
    if mesh.device_ids not in ((), tuple(range(size))):
        raise _error(
            UnimplementedError,
            op,
            f"a mesh whose devices are in an order of their own, {mesh.device_ids}",
            "use neuronjax.make_mesh, whose devices are in order",
        )
    return dataclasses.replace(mesh, device_ids=())


def _check_manual(op: Op, mesh: Mesh) -> None:
    manual = op.attributes["manual_axes"]
    left = [name for name, size in mesh.axes if size > 1 and name not in manual]
    if left:
        raise _error(
            UnimplementedError,
            op,
            f"only some axes of the mesh are manual; {', '.join(left)}: left to XLA's "
            "partitioner",
            "make all axes manual: call jax.shard_map without axis_names, with specs "
            "that name the other axes",
        )


def _check_size(op: Op, devices: int, shared: ProgramContext) -> None:
    target, lnc = shared.target, shared.policy.lnc
    cores = target.logical_cores(lnc)
    if devices > cores:
        raise _error(
            InvalidProgramError,
            op,
            f"the mesh has {devices} devices, target {target.name} has {cores} logical "
            "NeuronCores",
            _larger(target, devices, lnc),
        )


def _larger(target: Target, devices: int, lnc: int | None) -> str:
    """What to use instead: targets of the same chip first."""
    cores = {
        name: TARGETS[name].logical_cores(lnc if i.chip == target.chip else None)
        for name, i in INSTANCES.items()
    }
    enough = [name for name, count in cores.items() if count >= devices]
    same = [name for name in enough if INSTANCES[name].chip == target.chip]
    if not enough:
        largest = max(cores, key=lambda name: cores[name])
        return f"use fewer devices; the largest target is {largest}, {cores[largest]}"
    named = (f"{name} ({cores[name]})" for name in same or enough)
    return f"use a target with enough: {', '.join(named)}; or fewer devices"


def _split(
    op: Op, mesh: DeviceMesh, sharding: Sharding, whole: TensorType, part: TensorType
) -> Split:
    """How a value is split, checked against the type that one device has."""
    split = sharding.dimensions
    names = [name for axes in split for name in axes]
    partial = [name for name in (*names, *sharding.replicated) if ":" in name]
    if partial or sharding.unreduced:
        found = f"part of an axis, {partial[0]}" if partial else "an unreduced axis"
        raise _error(
            UnimplementedError, op, f"a sharding over {found}", "shard over whole axes"
        )
    if _local(whole, split, dict(mesh.axes)) != part:
        raise _error(
            InvalidProgramError,
            op,
            f"{whole} split as {split} over {dict(mesh.axes)} is not {part} per device",
            "shard dimensions that the axes divide, each axis once",
        )
    return split


def _local(whole: TensorType, split: Split, sizes: dict[str, int]) -> TensorType | None:
    """What one device has; None where the split is illegal."""
    names = [name for axes in split for name in axes]
    if len(split) != len(whole.shape) or len(set(names)) < len(names):
        return None
    if not sizes.keys() >= set(names):
        return None
    parts = [prod(sizes[name] for name in axes) for axes in split]
    shape = [n // k for n, k in zip(whole.shape, parts, strict=True) if n % k == 0]
    complete = len(shape) == len(whole.shape)
    return TensorType(tuple(shape), whole.dtype) if complete else None


# -- groups ----------------------------------------------------------------------------


def _current(op: Op, context: Context) -> DeviceMesh:
    """The devices around a collective."""
    mesh = context.shared.mesh
    if mesh is None:
        raise _error(
            UnimplementedError,
            op,
            "joins devices outside of jax.shard_map and pmap",
            "call it inside jax.shard_map over neuronjax.make_mesh, or neuronjax.pmap; "
            "programs that XLA has partitioned are not read yet",
        )
    return mesh


def _groups(op: Op, context: Context) -> Groups:
    """Groups of devices: all devices, each in one, all groups of one size."""
    mesh = _current(op, context)
    _check_partitions(op)
    groups = _listed(op, context)
    named = sorted(device for group in groups for device in group)
    if len({len(g) for g in groups}) > 1 or named != list(range(mesh.size)):
        raise _error(
            InvalidProgramError,
            op,
            f"groups {groups} of {mesh.size} devices",
            "name every device once, in groups of one size (axis_index_groups)",
        )
    return groups


_BY_CHANNEL = ("stablehlo.all_to_all", "stablehlo.collective_broadcast")


def _check_partitions(op: Op) -> None:
    """Refuses groups that name replicas of the program."""
    a = op.attributes
    by_channel = op.name in _BY_CHANNEL and a.get("channel_handle", 0) > 0
    if not by_channel and "use_global_device_ids" not in a:
        raise _error(
            UnsupportedError,
            op,
            "its groups name replicas of the program, not partitions",
            "write it with jax.lax collectives inside jax.shard_map",
        )


def _listed(op: Op, context: Context) -> Groups:
    """The groups, however the op says them."""
    found = op.attributes["replica_groups"]
    if isinstance(found, AxisGroups):
        return _groups_of_axes(op, context, found)
    # A table of groups of different sizes is filled up with -1.
    return tuple(tuple(d for d in row if d >= 0) for row in found.tolist())


def _groups_of_axes(op: Op, context: Context, found: AxisGroups) -> Groups:
    mesh = _mesh(op, context.shared, found.mesh)
    sizes = dict(mesh.axes)
    if any(":" in name for name in found.axes):
        raise _error(
            UnimplementedError,
            op,
            f"groups along part of an axis, {found.axes}",
            "use whole axes of the mesh, or axis_index_groups",
        )
    order = list(sizes)
    inner = [order.index(name) for name in found.axes]
    outer = [k for k in range(len(order)) if k not in inner]
    devices = np.arange(prod(sizes.values())).reshape(tuple(sizes.values()))
    ranks = prod(sizes[name] for name in found.axes)
    table = devices.transpose(*outer, *inner).reshape(-1, ranks)
    return tuple(map(tuple, table.tolist()))


# -- reductions ------------------------------------------------------------------------


@lowers("stablehlo.all_reduce")
def all_reduce(op: Op, context: Context) -> Instructions:
    yield from _reduction(op, context, AllReduce, ALL_REDUCE)


@lowers("stablehlo.reduce_scatter")
def reduce_scatter(op: Op, context: Context) -> Instructions:
    dimension = op.attributes["scatter_dimension"]
    yield from _reduction(
        op, context, ReduceScatter, REDUCE_SCATTER, dimension=dimension
    )


def _reduction(
    op: Op, context: Context, cls: type, kind: str, **fields: Any
) -> Instructions:
    """Several operands are one instruction: the vendor's is multi-tensor too."""
    groups = _groups(op, context)
    (region,) = op.regions
    name = _combiner(op, region)
    arguments = [region.arguments[0]] * len(op.operands)
    operands, copies = promoted(context, context.operands(op), arguments)
    yield from copies
    dtype = region.arguments[0].type.dtype
    policy, travels = context.policy, _travel_dtype(context, name, dtype)
    made = context.arithmetic(
        cls,
        operands,
        context.results(op),
        engine="cc",
        op=name,
        groups=groups,
        plan=select(
            kind,
            _bytes(operands, travels),
            groups,
            _placement(context),
            policy=policy.collective_algorithm,
        ),
        reduce_dtype=travels,
        integer_path=integer_path(context, name, dtype),
        **fields,
    )
    if travels in ("bfloat16", "float16"):
        rounding = dict(rounding=policy.rounding, overflow=policy.overflow)
        made = dataclasses.replace(made, **rounding)
    yield made


def _combiner(op: Op, region: Region) -> str:
    name = simple_combiner(region)
    if name not in COMBINERS:
        raise _error(
            UnsupportedError,
            op,
            "reduces over devices by a function of its own",
            f"reduce by one of: {', '.join(COMBINERS)}; or gather and reduce",
        )
    return name


def _travel_dtype(context: Context, name: str, dtype: np.dtype) -> str | None:
    """The policy's word, where sums and products of floats round."""
    if dtype.kind in "iub" or name not in ("add", "multiply"):
        return None
    wanted = context.policy.collective_reduce_dtype
    return None if wanted == dtype.name else wanted


def _bytes(operands: tuple[View, ...], travels: str | None) -> int:
    """What one rank reduces. ASSUMPTION: of several tensors the sum counts."""
    sizes = {"bfloat16": 2, "float16": 2, "float32": 4}
    return sum(
        prod(v.type.shape) * sizes.get(travels or "", v.type.dtype.itemsize)
        for v in operands
    )


def _placement(context: Context) -> Placement:
    shared = context.shared
    return Placement.of(shared.target, lnc=shared.policy.lnc)


# -- movement --------------------------------------------------------------------------


def _moved(op: Op, context: Context, cls: type, **fields: Any) -> Collective:
    return context.make(
        cls, context.operands(op), context.results(op), engine="cc", **fields
    )


@lowers("stablehlo.all_gather")
def all_gather(op: Op, context: Context) -> Instructions:
    groups = _groups(op, context)
    dimension = op.attributes["all_gather_dim"]
    yield _moved(op, context, AllGather, dimension=dimension, groups=groups)


@lowers("stablehlo.all_to_all")
def all_to_all(op: Op, context: Context) -> Instructions:
    a, groups = op.attributes, _groups(op, context)
    if a["split_count"] != len(groups[0]):
        raise _error(
            InvalidProgramError,
            op,
            f"split_count {a['split_count']} with groups of {len(groups[0])} devices",
            "split into as many parts as a group has devices",
        )
    yield _moved(
        op,
        context,
        AllToAll,
        split_dimension=a["split_dimension"],
        concat_dimension=a["concat_dimension"],
        groups=groups,
    )


@lowers("stablehlo.collective_permute")
def collective_permute(op: Op, context: Context) -> Instructions:
    mesh = _current(op, context)
    table = op.attributes["source_target_pairs"].tolist()
    pairs = tuple((source, target) for source, target in table)
    _check_devices(op, mesh, pairs)
    yield _moved(op, context, CollectivePermute, pairs=pairs)


@lowers("stablehlo.collective_broadcast")
def collective_broadcast(op: Op, context: Context) -> Instructions:
    mesh = _current(op, context)
    _check_partitions(op)
    groups = _listed(op, context)
    _check_devices(op, mesh, groups)
    yield _moved(op, context, CollectiveBroadcast, groups=groups)


def _check_devices(op: Op, mesh: DeviceMesh, groups: Groups) -> None:
    """Refuses devices that do not exist. That none is named twice, MLIR has checked."""
    for device in (d for group in groups for d in group):
        if not 0 <= device < mesh.size:
            raise _error(
                InvalidProgramError,
                op,
                f"device {device} is none of the {mesh.size} of the mesh",
                f"name devices from 0 to {mesh.size - 1}",
            )


@lowers("stablehlo.partition_id")
def partition_id(op: Op, context: Context) -> Instructions:
    _current(op, context)
    yield _moved(op, context, PartitionId)
