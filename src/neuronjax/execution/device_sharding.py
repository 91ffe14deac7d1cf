"""`real_devices`: emulated devices distributed over real ones, in one or many
processes.

R real devices run D emulated devices, D / R with consecutive numbers each. The program
runs under one `jax.shard_map` over the real devices. Outside of `Spmd` instructions all
real devices compute the same; inside, each loops over its emulated devices. The
operands of a collective are gathered first and then folded as on one real device. XLA
partitions nothing, so the bits are those of one real device by construction. JAX
decides where a real device is (a core, an accelerator, another machine).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

from neuronjax.errors import InvalidProgramError
from neuronjax.execution.inputs_outputs import CallContext, Outcome
from neuronjax.ir.collective_set import DeviceMesh, Split, Spmd
from neuronjax.ir.instruction import Buffer, Instruction, InstructionProgram
from neuronjax.ir.traversal import read_outside

# -- global arrays and the arrays of devices -------------------------------------------


def is_replicated(split: Split, mesh: DeviceMesh) -> bool:
    """Return whether every device has the whole array."""
    sizes = dict(mesh.axes)
    return all(sizes[name] == 1 for names in split for name in names)


def split_array(x: jax.Array, split: Split, mesh: DeviceMesh) -> jax.Array:
    """Return the devices' parts of a global array: [devices, *local shape]."""
    sizes = dict(mesh.axes)
    local: list[int] = []
    shape: list[int] = []
    where: dict[str, int] = {}
    kept: list[int] = []
    for names, n in zip(split, x.shape, strict=True):
        for name in names:
            where[name] = len(shape)
            shape.append(sizes[name])
        kept.append(len(shape))
        local.append(n // prod(sizes[name] for name in names))
        shape.append(local[-1])
    named = [where[name] for name, _ in mesh.axes if name in where]
    x = lax.transpose(lax.reshape(x, shape), [*named, *kept])
    # Mesh axes that the split does not name: their devices get copies.
    present = [d for d, (name, _) in enumerate(mesh.axes) if name in where]
    rank = len(mesh.axes)
    shape = [size for _, size in mesh.axes] + local
    x = lax.broadcast_in_dim(x, shape, [*present, *range(rank, rank + len(local))])
    return lax.reshape(x, (mesh.size, *local))


def join_array(x: jax.Array, split: Split, mesh: DeviceMesh) -> jax.Array:
    """Return the global array of [devices, *local shape]. If several devices have
    copies of a part, the first device's copy is taken."""
    local = x.shape[1:]
    x = lax.reshape(x, (*[size for _, size in mesh.axes], *local))
    named = {name for names in split for name in names}
    present: list[str] = []
    for name, _ in mesh.axes:
        position = len(present)
        if name in named:
            present.append(name)
        else:
            x = lax.index_in_dim(x, 0, position, keepdims=False)
    order: list[int] = []
    shape: list[int] = []
    sizes = dict(mesh.axes)
    for dimension, names in enumerate(split):
        order += [present.index(name) for name in names]
        order.append(len(present) + dimension)
        shape.append(prod(sizes[name] for name in names) * local[dimension])
    return lax.reshape(lax.transpose(x, order), shape)


# -- one device's part -----------------------------------------------------------------


def places_of(split: Split, mesh: DeviceMesh) -> list[tuple[int, ...]]:
    """Return for every device the index of its part along each dimension."""
    sizes = [size for _, size in mesh.axes]
    at = dict(zip((name for name, _ in mesh.axes), np.indices(sizes), strict=True))
    numbers = [np.zeros(mesh.size, int)]
    for names in split:
        along = np.zeros(sizes, int)
        for name in names:
            along = along * dict(mesh.axes)[name] + at[name]
        numbers.append(along.reshape(-1))
    return [tuple(map(int, place[1:])) for place in zip(*numbers, strict=True)]


def part_at(place: tuple[int, ...], local: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the slices of a global array that the part at index `place` covers."""
    return tuple(slice(k * n, (k + 1) * n) for k, n in zip(place, local, strict=True))


def join_parts(parts: Sequence[np.ndarray], last: tuple[int, ...]) -> np.ndarray:
    """Return the global array of parts in row-major order; the indices of the last part
    along each dimension are `last`."""
    joined = list(parts)
    for axis in reversed(range(len(last))):
        n = last[axis] + 1
        groups = [joined[k : k + n] for k in range(0, len(joined), n)]
        joined = [np.concatenate(g, axis) if n > 1 else g[0] for g in groups]
    [whole] = joined
    return whole


# -- parts of the devices --------------------------------------------------------------


def carrier(mesh: DeviceMesh, parts: int) -> str | None:
    """Return the mesh axis that is divided when the devices are cut into equal parts.
    Parts have consecutive device numbers, so this is the slowest axis that has more
    than one device. Return None if its size is not a multiple of `parts`."""
    name, size = next((axis for axis in mesh.axes if axis[1] > 1), (None, 1))
    return name if size % parts == 0 else None


def part_of(mesh: DeviceMesh, parts: int) -> DeviceMesh:
    """Return the mesh of one of `parts` equal parts; `carrier` must find an axis."""
    axis = carrier(mesh, parts)
    sizes = [(n, size // parts if n == axis else size) for n, size in mesh.axes]
    return DeviceMesh(tuple(sizes))


def carried_dimension(split: Split, mesh: DeviceMesh, parts: int) -> int | None:
    """Return the array dimension along which each of `parts` groups of devices has one
    slice. Return None if a group's elements are not one slice, or if every group has
    the whole array."""
    axis, sizes = carrier(mesh, parts), dict(mesh.axes)
    for dimension, names in enumerate(split):
        if axis in [name for name in names if sizes[name] > 1][:1]:
            return dimension
    return None


def is_spread(split: Split, mesh: DeviceMesh, parts: int) -> bool:
    """Return whether the elements of one of `parts` groups of devices may be more than
    one slice: there is no `carrier`, or another axis splits its dimension first."""
    axis = carrier(mesh, parts)
    named = any(axis in names for names in split)
    return axis is None or (named and carried_dimension(split, mesh, parts) is None)


# This context is part of the cache key of `jax.jit`, so a program that was compiled for
# one mesh is not used for another.
_ACTIVE = jax.make_user_context(default_value=None)


@contextlib.contextmanager
def real_devices(mesh: Mesh) -> Iterator[Mesh]:
    """Run emulated programs on all devices of a real mesh while the block is open.

    The number of devices of every emulated mesh must be a multiple of the number of
    real devices. Results have the same bits on any number of real devices. Arguments
    and results are global arrays, as for `jax.jit`: an argument may be laid out in any
    way on the devices of the mesh, or be a NumPy array that is the same in all
    processes. A result that is split over the first axis of the emulated mesh that has
    more than one device stays split over the real devices, and a process can read only
    its `addressable_shards`. All other results are replicated, and every process can
    read them. Arguments that go into a `shard_map` unchanged may be present in parts;
    other arguments are replicated first.

    With several processes, each must make the same calls in the same order. A program
    without an emulated mesh runs in full on every real device.

    Args:
        mesh: all devices of all processes; its axes may have any names and number. A
            mesh of one device changes nothing.

    Raises:
        InvalidProgramError: an axis has type Explicit or Manual; or, at a call, the
            devices of an emulated mesh cannot be divided evenly.
        UnsupportedError: a program is called op by op (under `jax.disable_jit`).
    """
    types = getattr(mesh, "axis_types", ())
    if any(kind != AxisType.Auto for kind in types):
        raise InvalidProgramError(
            f"the mesh of real devices has axes of types {tuple(map(str, types))}",
            remedy="use jax.sharding.Mesh(jax.devices(), ('chips',)), whose axes are "
            "of type Auto",
        )
    with _ACTIVE(mesh):
        yield mesh


def active_real_devices() -> Mesh | None:
    """Return the mesh of the innermost `real_devices` block. Return None outside of
    such a block and for a mesh of one device."""
    mesh = _ACTIVE.value
    return None if mesh is None or mesh.size == 1 else mesh


@dataclass(frozen=True)
class RealDevices:
    """The number of the real devices, and the communication among them.

    The methods are for code under `jax.shard_map`. With one device they change nothing.

    Attributes:
        mesh: the real mesh; None for one device.
        parts: the buffers of main of which a real device has only a part; see
            `in_parts`.
    """

    mesh: Mesh | None = None
    parts: Mapping[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return the number R of real devices."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def _axes(self) -> tuple[str, ...]:
        assert self.mesh is not None
        return self.mesh.axis_names

    def share(self, devices: int) -> int:
        """Return how many of `devices` emulated devices each real device runs. Raise
        InvalidProgramError if the real devices do not divide them evenly."""
        if devices % self.count:
            legal = [n for n in range(1, self.count + 1) if devices % n == 0]
            raise InvalidProgramError(
                f"{devices} emulated devices cannot be divided over {self.count} real",
                remedy=f"use a number of real devices that divides {devices}, such as "
                f"{max(legal)}",
            )
        return devices // self.count

    def share_of(self, length: int) -> int:
        """Return each device's share of a length; the last may get less or nothing."""
        return -(-length // self.count)

    def number(self) -> jax.Array:
        """Return the number of this real device, a uint32 scalar from 0 to R - 1."""
        if self.count == 1:
            return jnp.uint32(0)
        return lax.axis_index(self._axes).astype(jnp.uint32)

    def own(self, x: jax.Array, dimension: int = 0) -> jax.Array:
        """Return slice r of R along `dimension` of an array that all real devices have;
        r is this device's number."""
        if self.count == 1:
            return x
        length = x.shape[dimension] // self.count
        start = self.number() * jnp.uint32(length)
        return lax.dynamic_slice_in_dim(x, start, length, dimension)

    def everyone(self, x: jax.Array, dimension: int = 0) -> jax.Array:
        """Return the parts of all real devices, concatenated along `dimension`."""
        if self.count == 1:
            return x
        words = lax.all_gather(_words(x), self._axes, axis=dimension, tiled=True)
        return _from_words(words, x.dtype)

    def exchanged(self, x: jax.Array, split: int, joined: int) -> jax.Array:
        """Cut the array of every device into R slices along `split`, and return slice r
        of each, concatenated along `joined` in the order of the devices."""
        if self.count == 1:
            return x
        words = lax.all_to_all(_words(x), self._axes, split, joined, tiled=True)
        return _from_words(words, x.dtype)

    def first(self, x: jax.Array) -> jax.Array:
        """Return the first real device's array, on all real devices."""
        if self.count == 1:
            return x
        return _from_words(lax.all_gather(_words(x), self._axes)[0], x.dtype)


#: The settings for one real device.
ALONE = RealDevices()

# -- main ------------------------------------------------------------------------------


def spread(
    mesh: Mesh,
    program: InstructionProgram,
    run: Callable[[RealDevices, Sequence[Any], CallContext], Outcome],
    arguments: Sequence[Any],
    context: CallContext,
) -> Outcome:
    """Run a program on every device of a mesh, and return the result as global arrays.
    `run` executes it on one device, with that device's part of the arguments of main
    and with the call context, which is the same on all devices."""
    parts = in_parts(program, mesh.size)
    main, real = program.main, RealDevices(mesh, parts)
    everywhere = PartitionSpec()

    def specs(buffers: Iterable[Buffer]) -> list[PartitionSpec]:
        cuts = (parts.get(buffer.number) for buffer in buffers)
        return [
            everywhere if cut is None else PartitionSpec(*[None] * cut, mesh.axis_names)
            for cut in cuts
        ]

    results = specs(view.buffer for view in main.results)
    mapped = jax.shard_map(
        functools.partial(run, real),
        mesh=mesh,
        in_specs=(specs(main.arguments), everywhere),
        out_specs=Outcome(results, everywhere, everywhere),
        check_vma=False,
    )
    return mapped(list(arguments), context)


def in_parts(program: InstructionProgram, count: int) -> dict[int, int]:
    """Return the buffers of main of which a real device has only a part: the number of
    each, and the dimension along which all `Spmd` instructions that use it cut it."""
    uses: dict[int, set[int | None]] = {}
    for i in program.main.instructions:
        captured = ((n, None) for block in i.blocks for n in read_outside(block))
        for number, cut in (*_cuts(i, count), *captured):
            uses.setdefault(number, set()).add(cut)
    agreed = {number: cuts.pop() for number, cuts in uses.items() if len(cuts) == 1}
    return {number: cut for number, cut in agreed.items() if cut is not None}


def _cuts(i: Instruction, count: int) -> Iterator[tuple[int, int | None]]:
    """Yield (number, cut dimension or None) of each buffer that an instruction uses."""
    buffers = (*(view.buffer for view in i.operands), *i.results)
    if not isinstance(i, Spmd):
        yield from ((buffer.number, None) for buffer in buffers)
        return
    for buffer, split in zip(buffers, (*i.splits, *i.joins), strict=True):
        yield buffer.number, carried_dimension(split, i.mesh, count)


# -- arrays are sent as integers, whose bits no host changes ---------------------------


def _words(x: jax.Array) -> jax.Array:
    """Return the bits of `x` as unsigned integers of whole bytes."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    bits = jax.dtypes.itemsize_bits(x.dtype)
    word = lax.bitcast_convert_type(x, jnp.dtype(f"uint{bits}"))
    return word.astype(jnp.uint8) if bits < 8 else word


def _from_words(words: jax.Array, dtype: Any) -> jax.Array:
    if dtype == jnp.bool_:
        return words.astype(jnp.bool_)
    word = jnp.dtype(f"uint{jax.dtypes.itemsize_bits(dtype)}")
    return lax.bitcast_convert_type(words.astype(word), dtype)
