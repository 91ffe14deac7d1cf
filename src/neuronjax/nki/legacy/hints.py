"""Keyword arguments of the older style beyond the documented ones.

Every function of release 2.26 ends in `**kwargs`. Those in `WITHOUT_EFFECT` change no
value; any other is refused by its name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

from neuronjax.nki.refusing import unsupported

# Why each changes no value. Only `name` is documented; the rest are used by public
# kernels, and say how the compiler schedules or splits what the text defines.
WITHOUT_EFFECT = MappingProxyType(
    {
        "name": "a label in the compiler's reports",
        "lazy_initialization": "when a fill is emitted: before the first use in any "
        "case",
        "precise_schedule": "a directive of a loop, about the order in time",
        "directives": "of a loop: no_reorder(), multi_buffer(), about order and memory",
        "max_free_vec_size": "how a long instruction is split",
    }
)


def hinted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, refusing unknown hints.

    Raises (when called):
        UnsupportedError: a keyword that is neither its parameter nor known to change
            nothing.
    """
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
                    "leave it out if it changes no value; known to change none "
                    f"are {', '.join(WITHOUT_EFFECT)}",
                )
        return function(*args, **kwargs)

    return checked


def check_hints(module: dict[str, Any], others: Iterable[str] = ()) -> None:
    """Replaces a module's functions of `**hints` by `hinted` ones.

    Args:
        module: its globals.
        others: functions of it that name another module as theirs.
    """
    for name, function in list(module.items()):
        if not inspect.isfunction(function) or name.startswith("_"):
            continue
        takes = inspect.signature(function).parameters.values()
        own = function.__module__ == module["__name__"] or name in others
        if own and any(p.kind is p.VAR_KEYWORD and p.name == "hints" for p in takes):
            module[name] = hinted(function)
