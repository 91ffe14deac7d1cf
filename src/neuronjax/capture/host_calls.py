"""Lowers primitives that JAX cannot lower for platform "neuron" to custom calls.

- Linear algebra and callbacks become the custom call `neuronjax.host`, whose
  backend_config names the primitive with its parameters. `jax.debug.print` and
  `jax.debug.callback` change no values, so they always run; the policy decides about
  the others at lowering (`host_custom_calls`, `callbacks`). A captured program has no
  tokens: its instructions are in order, and the emulation binds effects as ordered.
- The primitive behind `jax.nn.scaled_matmul` becomes `__op$block_scaled_dot` of (lhs,
  rhs, lhs scales, rhs scales), a custom call of the vendor's compiler: a NeuronCore has
  the operation, but JAX lowers it only for CUDA, or to plain arithmetic on dequantized
  operands.

A primitive without a public name is taken from the jaxpr of a public function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.extend.core import ClosedJaxpr, primitives as known
from jax.interpreters import mlir

from neuronjax.errors import UnsupportedError, program_line
from neuronjax.ir import host_functions
from neuronjax.numerics.host_kernels.choice import host_p

# The newest version of custom calls whose backend_config is text.
_API_WITH_TEXT = 2

LINEAR_ALGEBRA = (
    known.eig_p,
    known.eigh_p,
    known.hessenberg_p,
    known.householder_product_p,
    known.qr_p,
    known.schur_p,
    known.svd_p,
    known.tridiagonal_p,
)


@functools.cache
def keep_whole(platform: str) -> None:
    """Register the lowerings for a platform, once; other platforms keep JAX's own."""
    for primitive in (*LINEAR_ALGEBRA, geqrf()):
        on_platform(platform, primitive, functools.partial(_host_call, primitive))
    for equation in _callbacks(ordered=False).values():
        rule = functools.partial(_callback, equation.primitive)
        on_platform(platform, equation.primitive, rule)
    scaled_dot = jax.ffi.ffi_lowering("__op$block_scaled_dot")
    on_platform(platform, _scaled_matmul(), lambda c, *x, **_: scaled_dot(c, *x))


def on_platform(platform: str, primitive: Any, rule: Callable[..., Any]) -> None:
    """Register a lowering rule for a platform that JAX does not know. JAX only accepts
    rules for its own platforms, so a default for all platforms is registered, which
    calls the earlier default if the platform is not `platform`."""
    # This attribute is private, but nothing public has the earlier default.
    entry: Any = mlir._lowerings.get(primitive)  # type: ignore[attr-defined]
    others = getattr(entry, "rule", entry)

    def chosen(context: Any, *operands: Any, **parameters: Any) -> Any:
        if tuple(context.module_context.platforms) == (platform,):
            return rule(context, *operands, **parameters)
        if others is None:
            raise NotImplementedError(
                f"MLIR translation rule for primitive '{primitive}' not found for "
                f"platforms {context.module_context.platforms}"
            )
        return others(context, *operands, **parameters)

    mlir.register_lowering(primitive, chosen)


# -- the primitives --------------------------------------------------------------------


def leaves(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr that contain no other equations."""
    for equation in jaxpr.eqns:
        inner = [p.jaxpr for p in equation.params.values() if hasattr(p, "jaxpr")]
        if not inner:
            yield equation
        for one in inner:
            yield from leaves(one)


def geqrf() -> Any:
    """Return the primitive `geqrf`, which has no public name."""
    square = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    raw = functools.partial(jnp.linalg.qr, mode="raw")
    primitives = {e.primitive for e in leaves(jax.make_jaxpr(raw)(square).jaxpr)}
    [primitive] = [p for p in primitives if p.name == "geqrf"]
    return primitive


def _scaled_matmul() -> Any:
    elements = jax.ShapeDtypeStruct((1, 1, 32), jnp.float8_e4m3fn)
    scales = jax.ShapeDtypeStruct((1, 1, 1), jnp.float8_e8m0fnu)
    traced = jax.make_jaxpr(jax.nn.scaled_matmul)(elements, elements, scales, scales)
    [primitive] = {e.primitive for e in leaves(traced.jaxpr)}
    return primitive


@functools.cache
def _callbacks(ordered: bool) -> dict[str, Any]:
    """Return an equation of every kind of callback, by the primitive's name."""

    def function(x: Any) -> Any:
        jax.debug.print("{}", x, ordered=ordered)
        jax.debug.callback(lambda x: None, x, ordered=ordered)
        io_callback(lambda x: None, None, x, ordered=ordered)
        return jax.pure_callback(lambda x: x, x, x)

    jaxpr = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((), jnp.float32))
    return {equation.primitive.name: equation for equation in leaves(jaxpr.jaxpr)}


# -- their lowerings -------------------------------------------------------------------


def _host_call(primitive: Any, context: Any, *operands: Any, **parameters: Any) -> Any:
    text = host_functions.register(primitive.name, primitive.bind, parameters)
    return custom_call(text)(context, *operands)


def custom_call(
    text: str, target: str = host_functions.CALL, *, has_effect: bool = False
) -> Callable[..., Any]:
    """Return the lowering to a custom call with `text` as backend_config."""
    return jax.ffi.ffi_lowering(
        target,
        backend_config=text,
        api_version=_API_WITH_TEXT,
        has_side_effect=has_effect,
    )


def _callback(primitive: Any, context: Any, *operands: Any, **parameters: Any) -> Any:
    has_effect = primitive.name != "pure_callback"
    shown, line = _callback_of(parameters)
    text = host_functions.register(
        primitive.name,
        primitive.bind,
        {**parameters, **_order(primitive.name, ordered=has_effect)},
        kind="debug" if primitive.name.startswith("debug") else "callback",
        shown=shown,
        line=line,
    )
    return custom_call(text, has_effect=has_effect)(context, *operands)


def _callback_of(parameters: Mapping[str, Any]) -> tuple[str, str]:
    """Return a callback's name or format, and the "file:line" of its definition."""
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


# -- the order of effects --------------------------------------------------------------


def unordered(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the same program without ordered effects, which would need tokens."""
    equations = [_unordered(equation) for equation in closed.jaxpr.eqns]
    effects = frozenset().union(*(e.effects for e in equations))
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=equations, effects=effects))


def _unordered(equation: Any) -> Any:
    changes = _order(equation.primitive.name, ordered=False)
    if changes:
        effects = _callbacks(False)[equation.primitive.name].effects
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


def _order(name: str, ordered: bool) -> dict[str, Any]:
    """Return the parameters that make a callback `ordered` or not; {} for other ops."""
    sample = _callbacks(ordered).get(name)
    parameters = sample.params if sample else {}
    return {k: v for k, v in parameters.items() if k in ("ordered", "effect")}


# -- kernels of this host --------------------------------------------------------------


def _of_this_host(context: Any, x: Any) -> list[Any]:
    """Lower the identity that precedes a kernel compiled for this host.

    An export is refused here, because only lowering, not tracing, shows whether a
    program is for another machine."""
    if context.module_context.lowering_parameters.for_export:
        raise UnsupportedError(
            "jax.export cannot write a function in which something is emulated or "
            "cast: neuronjax's compiled kernels run only on this machine",
            location=program_line(),
            remedy='export it inside "with nj.exportable():", which writes StableHLO '
            "with the same bits; jax.export.export(nj.jit(f)) does not need it",
        )
    return [x]


mlir.register_lowering(host_p, _of_this_host)
