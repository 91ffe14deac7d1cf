"""Forward mode of an emulation, refused by name wherever JAX takes it.

A `custom_vjp` says that it has no forward mode when its tangents are computed, which
may be long after the call and in somebody else's `jax.jit`, and in JAX's words. So an
identity stands in front of the arguments. Its tangent is an operation that transposes
to the identity and that nothing computes: reverse mode takes it away, and forward mode
arrives at it before it does at the `custom_vjp`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from neuronjax.errors import UnsupportedError, program_line

primal_p = Primitive("no_forward_mode")
tangent_p = Primitive("no_forward_mode_tangent")


def reverse_mode_only(x: jax.Array, name: str) -> jax.Array:
    """An argument of `name`, an emulated function, whose tangent is an error."""
    return primal_p.bind(x, name=name)


def _refuse(*_: Any, name: str) -> NoReturn:
    raise UnsupportedError(
        "forward-mode differentiation (jvp, linearize, jacfwd, hessian) of "
        f"{name}: the chip runs forward and backward programs",
        location=program_line(),
        remedy="use jax.grad, jax.vjp or jax.jacrev; jacrev(jacrev(f)) for a Hessian; "
        "or emulate forward mode too, nj.jit(lambda x, t: jax.jvp(f, (x,), (t,)))",
    )


def _derivative(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    zero = isinstance(t, ad.Zero)
    return primal_p.bind(x, **params), t if zero else tangent_p.bind(t, **params)


for primitive in (primal_p, tangent_p):
    primitive.def_abstract_eval(lambda x, **_: x)
batching.defvectorized(primal_p)
batching.primitive_batchers[tangent_p] = _refuse
primal_p.def_impl(lambda x, **_: x)
mlir.register_lowering(primal_p, lambda _context, x, **_: [x])
ad.primitive_jvps[primal_p] = _derivative
tangent_p.def_impl(_refuse)
mlir.register_lowering(tangent_p, _refuse)
ad.deflinear2(tangent_p, lambda cotangent, _, **params: [cotangent])
