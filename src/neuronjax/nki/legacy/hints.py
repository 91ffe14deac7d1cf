"""Undocumented keyword arguments of the older style.

Every function of release 2.26 ends in `**kwargs`. Keywords in `WITHOUT_EFFECT` are
accepted and ignored; any other is an error that names it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

from neuronjax.nki.refusing import unsupported

# Each keyword, with why it changes no value. Only `name` is documented; public kernels
# use the others to say how the compiler schedules or splits instructions.
WITHOUT_EFFECT = MappingProxyType(
    {
        "name": "a label in the compiler's reports",
        "lazy_initialization": "when a tile is filled, always before its first use",
        "precise_schedule": "a directive of a loop, about the order in time",
        "directives": "no_reorder(), multi_buffer(): order and memory of a loop",
        "max_free_vec_size": "how a long instruction is split",
    }
)


def hinted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a check that refuses keywords that are neither its
    parameters nor in `WITHOUT_EFFECT`."""
    named = {
        name
        for name, p in inspect.signature(function).parameters.items()
        if p.kind is not inspect.Parameter.VAR_KEYWORD
    }

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in named and name not in WITHOUT_EFFECT:
                unsupported(
                    function.__name__,
                    f"{name}={kwargs[name]!r}",
                    "leave it out if no result changes; keywords without effect are "
                    f"{', '.join(WITHOUT_EFFECT)}",
                )
        return function(*args, **kwargs)

    return checked


def check_hints(module: dict[str, Any], others: Iterable[str] = ()) -> None:
    """Replace functions that take `**hints` by `hinted` ones, in a module's globals.
    `others` names functions in it that were defined in another module."""
    for name, function in list(module.items()):
        if not inspect.isfunction(function) or name.startswith("_"):
            continue
        takes = inspect.signature(function).parameters.values()
        own = function.__module__ == module["__name__"] or name in others
        if own and any(p.kind is p.VAR_KEYWORD and p.name == "hints" for p in takes):
            module[name] = hinted(function)
