"""ScalarE's functions, computed under every policy and in exact arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.api.jit import jit
from neuronjax.diagnostics.reference64_tables import UNARY
from neuronjax.execution.tiles.activation_functions import function
from neuronjax.hardware.activation_functions import ACTIVATION_FUNCTIONS
from neuronjax.policy import Policy
from neuronjax.policy.values import LEGAL
from neuronjax.testing.silicon.cases import patterns

_TINY = np.float32(2.0**-126)
_WHOLE = ("copy", "square", "abs", "sign", "relu")  # functions with exact zeros

_IN_JAX: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "erf": jax.lax.erf,
    "log": jnp.log,
    "sin": jnp.sin,
    "arctan": jnp.arctan,
    "sqrt": jnp.sqrt,
    "rsqrt": jax.lax.rsqrt,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}
_IN_FLOAT64: Mapping[str, Callable[[np.ndarray], np.ndarray]] = UNARY | {
    "exp": UNARY["exponential"],
    "sigmoid": UNARY["logistic"],
    "sin": UNARY["sine"],
    "arctan": UNARY["atan"],
    "silu": lambda x: x * UNARY["logistic"](x),
    "softplus": lambda x: np.logaddexp(0, x),
}
OURS = "transcendentals=exact"


def answers(name: str, x: np.ndarray) -> dict[str, np.ndarray]:
    """Return the results of a function for FP32 `x`, by the alternative's name.

    Of alternatives with the same bits for all of `x`, only the first is returned."""
    results = {OURS: _emulated(name, x)}
    if name in _IN_JAX:
        for value in map(str, LEGAL["transcendentals"]):
            result = np.asarray(_step(name, value)(x))
            results.setdefault(f"transcendentals={value}", result)
    if name in _IN_FLOAT64:
        results["correctly rounded"] = _exact(name, x).astype(np.float32)
    mask = compared(name, x)
    by_bits = {patterns(r[mask]).tobytes(): key for key, r in reversed(results.items())}
    return {key: r for key, r in results.items() if key in by_bits.values()}


@functools.cache
def _step(name: str, value: str) -> Callable[..., jax.Array]:
    return jit(_IN_JAX[name], target="trn2", policy=Policy(transcendentals=value))


@functools.cache
def _kernel(name: str) -> Callable[..., jax.Array]:
    return jax.jit(function(name))


def _emulated(name: str, x: np.ndarray) -> np.ndarray:
    return np.asarray(_kernel(name)(x, np.float32(-0.0)))


def compared(name: str, x: np.ndarray) -> np.ndarray:
    """Return a mask of the results whose arguments are in the documented range.

    Subnormal arguments and results belong to another question."""
    inside = [(low <= x) & (x <= high) for low, high in ACTIVATION_FUNCTIONS[name]]
    result = _emulated(name, x)
    small = np.abs(result) < _TINY
    if name in _WHOLE:
        small &= result != 0
    numeric = np.isfinite(x) & (np.abs(x) >= _TINY) & ~small
    return functools.reduce(np.logical_or, inside) & numeric


def largest_error(name: str, x: np.ndarray, found: np.ndarray) -> float | None:
    """Return the largest error of `found` in ULP; None if no exact result is known."""
    if name not in _IN_FLOAT64:
        return None
    exact = _exact(name, x)
    mask = compared(name, x) & np.isfinite(found)
    mask &= (np.abs(exact) >= float(_TINY)) & (np.abs(exact) < 2.0**127)
    if not mask.any():
        return None
    step = np.spacing(np.abs(exact[mask]).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(found[mask] - exact[mask]) / step))


def _exact(name: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return _IN_FLOAT64[name](x.astype(np.float64))
