"""ScalarE's functions by their nki.language names, on FP32.

Compositions (silu, gelu ...) are evaluated as written, every step rounded to FP32. The
engine's own piecewise polynomials are not documented: `numerics.scalar_engine` models
those of the functions that it lists, under `transcendentals="scalar_engine"`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from neuronjax.errors import UnimplementedError
from neuronjax.execution.tiles.activation_compositions import COMPOSITIONS
from neuronjax.numerics import elementary, scalar_engine, scalar_engine_tables
from neuronjax.numerics.elementary_core import flush
from neuronjax.numerics.elementary_trigonometric import sin_as_scalar_engine
from neuronjax.numerics.exact import seal

Function = Callable[[jax.Array, jax.Array], jax.Array]


def _own(name: str) -> Function:
    function = elementary.UNARY[name]
    return lambda x, zero: seal(function(x, zero), zero)


FUNCTIONS: dict[str, Function] = {
    "copy": lambda x, zero: x,
    "square": lambda x, zero: seal(x * x, zero),
    "abs": lambda x, zero: lax.abs(x),
    "sign": lambda x, zero: lax.sign(flush(x)),
    "relu": lambda x, zero: lax.max(flush(x), jnp.float32(0)),
    "sigmoid": _own("logistic"),
    "tanh": _own("tanh"),
    "exp": _own("exponential"),
    "erf": _own("erf"),
    "log": _own("log"),
    "sin": lambda x, zero: seal(sin_as_scalar_engine(x, zero), zero),
    "arctan": _own("atan"),
    "sqrt": _own("sqrt"),
    "rsqrt": _own("rsqrt"),
    "reciprocal": _own("reciprocal"),
    **COMPOSITIONS,
}


def function(name: str, transcendentals: str = "exact") -> Function:
    """A function of (float32 array, opaque zero).

    Args:
        name: in nki.language.
        transcendentals: "exact", or "scalar_engine" for the engine's tables.

    Raises:
        UnimplementedError: it has no rule yet.
    """
    if name not in FUNCTIONS:
        raise UnimplementedError(
            f"activation function {name}",
            op="nisa.activation",
            remedy=f"one of {', '.join(sorted(FUNCTIONS))}",
        )
    if transcendentals == "scalar_engine" and name in scalar_engine_tables.tables():
        piecewise = scalar_engine.function(name)
        return lambda x, zero: seal(piecewise(x, zero), zero)
    return FUNCTIONS[name]
