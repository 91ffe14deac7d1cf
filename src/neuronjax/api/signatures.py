"""The arguments of a call: a function's signature, static arguments, array leaves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from neuronjax.errors import InvalidProgramError


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature, or None for a function that does not tell its own."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None  # a builtin: positional arguments only, as for jax.jit


def argument_name(signature: inspect.Signature | None, number: int) -> str:
    """The parameter's name of a positional argument."""
    parameters = list(signature.parameters) if signature else []
    return parameters[number] if number < len(parameters) else f"args[{number}]"


def path_name(
    signature: inspect.Signature | None, path: tuple, missing: Iterable[int] = ()
) -> str:
    """A pytree path of (args, kwargs) with the parameter's name in front.

    `missing` are the numbers of arguments that `args` is without, static ones."""
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


class Named:
    """Arguments selected by number or by name, in both forms."""

    def __init__(self, numbers: tuple[int, ...], names: tuple[str, ...]) -> None:
        self.numbers = numbers
        self.names = names

    @classmethod
    def of(cls, signature: inspect.Signature | None, numbers: Any, names: Any) -> Named:
        """Completes what the caller gave, as jax.jit does."""
        given_numbers = _tuple(numbers, int)
        given_names = _tuple(names, str)
        if signature is None:
            return cls(given_numbers, given_names)
        parameters = list(signature.parameters.values())
        positional = [
            p.name
            for p in parameters
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        count = len(positional)
        chosen = {n + count if n < 0 else n for n in given_numbers}
        chosen |= {i for i, p in enumerate(positional) if p in given_names}
        keywords = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
        all_names = set(given_names)
        all_names |= {positional[n] for n in chosen if n < count} & keywords
        return cls(tuple(sorted(chosen)), tuple(sorted(all_names)))

    def split(
        self, args: tuple, kwargs: dict
    ) -> tuple[tuple[tuple, dict], Callable[[Any], tuple[tuple, dict]]]:
        """Takes these arguments out; the function returned puts them back."""
        kept = [i for i in range(len(args)) if i not in self.numbers]
        dynamic_args = tuple(args[i] for i in kept)
        dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in self.names}
        # Only what is static: the rest are tracers, which must not outlive the trace.
        static_args = [None if i in kept else a for i, a in enumerate(args)]
        static_kwargs = {k: v for k, v in kwargs.items() if k in self.names}

        def rebuild(dynamic: tuple[tuple, dict]) -> tuple[tuple, dict]:
            full = list(static_args)
            for i, value in zip(kept, dynamic[0], strict=True):
                full[i] = value
            return tuple(full), {**static_kwargs, **dynamic[1]}

        return (dynamic_args, dynamic_kwargs), rebuild


def _tuple(value: Any, one: type) -> tuple:
    if value is None:
        return ()
    return (value,) if isinstance(value, one) else tuple(value)


def as_array(leaf: Any, name: str) -> Any:
    """An argument as an array; what is not one is refused by name."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf
    try:
        return jnp.asarray(leaf)
    except TypeError as error:
        raise InvalidProgramError(
            f"argument {name} is a {type(leaf).__name__}, not an array",
            remedy="pass arrays, or name the argument in static_argnames",
        ) from error
