"""`check` warns of numerical faults on their line, and of none in models without."""

from __future__ import annotations

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import pytest

from neuronjax.api.check import check
from neuronjax.diagnostics.faults.naming import KINDS
from neuronjax.diagnostics.rules.faults import RULES
from neuronjax.policy import Policy, Rule
from tests.diagnostics.cases import Shape, f32, i32
from tests.real.models import STEPS

_IDS = {rule.id for rule in RULES}


def test_names_begin_with_those_of_compare():
    assert {id.partition("-")[0] for id in _IDS} <= KINDS.keys()


@pytest.mark.slow_except("causal_decode")
@pytest.mark.parametrize("name", STEPS)
def test_a_model_as_people_write_it_has_none(name):
    step, arguments = STEPS[name]()
    findings = check(step, policy="bf16")(*arguments).findings
    assert not [f for f in findings if f.rule in _IDS]


def accumulated(x):
    def turn(total, row):
        row = 2 * row
        return total + row.astype(jnp.bfloat16), None

    return jax.lax.scan(turn, jnp.zeros(8, jnp.bfloat16), x)[0]


def test_a_sum_in_a_loop_is_on_its_own_line():
    lines, first = inspect.getsourcelines(accumulated)
    (place,) = [n for n, text in enumerate(lines) if "total +" in text]
    report = check(accumulated)(f32(300, 8))
    (found,) = [f for f in report.findings if f.rule == "stagnation-loop"]
    assert found.location == f"{__file__}:{first + place}"
    assert found.op == "stablehlo.add"


def turned(places, turns):
    return jnp.cos(places.astype(jnp.float32) @ turns)


def of_range(size):
    def found(turns):
        return turned(jnp.stack([jnp.arange(size), 2 * jnp.arange(size)], 1), turns)

    return found


@pytest.mark.parametrize(
    ("function", "arguments", "policy", "severities"),
    [
        (of_range(4096), [f32(2, 8)], "bf16", ["warning"]),
        (of_range(4096), [f32(2, 8)], "fp32", []),
        (of_range(128), [f32(2, 8)], "bf16", []),
        # How large these are is not known before the run.
        (turned, [i32(32, 2), f32(2, 8)], "bf16", ["info"]),
        (turned, [Shape((32, 2), jnp.uint8), f32(2, 8)], "bf16", []),
        # These are multiplied as they are.
        (jnp.dot, [Shape((32, 2), jnp.int8), Shape((2, 8), jnp.int8)], "bf16", []),
        # An outer product is no matmul.
        (turned, [i32(32, 1), f32(1, 8)], "bf16", []),
    ],
)
def test_whole_numbers_that_a_policy_casts(function, arguments, policy, severities):
    findings = check(function, policy=policy)(*arguments).findings
    found = [f.severity for f in findings if f.rule == "integer-in-matmul"]
    assert found == severities


def test_a_rule_that_casts_nothing_there_silences_it():
    rules = (Rule(op="dot_general", auto_cast="none"),)
    policy = dataclasses.replace(Policy.preset("bf16"), rules=rules)
    assert not check(of_range(4096), policy=policy)(f32(2, 8)).findings
