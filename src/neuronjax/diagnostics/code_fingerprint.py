"""A hash of functions and plain values, which detects that their source changed.

The hash of a function covers its bytecode, defaults and closure, and every object of
the same module that the function uses. Comments and layout do not count. Functions and
classes of other modules count by name only. Bytecode depends on the version of Python,
so a hash is valid for one version.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
# `_CodeWriter` writes values of these types in full each time, because Python's
# compiler may use one object for two equal values.
_VALUES = (tuple, frozenset, np.generic, np.ndarray, jax.Array)
_DIGITS = 16


def code_fingerprint(*things: Any) -> str:
    """Return a hash of `things` as hexadecimal digits.

    `things` may be functions, numbers, text, arrays, dataclasses, and containers of
    them. Any other object counts by its class only."""
    text = "\n".join(_CodeWriter().of(thing) for thing in things)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


class _CodeWriter:
    """A writer of objects as text; an object that occurs again becomes a number."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}

    def of(self, thing: Any) -> str:
        if isinstance(thing, _PLAIN):
            return repr(thing)
        if not isinstance(thing, _VALUES):
            if id(thing) in self._seen:
                return f"<{self._seen[id(thing)][0]}>"
            # The object is kept alive, so that no other object gets its id.
            self._seen[id(thing)] = (len(self._seen), thing)
        return f"{type(thing).__name__}({', '.join(self._parts(thing))})"

    def _parts(self, thing: Any) -> Iterator[str]:
        describe = next((d for kind, d in self._KINDS if isinstance(thing, kind)), None)
        if describe is not None:
            yield from describe(self, thing)
        elif dataclasses.is_dataclass(thing):
            yield type(thing).__qualname__
            for field in dataclasses.fields(thing):
                yield f"{field.name}={self.of(getattr(thing, field.name))}"
        elif wrapped := getattr(thing, "__wrapped__", None):
            yield self.of(wrapped)
        else:
            yield f"{type(thing).__module__}.{type(thing).__qualname__}"

    def _array(self, array: Any) -> Iterator[str]:
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.key_data(array)
        values = np.asarray(array)
        yield f"{values.shape} {values.dtype}"
        yield hashlib.sha256(values.tobytes()).hexdigest()

    def _class(self, cls: type) -> Iterator[str]:
        yield f"{cls.__module__}.{cls.__qualname__}"
        yield from (self._global(base, cls.__module__) for base in cls.__bases__)
        for value in vars(cls).values():
            function = getattr(value, "__func__", value)
            if isinstance(function, types.FunctionType):
                yield self.of(function)

    def _function(self, function: types.FunctionType) -> Iterator[str]:
        code = function.__code__
        yield from self._code(code)
        yield self.of(function.__defaults__)
        yield self.of(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            yield self.of(_content(cell))
        for name in sorted(_names(code)):
            if name in function.__globals__:
                value = function.__globals__[name]
                yield f"{name}={self._global(value, function.__module__)}"

    def _global(self, value: Any, module: str) -> str:
        if callable(value) and getattr(value, "__module__", None) != module:
            name = getattr(value, "__qualname__", type(value).__qualname__)
            return f"{getattr(value, '__module__', '')}.{name}"
        return self.of(value)

    def _code(self, code: types.CodeType) -> Iterator[str]:
        yield code.co_code.hex()
        yield repr((code.co_names, code.co_varnames, code.co_freevars))
        for value in code.co_consts:
            nested = isinstance(value, types.CodeType)
            yield ", ".join(self._code(value)) if nested else self.of(value)

    _KINDS: tuple[tuple[Any, Callable[..., Iterator[str]]], ...] = (
        (types.FunctionType, _function),
        (types.MethodType, lambda self, m: map(self.of, (m.__func__, m.__self__))),
        (functools.partial, lambda self, p: map(self.of, (p.func, p.args, p.keywords))),
        (types.ModuleType, lambda self, module: iter([module.__name__])),
        (type, _class),
        ((np.ndarray, np.generic, jax.Array), _array),
        ((tuple, list), lambda self, values: map(self.of, values)),
        ((set, frozenset), lambda self, values: iter(sorted(map(self.of, values)))),
        (
            Mapping,
            lambda self, held: (f"{self.of(k)}: {self.of(held[k])}" for k in held),
        ),
    )


def _names(code: types.CodeType) -> set[str]:
    nested = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(_names, nested))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None
