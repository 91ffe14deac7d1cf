"""Captures a function under a mesh, gathers its arguments, and places its results.

Inside a captured function a mesh, its axes and the shardings of arguments mean what
they mean to JAX. The emulation itself runs on one device of the host, on whole arrays:
arrays on several devices are gathered before a call, and its results are then put on
the devices that `placements` returns.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec as P,
    SingleDeviceSharding as _OneDevice,
    use_abstract_mesh,
)

from neuronjax.capture.refusals import equations
from neuronjax.capture.trace import abstract
from neuronjax.errors import UnsupportedError
from neuronjax.ir.program import Program, Sharding
from neuronjax.policy.scopes import is_tracing

_NOTHING = AbstractMesh((), ())


@jax.tree_util.register_static
@dataclass(frozen=True)
class MeshContext:
    """The mesh around a captured function; a static argument of the emulation.

    Attributes:
        mesh: the mesh around the function, or None.
        devices: the mesh over which results are placed: that of `jax.set_mesh`, or of
            an argument (without devices if arguments are traced); None without a mesh.
        shardings: the sharding of every flat argument that is not static; () for none.
    """

    mesh: AbstractMesh | None = None
    devices: Mesh | AbstractMesh | None = None
    shardings: tuple[NamedSharding | None, ...] = ()

    @classmethod
    def around(cls) -> MeshContext:
        """Return the context of the caller, without looking at arguments."""
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty or AxisType.Manual in mesh.axis_types:
            return cls()
        return cls(mesh, _set_mesh())

    @classmethod
    def of(cls, arguments: Any) -> tuple[MeshContext, Any]:
        """Return the context of a call, and its arguments as the emulation takes them:
        arrays are whole, on one device, and types have no shardings. Refuse a
        transformation, such as `jax.grad`, of a call under a mesh with Explicit axes
        and without devices."""
        here = cls.around()
        leaves, tree = jax.tree.flatten(arguments)
        if not here.mesh and all(map(_is_on_one_device, leaves)):
            return here, arguments
        shardings = tuple(map(_sharding, leaves))
        _check_untraced(here.mesh, leaves, shardings)
        meshes = [s.mesh for s in shardings if s]
        explicit = (
            m.abstract_mesh for m in meshes if AxisType.Explicit in m.axis_types
        )
        over = [mesh for mesh in meshes if isinstance(mesh, Mesh)] or meshes
        context = cls(
            here.mesh or next(explicit, None),
            here.devices or next(iter(over), None),
            shardings if meshes else (),
        )
        return context, jax.tree.unflatten(tree, _whole(leaves, shardings))

    def inside(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the function is traced and lowered."""
        return use_abstract_mesh(self.mesh) if self.mesh else contextlib.nullcontext()

    def outside(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the emulation runs. Enter the context at once,
        because `jax.set_mesh` acts when it is called."""
        if not self.mesh:
            return contextlib.nullcontext()
        return jax.set_mesh(None) if _set_mesh() else use_abstract_mesh(_NOTHING)

    def typed(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Return the types of flat arguments, with their shardings."""
        over = self.shardings or [None] * len(leaves)
        types = zip(map(abstract, leaves), over, strict=True)
        return [
            jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type, sharding=s)
            for x, s in types
        ]

    def placed(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Return flat arguments with their shardings, inside the function."""
        if not self.shardings:
            return leaves
        pairs = zip(leaves, self.shardings, strict=True)
        return [_constrained(x, s) if s else x for x, s in pairs]


def on_every_device(array: Any) -> Any:
    """Return an array replicated over the devices if Explicit axes split it, because
    the emulation's own operations need whole arrays."""
    over = jax.typeof(array).sharding
    if AxisType.Explicit in over.mesh.axis_types and any(over.spec):
        return jax.reshard(array, NamedSharding(over.mesh, P()))
    return array


def spread(
    function: Callable[..., Any],
    shardings: Mapping[str, Any],
    options: Mapping,
    tree: Any = None,
) -> Callable[..., Any]:
    """Return `jax.jit` with shardings that may be a `PartitionSpec` for the mesh around
    the call. JAX itself accepts such specs only for a mesh with devices.

    Args:
        function: the function that is jitted.
        shardings: `in_shardings` and `out_shardings`, if they are given.
        options: other keywords of `jax.jit`.
        tree: the pytree structure that results need to match `out_shardings`; None to
            keep the structure that the function returns.
    """

    @functools.wraps(function)
    def of_tree(*args: Any, **kwargs: Any) -> Any:
        return jax.tree.unflatten(tree, jax.tree.leaves(function(*args, **kwargs)))

    @functools.wraps(function)
    def placed(*args: Any, **kwargs: Any) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        named = lambda s: NamedSharding(mesh, s) if isinstance(s, P) else s  # noqa: E731
        over = shardings if mesh.empty else jax.tree.map(named, dict(shardings))
        traced = function if tree is None else of_tree
        return jax.jit(traced, **options, **over)(*args, **kwargs)

    return placed


def _set_mesh() -> Mesh | None:
    """Return the mesh of `jax.set_mesh`. Return None if no mesh is set, and inside a
    transformation, where JAX does not show it."""
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:
        return None
    return None if mesh.empty else mesh


def _is_on_one_device(leaf: Any) -> bool:
    is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
    return is_array and isinstance(leaf.sharding, _OneDevice)


def _sharding(leaf: Any) -> NamedSharding | None:
    """Return an argument's sharding over a mesh. Without Explicit axes, return None for
    a tracer and for a mesh of one device."""
    if isinstance(leaf, Tracer):
        over = jax.typeof(leaf).sharding
        return over if AxisType.Explicit in over.mesh.axis_types else None
    over = getattr(leaf, "sharding", None)
    if not isinstance(over, NamedSharding):
        return None
    matters = over.mesh.size > 1 or AxisType.Explicit in over.mesh.axis_types
    return over if matters else None


def _check_untraced(mesh: AbstractMesh | None, leaves: list, shardings: tuple) -> None:
    """Refuse tracers whose types have no sharding under a mesh with Explicit axes."""
    if mesh is None or AxisType.Explicit not in mesh.axis_types:
        return
    pairs = zip(leaves, shardings, strict=True)
    if any(isinstance(x, Tracer) and s is None for x, s in pairs):
        raise UnsupportedError(
            "jax.jit, jax.grad and jax.vmap cannot transform an emulated function "
            f"under a mesh with Explicit axes, {mesh}",
            remedy="put the transformation inside the emulated function, or use "
            "neuronjax.make_mesh, whose axes are Auto, and in_shardings",
        )


def _whole(leaves: list[Any], shardings: tuple) -> list[Any]:
    """Return arguments on one device of the host; types lose their shardings."""
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return leaves if is_tracing() else list(map(_transformed, leaves, shardings))
    return list(map(_gathered, leaves))


def _gathered(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    if isinstance(leaf, jax.Array) and not _is_on_one_device(leaf):
        # The type of the copy still names the mesh; the type of its shard does not.
        copy = jax.device_put(leaf, jax.local_devices()[0])
        return copy.addressable_shards[0].data
    return leaf


def _transformed(leaf: Any, sharding: NamedSharding | None) -> Any:
    """Return an argument of a call inside `jax.grad` or `jax.vmap`: unsplit, and on all
    devices of a surrounding mesh, as JAX requires. Arrays with Explicit axes are
    unchanged, and left to `on_every_device`."""
    explicit = sharding and AxisType.Explicit in sharding.mesh.axis_types
    if explicit or not isinstance(leaf, jax.Array):
        return leaf
    if jax.sharding.get_abstract_mesh().abstract_device:
        return jax.lax.with_sharding_constraint(leaf, P())
    return jax.device_put(leaf, jax.local_devices()[0])


def _constrained(array: Any, over: NamedSharding) -> Any:
    """Return an array with a sharding, inside the function. If the mesh has Explicit
    axes, only these axes split the array; the partitioner decides about Auto axes."""
    mesh = over.mesh.abstract_mesh
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    explicit = {name for name, kind in pairs if kind is AxisType.Explicit}
    if not explicit:
        return jax.lax.with_sharding_constraint(array, over)
    axes = ((names,) if isinstance(names, str) else names or () for names in over.spec)
    spec = P(*(tuple(n for n in names if n in explicit) or None for names in axes))
    return jax.reshard(array, NamedSharding(mesh, spec))


# -- where results belong --------------------------------------------------------------


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["whole"], meta_fields=["shardings"]
)
@dataclass(frozen=True)
class Results:
    """The results of an emulation, with their placement."""

    whole: Any  # the results, then the other values that a call returns
    shardings: tuple[NamedSharding, ...]  # of each flat result

    def placed(self) -> Any:
        """Return the results with their shardings, and the other values unchanged."""
        leaves, tree = jax.tree.flatten(self.whole)
        count = len(self.shardings)
        moved = map(_moved, leaves[:count], self.shardings)
        return jax.tree.unflatten(tree, [*moved, *leaves[count:]])


def placements(
    stage: Any, program: Program, devices: Mesh | AbstractMesh | None
) -> tuple[NamedSharding, ...]:
    """Return the sharding of each flat result; () if neither the call (`devices`) nor
    the traced function (`stage`) has a mesh of devices.

    A sharding is stated by the op that makes the result, by the result's type if axes
    are Explicit, or by the partitioner if axes are Auto. Other results are
    replicated."""
    jaxpr, types = stage.jaxpr.jaxpr, jax.tree.leaves(stage.out_info)
    if devices is None:
        devices = next(_devices(jaxpr), None)
    if devices is None:
        return ()
    decided = program.result_shardings or [None] * len(types)
    rows = zip(jaxpr.outvars, types, decided, strict=True)
    specs = [
        _stated(jaxpr, variable) or _of_type(result) or _of_partitioner(split, devices)
        for variable, result, split in rows
    ]
    return tuple(NamedSharding(devices, spec) for spec in specs)


def _stated(jaxpr: Any, variable: Any) -> P | None:
    """Return the spec among the parameters of the op that makes `variable`, or None."""
    for equation in jaxpr.eqns:
        if variable not in equation.outvars:
            continue
        number, given = equation.outvars.index(variable), equation.params
        if equation.primitive.name == "sharding_constraint":
            return _without_end(given["sharding"].spec)
        if equation.primitive.name == "shard_map":
            return _without_end(given["out_specs"][number])
        if equation.primitive.name == "jit":
            sharding, inner = given["out_shardings"][number], given["jaxpr"].jaxpr
            if isinstance(sharding, NamedSharding):
                return sharding.spec
            return _stated(inner, inner.outvars[number])
    return None


def _of_type(result: Any) -> P | None:
    over = result.sharding
    return over.spec if over and AxisType.Explicit in over.mesh.axis_types else None


def _of_partitioner(decided: Sharding | None, devices: Mesh | AbstractMesh) -> P:
    axes = () if decided is None else decided.dimensions
    # The partitioner may split along a part of an axis, which has no name.
    known = all(name in devices.axis_names for names in axes for name in names)
    return _without_end(P(*(names or None for names in axes))) if known else P()


def _without_end(spec: P) -> P:
    axes = [*spec]
    while axes and axes[-1] is None:
        axes.pop()
    return P(*axes)


def _devices(jaxpr: Any) -> Iterator[Mesh]:
    for equation, _ in equations(jaxpr):
        for value in jax.tree.leaves(list(equation.params.values())):
            mesh = getattr(value, "mesh", value)
            if isinstance(mesh, Mesh) and not mesh.empty:
                yield mesh


def _moved(array: Any, sharding: NamedSharding) -> Any:
    """Reshard an array; a traced array is unchanged unless axes are Explicit."""
    if not isinstance(array, Tracer):
        has_devices = isinstance(sharding.mesh, Mesh)
        return jax.device_put(array, sharding) if has_devices else array
    explicit = AxisType.Explicit in sharding.mesh.axis_types
    return jax.reshard(array, sharding) if explicit else array
