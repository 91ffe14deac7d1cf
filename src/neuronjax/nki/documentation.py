"""Descriptions of arguments that several functions share, added to their docstrings."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def describe(function: Callable[..., Any], arguments: Mapping[str, str]) -> None:
    """Add an "Args:" part to a docstring, in the order of the signature. Descriptions
    have no final stop; names that the function lacks are ignored."""
    lines = [inspect.cleandoc(function.__doc__ or ""), "", "Args:"]
    for name in inspect.signature(function).parameters:
        entry = f"    {name}: {arguments[name]}."
        lines += textwrap.wrap(entry, 84, subsequent_indent=" " * 8)
    function.__doc__ = "\n".join(lines)


def named(function: Function, name: str, meaning: str) -> Function:
    """Give a function, made by another, a name and a docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = meaning
    return function


def describer(**shared: str) -> Callable[..., Callable[[Function], Function]]:
    """Return a decorator that describes arguments by `shared` and its own keywords."""

    def described(**own: str) -> Callable[[Function], Function]:
        def add(function: Function) -> Function:
            describe(function, {**shared, **own})
            return function

        return add

    return described
