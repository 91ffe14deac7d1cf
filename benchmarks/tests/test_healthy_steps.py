"""Healthy steps made from a third party's program, and the count of alarms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import healthy_steps
from benchmarks.healthy_steps import Case, Said
from tests.strangers.program import descent

CASE = Case("line", "momentum", 3, "fp32")


def line():
    def loss(params, x):
        return jnp.mean((params["w"] * x - 1.0) ** 2)

    return descent(loss), ({"w": jnp.float32(2.0)}, jnp.arange(4.0))


@pytest.fixture(autouse=True)
def _one_model(monkeypatch):
    monkeypatch.setattr(healthy_steps, "models", lambda: {"line": line})
    healthy_steps.model.cache_clear()
    yield
    healthy_steps.model.cache_clear()


def test_the_steps_before_run_natively():
    _, (params, _, x) = healthy_steps.step_of(CASE)
    first, (start, *_) = healthy_steps.step_of(Case("line", "momentum", 1, "fp32"))
    state = healthy_steps.OPTIMIZERS["momentum"].init(start)
    for _ in range(2):
        start, state, _ = jax.jit(first)(start, state, x)
    np.testing.assert_array_equal(start["w"], params["w"])


def test_a_healthy_step_is_compared():
    assert healthy_steps.said_of(CASE) == Said(CASE)


def test_alarms_are_printed_and_counted_and_fail(monkeypatch, capsys):
    def said_of(case):
        wrong = case.policy == "bf16"
        why = "no rule" if case.policy == "mxfp8" else ""
        return Said(case, ("a.py:3 coarse",) if wrong else (), why)

    monkeypatch.setattr(healthy_steps, "said_of", said_of)
    monkeypatch.setattr(healthy_steps.compilation_cache, "use", lambda: None)
    asked = ["--optimizer", "adam", "--step", "2"]
    with pytest.raises(SystemExit, match="1 alarms on 3 healthy steps; 2% are aimed"):
        healthy_steps.main(asked)
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith("line, adam, step 2, bf16: a.py:3 coarse [")
    rows = [line.split() for line in said]
    assert ["adam", "4", "1", "1"] in rows
    assert ["mxfp8", "1", "0", "1"] in rows
    healthy_steps.main([*asked, "--policy", "fp32"])
