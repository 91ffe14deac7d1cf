"""Complex numbers: arithmetic, functions, comparisons, movement, dots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.conformance.table.case import Check, Close, Exact, Input, rows

Function = Any
SHAPE = (4, 6)

#: Parts are moved, or each is one rounded op.
EXACT: Mapping[str, Function] = {
    "real": lambda x, y: x.real,
    "imag": lambda x, y: x.imag,
    "complex": lambda x, y: lax.complex(x.real, y.imag),
    "conj": lambda x, y: jnp.conj(x),
    "neg": lambda x, y: -x,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "add_real": lambda x, y: x + y.real,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != x[::-1],
    "select": lambda x, y: jnp.where(x.real > 0, x, y),
    "from_real": lambda x, y: x.real.astype(jnp.complex64),
    "from_int": lambda x, y: jnp.arange(5).astype(jnp.complex64),
    "is_finite": lambda x, y: jnp.isfinite(x),
    "transpose": lambda x, y: x.T,
    "slice": lambda x, y: x[1:3, ::2],
    "reverse": lambda x, y: x[::-1],
    "concatenate": lambda x, y: jnp.concatenate([x, y], 1),
    "pad": lambda x, y: lax.pad(x, y[0, 0], ((1, 0, 1), (0, -1, 0))),
    "gather": lambda x, y: x[jnp.array([3, 0, 9])],
    "scatter_set": lambda x, y: x.at[jnp.array([1, 3])].set(y[:2]),
    "scatter_add": lambda x, y: x.at[jnp.array([1, 3])].add(y[:2]),
    "dynamic_slice": lambda x, y: lax.dynamic_slice(x, (1, 2), (2, 3)),
    "dynamic_update": lambda x, y: lax.dynamic_update_slice(x, y[:1], (2, 0)),
    "broadcast": lambda x, y: jnp.broadcast_to(x[:, None], (4, 2, 6)),
    "reshape": lambda x, y: x.reshape(8, 3),
    "constant": lambda x, y: jnp.array([1 + 2j, -3j], jnp.complex64),
    "iota": lambda x, y: lax.iota(jnp.complex64, 5),
    "scan": lambda x, y: lax.scan(lambda c, r: (c + r, c), x[0], y),
    "cond": lambda x, y: lax.cond(x[0, 0].real > 0, lambda: x, lambda: y),
}
ROUNDED: Mapping[str, Function] = {
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "reciprocal": lambda x, y: 1 / x,
    "square": lambda x, y: lax.square(x),
    "abs": lambda x, y: jnp.abs(x),
    "angle": lambda x, y: jnp.angle(x),
    "sign": lambda x, y: lax.sign(x),
    "exp": lambda x, y: jnp.exp(x),
    "expm1": lambda x, y: jnp.expm1(x),
    "log": lambda x, y: jnp.log(x),
    "log1p": lambda x, y: jnp.log1p(x),
    "sqrt": lambda x, y: jnp.sqrt(x),
    "rsqrt": lambda x, y: lax.rsqrt(x),
    "sin": lambda x, y: jnp.sin(x),
    "cos": lambda x, y: jnp.cos(x),
    "tan": lambda x, y: jnp.tan(x),
    "tanh": lambda x, y: jnp.tanh(x),
    "sinh": lambda x, y: jnp.sinh(x),
    "cosh": lambda x, y: jnp.cosh(x),
    "logistic": lambda x, y: lax.logistic(x),
    "asin": lambda x, y: jnp.arcsin(x),
    "acos": lambda x, y: jnp.arccos(x),
    "atan": lambda x, y: jnp.arctan(x),
    "asinh": lambda x, y: jnp.arcsinh(x),
    "acosh": lambda x, y: jnp.arccosh(x),
    "atanh": lambda x, y: jnp.arctanh(x),
    "pow": lambda x, y: x**y,
    "integer_pow": lambda x, y: x**3,
    "sum": lambda x, y: x.sum(0),
    "prod": lambda x, y: x.prod(1),
    "mean": lambda x, y: x.mean(),
    "cumsum": lambda x, y: jnp.cumsum(x, 1),
    "dot": lambda x, y: x @ y.T,
    "vdot": lambda x, y: jnp.vdot(x, y),
    "dot_batch": lambda x, y: jnp.einsum("bi,bj->bij", x, y),
    "dot_real": lambda x, y: x @ y.real.T,
    "conv": lambda x, y: lax.conv(x[None, None], y[None, None, :2, :2], (1, 1), "SAME"),
    "grad_abs": lambda x, y: jax.grad(lambda x: jnp.abs(x).sum())(x),
    "grad_holomorphic": lambda x, y: jax.grad(
        lambda x: (x * x).sum(), holomorphic=True
    )(x),
    "sort": lambda x, y: jnp.sort(x),
}


def two(dtype: str) -> tuple[Input, ...]:
    return Input(SHAPE, dtype), Input(SHAPE, dtype)


CLOSE: Check = Close(1e-5, 3e-6)

CASES = (
    *rows(EXACT, ("complex64",), two, Exact()),
    *rows(ROUNDED, ("complex64",), two, CLOSE),
)
