"""Forward mode and the transpose of an emulation, refused by name wherever taken.

A `custom_vjp` says that it has no forward mode when its tangents are computed, which
may be long after the call and in somebody else's `jax.jit`, and in JAX's words. So an
identity stands in front of the arguments. Its tangent is an operation that transposes
to the identity and that nothing computes: reverse mode takes it away, and forward mode
arrives at it before it does at the `custom_vjp`.

`jax.linear_transpose` goes through a function from its results, without tangents, and
JAX cannot transpose a `custom_vjp`. Another identity stands behind the results, which a
gradient does not see.
"""

from __future__ import annotations

from typing import Any, NoReturn

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from neuronjax.errors import UnsupportedError, program_line

primal_p = Primitive("no_forward_mode")
tangent_p = Primitive("no_forward_mode_tangent")
result_p = Primitive("no_transpose")


def reverse_mode_only(x: jax.Array, name: str) -> jax.Array:
    """An argument of `name`, an emulated function, whose tangent is an error."""
    return primal_p.bind(x, name=name)


def not_transposed(x: jax.Array, name: str) -> jax.Array:
    """A result of `name`, an emulated function, whose transpose is an error."""
    return result_p.bind(x, name=name)


def _refuse_transpose(*_: Any, name: str) -> NoReturn:
    raise UnsupportedError(
        f"jax.linear_transpose of {name}: the chip runs forward and backward programs",
        location=program_line(),
        remedy="use the second result of jax.vjp(f, *arguments), which is the same for "
        "a linear function; or emulate the transpose, "
        "nj.jit(lambda y: jax.linear_transpose(f, *arguments)(y))",
    )


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


def _result_derivative(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    return result_p.bind(*primals, **params), *tangents


for primitive in (primal_p, tangent_p, result_p):
    primitive.def_abstract_eval(lambda x, **_: x)
for primitive in (primal_p, result_p):
    batching.defvectorized(primitive)
    primitive.def_impl(lambda x, **_: x)
    mlir.register_lowering(primitive, lambda _context, x, **_: [x])
batching.primitive_batchers[tangent_p] = _refuse
ad.primitive_jvps[primal_p] = _derivative
ad.primitive_jvps[result_p] = _result_derivative
ad.primitive_transposes[result_p] = _refuse_transpose
tangent_p.def_impl(_refuse)
mlir.register_lowering(tangent_p, _refuse)
ad.deflinear2(tangent_p, lambda cotangent, _, **params: [cotangent])
