"""Callbacks, each captured as a call of the host (`host_calls`), whole.

`jax.debug.print` and `jax.debug.callback` look at values and change none, so they
always run; whether `pure_callback` and `io_callback` may is the policy's to say
(`callbacks`), at lowering. A captured program holds no tokens: its instructions are in
order, and the emulation binds what has effects as ordered.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.extend.core import ClosedJaxpr

from neuronjax.capture.host_calls import leaves, on_platform
from neuronjax.ir import host_functions

# The newest version of custom calls whose backend_config is a text.
_API_WITH_TEXT = 2


@functools.cache
def keep_callbacks_whole(platform: str) -> None:
    """Registers the lowerings, once; on other platforms JAX's own stay."""
    for primitive in {equation.primitive for equation in _samples(ordered=False)}:
        on_platform(platform, primitive, functools.partial(_lowered, primitive))


@functools.cache
def _samples(ordered: bool) -> tuple[Any, ...]:
    """An equation of every kind: the primitives have no public names."""

    def function(x: Any) -> Any:
        jax.debug.print("{}", x, ordered=ordered)
        jax.debug.callback(lambda x: None, x, ordered=ordered)
        io_callback(lambda x: None, None, x, ordered=ordered)
        return jax.pure_callback(lambda x: x, x, x)

    jaxpr = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((), jnp.float32))
    return tuple(leaves(jaxpr.jaxpr))


def _lowered(primitive: Any, context: Any, *operands: Any, **parameters: Any) -> Any:
    effectful = primitive.name != "pure_callback"
    shown, line = _callback_of(parameters)
    text = host_functions.register(
        primitive.name,
        primitive.bind,
        {**parameters, **_order(primitive.name, ordered=effectful)},
        kind="debug" if primitive.name.startswith("debug") else "callback",
        shown=shown,
        line=line,
    )
    call = jax.ffi.ffi_lowering(
        host_functions.CALL,
        backend_config=text,
        api_version=_API_WITH_TEXT,
        has_side_effect=effectful,
    )
    return call(context, *operands)


def _callback_of(parameters: Mapping[str, Any]) -> tuple[str, str]:
    """What is called, without addresses, and the "file:line" of its definition."""
    if "fmt" in parameters:
        return repr(parameters["fmt"]), ""
    flat = parameters["callback"]
    function = getattr(flat, "callback_func", flat)
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    line = f"{code.co_filename}:{code.co_firstlineno}" if code else ""
    return getattr(function, "__name__", type(function).__name__), line


# -- order -----------------------------------------------------------------------------


def unordered(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program without ordered effects, which would need tokens."""
    equations = [_unordered(equation) for equation in closed.jaxpr.eqns]
    effects = frozenset().union(*(e.effects for e in equations))
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=equations, effects=effects))


def _unordered(equation: Any) -> Any:
    changes = _order(equation.primitive.name, ordered=False)
    if changes:
        effects = _sample(equation.primitive.name, ordered=False).effects
        return equation.replace(params={**equation.params, **changes}, effects=effects)
    parameters = {name: _inside(value) for name, value in equation.params.items()}
    inner = [j for value in parameters.values() for j in _jaxprs(value)]
    if not inner:
        return equation
    effects = frozenset().union(*(j.effects for j in inner))
    return equation.replace(params=parameters, effects=effects)


def _inside(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_inside, value)) if list(_jaxprs(value)) else value
    if isinstance(value, ClosedJaxpr):
        return unordered(value)
    if hasattr(value, "eqns"):
        return unordered(ClosedJaxpr(value, ())).jaxpr
    return value


def _jaxprs(value: Any) -> Iterator[Any]:
    for item in value if type(value) in (tuple, list) else (value,):
        if hasattr(item, "eqns"):
            yield item


def _sample(name: str, ordered: bool) -> Any:
    """A callback of that name, or None."""
    found = (e for e in _samples(ordered) if e.primitive.name == name)
    return next(found, None)


def _order(name: str, ordered: bool) -> dict[str, Any]:
    """The parameters of a callback of that name which say whether it is ordered."""
    sample = _sample(name, ordered)
    parameters = {} if sample is None else sample.params
    return {k: v for k, v in parameters.items() if k in ("ordered", "effect")}
