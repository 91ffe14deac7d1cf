"""Variables of Flax NNX that several modules share: tied embeddings.

To `jax.jit` a module is a pytree, in which a shared variable is there as often as it is
used, and a gradient would be that of each use alone. `tied` leaves it in its first
place, for the arguments of what is traced, and `untied` puts it back, inside.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import jax


@jax.tree_util.register_static
@dataclass(frozen=True)
class Tie:
    """Stands for a variable that is at another place: its number among the leaves."""

    number: int


def tied(arguments: Any) -> Any:
    """Arguments in which every variable is there once; those given, if it is so."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return arguments
    leaves, tree = jax.tree.flatten(arguments, is_leaf=_is_place)
    first: dict[int, int] = {}
    for n, leaf in enumerate(leaves):
        if isinstance(leaf, nnx.Variable) and first.setdefault(id(leaf), n) != n:
            leaves[n] = Tie(first[id(leaf)])
    has_ties = any(isinstance(leaf, Tie) for leaf in leaves)
    return jax.tree.unflatten(tree, leaves) if has_ties else arguments


def untied(arguments: Any) -> Any:
    """What `tied` was given."""
    leaves, tree = jax.tree.flatten(arguments, is_leaf=_is_place)
    if not any(isinstance(leaf, Tie) for leaf in leaves):
        return arguments
    places = [leaves[e.number] if isinstance(e, Tie) else e for e in leaves]
    return jax.tree.unflatten(tree, places)


def _is_place(node: Any) -> bool:
    """What is looked at as one; a bare state, as `nnx.split` returns, is a plain pytree
    and may be given twice."""
    nnx = sys.modules.get("flax.nnx")
    if isinstance(node, Tie) or nnx is None:
        return isinstance(node, Tie)
    return isinstance(node, nnx.Variable | nnx.State)
