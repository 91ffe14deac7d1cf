"""Collectives: the ops that join the devices of the block that `lowering.spmd` lowers.

The fold of a reduction over devices depends on size, group and policy; it is chosen
here (`collectives.selection`) and is part of the instruction. The groups of StableHLO
name partitions, which are the devices of the mesh.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from neuronjax.errors import InvalidProgramError, UnimplementedError, UnsupportedError
from neuronjax.ir.collective_set import (
    GROUPS_REMEDY,
    PAIRS_REMEDY,
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    DeviceMesh,
    Groups,
    PartitionId,
    RaggedAllToAll,
    ReduceScatter,
    fault_of_groups,
    fault_of_pairs,
    groups_along,
)
from neuronjax.ir.collectives.algorithms import ALL_REDUCE, REDUCE_SCATTER
from neuronjax.ir.collectives.placement import Placement
from neuronjax.ir.collectives.selection import select
from neuronjax.ir.instruction import View
from neuronjax.ir.program import AxisGroups, Op, Region
from neuronjax.lowering.bodies import COMBINERS, promoted, simple_combiner
from neuronjax.lowering.context import Context, Instructions
from neuronjax.lowering.registry import lowers
from neuronjax.lowering.spmd import alone, mesh_of
from neuronjax.numerics.float_format import get_format
from neuronjax.policy.scopes import algorithm_from_scope

Rule = Callable[[Op, Context], Instructions]


def _joins_devices(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of a collective by the names of ops. A program of one device
    applies it through `alone`."""

    def register(rule: Rule) -> Rule:
        @functools.wraps(rule)
        def wrapped(op: Op, context: Context) -> Instructions:
            shared = context.shared
            if shared.mesh is None and shared.program.partitions == 1:
                return alone(op, context, rule)
            return rule(op, context)

        lowers(*names)(wrapped)
        return wrapped

    return register


# -- groups ----------------------------------------------------------------------------


def _current(op: Op, context: Context) -> DeviceMesh:
    mesh = context.shared.mesh
    if mesh is None:
        raise op.error(
            UnimplementedError,
            "is a collective outside of jax.shard_map and pmap",
            "call it inside jax.shard_map over neuronjax.make_mesh, or neuronjax.pmap",
        )
    return mesh


def _groups(
    op: Op, context: Context, remedy: str = GROUPS_REMEDY, *, complete: bool = True
) -> Groups:
    """Return groups of one size; in `complete` ones every device occurs once."""
    mesh = _current(op, context)
    _check_partitions(op)
    groups = _listed(op, context)
    _check(op, fault_of_groups(groups, mesh.size, complete=complete), remedy)
    return groups


def _joined_groups(op: Op, context: Context) -> Groups:
    """Return `_groups`, after checking that a network joins each group."""
    groups, placement = _groups(op, context), _placement(context)
    for group in groups:
        remedy = "use the same logical cores on every node"
        _check(op, placement.group(group).fault, remedy)
    return groups


def _check(op: Op, fault: str, remedy: str) -> None:
    if fault:
        raise op.error(InvalidProgramError, fault, remedy)


_BY_CHANNEL = ("stablehlo.all_to_all", "stablehlo.collective_broadcast")


def _device_attributes(op: Op) -> Mapping[str, Any]:
    """Return the attributes about devices; a custom call keeps them in its config."""
    a = op.attributes
    return a["backend_config"] if op.name == "stablehlo.custom_call" else a


def _check_partitions(op: Op) -> None:
    """Refuse groups that name replicas of the program."""
    a = _device_attributes(op)
    by_channel = op.name in _BY_CHANNEL and a.get("channel_handle", 0) > 0
    # A ragged_all_to_all in a program of one partition has no channel.
    if not by_channel and not {"channel_id", "use_global_device_ids"} & a.keys():
        raise op.error(
            UnsupportedError,
            "its groups name replicas of the program, not partitions",
            "write it with jax.lax collectives inside jax.shard_map",
        )


def _listed(op: Op, context: Context) -> Groups:
    """Return the groups that an op lists in a table or gives as axes of a mesh."""
    groups = _device_attributes(op)["replica_groups"]
    if isinstance(groups, AxisGroups):
        mesh = mesh_of(op, context.shared, groups.mesh)
        try:
            return groups_along(mesh, groups.axes)
        except KeyError as error:
            raise op.error(
                InvalidProgramError,
                f"its groups are along {error}, which the mesh {dict(mesh.axes)} lacks",
                "use axes of the mesh",
            ) from error
    # In a table, groups of different sizes are filled up with -1.
    return tuple(tuple(d for d in row if d >= 0) for row in groups.tolist())


# -- reductions ------------------------------------------------------------------------


@_joins_devices("stablehlo.all_reduce")
def all_reduce(op: Op, context: Context) -> Instructions:
    yield from _reduction(op, context, AllReduce, ALL_REDUCE)


@_joins_devices("stablehlo.reduce_scatter")
def reduce_scatter(op: Op, context: Context) -> Instructions:
    dimension = op.attributes["scatter_dimension"]
    yield from _reduction(
        op, context, ReduceScatter, REDUCE_SCATTER, dimension=dimension
    )


def _reduction(
    op: Op, context: Context, cls: type, kind: str, **fields: Any
) -> Instructions:
    groups = _groups(op, context)
    (region,) = op.regions
    name = _combiner(op, region)
    arguments = [region.arguments[0]] * len(op.operands)
    operands = promoted(context, context.operands(op), arguments)
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
            override=algorithm_from_scope(context.scope),
            policy=policy.collective_algorithm,
        ),
        reduce_dtype=travels,
        integer_path=_integer_path(op, context, name, dtype),
        **fields,
    )
    yield dataclasses.replace(made, **context.on_write(travels or "float32"))


def _combiner(op: Op, region: Region) -> str:
    name = simple_combiner(region)
    if name not in COMBINERS:
        raise op.error(
            UnsupportedError,
            "reduces over devices by a custom function",
            f"reduce by one of: {', '.join(COMBINERS)}; or gather, then reduce",
        )
    return name


def _travel_dtype(context: Context, name: str, dtype: np.dtype) -> str | None:
    """Return the dtype in which float operands of sums and products are sent; None for
    the operands' own."""
    if dtype.kind in "iub" or name not in ("add", "multiply"):
        return None
    wanted = context.policy.collective_reduce_dtype
    return None if wanted == dtype.name else wanted


_BITWISE = ("and", "or", "xor")


def _integer_path(op: Op, context: Context, name: str, dtype: np.dtype) -> str:
    """Return how integers are reduced, "exact" or "fp32". A CC-core computes in FP32
    only, also minima and maxima; the vendor says so for 32 and 64 bits (EVRF061,
    EVRF063). FP32 holds every narrower integer. ASSUMPTION: sums of narrower integers
    wrap around."""
    policy = context.policy
    if dtype.kind not in "iu" or name in _BITWISE:
        return "exact"
    if policy.implicit_integer_downcast == "none" and dtype.itemsize >= 4:
        code = "EVRF061" if op.name == "stablehlo.all_reduce" else "EVRF063"
        raise op.error(
            UnsupportedError,
            f"{code}: a reduction of {dtype} over devices is computed in float32, "
            "which implicit_integer_downcast='none' refuses",
            "reduce float32, or set implicit_integer_downcast='all'",
        )
    if policy.integer_path != "auto":
        return policy.integer_path
    if dtype.itemsize < 4:
        return "exact"
    context.warn_of_integers(f"reduces integers of {dtype} over devices")
    return "fp32"


def _bytes(operands: tuple[View, ...], travels: str | None) -> int:
    """Return the bytes that one rank reduces. ASSUMPTION: all tensors' sizes add up."""
    types = [v.type for v in operands]
    return sum(
        prod(t.shape) * (get_format(travels).dtype if travels else t.dtype).itemsize
        for t in types
    )


def _placement(context: Context) -> Placement:
    shared = context.shared
    policy = shared.policy
    return Placement.of(shared.target, lnc=policy.lnc, cores=policy.placement)


# -- movement --------------------------------------------------------------------------


@_joins_devices("stablehlo.all_gather")
def all_gather(op: Op, context: Context) -> Instructions:
    groups = _joined_groups(op, context)
    dimension = op.attributes["all_gather_dim"]
    yield context.whole(op, AllGather, "cc", dimension=dimension, groups=groups)


@_joins_devices("stablehlo.all_to_all")
def all_to_all(op: Op, context: Context) -> Instructions:
    a, groups = op.attributes, _joined_groups(op, context)
    if a["split_count"] != len(groups[0]):
        raise op.error(
            InvalidProgramError,
            f"split_count is {a['split_count']}, but groups have size {len(groups[0])}",
            "split into as many parts as a group has devices",
        )
    yield context.whole(
        op,
        AllToAll,
        "cc",
        split_dimension=a["split_dimension"],
        concat_dimension=a["concat_dimension"],
        groups=groups,
    )


@_joins_devices()
def ragged_all_to_all(op: Op, context: Context) -> Instructions:
    """Lower the custom call "ragged_all_to_all"."""
    groups = _joined_groups(op, context)
    parts = [value.type.shape for value in op.operands[-4:]]
    if any(shape != parts[0] or shape[0] % len(groups[0]) for shape in parts):
        raise op.error(
            InvalidProgramError,
            f"offsets and sizes have shapes {parts}, and a group has {len(groups[0])} "
            "devices",
            "give as many offsets as sizes: a multiple of the group's device count",
        )
    # Complex data and their output are two arrays each.
    *arrays, starts, sizes, targets, received = context.operands(op)
    results = context.results(op)
    for k, result in enumerate(results):
        data, output = arrays[k], arrays[len(results) + k]
        yield context.make(
            RaggedAllToAll,
            (data, output, starts, sizes, targets, received),
            (result,),
            engine="cc",
            groups=groups,
        )


@_joins_devices("stablehlo.collective_permute")
def collective_permute(op: Op, context: Context) -> Instructions:
    mesh = _current(op, context)
    table = op.attributes["source_target_pairs"].tolist()
    pairs = tuple((source, target) for source, target in table)
    _check(op, fault_of_pairs(pairs, mesh.size), PAIRS_REMEDY)
    yield context.whole(op, CollectivePermute, "cc", pairs=pairs)


@_joins_devices("stablehlo.collective_broadcast")
def collective_broadcast(op: Op, context: Context) -> Instructions:
    groups = _groups(op, context, PAIRS_REMEDY, complete=False)
    yield context.whole(op, CollectiveBroadcast, "cc", groups=groups)


@_joins_devices("stablehlo.partition_id")
def partition_id(op: Op, context: Context) -> Instructions:
    _current(op, context)
    yield context.whole(op, PartitionId, "cc")
