"""ScalarE's functions by their nki.language names, on FP32.

Functions that are compositions (gelu, softplus, mish ...) are evaluated as nki.language
defines them, with every step one rounded FP32 operation (modelled). The engine's own
piecewise polynomials are not documented: `numerics.scalar_engine` models those of the
functions that it lists, under `transcendentals="scalar_engine"`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.errors import UnimplementedError
from neuronjax.numerics import elementary, scalar_engine
from neuronjax.numerics.elementary_core import flush
from neuronjax.numerics.elementary_trigonometric import sin_as_scalar_engine
from neuronjax.numerics.exact import seal

Function = Callable[[jax.Array, jax.Array], jax.Array]

_HALF_ROOT = np.float32(1 / math.sqrt(2))
_DENSITY = np.float32(1 / math.sqrt(2 * math.pi))
_TANH_SCALE = np.float32(math.sqrt(2 / math.pi))
_TANH_CUBIC = np.float32(0.044715)
_SIGMOID_SCALE = np.float32(1.702)
_ERF_SLOPE = np.float32(2 / math.sqrt(math.pi))
# Above this, log(1 + exp(x)) is x in FP32; far above, exp(x) overflows.
_LINEAR = np.float32(20)
_HALF, _ONE = np.float32(0.5), np.float32(1)


class _Rounded(NamedTuple):
    """FP32 numbers; the result of every operation is rounded and sealed."""

    array: jax.Array
    zero: jax.Array

    def __mul__(self, other: _Rounded | np.float32) -> _Rounded:  # type: ignore[override]
        return self.of(self.array * self._other(other))

    def __add__(self, other: _Rounded | np.float32) -> _Rounded:  # type: ignore[override]
        return self.of(self.array + self._other(other))

    def __rsub__(self, other: float) -> _Rounded:
        return self.of(jnp.float32(other) - self.array)

    def _other(self, other: _Rounded | np.float32) -> jax.Array:
        if isinstance(other, _Rounded):
            return other.array
        return jnp.full_like(self.array, other)

    def of(self, array: jax.Array) -> _Rounded:
        return _Rounded(seal(array, self.zero), self.zero)

    def through(self, name: str) -> _Rounded:
        return self.of(elementary.UNARY[name](self.array, self.zero))

    def where(self, condition: jax.Array, value: float) -> _Rounded:
        return self._replace(array=jnp.where(condition, np.float32(value), self.array))


def _gated(x: _Rounded, gate: _Rounded) -> _Rounded:
    """Return x times a gate; -Inf times 0 gives -0, the limit, and not NaN."""
    return (x * gate).where(x.array == -jnp.inf, -0.0)


def _normal(x: _Rounded) -> _Rounded:
    """Return the cumulative normal distribution, (1 + erf(x / sqrt 2)) / 2."""
    return ((x * _HALF_ROOT).through("erf") + _ONE) * _HALF


def _gaussian(x: _Rounded, scale: np.float32) -> _Rounded:
    return (x * x * scale).through("exponential")


def _gelu_dx(x: _Rounded) -> _Rounded:
    bell = _gaussian(x, np.float32(-0.5)) * _DENSITY
    return _normal(x) + (x * bell).where(jnp.isinf(x.array), 0)


def _gelu_tanh(x: _Rounded) -> _Rounded:
    """Return gelu by tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
    bent = ((x + x * x * x * _TANH_CUBIC) * _TANH_SCALE).through("tanh")
    return ((x * _HALF) * (bent + _ONE)).where(x.array == -jnp.inf, -0.0)


def _gate_slope(x: _Rounded) -> _Rounded:
    """Return the derivative of x sigmoid(x): s + x s (1 - s)."""
    s = x.through("logistic")
    bell = s * (1.0 - s)
    return s + (x * bell).where(bell.array == 0, 0)


def _softplus(x: _Rounded) -> _Rounded:
    """Return log(1 + exp(x)), and x itself above 20."""
    grown = x._replace(array=lax.min(x.array, _LINEAR)).through("exponential")
    low = grown.through("log_plus_one").array
    return x._replace(array=jnp.where(x.array > _LINEAR, x.array, low))


_COMPOSITIONS: dict[str, Callable[[_Rounded], _Rounded]] = {
    "square": lambda x: x * x,
    "gelu": lambda x: _gated(x, _normal(x)),
    "gelu_dx": _gelu_dx,
    "gelu_apprx_tanh": _gelu_tanh,
    "gelu_apprx_sigmoid": lambda x: _gated(x, (x * _SIGMOID_SCALE).through("logistic")),
    "gelu_apprx_sigmoid_dx": lambda x: _gate_slope(x * _SIGMOID_SCALE),
    "silu": lambda x: _gated(x, x.through("logistic")),
    "silu_dx": _gate_slope,
    "softplus": _softplus,
    "mish": lambda x: _gated(x, _softplus(x).through("tanh")),
    "erf_dx": lambda x: _gaussian(x, np.float32(-1)) * _ERF_SLOPE,
    "reciprocal": lambda x: x.through("reciprocal"),
    "sin": lambda x: x.of(sin_as_scalar_engine(x.array, x.zero)),
}


def relu_with_slope(x: jax.Array, slope: jax.Array, zero: jax.Array) -> jax.Array:
    """Return x, or slope * x where x is negative."""
    x = flush(x)
    return jnp.where(x < 0, seal(x * slope, zero), x)


def _relu(x: jax.Array, zero: jax.Array) -> jax.Array:
    return lax.max(flush(x), jnp.float32(0))


def _composed(function: Callable[[_Rounded], _Rounded]) -> Function:
    return lambda x, zero: function(_Rounded(x, zero)).array


FUNCTIONS: dict[str, Function] = {
    "copy": lambda x, zero: x,
    "abs": lambda x, zero: lax.abs(x),
    "sign": lambda x, zero: lax.sign(flush(x)),
    "relu": _relu,
    # Without a parameter the slope is 0 (nki.isa.activate2: relu_param=0.0).
    "prelu": _relu,
    **{
        name: _composed(lambda x, op=op: x.through(op))
        for op, name in scalar_engine.OF_PROGRAMS.items()
    },
    **{name: _composed(function) for name, function in _COMPOSITIONS.items()},
}


def function(name: str, transcendentals: str = "exact") -> Function:
    """Return the function of this name in nki.language, which takes a float32 array and
    the opaque zero. `transcendentals` is "exact", or "scalar_engine" for the engine's
    tables."""
    if name not in FUNCTIONS:
        raise UnimplementedError(
            f"activation function {name}",
            op="nisa.activation",
            remedy=f"one of {', '.join(sorted(FUNCTIONS))}",
        )
    if transcendentals == "scalar_engine" and name in scalar_engine.tables():
        piecewise = scalar_engine.function(name)
        return lambda x, zero: seal(piecewise(x, zero), zero)
    return FUNCTIONS[name]
