"""Tracking of arrays that a reference makes itself: `np.zeros(...)`, then assignments.

NumPy's protocols do not cover these arrays. So while the reference runs, `np` in its
module is replaced by a stand-in whose functions return arrays with errors (`Tracked`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from neuronjax.diagnostics.tolerance.model import ErrorModel
from neuronjax.diagnostics.tolerance.tracked import Tracked, as_tracked

_MAKERS = (
    *(np.zeros, np.ones, np.empty, np.full),
    *(np.asarray, np.array, np.ascontiguousarray),
)


class _ArrayType(type):
    """A stand-in for `np.ndarray`: a call returns a tracked array, and `isinstance`
    accepts tracked arrays too."""

    model: ErrorModel

    def __call__(cls, *args: Any, **named: Any) -> Any:
        return _tracked(np.ndarray(*args, **named), cls.model, zeroed=True)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, np.ndarray | Tracked)


def _tracked(array: Any, model: ErrorModel, zeroed: bool = False) -> Any:
    if isinstance(array, Tracked) or array.dtype.kind in "iubOSU":
        return array
    if zeroed:
        array = np.zeros(array.shape, array.dtype)
    return as_tracked(array, model)


class NumpyStandIn:
    """A stand-in for NumPy in which `zeros` and the like return tracked arrays."""

    def __init__(self, model: ErrorModel) -> None:
        self.model = model
        self.ndarray = _ArrayType("ndarray", (), {"model": model})

    def __getattr__(self, name: str) -> Any:
        return replaced(getattr(np, name), self.model)


def replaced(thing: Any, model: ErrorModel) -> Any:
    """Return `thing`; for one of `_MAKERS`, a function that returns tracked arrays."""
    if not callable(thing) or not any(thing is maker for maker in _MAKERS):
        return thing

    def make(*args: Any, **named: Any) -> Any:
        if args and isinstance(args[0], Tracked):
            return _copied(thing, args[0], *args[1:], **named)
        parts = args[0] if args and isinstance(args[0], list | tuple) else ()
        if any(isinstance(part, Tracked) for part in parts):
            return np.stack(parts)
        return _tracked(thing(*args, **named), model, zeroed=thing is np.empty)

    return make


def _copied(maker: Any, x: Tracked, dtype: Any = None, **_: Any) -> Any:
    result = np.copy(x) if maker is np.array else x
    return result if dtype is None else result.astype(dtype)


def stand_ins(function: Callable[..., Any], model: ErrorModel) -> dict[str, Any]:
    """Return replacements for NumPy and for the functions in `_MAKERS`, by their names
    in the module of `function`; an empty dict if `function` has no globals."""
    whole, held = NumpyStandIn(model), getattr(function, "__globals__", {})
    new = {n: whole if x is np else replaced(x, model) for n, x in held.items()}
    return {name: x for name, x in new.items() if x is not held[name]}


@contextlib.contextmanager
def names_changed(
    function: Callable[..., Any], names: Mapping[str, Any]
) -> Iterator[None]:
    """Set the globals `names` in the module of `function` during the `with` block."""
    home = getattr(function, "__globals__", {})
    before = {name: home[name] for name in names if name in home}
    home.update(names)
    try:
        yield
    finally:
        for name in names:
            home.pop(name, None)
        home.update(before)
