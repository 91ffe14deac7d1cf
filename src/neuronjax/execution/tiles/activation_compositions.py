"""ScalarE's functions that are compositions: gelu and its like, softplus, mish.

Every step is one FP32 operation, rounded; the engine's piecewise polynomials are not
documented (modelled). Definitions: nki.language.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.numerics import elementary
from neuronjax.numerics.elementary_core import flush
from neuronjax.numerics.exact import seal

Function = Callable[[jax.Array, jax.Array], jax.Array]

_HALF_ROOT = np.float32(1 / math.sqrt(2))
_DENSITY = np.float32(1 / math.sqrt(2 * math.pi))
_TANH_SCALE = np.float32(math.sqrt(2 / math.pi))
_TANH_CUBIC = np.float32(0.044715)
_SIGMOID_SCALE = np.float32(1.702)
_ERF_SLOPE = np.float32(2 / math.sqrt(math.pi))
# Beyond it exp(x) is lost beside x in FP32, or overflows.
_LINEAR = np.float32(20)


def _of(name: str, x: jax.Array, zero: jax.Array) -> jax.Array:
    return seal(elementary.UNARY[name](x, zero), zero)


def _times(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    return seal(a * b, zero)


def _plus(a: jax.Array, b: jax.Array, zero: jax.Array) -> jax.Array:
    return seal(a + b, zero)


def _number(value: np.float32, x: jax.Array) -> jax.Array:
    return jnp.full_like(x, value)


def _scaled(x: jax.Array, value: np.float32, zero: jax.Array) -> jax.Array:
    return _times(x, _number(value, x), zero)


def _one_plus(x: jax.Array, zero: jax.Array) -> jax.Array:
    return _plus(x, _number(np.float32(1), x), zero)


def _one_minus(x: jax.Array, zero: jax.Array) -> jax.Array:
    return seal(jnp.float32(1) - x, zero)


def _normal(x: jax.Array, zero: jax.Array) -> jax.Array:
    """The cumulative distribution: (1 + erf(x / sqrt 2)) / 2."""
    inner = _of("erf", _scaled(x, _HALF_ROOT, zero), zero)
    return _scaled(_one_plus(inner, zero), np.float32(0.5), zero)


def _gaussian(x: jax.Array, scale: np.float32, zero: jax.Array) -> jax.Array:
    """exp(scale x^2)."""
    return _of("exponential", _scaled(_times(x, x, zero), scale, zero), zero)


def gelu(x: jax.Array, zero: jax.Array) -> jax.Array:
    """x times the normal distribution."""
    return _at_infinity(x, _times(x, _normal(x, zero), zero))


def _at_infinity(x: jax.Array, value: jax.Array) -> jax.Array:
    """-Inf times 0 is not a NaN here: such functions go to -0."""
    return jnp.where(x == -jnp.inf, jnp.float32(-0.0), value)


def gelu_dx(x: jax.Array, zero: jax.Array) -> jax.Array:
    """The derivative of gelu."""
    bell = _scaled(_gaussian(x, np.float32(-0.5), zero), _DENSITY, zero)
    tail = jnp.where(jnp.isinf(x), jnp.float32(0), _times(x, bell, zero))
    return _plus(_normal(x, zero), tail, zero)


def gelu_tanh(x: jax.Array, zero: jax.Array) -> jax.Array:
    """gelu by tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
    cube = _times(_times(x, x, zero), x, zero)
    inner = _plus(x, _scaled(cube, _TANH_CUBIC, zero), zero)
    bent = _of("tanh", _scaled(inner, _TANH_SCALE, zero), zero)
    half = _scaled(x, np.float32(0.5), zero)
    return _at_infinity(x, _times(half, _one_plus(bent, zero), zero))


def _sigmoid(x: jax.Array, zero: jax.Array) -> jax.Array:
    return _of("logistic", x, zero)


def gelu_sigmoid(x: jax.Array, zero: jax.Array) -> jax.Array:
    """x sigmoid(1.702 x)."""
    gate = _sigmoid(_scaled(x, _SIGMOID_SCALE, zero), zero)
    return _at_infinity(x, _times(x, gate, zero))


def gelu_sigmoid_dx(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Its derivative: s + 1.702 x s (1 - s)."""
    scaled = _scaled(x, _SIGMOID_SCALE, zero)
    return _gate_slope(scaled, _sigmoid(scaled, zero), zero)


def _gate_slope(x: jax.Array, s: jax.Array, zero: jax.Array) -> jax.Array:
    bell = _times(s, _one_minus(s, zero), zero)
    tail = jnp.where(bell == 0, jnp.float32(0), _times(x, bell, zero))
    return _plus(s, tail, zero)


def silu(x: jax.Array, zero: jax.Array) -> jax.Array:
    """x sigmoid(x)."""
    return _at_infinity(x, _times(x, _sigmoid(x, zero), zero))


def silu_dx(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Its derivative: s + x s (1 - s)."""
    return _gate_slope(x, _sigmoid(x, zero), zero)


def softplus(x: jax.Array, zero: jax.Array) -> jax.Array:
    """log(1 + exp(x)); x itself above 20."""
    grown = _of("exponential", lax.min(x, _LINEAR), zero)
    return jnp.where(x > _LINEAR, x, _of("log_plus_one", grown, zero))


def mish(x: jax.Array, zero: jax.Array) -> jax.Array:
    """x tanh(softplus(x))."""
    bent = _of("tanh", softplus(x, zero), zero)
    return _at_infinity(x, _times(x, bent, zero))


def erf_dx(x: jax.Array, zero: jax.Array) -> jax.Array:
    """2 / sqrt(pi) exp(-x^2)."""
    return _scaled(_gaussian(x, np.float32(-1), zero), _ERF_SLOPE, zero)


def relu_with_slope(x: jax.Array, slope: jax.Array, zero: jax.Array) -> jax.Array:
    """x, or slope * x where x is negative."""
    x = flush(x)
    return jnp.where(x < 0, _times(x, slope, zero), x)


COMPOSITIONS: dict[str, Function] = {
    "gelu": gelu,
    "gelu_dx": gelu_dx,
    "gelu_apprx_tanh": gelu_tanh,
    "gelu_apprx_sigmoid": gelu_sigmoid,
    "gelu_apprx_sigmoid_dx": gelu_sigmoid_dx,
    "silu": silu,
    "silu_dx": silu_dx,
    "softplus": softplus,
    "mish": mish,
    "erf_dx": erf_dx,
    # Without a parameter the slope is 0 (nki.isa.activate2: relu_param=0.0).
    "prelu": lambda x, zero: lax.max(flush(x), jnp.float32(0)),
}
