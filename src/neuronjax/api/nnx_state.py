"""State of Flax NNX that a function writes into the modules of its arguments.

To `jax.jit` a module is a pytree: the function gets a copy, and what it writes into the
copy's variables and does not return is lost. `nnx.jit` splits and merges modules around
`jax.jit`, so it keeps them. `jit` keeps them too: every function runs `InPlace`. What
`emulated` puts in the place of `jax.jit` loses what JAX loses, and warns: `AsInJax`.

Reports judge, price and measure all that a function writes: they take it `WithState`,
and what it writes is among its results.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import Jaxpr, Var, jaxpr_as_fun
from jax.tree_util import DictKey, GetAttrKey

from neuronjax.api.calls import path_name, signature_of
from neuronjax.errors import NotEmulatedWarning, UnsupportedError, warn_user


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
        has_state = isinstance(function, WithState)
        function = function.__wrapped__ if has_state else function
        # The attributes of what an emulated function was wrapped by are not ours.
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        call = _SteppedCall.traced(self.__wrapped__, args, kwargs)
        state = self._state(call)
        return Stepped(call.result, state) if state else call.result

    def _state(self, call: _SteppedCall) -> Mapping[str, Any]:
        return call.written


class InPlace(WithState):
    """A function whose state is to be written back into the modules of its arguments.

    Of what `nnx.jit` has made that is all that it writes; of another function what it
    does not return, which a caller of `jax.jit` takes from the results. Where a caller
    donates the modules, what it leaves as it was is written back too."""

    def __init__(
        self, function: Callable[..., Any], options: Mapping[str, Any]
    ) -> None:
        super().__init__(function)
        self._donates = any("donate" in k and v is not None for k, v in options.items())

    def _state(self, call: _SteppedCall) -> Mapping[str, Any]:
        whole = _of_nnx_jit(self.__wrapped__, whole=True)
        if whole and call.rebuilt:
            raise UnsupportedError(
                f"{_name_of(self)} makes in its modules another "
                f"{', '.join(call.rebuilt[:4])}: a compiled step keeps only arrays "
                "that were there before",
                remedy="make every variable before the first step, and keep in an "
                "nnx.Variable what a step changes",
            )
        if not whole and not call.lost:
            return {}
        if not whole:
            _warn_of_lost(self, [name for name in call.lost if name in call.rebuilt])
        kept = call.variables if self._donates else call.written
        apart = () if whole else {*call.returned, *call.rebuilt}
        return {name: array for name, array in kept.items() if name not in apart}


class AsInJax(WithState):
    """A function whose state is lost where `jax.jit` loses it, with a warning."""

    def _state(self, call: _SteppedCall) -> Mapping[str, Any]:
        _warn_of_lost(self, call.lost)
        return {}


def _warn_of_lost(function: Callable[..., Any], names: Sequence[str]) -> None:
    if names:
        more = ", ..." if names[4:] else ""
        warn_user(
            f"{_name_of(function)} changes NNX variables of its arguments, which are "
            f"lost, as under jax.jit: {', '.join(names[:4])}{more}\n"
            "  remedy: jit it with nnx.jit, or with nj.jit, make every variable before "
            "the first step; or return the changed module",
            NotEmulatedWarning,
        )


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "the function")


def kept(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable:
    """Return a function `InPlace`, with the options of `jit`."""
    return function if _is_told(function) else InPlace(function, options)


def as_in_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that loses what `jax.jit` of it loses."""
    return function if _is_told(function) else AsInJax(function)


def _is_told(function: Callable[..., Any]) -> bool:
    """Whether it says what becomes of its state: a `WithState`, or the inner function
    of `nnx.jit`, which returns the next state."""
    return isinstance(function, WithState) or _of_nnx_jit(function, whole=False)


def for_arguments(function: Callable[..., Any], arguments: Any) -> Callable[..., Any]:
    """Return what is traced for these arguments: the user's own function, whose trace
    JAX may have kept, where they hold no modules."""
    if isinstance(function, WithState) and not _modules(arguments):
        return function.__wrapped__
    return function


def in_place(run: Callable[..., Any], function: Callable[..., Any]) -> Callable:
    """Return what runs a `WithState` of a function as the function itself: what it
    writes is in the modules of the arguments afterwards."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        once, named = tied((args, kwargs))
        return settled(run(*once, **named), InPlace(function, {}), (args, kwargs))

    return called


def once(function: Callable[..., Any], arguments: Any) -> Any:
    """Return the arguments of a function; for a `WithState` variables that modules
    share are there once."""
    own = isinstance(function, WithState) and not isinstance(function, AsInJax)
    return tied(arguments) if own else arguments


def settled(found: Any, function: Callable[..., Any], arguments: Any) -> Any:
    """Return the results of what is `InPlace` without the state in them, which is
    written into the modules of the arguments; and those of others as they are."""
    if not isinstance(function, InPlace):
        return found

    def settle(part: Any) -> Any:
        if not isinstance(part, Stepped):
            return part
        _write(part.state, signature_of(function), arguments)
        return part.result

    return jax.tree.map(settle, found, is_leaf=lambda part: isinstance(part, Stepped))


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


def _of_nnx_jit(function: Any, *, whole: bool) -> bool:
    """Whether `nnx.jit` has made it: the whole, or the inner function, which returns
    the next state."""
    is_made = type(function).__module__.startswith("flax.")
    return is_made and hasattr(function, "jitted_fn") == whole


@dataclass(frozen=True)
class _SteppedCall:
    """A call that is being traced, of a function that may write into modules.

    Attributes:
        result: what the function returns.
        variables: the arrays of the modules afterwards, by their paths.
        written: those of them that the function has written.
        returned: the paths of those that are among the results.
        rebuilt: what the call has made another of: variables that were not there, and
            "what is static".
    """

    result: Any
    variables: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    returned: Collection[str] = ()
    rebuilt: Sequence[str] = ()

    @property
    def lost(self) -> Sequence[str]:
        """What the function has written and does not return."""
        return [name for name in self.written if name not in self.returned]

    @classmethod
    def traced(
        cls, function: Callable[..., Any], args: tuple, kwargs: dict
    ) -> _SteppedCall:
        """Call the function, whose arguments hold tracers."""
        if not _variables((args, kwargs)):
            return cls(function(*args, **kwargs))
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
            arguments = tied(arguments)
            after = _variables(arguments)
            trees[:] = [result_tree, [*after], jax.tree.structure(arguments)]
            return [*results, *after.values()]

        closed = jax.make_jaxpr(flat)(*arrays)
        outputs = jaxpr_as_fun(closed)(*arrays)
        result_tree, paths, tree_after = trees
        names = [path_name(signature_of(function), path) for path in paths]
        count, same = result_tree.num_leaves, _origins(closed.jaxpr, {})
        pairs = zip(places, closed.jaxpr.invars, strict=True)
        before = {found[n][0]: var for n, var in pairs}
        of = dict(zip(names, zip(paths, same[count:], strict=True), strict=True))
        variables = dict(zip(names, outputs[count:], strict=True))
        new = [name for name, (path, _) in of.items() if path not in before]
        return cls(
            jax.tree.unflatten(result_tree, outputs[:count]),
            variables=variables,
            written={
                name: variables[name]
                for name, (path, var) in of.items()
                if before.get(path) != var
            },
            returned={name for name, (_, var) in of.items() if var in same[:count]},
            rebuilt=new or ["what is static"] * (tree_after != tree),
        )


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


#: What passes its operands on to one jaxpr, and that jaxpr's results back.
_CALLS = ("jit", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call")


def _origins(jaxpr: Jaxpr, known: dict[Jaxpr, list[Any]]) -> list[Any]:
    """Return the first value of the jaxpr that each result is equal to.

    A call only passes some values on, as `nnx.jit` does every variable that is read and
    not written, and may return one twice. A literal is its text."""
    if jaxpr in known:
        return known[jaxpr]
    same: dict[Any, Any] = {}

    def first(value: Any) -> Any:
        return same.get(value, value) if isinstance(value, Var) else str(value)

    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _CALLS:
            called = eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]
            inner = getattr(called, "jaxpr", called)
            outer = dict(zip(inner.invars, map(first, eqn.invars), strict=True))
            for var, origin in zip(eqn.outvars, _origins(inner, known), strict=True):
                same[var] = outer.setdefault(origin, var)
    known[jaxpr] = [first(value) for value in jaxpr.outvars]
    return known[jaxpr]


# -- variables that several modules share ----------------------------------------------

# Tied embeddings, say. To `jax.jit` a module is a pytree, in which a shared variable is
# there as often as it is used, and a gradient would be that of each use alone. `tied`
# leaves it in its first place, for the arguments of what is traced, and `untied` puts
# it back, inside.


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
