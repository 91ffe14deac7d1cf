"""`check` warns of numerical faults on their line, and of none in models without."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import pytest

from neuronjax.api.check import check
from neuronjax.diagnostics.faults.naming import KINDS
from neuronjax.diagnostics.rules.faults import RULES
from tests.diagnostics.cases import f32
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
