"""ScalarE: elementary functions, N elements per lane in N cycles whatever the scale and
bias [A2].

A function that the engine has is one activation; others are made of several, with
instructions of VectorE around them. Each function needs its table of polynomials in the
engine: `Work.table` names it, and who schedules adds `table_load_seconds` where it is
not the table of the activation before. What every table holds ("") needs none. That
tables hold one function each is an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from neuronjax.hardware.activation_functions import ACTIVATION_FUNCTIONS
from neuronjax.ir.instruction_set import Activation
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_rules import Reading, rule
from neuronjax.timing.cost_vector import elementwise, traffic_of
from neuronjax.timing.work import Core, Way, Work


@dataclass(frozen=True, slots=True)
class ActivationRecipe:
    """How a function is computed.

    Attributes:
        tables: activations, by their tables.
        vector: passes of VectorE, N cycles each.
    """

    tables: tuple[str, ...]
    vector: int = 0


#: Functions that every table holds (ASSUMPTION; `copy` must be one of them).
IN_EVERY_TABLE = frozenset({"copy", "square", "abs", "sign", "relu"})

# The engine's own by nki.language's names, then StableHLO's: what compilers make of
# them (ASSUMPTION: the textbook's identities; the number of passes of VectorE is that
# of the arithmetic around them).
RECIPES: Mapping[str, ActivationRecipe] = MappingProxyType(
    {
        name: ActivationRecipe(("" if name in IN_EVERY_TABLE else name,))
        for name in ACTIVATION_FUNCTIONS
    }
    | {
        "exponential": ActivationRecipe(("exp",)),
        "log": ActivationRecipe(("log",)),
        "log_plus_one": ActivationRecipe(("log",)),  # bias 1
        "logistic": ActivationRecipe(("sigmoid",)),
        "tanh": ActivationRecipe(("tanh",)),
        "erf": ActivationRecipe(("erf",)),
        "sqrt": ActivationRecipe(("sqrt",)),
        "rsqrt": ActivationRecipe(("rsqrt",)),
        "sine": ActivationRecipe(("sin",), 3),  # into [-pi, pi]
        "cosine": ActivationRecipe(("sin",), 3),
        "tan": ActivationRecipe(("sin", "sin", "reciprocal"), 4),
        "exponential_minus_one": ActivationRecipe(("exp",), 1),
        "cbrt": ActivationRecipe(("log", "exp"), 2),
        "erfc": ActivationRecipe(("erf",), 1),
        "erf_inv": ActivationRecipe(("log", "sqrt"), 18),
        "atan": ActivationRecipe(("reciprocal", "arctan"), 3),  # into [-pi / 2, pi / 2]
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


def table_load_seconds(core: Core) -> float:
    """What ScalarE waits for the table of another function.

    The figure is trn2's; the same is taken for every chip.
    """
    return a.TABLE_LOAD.value


def _on_vector(core: Core, i: Activation, traffic: tuple[float, float]) -> Work:
    """`exponential` of NeuronCore-v4: 4 times ScalarE's rate, clocks included [A4]."""
    spec = core.spec
    ratio = a.EXPONENTIAL_SPEEDUP.value * spec.scalar.clock_hz / spec.vector.clock_hz
    shape = i.results[0].type.shape
    return elementwise(
        core, "vector", shape, 1 / ratio, "EXPONENTIAL", speed=4, traffic=traffic
    )


@rule.register
def _(i: Activation, core: Core, reading: Reading) -> tuple[Way, ...]:
    """An activation for every table of the recipe, with passes of VectorE around."""
    recipe = RECIPES[i.function]
    shape = i.results[0].type.shape
    traffic = traffic_of(i)
    works = [
        elementwise(core, "scalar", shape, 1, "ACTIVATE", table=table, traffic=traffic)
        for table in recipe.tables
    ]
    if recipe.vector:
        works.append(
            elementwise(
                core,
                "vector",
                shape,
                recipe.vector,
                "TENSOR_SCALAR",
                instructions=recipe.vector,
                traffic=traffic,
            )
        )
    ways: list[Way] = [tuple(works)]
    capabilities = core.spec.capabilities
    if i.function == "exponential" and "vector_exponential" in capabilities:
        ways.append((_on_vector(core, i, traffic),))
    return tuple(ways)
