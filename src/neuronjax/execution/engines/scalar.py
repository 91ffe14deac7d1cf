"""ScalarE: the project's own elementary functions (`numerics.elementary`).

They are computed in FP32 and rounded once. A float result of at most 16 bits, with an
argument of the same dtype and under rounding to nearest even, is correctly rounded.
With `transcendentals="scalar_engine"` the functions that ScalarE has are its piecewise
cubics (`numerics.scalar_engine`), rounded once; other functions stay the same. With
"host" they are XLA's, and bits may differ between hosts. The argument ranges that the
hardware's own functions accept are in `hardware.activation_functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from jax import lax

from neuronjax.execution.engines.dispatch import Arrays, Registers, execute, wide, write
from neuronjax.ir.instruction_set import Activation
from neuronjax.numerics import scalar_engine
from neuronjax.numerics.elementary import UNARY, nearest

#: JAX's names of functions where they differ from those of StableHLO and CHLO.
_LAX = {
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "log_plus_one": "log1p",
    "sine": "sin",
    "cosine": "cos",
}


def host_function(name: str) -> Callable[[jax.Array], jax.Array]:
    """Return JAX's own function of an activation, for `transcendentals="host"`."""
    return getattr(lax, _LAX.get(name, name))


@execute.register
def activation(i: Activation, x: Sequence[jax.Array], r: Registers) -> Arrays:
    operand = wide(x[0])
    if i.transcendentals == "host":
        return (write(host_function(i.function)(operand), i, r),)
    name = scalar_engine.OF_PROGRAMS.get(i.function)
    if i.transcendentals == "scalar_engine" and name is not None:
        return (write(scalar_engine.function(name)(operand, r.zero), i, r),)
    result = UNARY[i.function](operand, r.zero)
    dtype = i.results[0].type.dtype
    rounds_once = i.write_format is None and i.rounding == "rne"
    if rounds_once and i.operands[0].type.dtype == dtype:
        result = nearest(i.function, operand, result, dtype.name)
    return (write(result, i, r),)
