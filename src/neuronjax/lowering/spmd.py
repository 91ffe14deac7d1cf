"""Blocks that many devices run: `sdy.manual_computation` becomes one `Spmd`.

The mesh, and how values are split over it, are checked here against the types of the
program and the target; the collectives inside are in `lowering.collective`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from math import prod

from neuronjax.errors import InvalidProgramError, UnimplementedError
from neuronjax.hardware import INSTANCES, TARGETS, Target
from neuronjax.ir.collective_set import DeviceMesh, Split, Spmd
from neuronjax.ir.instruction import Block
from neuronjax.ir.program import Mesh, Op, Region, Sharding, TensorType
from neuronjax.lowering.context import (
    Context,
    Instructions,
    LoweredRegion,
    ProgramContext,
)
from neuronjax.lowering.registry import lower_region, lowers


@lowers("sdy.manual_computation")
def manual_computation(op: Op, context: Context) -> Instructions:
    """Lower to one `Spmd`; without operands and results there is nothing to compute."""
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
    child = Context(shared, prefix=context.scope, caller=context.caller)
    facts = map(context.passed_on, op.operands)
    child.facts.update(zip(region.arguments, facts, strict=True))
    with _devices(shared, mesh):
        body = lower_region(region, child)
    yield context.whole(
        op,
        Spmd,
        "cc",
        ordinal=context.new_ordinal(),
        body=body,
        mesh=mesh,
        splits=splits[:count],
        joins=splits[count:],
    )
    facts = map(child.fact, region.results)
    context.facts.update(zip(op.results, facts, strict=True))


#: The mesh for a program of one device, which has no mesh of its own.
_ALONE = DeviceMesh((("device", 1),))


def alone(
    op: Op, context: Context, rule: Callable[[Op, Context], Instructions]
) -> Instructions:
    """Lower a collective of a program of one device as a block of that device. JAX
    leaves out the manual computation over a mesh of one device, but not the collectives
    inside it."""
    child = Context(context.shared, prefix=context.prefix, caller=context.caller)
    operands = tuple(dict.fromkeys(op.operands))
    child.facts.update((value, context.fact(value)) for value in operands)
    arguments = tuple([child.define(value) for value in operands])
    child.enter(op)
    with _devices(context.shared, _ALONE):
        instructions = tuple(child.collected(rule(op, child)))
    body = Block(arguments, instructions, tuple(map(child.view, op.results)))
    region = Region(operands, (op,), op.results)
    ends = (len(instructions),)
    context.shared.regions[body] = LoweredRegion(region, ends, child.views)
    yield context.make(
        Spmd,
        tuple([context.view(value) for value in operands]),
        context.results(op),
        engine="cc",
        ordinal=context.new_ordinal(),
        body=body,
        mesh=_ALONE,
        splits=tuple([((),) * len(v.type.shape) for v in operands]),
        joins=tuple([((),) * len(v.type.shape) for v in op.results]),
    )


@contextlib.contextmanager
def _devices(shared: ProgramContext, mesh: DeviceMesh) -> Iterator[None]:
    """Lower the collectives in the body of a `with` statement for the mesh."""
    shared.mesh = mesh
    try:
        yield
    finally:
        shared.mesh = None


def _device_mesh(
    op: Op, shared: ProgramContext, shardings: tuple[Sharding, ...]
) -> DeviceMesh:
    """Return the mesh of a manual computation, all of whose axes are manual."""
    if shared.mesh is not None:
        raise op.error(
            UnimplementedError,
            "a manual computation inside another one",
            "write one jax.shard_map over all axes of the mesh, or one pmap",
        )
    meshes = {mesh_of(op, shared, sharding.mesh) for sharding in shardings}
    if len(meshes) > 1:
        raise op.error(
            InvalidProgramError,
            f"{len(meshes)} different meshes in one manual computation",
            "use one mesh",
        )
    mesh = meshes.pop()
    if mesh.device_ids:
        raise op.error(
            UnimplementedError,
            f"the devices of the mesh are not in order: {mesh.device_ids}",
            "use neuronjax.make_mesh, whose devices are in order",
        )
    _check_manual(op, mesh)
    devices = DeviceMesh(mesh.axes)
    _check_size(op, devices.size, shared)
    return devices


def mesh_of(op: Op, shared: ProgramContext, mesh: str | Mesh) -> Mesh:
    """Return a mesh given as itself or by its name in the program."""
    if isinstance(mesh, str):
        if mesh not in shared.program.meshes:
            raise op.error(
                InvalidProgramError,
                f"the mesh @{mesh} does not exist",
                "save the whole module, with its sdy.mesh",
            )
        mesh = shared.program.meshes[mesh]
    in_order = mesh.device_ids == tuple(range(mesh.size))
    return dataclasses.replace(mesh, device_ids=()) if in_order else mesh


def _check_manual(op: Op, mesh: Mesh) -> None:
    manual = op.attributes["manual_axes"]
    auto = [name for name, size in mesh.axes if size > 1 and name not in manual]
    if auto:
        raise op.error(
            UnimplementedError,
            f"all axes of the mesh must be manual, but these are left to XLA: "
            f"{', '.join(auto)}",
            "make all axes manual: call jax.shard_map without axis_names, with specs "
            "that name the other axes",
        )


def _check_size(op: Op, devices: int, shared: ProgramContext) -> None:
    target, lnc = shared.target, shared.policy.lnc
    cores = target.logical_cores(lnc)
    if devices > cores:
        raise op.error(
            InvalidProgramError,
            f"the mesh has {devices} devices, but target {target.name} has {cores} "
            "logical NeuronCores",
            _larger(target, devices, lnc),
        )
    placement = shared.policy.placement
    if placement and (len(placement) < devices or max(placement) >= cores):
        raise op.error(
            InvalidProgramError,
            f"the placement puts {len(placement)} devices on logical cores up to "
            f"{max(placement)}, but the mesh has {devices} devices",
            f"place every device on a core of {target.name}, from 0 to {cores - 1}",
        )


def _larger(target: Target, devices: int, lnc: int | None) -> str:
    """Return a remedy that names targets with enough devices."""
    cores = {
        name: TARGETS[name].logical_cores(lnc if i.chip == target.chip else None)
        for name, i in INSTANCES.items()
    }
    enough = [name for name, count in cores.items() if count >= devices]
    same = [name for name in enough if INSTANCES[name].chip == target.chip]
    if not enough:
        largest = max(cores, key=lambda name: cores[name])
        return f"use at most {cores[largest]} devices: {largest} is the largest target"
    named = (f"{name} ({cores[name]})" for name in same or enough)
    return f"use a target with more cores: {', '.join(named)}; or fewer devices"


def _split(
    op: Op, mesh: DeviceMesh, sharding: Sharding, whole: TensorType, part: TensorType
) -> Split:
    """Return how a value is split, checked against the type that one device has."""
    split = sharding.dimensions
    names = [name for axes in split for name in axes]
    partial = [name for name in (*names, *sharding.replicated) if ":" in name]
    if partial or sharding.unreduced:
        problem = f"part of an axis, {partial[0]}" if partial else "an unreduced axis"
        raise op.error(
            UnimplementedError, f"a sharding over {problem}", "shard over whole axes"
        )
    if _local(whole, split, dict(mesh.axes)) != part:
        raise op.error(
            InvalidProgramError,
            f"{whole} split as {split} over {dict(mesh.axes)} is not {part} per device",
            "use each axis once, on a dimension that is a multiple of the axis's size",
        )
    return split


def _local(whole: TensorType, split: Split, sizes: dict[str, int]) -> TensorType | None:
    """Return the type that one device has, or None if the split is illegal."""
    names = [name for axes in split for name in axes]
    if len(split) != len(whole.shape) or len(set(names)) < len(names):
        return None
    if not sizes.keys() >= set(names):
        return None
    parts = [prod(sizes[name] for name in axes) for axes in split]
    shape = [n // k for n, k in zip(whole.shape, parts, strict=True) if n % k == 0]
    complete = len(shape) == len(whole.shape)
    return TensorType(tuple(shape), whole.dtype) if complete else None
