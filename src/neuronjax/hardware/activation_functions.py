"""ScalarE's activation functions as data: names, and the arguments they accept.

Source: "Supported Activation Functions for NKI ISA" of nki/api/nki.api.shared.rst [SH]
and nki/api/nki.language.rst [NL]; keys as in `chips.py`. The engine evaluates piecewise
polynomials; their pieces, their accuracy, and their treatment of NaN and signed zeros
are not documented. Outside the valid range it "will generate invalid output results"
[SH]; only for sin is there more documentation (`sin_as_scalar_engine` of
`numerics.elementary_trigonometric`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

Interval = tuple[float, float]

_EVERYWHERE: tuple[Interval, ...] = ((-math.inf, math.inf),)
# These functions take any argument. [SH]
_UNRESTRICTED = (
    *("copy", "square", "abs", "sign", "sigmoid", "tanh", "exp", "erf", "erf_dx"),
    *("relu", "prelu", "gelu", "gelu_dx", "gelu_apprx_tanh", "gelu_apprx_sigmoid"),
    *("gelu_apprx_sigmoid_dx", "silu", "silu_dx", "softplus", "mish"),
)

ACTIVATION_FUNCTIONS: Mapping[str, tuple[Interval, ...]] = MappingProxyType(
    {
        **dict.fromkeys(_UNRESTRICTED, _EVERYWHERE),
        # These functions accept only an interval. [SH] (The engine's sin does not
        # reduce its argument; `nl.sin` does so first. [SH])
        "log": ((2.0**-64, 2.0**64),),
        "sin": ((-math.pi, math.pi),),
        "arctan": ((-math.pi / 2, math.pi / 2),),
        "sqrt": ((2.0**-116, 2.0**118),),
        "rsqrt": ((2.0**-87, 2.0**97),),
        "reciprocal": ((-(2.0**42), -(2.0**-42)), (2.0**-42, 2.0**42)),
    }
)
"""The closed intervals of arguments that a function accepts, by its name in
`nki.language`."""
