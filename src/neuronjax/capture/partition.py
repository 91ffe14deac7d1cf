"""Inserts collectives into programs with shardings, by XLA's partitioner.

StableHLO lacks some or all collectives of `jax.jit` with shardings, of Explicit axes,
and of a shard_map over some of the axes. Another process (`partition_child`) runs XLA's
partitioner, which takes about 0.3 s; the result is cached by the program's bytes. The
result is code of one device, and is put into one `sdy.manual_computation` over all
axes, so that lowering needs no further rule. Programs of one device, and programs whose
shardings are all in manual computations over all axes, do not need the partitioner.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from neuronjax.capture.child_process import (
    death,
    ended_with_its_group,
    last_words,
    started,
)
from neuronjax.capture.decode import decode_module
from neuronjax.capture.saved_forms import bytecode
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.ir.collective_set import Split, groups_along
from neuronjax.ir.json_text import json_object
from neuronjax.ir.program import (
    AxisGroups,
    Function,
    Location,
    Mesh,
    Op,
    Program,
    Region,
    Sharding,
    TensorType,
    Value,
)

CHILD = Path(__file__).with_name("partition_child.py")
#: Wall clock time after which XLA counts as hung; a train step takes a few seconds.
SECONDS, SECONDS_PER_MEGABYTE = 300.0, 60.0
#: Bytes at the end of the child's log that are read.
_LOG_BYTES = 1 << 16
_MANUAL = "sdy.manual_computation"
_MOVED = {"func.call", "sdy.sharding_constraint"}
_REMEDY = "write the program with jax.shard_map over all axes of the mesh"


# -- Which programs --------------------------------------------------------------------


def needs_partitioner(program: Program) -> bool:
    """Return whether a program has shardings other than manual ones over all axes."""
    if not any(mesh.size > 1 for mesh in program.meshes.values()):
        return False
    outside = (*program.argument_shardings, *program.result_shardings)
    if any(s is not None and any(s.dimensions) for s in outside):
        return True
    return any(map(functools.partial(_is_open, program), program.walk()))


def _is_open(program: Program, op: Op) -> bool:
    if not op.name.startswith("sdy."):
        return False
    if op.name != _MANUAL:
        return True
    shardings = (*op.attributes["in_shardings"], *op.attributes["out_shardings"])
    meshes = [_mesh(program, s) for s in shardings]
    manual = op.attributes["manual_axes"]
    return any(
        mesh.device_ids not in ((), tuple(range(mesh.size)))
        or any(size > 1 and name not in manual for name, size in mesh.axes)
        for mesh in meshes
    )


def _mesh(program: Program, over: Sharding | AxisGroups) -> Mesh:
    mesh = over.mesh
    return program.meshes.get(mesh, Mesh(())) if isinstance(mesh, str) else mesh


# -- The partitioned program -----------------------------------------------------------


def partition(program: Program, module: Any) -> Program:
    """Return a program, decoded from the `ir.Module` `module`, as one manual
    computation over all devices of its mesh.

    Raises:
        InvalidProgramError: XLA refuses the shardings.
        UnsupportedError: the partitioner crashes or stalls, or does not split an
            argument or a result over axes of the mesh.
    """
    devices = max(mesh.size for mesh in program.meshes.values())
    answer = _partitioned(_PartitionRequest.of(program, module, devices))
    with make_ir_context():
        local = decode_module(ir.Module.parse(answer.code), program.argument_names)
    tilings = [*answer.arguments, *answer.results]
    _check_types(program, local.entry.body, tilings)
    meshes = [m for m in program.meshes.values() if m.size == devices]
    found = find_mesh(tilings, meshes)
    if found is None:
        cut = {f"{list(t.counts)} at {t.places}" for t in tilings if prod(t.counts) > 1}
        raise UnsupportedError(
            "XLA's partitioner splits an argument or a result in a way that no axes of "
            f"the mesh describe: {'; '.join(sorted(cut))[:300]}",
            remedy="give every argument and result a sharding, or " + _REMEDY,
        )
    mesh, splits = found
    if mesh.device_ids:
        local = renumbered(local, mesh.device_ids)
        mesh = replace(mesh, device_ids=())
    shardings = tuple(Sharding(mesh, split) for split in splits)
    main = _around(program.entry.body, local.entry.body, mesh, shardings)
    functions = {**local.functions, local.main: Function(local.main, main)}
    return replace(
        local,
        functions=functions,
        argument_shardings=shardings[: len(main.arguments)],
        result_shardings=shardings[len(main.arguments) :],
    )


def _around(
    outside: Region, body: Region, mesh: Mesh, shardings: tuple[Sharding, ...]
) -> Region:
    count = len(outside.arguments)
    results = tuple(Value(v.number, v.type) for v in outside.results)
    op = Op(
        _MANUAL,
        outside.arguments,
        results,
        {
            "in_shardings": shardings[:count],
            "out_shardings": shardings[count:],
            "manual_axes": tuple(name for name, _ in mesh.axes),
        },
        (body,),
        Location(),
    )
    return Region(outside.arguments, (op,), results)


def _check_types(program: Program, inside: Region, tilings: list[DeviceTiling]) -> None:
    """Refuse arguments and results that are not cut into equal parts."""
    outside = program.entry.body
    names = [f"argument {name}" for name in program.argument_names]
    names += [f"result {k}" for k in range(len(outside.results))]
    wholes = (*outside.arguments, *outside.results)
    parts = (*inside.arguments, *inside.results)
    for name, whole, part, tiling in zip(names, wholes, parts, tilings, strict=True):
        shape = [n * k for n, k in zip(part.type.shape, tiling.counts, strict=True)]
        if TensorType(tuple(shape), part.type.dtype) != whole.type:
            raise InvalidProgramError(
                f"{name}, {whole.type}, cannot be cut into {list(tiling.counts)} equal "
                "parts along its dimensions",
                remedy="pad sharded dimensions to multiples of the mesh axes' sizes",
            )


# -- The other process -----------------------------------------------------------------


@dataclass(frozen=True)
class _Answer:
    """The code of one device, as MLIR bytecode, and how its whole arrays are tiled."""

    code: bytes
    arguments: tuple[DeviceTiling, ...]
    results: tuple[DeviceTiling, ...]


@dataclass(frozen=True)
class _PartitionRequest:
    """A program to be partitioned."""

    #: A digest of the code and of the locations of its ops, without outer stack frames,
    #: so that equal programs called on different lines share a result.
    key: bytes
    devices: int
    code: bytes = field(compare=False, repr=False)  # MLIR bytecode

    @classmethod
    def of(cls, program: Program, module: Any, devices: int) -> _PartitionRequest:
        text = module.operation.get_asm(binary=True, enable_debug_info=False)
        digest = hashlib.sha256(text)
        named = (op for op in program.walk() if op.name not in _MOVED)
        digest.update(repr([op.location for op in named]).encode())
        return cls(digest.digest(), devices, bytecode(module))


@functools.lru_cache(maxsize=32)
def _partitioned(request: _PartitionRequest) -> _Answer:
    seconds = SECONDS + SECONDS_PER_MEGABYTE * len(request.code) / 1e6
    with tempfile.TemporaryDirectory(prefix="neuronjax-") as folder:
        return _read(_run(request, Path(folder), seconds))


def _run(
    request: _PartitionRequest, folder: Path, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Run the child, and kill it and its processes at the end. The child writes its
    answer into files of limited size, because a pipe could be flooded, or kept open by
    processes that the child started."""
    command = [str(CHILD), str(request.devices), str(folder)]
    with (folder / "answer").open("w+b") as output, (folder / "log").open("w+b") as log:
        process = started(command, "partition", "partitioned", log=log, output=output)
        try:
            process.communicate(request.code, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise UnsupportedError(
                f"XLA's partitioner takes more than {seconds:.0f} s", remedy=_REMEDY
            ) from None
        finally:
            ended_with_its_group(process)
        output.seek(0)
        log.seek(max(log.seek(0, os.SEEK_END) - _LOG_BYTES, 0))
        return subprocess.CompletedProcess(
            command, process.returncode, output.read(), log.read()
        )


def _read(done: subprocess.CompletedProcess[bytes]) -> _Answer:
    head, _, code = done.stdout.partition(b"\n")
    if done.returncode or not head:
        raise _crashed(death(done.returncode), done.stderr)
    try:
        header = json_object(head)
        if "what" in header:
            raise InvalidProgramError(
                f"XLA cannot partition the program: {header['what']}",
                remedy="correct the shardings that the message names; or " + _REMEDY,
            )
        arguments, results = (
            tuple(DeviceTiling.of(**fields) for fields in header[name])
            for name in ("arguments", "results")
        )
    except InvalidProgramError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise _crashed(f"it answers {head[:60]!r}", done.stderr) from error
    return _Answer(code, arguments, results)


def _crashed(how: str, log: bytes) -> UnsupportedError:
    return UnsupportedError(
        f"XLA's partitioner crashes ({how}){last_words(log, 300)}", remedy=_REMEDY
    )


# -- devices with other numbers --------------------------------------------------------

# If a mesh has its own device order, each device gets its position in the mesh as a new
# number. Groups and pairs use the new numbers; `partition_id` returns the old one.


_TABLES = ("replica_groups", "source_target_pairs")


def renumbered(program: Program, devices: Sequence[int]) -> Program:
    """Return the program with the number k for the device `devices[k]`."""
    renumbering = _Renumbering(program, devices)
    functions = {
        name: Function(name, renumbering.region(function.body))
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)


class _Renumbering:
    def __init__(self, program: Program, devices: Sequence[int]) -> None:
        self._program = program
        self._old = np.array(devices, np.uint32)
        # Groups of different sizes are padded with -1, which stays -1.
        self._new = np.append(np.argsort(devices), -1)

    def region(self, region: Region) -> Region:
        ops = tuple(new for op in region.ops for new in self._ops(op))
        return replace(region, ops=ops)

    def _ops(self, op: Op) -> Iterator[Op]:
        if op.name == "stablehlo.partition_id":
            yield from self._lookup(op)
            return
        attributes = dict(op.attributes)
        for name in attributes.keys() & set(_TABLES):
            attributes[name] = self._new[self._table(attributes[name])]
        regions = tuple(map(self.region, op.regions))
        yield replace(op, attributes=attributes, regions=regions)

    def _table(self, found: Any) -> np.ndarray:
        if not isinstance(found, AxisGroups):
            return found
        return np.array(groups_along(_mesh(self._program, found), found.axes))

    def _lookup(self, op: Op) -> Iterator[Op]:
        """Yield ops that look up a device's old number by its new number."""
        (result,) = op.results
        scalar, word = result.type, result.type.dtype
        count = len(self._old)
        table, place, entry = (
            Value(result.number, kind)
            for kind in (TensorType((count,), word), scalar, TensorType((1,), word))
        )

        def made(name: str, operands: tuple, out: Value, **attributes: Any) -> Op:
            return Op(name, operands, (out,), attributes, (), op.location)

        yield made("stablehlo.constant", (), table, value=self._old)
        yield made(op.name, (), place)
        yield made("stablehlo.dynamic_slice", (table, place), entry, slice_sizes=(1,))
        yield made("stablehlo.reshape", (entry,), result)


# -- tiles -----------------------------------------------------------------------------

# An array is cut into tiles. XLA returns which tile of an array each device has; from
# that a `Split` is found, which names the mesh axes over which each dimension is split.
# If whole axes do not suffice (Shardy may use part of one), the axes are cut into prime
# factors.


@dataclass(frozen=True)
class DeviceTiling:
    """The tiles into which an array is cut."""

    counts: tuple[int, ...]  # the number of tiles along every dimension
    places: tuple[tuple[int, ...], ...]  # the tile of every device, by its number

    @classmethod
    def of(cls, counts: Sequence[int], places: Sequence[Sequence[int]]) -> DeviceTiling:
        """Return the tiling that the child describes by lists."""
        return cls(tuple(counts), tuple(map(tuple, places)))


def find_mesh(
    tilings: Sequence[DeviceTiling], meshes: Sequence[Mesh]
) -> tuple[Mesh, list[Split]] | None:
    """Return a mesh over whose axes all arrays are split, and the splits, or None. The
    axes of the program's `meshes` may be cut."""
    for mesh in [*meshes, *(cut for mesh in meshes for cut in _cuts(mesh))]:
        found = (split_over(mesh, tiling) for tiling in tilings)
        splits = [split for split in found if split is not None]
        if len(splits) == len(tilings):
            return mesh, splits
    return None


def split_over(mesh: Mesh, tiling: DeviceTiling) -> Split | None:
    """Return the axes over which each dimension is split, slowest first, or None if
    the tiling is not a split over axes of the mesh."""
    sizes = [size for _, size in mesh.axes]
    devices = list(mesh.device_ids or range(prod(sizes)))
    grid = np.array(tiling.places)[devices].reshape(*sizes, len(tiling.counts))
    found = (_axes(mesh, grid[..., d], count) for d, count in enumerate(tiling.counts))
    split = tuple(axes for axes in found if axes is not None)
    return split if len(split) == len(tiling.counts) else None


def _axes(mesh: Mesh, places: np.ndarray, count: int) -> tuple[str, ...] | None:
    """Return the axes over which a dimension is split; None if no axes fit. `places`
    has the tile of every device, [*sizes of axes], and `count` the number of tiles."""
    rank = places.ndim
    start = places[(0,) * rank]
    ones = (tuple(int(k == axis) for k in range(rank)) for axis in range(rank))
    steps = [
        (int(places[one] - start), axis)
        for axis, one in enumerate(ones)
        if mesh.axes[axis][1] > 1
    ]
    order = sorted((step, axis) for step, axis in steps if step)
    expected = np.cumprod([1, *[mesh.axes[axis][1] for _, axis in order]]).tolist()
    if [*(step for step, _ in order), count] != expected:
        return None
    digits = np.indices(places.shape)
    rebuilt = sum((step * digits[axis] for step, axis in order), np.zeros_like(places))
    if not np.array_equal(rebuilt, places):
        return None
    return tuple(mesh.axes[axis][0] for _, axis in reversed(order))


def _cuts(mesh: Mesh) -> Iterator[Mesh]:
    """Yield the mesh with axes cut into prime factors: ascending, then descending."""
    for reverse in (False, True):
        axes = []
        for name, size in mesh.axes:
            factors = sorted(_factors(size), reverse=reverse)
            steps = np.cumprod([1, *factors]).tolist()
            axes += [(f"{name}.{a}", b // a) for a, b in pairwise(steps)]
        yield Mesh(tuple(axes), mesh.device_ids)


def _factors(n: int) -> Iterator[int]:
    divisor = 2
    while n > 1:
        while n % divisor == 0:
            yield divisor
            n //= divisor
        divisor += 1
