"""`pmap`, and meshes of emulated devices for `jit`.

A device is one logical NeuronCore, as for JAX on Neuron; the target determines the
number of devices. `jax.shard_map` over a mesh of `make_mesh` works in any emulated
function. `pmap` is made of `jit` and `shard_map`, as is `jax.pmap` since JAX 0.8.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from neuronjax.api.calls import Named, path_name, signature_of
from neuronjax.api.jit import jit
from neuronjax.errors import InvalidProgramError, UnimplementedError
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy, Preset


def make_mesh(shape: Sequence[int], names: Sequence[str]) -> AbstractMesh:
    """Return a mesh of emulated devices, for `jax.shard_map` and shardings of `jit`.

    The mesh has no devices on which JAX could place arrays; emulated functions take
    whole arrays. `with jax.sharding.use_abstract_mesh(mesh):` sets the mesh of calls. A
    program that calls `jax.set_mesh` and `jax.device_put` needs a mesh with devices:
    `jax.make_mesh` inside a block of `emulated`.

    Args:
        shape: the size of every axis.
        names: the name of every axis. A device's number is its row-major index.

    Returns:
        An abstract mesh whose axes all have type Auto.

    Raises:
        InvalidProgramError: not a name for each size, a repeated name, a size below 1.
    """
    shape, names = tuple(shape), tuple(names)
    legal = all(isinstance(size, int) and size > 0 for size in shape)
    if len(shape) != len(names) or len(set(names)) < len(names) or not legal:
        raise InvalidProgramError(
            f"a mesh of shape {shape} with axes {names}",
            remedy="give every axis a positive size and a name of its own, "
            'as make_mesh((4, 2), ("dp", "tp"))',
        )
    return AbstractMesh(shape, names, axis_types=(AxisType.Auto,) * len(names))


def local_device_count(target: str = "trn2", *, lnc: int | None = None) -> int:
    """Return the number of devices of a target: its logical NeuronCores.

    Args:
        target: as for `jit`.
        lnc: physical cores per logical NeuronCore; None for the target's default.

    Raises:
        InvalidProgramError: unknown target, or an LNC size that it does not have.
    """
    return resolve_target(target).logical_cores(lnc)


def replicate(tree: Any, devices: int | Sequence[int]) -> Any:
    """Repeat every array for each device: [*shape] becomes [devices, *shape].

    Args:
        tree: a pytree of arrays and numbers.
        devices: the number of devices or the device numbers, as for `pmap`.

    Raises:
        UnimplementedError: devices that are not 0, 1, 2, ... in this order.
    """
    count = _count(devices, None, "replicate")
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)


def unreplicate(tree: Any) -> Any:
    """Return the arrays of the first device: [devices, *shape] becomes [*shape]."""
    return jax.tree.map(lambda x: x[0], tree)


def pmap(
    function: Callable[..., Any] | None = None,
    axis_name: Any = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: int | Sequence[int] | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
    target: str = "trn2",
    policy: Preset | str | Policy | None = None,
) -> Any:
    """Emulate a function on many devices; use it as `jax.pmap`.

    Args:
        function: the function of one device. Without it, a decorator is returned.
        axis_name: name of the mapped axis, for collectives.
        in_axes: for every positional argument, the axis that is mapped, or None if all
            devices get the whole argument, or a pytree prefix of axes. Keyword
            arguments are mapped over axis 0.
        out_axes: the position of the mapped axis in the results, None for a result that
            is equal on all devices, or a pytree prefix of axes.
        static_broadcasted_argnums: arguments that are Python values instead of arrays.
        devices: the number of devices, or the sequence 0, 1, ... of their numbers. None
            for the length of the mapped axes.
        axis_size: the length of mapped axes, as an additional check.
        donate_argnums: as `jax.jit`.
        target: as for `jit`; it must have enough devices.
        policy: as for `jit`.

    Returns:
        An `Emulated` function whose arguments and results have the mapped axis.

    Raises:
        InvalidProgramError: illegal axes; at a call, a mapped axis that is missing or
            whose length is not the number of devices.
        UnimplementedError: devices that are not 0, 1, 2, ... in this order.
    """
    options: dict[str, Any] = dict(
        in_axes=in_axes,
        out_axes=out_axes,
        static_broadcasted_argnums=static_broadcasted_argnums,
        devices=devices,
        axis_size=axis_size,
        donate_argnums=donate_argnums,
        target=target,
        policy=policy,
    )
    if function is None:
        return lambda f: pmap(f, axis_name, **options)
    static = static_broadcasted_argnums
    static = (static,) if isinstance(static, int) else tuple(static)
    _axes_of("out_axes", out_axes)
    mapped = _Mapped(
        function=function,
        axis_name="devices" if axis_name is None else axis_name,
        in_axes=tuple(in_axes) if isinstance(in_axes, list) else in_axes,
        out_axes=out_axes,
        static=static,
        count=_count(devices, axis_size, "pmap"),
    )

    @functools.wraps(function)
    def whole(*args: Any, **kwargs: Any) -> Any:
        return mapped(*args, **kwargs)

    return jit(
        whole,
        target=target,
        policy=policy,
        static_argnums=static,
        donate_argnums=donate_argnums,
    )


def _count(
    devices: int | Sequence[int] | None, axis_size: int | None, caller: str
) -> int | None:
    """Return the number of devices, or None if the arguments determine it."""
    if devices is not None and not isinstance(devices, int):
        devices = tuple(devices)
        if devices != tuple(range(len(devices))):
            raise UnimplementedError(
                f"{caller} over the devices {devices}",
                remedy="give the number of devices, an int; they are 0, 1, 2, ...",
            )
        devices = len(devices)
    if None not in (devices, axis_size) and devices != axis_size:
        raise InvalidProgramError(
            f"pmap with axis_size={axis_size} over {devices} devices",
            remedy="leave axis_size out",
        )
    return axis_size if devices is None else devices


# Replaces None in a tree of axes, because JAX does not count None as a leaf.
_WHOLE = object()


@dataclass(frozen=True, kw_only=True)
class _Mapped:
    """A function of global arrays that applies `function` with a `shard_map` over one
    axis. `count` is the number of devices, or None; see `pmap` for the other fields."""

    function: Callable[..., Any]
    axis_name: Any
    in_axes: Any
    out_axes: Any
    static: tuple[int, ...]
    count: int | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        around = jax.sharding.get_abstract_mesh()
        if AxisType.Manual in getattr(around, "axis_types", ()):
            raise UnimplementedError(
                f"pmap inside a pmap or shard_map over {around.axis_names}",
                remedy="use one jax.shard_map over a mesh of several axes",
            )
        count, in_axes = len(args), self.in_axes
        static = {n % count for n in self.static if -count <= n < count}
        dynamic, rebuild = Named(tuple(static), ()).split(args, kwargs)
        if isinstance(in_axes, tuple):
            in_axes = tuple(axis for n, axis in enumerate(in_axes) if n not in static)
        flat_axes = _spread("in_axes", (in_axes, 0), dynamic)
        paths, structure = jax.tree.flatten_with_path(dynamic)
        leaves = [leaf for _, leaf in paths]
        signature = signature_of(self.function)
        names = [path_name(signature, path, static) for path, _ in paths]

        def body(*leaves: Any) -> Any:
            """Run the function on one device, where mapped axes have length 1."""
            own = [
                x if axis is _WHOLE else jnp.squeeze(x, axis)
                for x, axis in zip(leaves, flat_axes, strict=True)
            ]
            args, kwargs = rebuild(jax.tree.unflatten(structure, own))
            out, tree = jax.tree.flatten(outputs := self.function(*args, **kwargs))
            axes = _spread("out_axes", self.out_axes, outputs)
            return jax.tree.unflatten(tree, list(map(_expanded, out, axes)))

        mesh = make_mesh((self._size(leaves, flat_axes, names),), (self.axis_name,))
        return jax.shard_map(
            body,
            mesh=mesh,
            in_specs=tuple(self._spec(axis) for axis in flat_axes),
            out_specs=_map_axes(self._spec, self.out_axes),
            check_vma=False,
        )(*leaves)

    def _spec(self, axis: Any) -> PartitionSpec:
        if axis is _WHOLE:
            return PartitionSpec()
        return PartitionSpec(*[None] * axis, self.axis_name)

    def _size(self, leaves: list, axes: list, names: list[str]) -> int:
        sizes: dict[str, int] = {}
        for x, axis, name in zip(leaves, axes, names, strict=True):
            if axis is _WHOLE:
                continue
            shape = jnp.shape(x)
            if axis >= len(shape):
                raise InvalidProgramError(
                    f"pmap maps axis {axis} of argument {name}, of shape {shape}",
                    remedy="add the axis, or do not map the argument: in_axes=None",
                )
            sizes[name] = shape[axis]
        found = {*sizes.values(), self.count} - {None}
        if not found:
            raise InvalidProgramError(
                "pmap: no argument has a mapped axis, so nothing says how many devices "
                "there are",
                remedy="give devices, or map an argument",
            )
        if len(found) > 1:
            over = "" if self.count is None else f" over {self.count} devices"
            lengths = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise InvalidProgramError(
                f"pmap{over}: the lengths of the mapped axes differ: {lengths}",
                remedy="make every mapped axis as long as the number of devices",
            )
        return found.pop()


def _map_axes(f: Callable[[Any], Any], axes: Any) -> Any:
    return jax.tree.map(
        lambda axis: f(_WHOLE if axis is None else axis),
        axes,
        is_leaf=lambda axis: axis is None,
    )


def _axes_of(name: str, axes: Any) -> Any:
    def checked(axis: Any) -> Any:
        legal = isinstance(axis, int) and not isinstance(axis, bool) and axis >= 0
        if axis is _WHOLE or legal:
            return axis
        raise InvalidProgramError(
            f"pmap: {name} holds {axis!r}", remedy="use integers from 0, and None"
        )

    return _map_axes(checked, axes)


def _spread(name: str, axes: Any, tree: Any) -> list[Any]:
    """Return the axis of every leaf of `tree`; `axes` is a pytree prefix of `tree`."""
    try:
        return jax.tree.leaves(jax.tree.broadcast(_axes_of(name, axes), tree))
    except ValueError as error:
        raise InvalidProgramError(
            f"pmap: {name} is no pytree prefix of what it describes: {error}",
            remedy="give one axis for the whole tree, or a tree of the same structure",
        ) from error


def _expanded(x: Any, axis: Any) -> jax.Array:
    if axis is _WHOLE:
        return x
    if axis > jnp.ndim(x):
        raise InvalidProgramError(
            f"pmap: out_axes is {axis} for a result of shape {jnp.shape(x)}",
            remedy=f"use an axis from 0 to {jnp.ndim(x)}",
        )
    return jnp.expand_dims(x, axis)
