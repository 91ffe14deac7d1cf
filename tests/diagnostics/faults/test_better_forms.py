"""Formulas that lose digits are known in whatever code they stand in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax import compare
from neuronjax.capture.trace import capture
from neuronjax.diagnostics.faults.better_forms import (
    CONDITIONED,
    FORMS,
    RANGES,
    better_form,
)
from neuronjax.ir.value_sources import ValueSources
from tests.arrays import normal


def variance(x):
    mean = x.mean(-1)
    return (x * x).mean(-1) - mean**2


PROGRAMS = {
    "jax.nn.log_sigmoid(x)": (lambda x: jnp.log(jax.nn.sigmoid(x - 120)), "overflow"),
    "jax.nn.log_softmax(x)": (lambda x: jnp.log(jax.nn.softmax(200 * x)), "underflow"),
    "jax.nn.softplus(x)": (lambda x: jnp.log(1 + jnp.exp(x + 100)), "overflow"),
    "jax.nn.logsumexp(x)": (lambda x: jnp.log(jnp.exp(x + 100).sum(-1)), "overflow"),
    "jnp.expm1(x)": (lambda x: jnp.exp(1e-6 * x) - 1, "cancellation"),
    "jnp.sin(x / 2)": (lambda x: 1 - jnp.cos(1e-4 * x), "cancellation"),
    "jnp.hypot(x, y)": (lambda x: jnp.sqrt((1e25 * x) ** 2 + x * x), "overflow"),
    "(x - y) * (x + y)": (
        lambda x: (x + 1000) ** 2 - jnp.square(x + 1000.001),
        "cancellation",
    ),
    "jnp.var(x)": (lambda x: variance(x + 1000), "cancellation"),
}


@pytest.mark.parametrize("written", PROGRAMS)
def test_a_formula_has_its_better_form(written):
    function, kind = PROGRAMS[written]
    fault = compare(function, policy="fp32")(normal(4, 16)).faults[0]
    assert (fault.kind, written in fault.remedy) == (kind, True), fault


def test_what_is_right_already_is_not_advised():
    """A softmax of JAX, of scores that lost their digits before."""

    def attention(x):
        scores = (x + 1000).astype(jnp.bfloat16).astype(jnp.float32)
        return jax.nn.softmax(scores)

    faults = compare(attention, policy="fp32")(normal(4, 16)).faults
    assert faults
    assert not any("softmax" in fault.remedy for fault in faults)


def test_every_restricted_formula_is_one():
    assert RANGES.keys() <= FORMS.keys()


def test_a_name_stands_for_one_value():
    """A product of two numbers is no square."""

    def product(x):
        other = x + np.float32(1e-3)
        return (x + 1000) * (other + 1000) - (x + 1000) * (x + 1000.001)

    faults = compare(product, policy="fp32")(normal(4, 16)).faults
    assert not any("(x - y) * (x + y)" in fault.remedy for fault in faults)


@pytest.mark.parametrize("name", ["cholesky", "triangular_solve", "dot_general"])
def test_a_solver_is_told_of_the_condition_number(name):
    """By its op, or by the function of JAX that it is a part of."""
    assert "QR" in CONDITIONED

    def solved(a, b):
        factor = jax.scipy.linalg.cho_factor(a @ a.T)
        return [jax.scipy.linalg.cho_solve(factor, b)]

    types = jax.ShapeDtypeStruct((4, 4), jnp.float32), jax.ShapeDtypeStruct((4,), "f")
    program = capture(solved, types, ("a", "b")).program
    graph = ValueSources(program)
    op = next(op for op in program.walk() if op.name.endswith(name))
    solves = CONDITIONED if name != "dot_general" else ""
    assert better_form(graph, {op}, "jit(solve)/dot_general", "singular") == solves
    inside = "jit(solved)/jit(solve)/while/body/select_n"
    assert better_form(graph, {op}, inside, "singular") == CONDITIONED


def test_a_formula_with_more_digits_is_no_remedy_outside_of_a_domain():
    x = np.float32([-3.0, 1.0])
    fault = compare(lambda x: jnp.log(1 + x), policy="fp32")(x).faults[0]
    assert (fault.kind, "log1p" in fault.remedy) == ("non-finite", False)
