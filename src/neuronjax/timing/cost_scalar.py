"""Cost rules for a program's elementary functions, such as exp and tanh.

A function that ScalarE provides is one activation. Any other function takes one or more
activations and, in most cases, instructions of VectorE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from neuronjax.hardware.activation_functions import ACTIVATION_FUNCTIONS
from neuronjax.ir.instruction_set import Activation
from neuronjax.timing.cost_rules import Reading, elementwise, lane_task, rule
from neuronjax.timing.engines.scalar import IN_EVERY_TABLE
from neuronjax.timing.engines.task import has
from neuronjax.timing.work import Core, Way


@dataclass(frozen=True, slots=True)
class ActivationRecipe:
    """The instructions of ScalarE and VectorE that compute an elementary function.

    Attributes:
        tables: for each activation of ScalarE, the function table that it needs; "" if
            every table has the function of this activation.
        vector: the number of VectorE's instructions, each priced as a tensor_scalar in
            FP32.
    """

    tables: tuple[str, ...]
    vector: int = 0


# The first functions are those that ScalarE provides, by their names in nki.language.
# ASSUMPTION: the other functions of StableHLO are computed by textbook identities.
RECIPES: Mapping[str, ActivationRecipe] = MappingProxyType(
    {
        name: ActivationRecipe(("" if name in IN_EVERY_TABLE else name,))
        for name in ACTIVATION_FUNCTIONS
    }
    | {
        "exponential": ActivationRecipe(("exp",)),
        "log_plus_one": ActivationRecipe(("log",)),  # log(x + 1): a bias of 1
        "logistic": ActivationRecipe(("sigmoid",)),
        "sine": ActivationRecipe(("sin",), 3),  # VectorE reduces x to [-pi, pi]
        "cosine": ActivationRecipe(("sin",), 3),
        "tan": ActivationRecipe(("sin", "sin", "reciprocal"), 4),
        "exponential_minus_one": ActivationRecipe(("exp",), 1),
        "cbrt": ActivationRecipe(("log", "exp"), 2),
        "erfc": ActivationRecipe(("erf",), 1),
        "erf_inv": ActivationRecipe(("log", "sqrt"), 18),
        "atan": ActivationRecipe(("reciprocal", "arctan"), 3),  # arctan(1/x) if |x| > 1
        "acos": ActivationRecipe(("sqrt", "reciprocal", "arctan"), 5),
        "asin": ActivationRecipe(("sqrt", "reciprocal", "arctan"), 5),
        "acosh": ActivationRecipe(("sqrt", "log"), 3),
        "asinh": ActivationRecipe(("sqrt", "log"), 4),
        "atanh": ActivationRecipe(("log", "log"), 3),
        "cosh": ActivationRecipe(("exp", "exp"), 1),
        "sinh": ActivationRecipe(("exp", "exp"), 1),
        "lgamma": ActivationRecipe(("log", "log"), 20),
        "digamma": ActivationRecipe(("log", "reciprocal"), 24),
        "bessel_i1e": ActivationRecipe(("exp", "rsqrt"), 30),
    }
)


@rule.register
def _(i: Activation, core: Core, reading: Reading) -> tuple[Way, ...]:
    recipe = RECIPES[i.function]
    works = []
    for function in recipe.tables:
        task = lane_task(core, i, "scalar", "activation", function=function)
        works += elementwise(core, i, task)
    if recipe.vector:
        task = lane_task(core, i, "vector", "tensor_scalar").in_fp32()
        works += elementwise(core, i, task, times=recipe.vector)
    ways: list[Way] = [tuple(works)]
    if i.function == "exponential" and has(core, "vector_exponential"):
        ways.append(elementwise(core, i, lane_task(core, i, "vector", "exponential")))
    return tuple(ways)
