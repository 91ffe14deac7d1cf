"""A call of an emulated function: its caller, its arguments, and its state.

Signatures, static arguments and array leaves are handled as by `jax.jit`. A `CallState`
carries data from one call to the next. `boundary` shortens the tracebacks of errors
that leave a public function.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neuronjax.errors import InvalidProgramError, NeuronJaxError, is_library
from neuronjax.execution.inputs_outputs import CallContext
from neuronjax.policy import Policy
from neuronjax.policy.scopes import is_tracing

# --- the caller -----------------------------------------------------------------------

#: The subpackages of neuronjax that call `nj.jit` on purpose; "" is neuronjax itself.
_KNOW_IT = ("api", "testing", "cli", "")


def asked_for_jaxs() -> bool:
    """Return whether a module of neuronjax has called `nj.jit` but meant `jax.jit`.

    This happens if the user has set `jax.jit` to a `functools.partial` of `nj.jit`, or
    to a function that calls `nj.jit`."""
    frame = sys._getframe(2)  # the caller of `nj.jit`
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back  # skip frames of `boundary`
    for _ in range(2):
        package, _, inner = (frame.f_globals.get("__name__") or "").partition(".")
        if package == "neuronjax":
            return inner.partition(".")[0] not in _KNOW_IT
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


_asked_about: ContextVar[Any] = ContextVar("_asked_about", default=None)


def asked_about(emulated: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function`, such as the gradient of `emulated`, for a report: while the
    wrapper runs, the report's policy replaces the policy of `emulated`."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        token = _asked_about.set(emulated)
        try:
            return function(*args, **kwargs)
        finally:
            _asked_about.reset(token)

    return called


def is_asked_about(emulated: Any) -> bool:
    """Return whether a function that `asked_about` made from `emulated` is running."""
    return _asked_about.get() is emulated


# --- arguments ------------------------------------------------------------------------


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function, or None if Python does not know it."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None  # a builtin; jax.jit does the same


def argument_name(signature: inspect.Signature | None, number: int) -> str:
    """Return the parameter name of the positional argument `number`."""
    parameters = list(signature.parameters) if signature else []
    return parameters[number] if number < len(parameters) else f"args[{number}]"


def path_name(
    signature: inspect.Signature | None, path: tuple, missing: Iterable[int] = ()
) -> str:
    """Return a path in the pytree (args, kwargs) as text: "model/layers/0/kernel".

    `missing` are the positions of static arguments, which `args` does not contain."""
    where, first, *rest = path
    if where.idx == 0:
        number = first.idx
        for static in sorted(missing):
            number += static <= number
        parts = [argument_name(signature, number)]
    else:
        parts = [str(first.key)]
    if rest:
        parts.append(jax.tree_util.keystr(tuple(rest), simple=True, separator="/"))
    return "/".join(parts)


class Named(NamedTuple):
    """Some arguments of a function, each by its position and by its name."""

    numbers: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, signature: inspect.Signature | None, numbers: Any, names: Any) -> Named:
        """Return the arguments that `numbers` (positions) and `names` select."""
        given_numbers = _tuple(numbers, int)
        given_names = _tuple(names, str)
        if signature is None:
            return cls(given_numbers, given_names)
        parameters = list(signature.parameters.values())
        usual = inspect.Parameter.POSITIONAL_OR_KEYWORD
        positional = [p.name for p in parameters if p.kind <= usual]
        count = len(positional)
        chosen = {n + count if n < 0 else n for n in given_numbers}
        chosen |= {i for i, p in enumerate(positional) if p in given_names}
        keywords = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
        all_names = set(given_names)
        all_names |= {positional[n] for n in chosen if n < count} & keywords
        return cls(tuple(sorted(chosen)), tuple(sorted(all_names)))

    def split(self, args: tuple, kwargs: dict) -> tuple[tuple[tuple, dict], Selected]:
        """Return the arguments without the selected ones, and the selected ones."""
        kept = tuple(i for i in range(len(args)) if i not in self.numbers)
        dynamic_args = tuple(args[i] for i in kept)
        dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in self.names}
        # Keep only selected arguments: tracers must not outlive the trace.
        static_args = tuple(None if i in kept else a for i, a in enumerate(args))
        static_kwargs = tuple((k, v) for k, v in kwargs.items() if k in self.names)
        return (dynamic_args, dynamic_kwargs), Selected(
            kept, static_args, static_kwargs
        )


@dataclass(frozen=True)
class Selected:
    """The arguments that `Named.split` takes out of a call.

    Attributes:
        others: the positions of the positional arguments that were not taken out.
        args: the positional arguments; None in place of each that was not taken out.
        kwargs: the keyword arguments that were taken out, as pairs.
    """

    others: tuple[int, ...]
    args: tuple
    kwargs: tuple[tuple[str, Any], ...]

    @property
    def types(self) -> tuple[type, ...]:
        """Return the types, since 2 and 2.0 are equal but give different programs."""
        return tuple(map(type, (*self.args, *(value for _, value in self.kwargs))))

    def __call__(self, dynamic: tuple[tuple, dict]) -> tuple[tuple, dict]:
        """Return all arguments of a call whose other arguments are `dynamic`."""
        full = list(self.args)
        for i, value in zip(self.others, dynamic[0], strict=True):
            full[i] = value
        return tuple(full), {**dict(self.kwargs), **dynamic[1]}


def _tuple(value: Any, one: type) -> tuple:
    if value is None:
        return ()
    return (value,) if isinstance(value, one) else tuple(value)


def as_array(leaf: Any, name: str) -> Any:
    """Return `leaf` as an array. Refuse other values, with `name` in the error."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf
    try:
        return jnp.asarray(leaf)
    except TypeError as error:
        raise InvalidProgramError(
            f"argument {name} is a {type(leaf).__name__}, not an array",
            remedy="pass arrays, or name the argument in static_argnames",
        ) from error


# --- state between calls --------------------------------------------------------------


@dataclass(frozen=True)
class CallState:
    """The state that a function or program keeps between its calls.

    Attributes:
        name: name of the function, for errors.
        calls: counter of the eager calls.
        call_index: the call index that the caller gave, uint32, or None.
        amax_history: history of delayed scaling, from the previous call.
    """

    name: str
    calls: Iterator[int] = field(default_factory=itertools.count)
    call_index: jax.Array | None = None
    amax_history: jax.Array | None = None

    def __deepcopy__(self, memo: dict) -> CallState:
        return self  # only the counter changes, and copies share it

    def context(self, index: Any) -> CallContext:
        """Return the state as an input of the call with this index."""
        return CallContext(call_index=index, amax_history=self.amax_history)

    def next_index(self, stochastic: bool, *arguments: Any) -> Any:
        """Return `call_index` or a count of calls; None if not `stochastic`. Refuse a
        traced call that rounds stochastically without a `call_index`."""
        if self.call_index is not None:
            return self.call_index
        if not stochastic:
            return None
        leaves = jax.tree.leaves(arguments)
        if any(isinstance(leaf, Tracer) for leaf in leaves) or is_tracing():
            raise InvalidProgramError(
                f"{self.name} rounds stochastically and is traced: every run of the "
                "traced program would draw the same random bits",
                remedy="call f.with_rounding_seed(i)(...), where i is a traced uint32 "
                "that changes with every call, for instance the step number",
            )
        return np.uint32(next(self.calls))


class Stateful:
    """The base class of functions and programs that have a `CallState`."""

    _state: CallState

    def with_rounding_seed(self, index: Any) -> Self:
        """Return a copy with a given call index for stochastic rounding.

        Args:
            index: an integer or a traced uint32, such as the step number. The same
                index gives the same random bits.
        """
        index = jnp.asarray(index).astype(jnp.uint32)
        return self.with_state(dataclasses.replace(self._state, call_index=index))

    def with_amax_history(self, history: jax.Array) -> Self:
        """Return a copy with a given history of delayed scaling.

        Args:
            history: the result of `init_amax_history` or of the previous call.

        Returns:
            A callable that returns `(outputs, history of the next call)`, or with
            `collect` `((outputs, statistics), history of the next call)`.
        """
        return self.with_state(dataclasses.replace(self._state, amax_history=history))

    def anew(self) -> Self:
        """Return a copy with the same compiled programs, in the initial state."""
        return self.with_state(CallState(self._state.name))

    def with_state(self, state: CallState) -> Self:
        """Return a copy whose calls start with this state."""
        other = copy.copy(self)
        other._state = state
        return other


def may_round_stochastically(policy: Policy) -> bool:
    """Return whether a call under this policy needs a call index."""
    return policy.rounding == "stochastic" or any(
        rule.rounding == "stochastic" for rule in policy.rules
    )


# --- tracebacks -----------------------------------------------------------------------

T = TypeVar("T", bound=Callable[..., Any])

_HIDDEN = (
    f"{Path(__file__).parents[1]}/",
    f"{Path(jax.__file__).parent}/",
    contextlib.__file__,
    functools.__file__,
)
_STANDARD = f"{Path(contextlib.__file__).parent}/"


def boundary(function: T) -> T:
    """Wrap a function so that tracebacks of its errors have only the user's frames. If
    the function returns a function, that function is wrapped too.

    Frames of neuronjax and JAX are left out; after an interrupt, frames of all
    libraries. `JAX_TRACEBACK_FILTERING=off` shows all frames. The cause of an error
    of neuronjax is dropped, because the message describes the error completely."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            found = function(*args, **kwargs)
        except BaseException as error:
            if getattr(jax.config, "jax_traceback_filtering", "auto") != "off":
                _shorten(error)
            raise
        return boundary(found) if isinstance(found, FunctionType) else found

    return called  # type: ignore[return-value]


def _shorten(error: BaseException) -> None:
    if isinstance(error, NeuronJaxError):
        error.__cause__, error.__suppress_context__ = None, True
    is_interrupt = not isinstance(error, Exception)
    hidden = (*_HIDDEN, _STANDARD) if is_interrupt else _HIDDEN
    shown: TracebackType | None = None
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file = frame.f_code.co_filename
        if not (file.startswith(hidden) or (is_interrupt and is_library(file))):
            shown = TracebackType(shown, frame, frame.f_lasti, line)
    error.__traceback__ = shown
