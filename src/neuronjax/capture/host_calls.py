"""Linear algebra that stays whole in a captured program, as a call of the host.

JAX has no lowering of these primitives for platform "neuron", or one that calls what
only other compilers know, or one that needs the former. Each is captured as the custom
call `neuronjax.host`, whose backend_config says which primitive, with its parameters.
Whether it may run is the policy's to say (`host_custom_calls`), at lowering.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import primitives as known
from jax.interpreters import mlir

from neuronjax.ir import host_functions

# The newest version of custom calls whose backend_config is a text.
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
def keep_linear_algebra_whole(platform: str) -> None:
    """Registers the lowerings, once; on other platforms JAX's own stay."""
    for primitive in (*LINEAR_ALGEBRA, _geqrf()):
        on_platform(platform, primitive, functools.partial(_host_call, primitive))


def _host_call(primitive: Any, context: Any, *operands: Any, **parameters: Any) -> Any:
    text = host_functions.register(primitive.name, primitive.bind, parameters)
    call = jax.ffi.ffi_lowering(
        host_functions.CALL, backend_config=text, api_version=_API_WITH_TEXT
    )
    return call(context, *operands)


def _geqrf() -> Any:
    """The one primitive of the family without a public name."""
    square = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    raw = functools.partial(jnp.linalg.qr, mode="raw")
    found = {e.primitive for e in leaves(jax.make_jaxpr(raw)(square).jaxpr)}
    [primitive] = [p for p in found if p.name == "geqrf"]
    return primitive


def on_platform(platform: str, primitive: Any, rule: Callable[..., Any]) -> None:
    """Registers a lowering rule for a platform that JAX does not know.

    JAX takes rules for its own platforms only, so this one is the rule of all that have
    none of their own, and asks for which platform it is called.
    """
    # Private, but the only way to the rule that is replaced.
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


def leaves(jaxpr: Any) -> Iterator[Any]:
    """The equations that hold no others."""
    for equation in jaxpr.eqns:
        inner = [p.jaxpr for p in equation.params.values() if hasattr(p, "jaxpr")]
        if not inner:
            yield equation
        for one in inner:
            yield from leaves(one)
