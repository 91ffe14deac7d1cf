"""State of Flax NNX that a jitted function changes, which `jax.jit` would not see.

To `jax.jit`, and so to `jit`, a module is a pytree: the function gets a copy, and what
it writes into the copy's variables is lost. `nnx.jit` splits and merges modules around
`jax.jit`, so it is what keeps them, in `emulated` too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax

from neuronjax.errors import NotEmulatedWarning, warn_user


def called(function: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
    """Calls a function that is being traced; a warning where it changes variables."""
    before = _variables(function, (args, kwargs))
    values = [_identity(variable) for _, variable in before]
    result = function(*args, **kwargs)
    pairs = zip(before, values, strict=True)
    lost = [path for (path, v), value in pairs if _identity(v) != value]
    if lost:
        name = getattr(function, "__name__", "the function")
        warn_user(
            f"{name} changes NNX variables of its arguments, which are lost, as under "
            f"jax.jit: {', '.join(lost[:4])}{', ...' if lost[4:] else ''}\n"
            "  remedy: with nj.emulated(target=..., policy=...): step = nnx.jit(step)",
            NotEmulatedWarning,
        )
    return result


def _variables(function: Any, arguments: Any) -> list[tuple[str, Any]]:
    """Path and variable, of modules that nobody splits and merges: of an `nnx.State`
    the function returns the next one itself."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or type(function).__module__.startswith("flax."):
        return []
    found, _ = jax.tree.flatten_with_path(
        arguments, is_leaf=lambda x: isinstance(x, nnx.Variable | nnx.State)
    )
    keystr = jax.tree_util.keystr
    return [(keystr(p[1:]), v) for p, v in found if isinstance(v, nnx.Variable)]


def _identity(variable: Any) -> list[int]:
    """Of the tracers that a variable holds; all of them live while it is traced."""
    return [id(leaf) for leaf in jax.tree.leaves(variable)]
