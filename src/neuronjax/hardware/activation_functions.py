"""ScalarE's activation functions as data: names, and the arguments they are made for.

Source: "Supported Activation Functions for NKI ISA" of nki/api/nki.api.shared.rst [SH]
and nki/api/nki.language.rst [NL]; keys as in `chips.py`. The engine evaluates piecewise
polynomials; their pieces, their accuracy, and their treatment of NaN and signed zeros
are not documented. Outside the valid range it "will generate invalid output results"
[SH], which only sin is documented further for (`sin_as_scalar_engine` of
`numerics.elementary_trigonometric`). Nothing here computes a function.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from neuronjax.errors import UnsupportedError

Interval = tuple[float, float]

_EVERYWHERE: tuple[Interval, ...] = ((-math.inf, math.inf),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationFunction:
    """One function of the engine.

    Attributes:
        name: as `nki.language` has it.
        valid: closed intervals of the arguments it accepts; one or two.
        stablehlo: StableHLO's or CHLO's name of the same function, without the dialect;
            None where programs write it out.
    """

    name: str
    valid: tuple[Interval, ...] = _EVERYWHERE
    stablehlo: str | None = None

    @property
    def is_restricted(self) -> bool:
        """Whether any number is out of range."""
        return self.valid != _EVERYWHERE


_FUNCTIONS = (
    # Any argument. [SH]
    ActivationFunction(name="copy"),
    ActivationFunction(name="square", stablehlo="square"),
    ActivationFunction(name="abs", stablehlo="abs"),
    ActivationFunction(name="sign", stablehlo="sign"),
    ActivationFunction(name="sigmoid", stablehlo="logistic"),
    ActivationFunction(name="tanh", stablehlo="tanh"),
    ActivationFunction(name="exp", stablehlo="exponential"),
    ActivationFunction(name="erf", stablehlo="erf"),
    ActivationFunction(name="erf_dx"),
    ActivationFunction(name="relu"),
    ActivationFunction(name="prelu"),
    ActivationFunction(name="gelu"),
    ActivationFunction(name="gelu_dx"),
    ActivationFunction(name="gelu_apprx_tanh"),
    ActivationFunction(name="gelu_apprx_sigmoid"),
    ActivationFunction(name="gelu_apprx_sigmoid_dx"),
    ActivationFunction(name="silu"),
    ActivationFunction(name="silu_dx"),
    ActivationFunction(name="softplus"),
    ActivationFunction(name="mish"),
    # Restricted. [SH] (sin reduces no range; `nl.sin` does that first. [SH])
    ActivationFunction(name="log", valid=((2.0**-64, 2.0**64),), stablehlo="log"),
    ActivationFunction(name="sin", valid=((-math.pi, math.pi),), stablehlo="sine"),
    ActivationFunction(
        name="arctan", valid=((-math.pi / 2, math.pi / 2),), stablehlo="atan"
    ),
    ActivationFunction(name="sqrt", valid=((2.0**-116, 2.0**118),), stablehlo="sqrt"),
    ActivationFunction(name="rsqrt", valid=((2.0**-87, 2.0**97),), stablehlo="rsqrt"),
    ActivationFunction(
        name="reciprocal",
        valid=((-(2.0**42), -(2.0**-42)), (2.0**-42, 2.0**42)),
        stablehlo="reciprocal",
    ),
)

ACTIVATION_FUNCTIONS: Mapping[str, ActivationFunction] = MappingProxyType(
    {f.name: f for f in _FUNCTIONS}
)
# By the name in a program; elementary functions that are not here the engine has not,
# and the compiler makes them of others.
BY_STABLEHLO_NAME: Mapping[str, ActivationFunction] = MappingProxyType(
    {f.stablehlo: f for f in _FUNCTIONS if f.stablehlo is not None}
)


def activation_function(name: str) -> ActivationFunction:
    """The function of this name, nki.language's or StableHLO's.

    Raises:
        UnsupportedError: the engine has no function of that name.
    """
    found = ACTIVATION_FUNCTIONS.get(name) or BY_STABLEHLO_NAME.get(name)
    if found is None:
        raise UnsupportedError(
            f"ScalarE has no function {name!r}",
            op=name,
            remedy=f"one of {', '.join(sorted(ACTIVATION_FUNCTIONS))}",
        )
    return found


def out_of_range(name: str, x: Any) -> Any:
    """Where arguments lie outside a function's valid range; `.sum()` counts them.

    NaN is not out of range; zero is, for log, sqrt, rsqrt and reciprocal.

    Args:
        name: nki.language's or StableHLO's.
        x: a NumPy or JAX array of floats, any shape.

    Returns:
        Booleans of the shape of `x`.

    Raises:
        UnsupportedError: the engine has no function of that name.
    """
    first, *others = activation_function(name).valid
    outside = (x < first[0]) | (x > first[1])
    for low, high in others:
        outside = outside & ((x < low) | (x > high))
    return outside
