"""Arrays that a reference makes itself: `np.zeros(...)`, filled by assignment.

No protocol of NumPy reaches them, so the reference runs with names of its module
replaced: `np` by a stand-in whose makers of arrays return tracked ones.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

from neuronjax.diagnostics.tolerance.model import ErrorModel
from neuronjax.diagnostics.tolerance.tracked import Tracked, as_tracked

_MAKERS = (
    np.zeros,
    np.ones,
    np.empty,
    np.full,
    np.asarray,
    np.array,
    np.ascontiguousarray,
)


class _ArrayType(type):
    """`np.ndarray`, called to make an array or asked whether something is one."""

    model: ErrorModel

    def __call__(cls, *args: Any, **named: Any) -> Any:
        return _tracked(np.ndarray(*args, **named), cls.model, zeroed=True)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, np.ndarray | Tracked)


def _tracked(array: Any, model: ErrorModel, zeroed: bool = False) -> Any:
    """A float array tracked; anything else as it is."""
    if isinstance(array, Tracked) or array.dtype.kind in "iubOSU":
        return array
    if zeroed:
        array = np.zeros(array.shape, array.dtype)
    return as_tracked(array, model)


class NumpyStandIn:
    """NumPy, but for the functions that make arrays.

    Attributes:
        model: of the arrays that it makes.
    """

    def __init__(self, model: ErrorModel) -> None:
        self.model = model
        self.ndarray = _ArrayType("ndarray", (), {"model": model})

    def __getattr__(self, name: str) -> Any:
        return replaced(getattr(np, name), self.model)


def replaced(thing: Any, model: ErrorModel) -> Any:
    """A maker of arrays as one of tracked arrays; anything else as it is."""
    if not callable(thing) or not any(thing is maker for maker in _MAKERS):
        return thing

    def make(*args: Any, **named: Any) -> Any:
        if args and isinstance(args[0], Tracked):
            return _copied(thing, args[0], *args[1:], **named)
        if args and _holds_tracked(args[0]):
            return np.stack(args[0])
        return _tracked(thing(*args, **named), model, zeroed=thing is np.empty)

    return make


def _holds_tracked(x: Any) -> bool:
    return isinstance(x, list | tuple) and any(isinstance(i, Tracked) for i in x)


def _copied(maker: Any, x: Tracked, dtype: Any = None, **_: Any) -> Any:
    result = np.copy(x) if maker is np.array else x
    return result if dtype is None else result.astype(dtype)


def rebound(function: Callable[..., Any], model: ErrorModel) -> Callable[..., Any]:
    """The function, with the stand-in where its module's names mean NumPy.

    Other functions of its module that it calls are rebound too; anything that is no
    plain function is called as it is."""
    if not isinstance(function, types.FunctionType):
        return function
    home = function.__globals__
    names = dict(home)
    stand_in = NumpyStandIn(model)
    for name, thing in home.items():
        if thing is np:
            names[name] = stand_in
        elif isinstance(thing, types.FunctionType) and thing.__globals__ is home:
            names[name] = _with_globals(thing, names)
        else:
            names[name] = replaced(thing, model)
    return _with_globals(function, names)


def _with_globals(function: types.FunctionType, names: dict[str, Any]) -> Any:
    copy = types.FunctionType(
        function.__code__,
        names,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
