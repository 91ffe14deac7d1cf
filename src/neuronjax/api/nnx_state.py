"""State of Flax NNX that a function writes into the modules of its arguments.

To `jax.jit` a module is a pytree: the function gets a copy of the module, and values
that it writes into the copy's variables without returning them are lost. `nnx.jit`
splits and merges modules around `jax.jit` and so keeps these writes. `jit` keeps them
too: it wraps every function as `InPlace`. The `jax.jit` of an `emulated` block wraps
functions as `AsInJax`, which loses writes as JAX does, and warns.

Reports cover everything that a function writes: they wrap the function as `WithState`,
which adds the written arrays to the results.
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
        state: the arrays that the function has written, by the path of the argument
            that holds them, "model/layers/0/kernel/value".
    """

    result: Any
    state: Mapping[str, Any]

    def tree_flatten_with_keys(self) -> tuple[Sequence[tuple], tuple[str, ...]]:
        """Return the leaves with their keys, for JAX; an array's key is its path."""
        state = [(DictKey(name), leaf) for name, leaf in self.state.items()]
        return ((GetAttrKey("result"), self.result), *state), tuple(self.state)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], children: Sequence[Any]) -> Stepped:
        """Return the results made of these leaves, for JAX."""
        result, *state = children
        return cls(result, dict(zip(names, state, strict=True)))


class WithState:
    """A wrapper whose results include the arrays written into modules of Flax NNX.

    A call returns a `Stepped` if the function has written into NNX variables, and
    otherwise only the function's result."""

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        has_state = isinstance(function, WithState)
        function = function.__wrapped__ if has_state else function
        # The attributes of an emulated function are not copied to this wrapper.
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = _SteppedCall.traced(self.__wrapped__, args, kwargs)
        state = self._state(call)
        return Stepped(call.result, state) if state else call.result

    def _state(self, call: _SteppedCall) -> Mapping[str, Any]:
        return call.written


class InPlace(WithState):
    """A wrapper whose calls return the state that `settled` writes into modules.

    If `nnx.jit` made the function, the state has every variable that the function
    writes. Otherwise the state leaves out variables that are also results, since the
    caller gets these. If modules are donated, the state has unchanged variables too."""

    def __init__(
        self, function: Callable[..., Any], options: Mapping[str, Any]
    ) -> None:
        super().__init__(function)
        self._donates = any("donate" in k and v is not None for k, v in options.items())

    def _state(self, call: _SteppedCall) -> Mapping[str, Any]:
        whole = _of_nnx_jit(self.__wrapped__, whole=True)
        if whole and call.rebuilt:
            raise UnsupportedError(
                f"{_name_of(self)} makes new state in its modules, "
                f"{', '.join(call.rebuilt[:4])}: a compiled step keeps only arrays "
                "that existed before it",
                remedy="make every variable before the first step, and keep what "
                "a step changes in an nnx.Variable",
            )
        if not whole and not call.lost:
            return {}
        if not whole:
            _warn_of_lost(self, [name for name in call.lost if name in call.rebuilt])
        kept = call.variables if self._donates else call.written
        apart = () if whole else {*call.returned, *call.rebuilt}
        return {name: array for name, array in kept.items() if name not in apart}


class AsInJax(WithState):
    """A wrapper that loses the state that `jax.jit` loses, and warns about it."""

    def _state(self, call: _SteppedCall) -> Mapping[str, Any]:
        _warn_of_lost(self, call.lost)
        return {}


def _warn_of_lost(function: Callable[..., Any], names: Sequence[str]) -> None:
    if names:
        more = ", ..." if names[4:] else ""
        warn_user(
            f"{_name_of(function)} changes NNX variables of its arguments, and the "
            f"changes are lost, as under jax.jit: {', '.join(names[:4])}{more}\n"
            "  remedy: use nnx.jit; or use nj.jit, and make every variable before the "
            "first step; or return the changed module",
            NotEmulatedWarning,
        )


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "the function")


def kept(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable:
    """Return the function as `InPlace`, or unchanged if it already returns state."""
    return function if _handles_own_state(function) else InPlace(function, options)


def as_in_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as `AsInJax`, or unchanged if it already returns state."""
    return function if _handles_own_state(function) else AsInJax(function)


def _handles_own_state(function: Callable[..., Any]) -> bool:
    return isinstance(function, WithState) or _of_nnx_jit(function, whole=False)


def for_arguments(function: Callable[..., Any], arguments: Any) -> Callable[..., Any]:
    """Return the function to trace for these arguments. If they hold no modules, this
    is the user's function without a wrapper, so that JAX can reuse a trace of it."""
    if isinstance(function, WithState) and not _modules(arguments):
        return function.__wrapped__
    return function


def in_place(run: Callable[..., Any], function: Callable[..., Any]) -> Callable:
    """Return a function that calls `run`, which executes a `WithState` of `function`,
    and then writes the state that `run` returned into the modules of its arguments."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        once, named = tied((args, kwargs))
        return settled(run(*once, **named), InPlace(function, {}), (args, kwargs))

    return called


def once(function: Callable[..., Any], arguments: Any) -> Any:
    """Return `tied(arguments)` if `function` keeps state, else the arguments."""
    own = isinstance(function, WithState) and not isinstance(function, AsInJax)
    return tied(arguments) if own else arguments


def settled(found: Any, function: Callable[..., Any], arguments: Any) -> Any:
    """Return the results `found` of a call. If the function is an `InPlace`, write the
    state in `found` into the modules of the arguments, and return only the results."""
    if not isinstance(function, InPlace) or not holds_modules(arguments):
        return found

    def settle(part: Any) -> Any:
        if not isinstance(part, Stepped):
            return part
        _write(part.state, signature_of(function), arguments)
        return part.result

    return jax.tree.map(settle, found, is_leaf=lambda part: isinstance(part, Stepped))


def copied(arguments: Any) -> Any:
    """Return the arguments with new, writable modules over the same arrays."""
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
    """With `whole`, return whether `nnx.jit` has returned the function. Otherwise,
    return whether the function is the one that `nnx.jit` passes to `jax.jit`."""
    is_made = type(function).__module__.startswith("flax.")
    return is_made and hasattr(function, "jitted_fn") == whole


@dataclass(frozen=True)
class _SteppedCall:
    """A call, during tracing, of a function that may write into modules.

    Attributes:
        result: what the function returns.
        variables: the arrays of the modules after the call, by their paths.
        written: the variables that the function has written.
        returned: the paths of the variables that are also results.
        rebuilt: the paths of variables that the call has created. If only the pytree
            structure of the arguments has changed, one text for the message instead.
    """

    result: Any
    variables: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    returned: Collection[str] = ()
    rebuilt: Sequence[str] = ()

    @property
    def lost(self) -> Sequence[str]:
        return [name for name in self.written if name not in self.returned]

    @classmethod
    def traced(
        cls, function: Callable[..., Any], args: tuple, kwargs: dict
    ) -> _SteppedCall:
        if not _variables((args, kwargs)):
            return cls(function(*args, **kwargs))
        found, tree = jax.tree.flatten_with_path((args, kwargs))
        leaves = [leaf for _, leaf in found]
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        arrays = [leaves[n] for n in places]
        trees: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            given = [*leaves]  # includes the static leaves
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
    """Return (path, module or variable) pairs. Variables in an `nnx.State` outside of
    a module are not included, because the function returns their next values."""
    if not holds_modules(arguments):
        return []
    nnx: Any = sys.modules["flax.nnx"]
    found, _ = jax.tree.flatten_with_path(
        arguments,
        is_leaf=lambda x: isinstance(x, nnx.Pytree | nnx.Variable | nnx.State),
    )
    return [(p, x) for p, x in found if isinstance(x, nnx.Pytree | nnx.Variable)]


def holds_modules(arguments: Any) -> bool:
    """Return whether a pytree holds modules or variables. It runs before every step and
    therefore does not use `is_leaf`, which would take a hundred microseconds."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return False
    left = [jax.tree.structure(arguments)]
    for tree in left:  # the loop appends to `left`
        kind, _ = tree.node_data() or (nnx.State, None)  # skip leaves and states
        if issubclass(kind, nnx.Pytree | nnx.Variable):
            return True
        if not issubclass(kind, nnx.State) and tree.num_nodes > tree.num_leaves + 1:
            left += tree.children()
    return False


def _variables(arguments: Any) -> dict[tuple, Any]:
    return {
        (*path, *inner): array
        for path, node in _modules(arguments)
        for inner, array in jax.tree.flatten_with_path(node)[0]
    }


#: Primitives that call one jaxpr with their operands and return its results.
_CALLS = ("jit", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call")


def _origins(jaxpr: Jaxpr, known: dict[Jaxpr, list[Any]]) -> list[Any]:
    """Return, for each result of a jaxpr, the first value in the jaxpr that equals it.

    A call may pass operands through unchanged, as `nnx.jit` does with variables that
    are only read, and may return a value twice. A literal is returned as text."""
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

# To `jax.jit` a module is a pytree with one leaf for each use of a shared variable
# (such as a tied embedding), so each use would get a separate gradient. `tied` keeps
# only the first use in the arguments of a traced function, and `untied` restores the
# other uses inside the function.


@jax.tree_util.register_static
@dataclass(frozen=True)
class Tie:
    """A placeholder for a repeated variable: the leaf number of its first use."""

    number: int


def tied(arguments: Any) -> Any:
    """Return the arguments with each variable once; unchanged if none is repeated."""
    if not holds_modules(arguments):
        return arguments
    nnx: Any = sys.modules["flax.nnx"]
    leaves, tree = jax.tree.flatten(arguments, is_leaf=_is_place)
    first: dict[int, int] = {}
    for n, leaf in enumerate(leaves):
        if isinstance(leaf, nnx.Variable) and first.setdefault(id(leaf), n) != n:
            leaves[n] = Tie(first[id(leaf)])
    has_ties = any(isinstance(leaf, Tie) for leaf in leaves)
    return jax.tree.unflatten(tree, leaves) if has_ties else arguments


def untied(arguments: Any) -> Any:
    """Return the arguments with repeated variables restored: the inverse of `tied`."""
    leaves, tree = jax.tree.flatten(arguments, is_leaf=_is_place)
    if not any(isinstance(leaf, Tie) for leaf in leaves):
        return arguments
    places = [leaves[e.number] if isinstance(e, Tie) else e for e in leaves]
    return jax.tree.unflatten(tree, places)


def _is_place(node: Any) -> bool:
    """Return whether `tied` treats a node as one leaf. An `nnx.State` is one leaf, so
    that `tied` does not replace repeated variables inside it."""
    nnx = sys.modules.get("flax.nnx")
    if isinstance(node, Tie) or nnx is None:
        return isinstance(node, Tie)
    return isinstance(node, nnx.Variable | nnx.State)
