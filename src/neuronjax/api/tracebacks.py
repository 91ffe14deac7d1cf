"""`boundary`: an error leaves a public function with the user's lines alone.

The frames of this package and of JAX are left out, as JAX leaves out its own:
`JAX_TRACEBACK_FILTERING=off` shows all of them. IPython is told which to hide, and has
them in its debugger; elsewhere the traceback is without them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, TypeVar

import jax

from neuronjax.errors import NeuronJaxError

T = TypeVar("T", bound=Callable[..., Any])

_HIDDEN = (
    f"{Path(__file__).parents[1]}/",
    f"{Path(jax.__file__).parent}/",
    contextlib.__file__,
)


def boundary(function: T) -> T:
    """Return a function from which, and from functions that it returns, errors come
    with short tracebacks.

    An error of ours says all that the one which caused it does, so it comes alone."""

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
    python = sys.modules.get("IPython")
    in_ipython = python is not None and python.get_ipython() is not None
    if isinstance(error, NeuronJaxError):
        error.__cause__, error.__suppress_context__ = None, True
    shown: TracebackType | None = None
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if not frame.f_code.co_filename.startswith(_HIDDEN):
            shown = TracebackType(shown, frame, frame.f_lasti, line)
        elif in_ipython:
            frame.f_locals["__tracebackhide__"] = True
    if not in_ipython:
        error.__traceback__ = shown
