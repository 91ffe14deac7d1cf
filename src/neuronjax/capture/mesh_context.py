"""The mesh with Explicit axes that a function is captured under.

With `jax.sharding.use_abstract_mesh(mesh)` around a call, or arguments whose types have
shardings over one, shardings are part of types inside the function. Outside of it, the
emulation runs on arrays of the host, which know of no mesh.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import (
    AbstractMesh,
    AxisType,
    NamedSharding,
    PartitionSpec as P,
    use_abstract_mesh,
)

from neuronjax.errors import UnsupportedError

_NOTHING = AbstractMesh((), ())


@jax.tree_util.register_static
@dataclass(frozen=True)
class MeshContext:
    """What a function is captured under; static in a call of the emulation.

    Attributes:
        mesh: has Explicit axes; None for no mesh.
        shardings: of every flat argument; () for none.
    """

    mesh: AbstractMesh | None = None
    shardings: tuple[NamedSharding | None, ...] = ()

    @classmethod
    def current(cls) -> MeshContext:
        """The context of the caller."""
        mesh = jax.sharding.get_abstract_mesh()
        return cls(mesh) if AxisType.Explicit in mesh.axis_types else cls()

    @classmethod
    def of_types(cls, arguments: Any) -> tuple[MeshContext, Any]:
        """The context of the caller and the arguments, and types without shardings."""
        here = cls.current()
        leaves, tree = jax.tree.flatten(arguments)
        shardings = tuple(map(_explicit, leaves))
        mesh = next((s.mesh.abstract_mesh for s in shardings if s), None)
        if mesh is None:
            return here, arguments
        bare = [
            jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) if s else x
            for x, s in zip(leaves, shardings, strict=True)
        ]
        return cls(here.mesh or mesh, shardings), jax.tree.unflatten(tree, bare)

    def check_untraced(self, arguments: Any) -> None:
        """Refuses a call inside a transformation: its types have the mesh in them.

        Raises:
            UnsupportedError: names the mesh.
        """
        leaves = jax.tree.leaves(arguments) if self.mesh else ()
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            raise UnsupportedError(
                "jax.jit, jax.grad or jax.vmap of an emulated function under a mesh "
                f"with Explicit axes, {self.mesh}",
                remedy="put the transformation inside the emulated function, or use "
                "neuronjax.make_mesh, whose axes are Auto, and in_shardings",
            )

    def inside(self) -> contextlib.AbstractContextManager[Any]:
        """Where the function is traced and lowered."""
        return use_abstract_mesh(self.mesh) if self.mesh else contextlib.nullcontext()

    def outside(self) -> contextlib.AbstractContextManager[Any]:
        """Where the emulation is."""
        return use_abstract_mesh(_NOTHING) if self.mesh else contextlib.nullcontext()

    def placed(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Inside: the arguments with their shardings."""
        if not self.shardings:
            return leaves
        pairs = zip(leaves, self.shardings, strict=True)
        return [jax.reshard(x, s) if s else x for x, s in pairs]


def on_every_device(array: Any) -> Any:
    """An array; one that Explicit axes split, as its type says, whole on each device:
    the emulation's own operations are on whole arrays."""
    over = jax.typeof(array).sharding
    if AxisType.Explicit in over.mesh.axis_types and any(over.spec):
        return jax.reshard(array, NamedSharding(over.mesh, P()))
    return array


def spread(
    function: Callable[..., Any], shardings: Mapping[str, Any], options: Mapping
) -> Callable[..., Any]:
    """`jax.jit` with shardings of which a `PartitionSpec` is over the mesh around the
    call: JAX itself takes only meshes of devices there."""

    @functools.wraps(function)
    def placed(*args: Any, **kwargs: Any) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        named = lambda s: NamedSharding(mesh, s) if isinstance(s, P) else s  # noqa: E731
        over = shardings if mesh.empty else jax.tree.map(named, dict(shardings))
        return jax.jit(function, **options, **over)(*args, **kwargs)

    return placed


def _explicit(leaf: Any) -> NamedSharding | None:
    """The sharding of a type, over a mesh with Explicit axes."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return None
    if not isinstance(sharding, NamedSharding):
        return None
    explicit = AxisType.Explicit in sharding.mesh.axis_types
    return sharding if explicit else None
