"""Steps of states: those that were not taken, those that are others, and Adam's first,
of which the data turn some."""

import jax
import jax.numpy as jnp
import pytest

from neuronjax.api.compare import compare
from tests.arrays import normal
from tests.diagnostics.faults.marked import marked_line


def signed_step(w, x, y):
    """Adam's first step is the sign of the gradient."""
    gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 3e-4 * gradient / (jnp.abs(gradient) + 1e-8)


def signed_step_in_bf16(w, x, y):
    gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w.astype(jnp.float32))
    step = 3e-4 * gradient / (jnp.abs(gradient) + 1e-8)
    return w - step.astype(jnp.bfloat16)  # here


def problem(noise):
    w, x = normal(64, 32, scale=0.1), normal(256, 64, seed=1)
    return w, x, x @ w + normal(256, 32, seed=2, scale=noise)


@pytest.mark.slow_except("bf16")
@pytest.mark.parametrize("policy", ["bf16", "fp8"])
def test_the_signs_that_the_data_turn_are_no_lost_step(policy):
    """In FP8 a step is off by more than half of itself, for a tenth of its elements
    has the other sign; so has the step of perturbed data."""
    report = compare(signed_step, policy=policy)(*problem(noise=0.15))
    assert report.verdict is not None
    assert report.verdict.wrong == report.faults == ()


@pytest.mark.slow
def test_no_condition_of_the_data_excuses_a_state_without_room_for_its_step():
    w, x, y = problem(noise=0.15)
    report = compare(signed_step_in_bf16, policy="fp8")(
        jnp.asarray(5 * w, jnp.bfloat16), x, y
    )
    assert report.verdict is not None
    [wrong] = report.verdict.wrong
    assert wrong.how == "lost"
    assert wrong.unmoved > 0.5
    assert [f.kind for f in report.faults] == ["absorption"]
    assert report.faults[0].record.source == marked_line(signed_step_in_bf16)
    assert "was not taken" in str(report)


def phased(w, t):
    phase = (1e3 * t).astype(jnp.bfloat16)  # here
    return w - 1e-3 * jnp.cos(phase.astype(jnp.float32))


@pytest.mark.slow
def test_a_step_that_was_taken_elsewhere_is_not_said_to_be_missing():
    report = compare(phased, policy="fp32")(normal(256), normal(256, seed=1))
    assert report.verdict is not None
    [wrong] = report.verdict.wrong
    assert wrong.step_error > wrong.step_allowed >= 0.5
    assert wrong.unmoved < 0.05
    assert f"is off by {wrong.step_error:.2g} of itself" in str(report)
    assert "was not taken" not in str(report)
    assert report.faults[0].record.source == marked_line(phased)
    assert "absorption" not in [f.kind for f in report.faults]


def test_what_many_wrong_results_have_in_common_is_in_the_headline():
    def step(weights, gradients):
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    weights = {f"w{n}": jnp.ones(8, jnp.bfloat16) for n in range(5)}
    gradients = {name: x / 2 for name, x in weights.items()}
    report = compare(step, policy="bf16")(weights, gradients)
    text = "5 of 5 results are wrong, all of them bfloat16 states whose step is lost"
    assert text in str(report)
