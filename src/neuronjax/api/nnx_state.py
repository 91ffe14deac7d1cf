"""State of Flax NNX that a function writes into the modules of its arguments.

To `jax.jit`, and so to `jit`, a module is a pytree: the function gets a copy, and what
it writes into the copy's variables is lost. `nnx.jit` splits and merges modules around
`jax.jit`, so it is what keeps them, in `emulated` too.

Reports judge, price and measure all that a function writes: they take it `WithState`,
and what it writes is among its results. To whom calls it for several steps it is
`in_place`, as `nnx.jit` is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Var, jaxpr_as_fun
from jax.tree_util import DictKey, GetAttrKey

from neuronjax.api.nnx_ties import tied, untied
from neuronjax.api.signatures import path_name, signature_of
from neuronjax.errors import NotEmulatedWarning, warn_user


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True)
class Stepped:
    """The results of a function that writes into modules.

    Attributes:
        result: what the function returns.
        state: the arrays that it has written, by the path of the argument that they
            were in, "model/layers/0/kernel/value".
    """

    result: Any
    state: Mapping[str, Any]

    def tree_flatten_with_keys(self) -> tuple[Sequence[tuple], tuple[str, ...]]:
        """For JAX: the paths of the state are those of the arguments."""
        state = [(DictKey(name), leaf) for name, leaf in self.state.items()]
        return ((GetAttrKey("result"), self.result), *state), tuple(self.state)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], children: Sequence[Any]) -> Stepped:
        """For JAX."""
        result, *state = children
        return cls(result, dict(zip(names, state, strict=True)))


class WithState:
    """A function, to be traced, with what it writes among its results.

    Where it writes into variables of NNX it returns a `Stepped`, else what it always
    does."""

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the function's own."""
        result, state = _apart(self.__wrapped__, args, kwargs)
        return Stepped(result, state) if state else result


def in_place(run: Callable[..., Any], function: Callable[..., Any]) -> Callable:
    """What runs a `WithState` of a function, as the function itself: what it writes is
    in the modules of the arguments afterwards."""
    signature = signature_of(function)

    def called(*args: Any, **kwargs: Any) -> Any:
        once, named = tied((args, kwargs))
        found = run(*once, **named)
        if not isinstance(found, Stepped):
            return found
        _write(found.state, signature, (args, kwargs))
        return found.result

    return called


def copied(arguments: Any) -> Any:
    """Arguments whose modules may be written into; the arrays are the same."""
    return untied(jax.tree.map(lambda leaf: leaf, tied(arguments)))


def _write(state: Mapping[str, Any], signature: Any, arguments: Any) -> None:
    nnx: Any = sys.modules["flax.nnx"]
    found, tree = jax.tree.flatten_with_path(tied(arguments))
    leaves = [state.get(path_name(signature, path), leaf) for path, leaf in found]
    written = untied(jax.tree.unflatten(tree, leaves))
    pairs = zip(_modules(arguments), _modules(written), strict=True)
    for (_, node), (_, fresh) in pairs:
        nnx.update([node], nnx.state([fresh]))


def called(function: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
    """Calls a function that is being traced; a warning where it changes variables."""
    if isinstance(function, WithState) or _is_inside_nnx(function):
        return function(*args, **kwargs)
    result, state = _apart(function, args, kwargs)
    if state:
        name, lost = getattr(function, "__name__", "the function"), [*state]
        warn_user(
            f"{name} changes NNX variables of its arguments, which are lost, as under "
            f"jax.jit: {', '.join(lost[:4])}{', ...' if lost[4:] else ''}\n"
            "  remedy: with nj.emulated(target=..., policy=...): step = nnx.jit(step)",
            NotEmulatedWarning,
        )
    return result


def _is_inside_nnx(function: Any) -> bool:
    """Whether it is what `nnx.jit` has made to be jitted: it returns the next state."""
    is_made = type(function).__module__.startswith("flax.")
    return is_made and not hasattr(function, "jitted_fn")


def _apart(
    function: Callable[..., Any], args: tuple, kwargs: dict
) -> tuple[Any, dict[str, Any]]:
    """The result of a call that is being traced, and the arrays that it has written,
    by their paths."""
    if not _variables((args, kwargs)):
        return function(*args, **kwargs), {}
    found, tree = jax.tree.flatten_with_path((args, kwargs))
    leaves = [leaf for _, leaf in found]
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    arrays = [leaves[n] for n in places]
    trees: list[Any] = []

    def flat(*arrays: Any) -> list[Any]:
        given = [*leaves]  # with what is static
        for n, array in zip(places, arrays, strict=True):
            given[n] = array
        arguments = args, kwargs = untied(jax.tree.unflatten(tree, given))
        results, result_tree = jax.tree.flatten(function(*args, **kwargs))
        after = _variables(tied(arguments))
        trees[:] = [result_tree, [*after]]
        return [*results, *after.values()]

    closed = jax.make_jaxpr(flat)(*arrays)
    outputs = jaxpr_as_fun(closed)(*arrays)
    result_tree, paths = trees
    count = result_tree.num_leaves
    jaxpr, signature, origins = closed.jaxpr, signature_of(function), _Origins()
    before = {found[n][0]: var for n, var in zip(places, jaxpr.invars, strict=True)}
    after = zip(paths, jaxpr.outvars[count:], outputs[count:], strict=True)
    state = {
        path_name(signature, path): array
        for path, var, array in after
        if before.get(path) is not origins.of(jaxpr, var)
    }
    return jax.tree.unflatten(result_tree, outputs[:count]), state


def _modules(arguments: Any) -> list[tuple[tuple, Any]]:
    """Modules and variables, by their paths. A bare `nnx.State` is none: of that the
    function returns the next one itself."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return []
    found, _ = jax.tree.flatten_with_path(
        arguments,
        is_leaf=lambda x: isinstance(x, nnx.Pytree | nnx.Variable | nnx.State),
    )
    return [
        (p, node) for p, node in found if isinstance(node, nnx.Pytree | nnx.Variable)
    ]


def _variables(arguments: Any) -> dict[tuple, Any]:
    """The arrays of modules and variables, by their paths."""
    return {
        (*path, *inner): array
        for path, node in _modules(arguments)
        for inner, array in jax.tree.flatten_with_path(node)[0]
    }


class _Origins:
    """What results are that inner jits only pass on, as `nnx.jit` does every variable
    that is read and not written."""

    def __init__(self) -> None:
        self._makers: dict[Jaxpr, dict[Var, JaxprEqn]] = {}

    def of(self, jaxpr: Jaxpr, result: Any) -> Any:
        """A value of the jaxpr that is the same; the result itself, if it is made."""
        if jaxpr not in self._makers:
            jits = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "jit"]
            self._makers[jaxpr] = {var: eqn for eqn in jits for var in eqn.outvars}
        makers = self._makers[jaxpr]
        while isinstance(result, Var) and result in makers:
            maker = makers[result]
            inner = maker.params["jaxpr"].jaxpr
            within = self.of(inner, inner.outvars[maker.outvars.index(result)])
            if within not in inner.invars:
                break
            result = maker.invars[inner.invars.index(within)]
        return result
