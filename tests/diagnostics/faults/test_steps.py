"""Steps of states: those that were not taken, those that are others, and Adam's first,
of which the data turn some."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.api.compare import compare
from neuronjax.diagnostics.faults.state_steps import StateStep
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
    assert "had no effect" in str(report)


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
    told = " ".join(str(report).split())
    assert f"has a relative error of {wrong.step_error:.2g}" in told
    assert "had no effect" not in str(report)
    assert report.faults[0].record.source == marked_line(phased)
    assert "absorption" not in [f.kind for f in report.faults]


def test_what_begins_at_zero_is_judged_by_its_step_through_casts():
    """One sign of sixteen turns, which is half of the norm of what began at zero."""

    def step(state, g, x):
        gradient = (g @ x).astype(jnp.float32)
        moved = state["p"]["scale"] - 1e-4 * jnp.sign(gradient)
        return {"p": {"scale": moved.astype(jnp.bfloat16)}}

    g, x = normal(64), normal(64, 16, seed=1)
    x[:, 3] -= g * (g @ x[:, 3]) / (g @ g) * (1 - 1e-4)  # what is left is rounding
    state = {"p": {"scale": jnp.zeros(16, jnp.bfloat16)}}
    report = compare(step, policy="bf16")(state, g, x)
    assert report.faults == (), str(report)


def test_a_few_elements_of_a_moment_may_be_noise():
    """Before a mean is taken off, three biases of eight have no gradient."""

    def step(mu, bias, x):
        def loss(bias):
            h = jnp.tanh(x) + bias
            h = jnp.where(jnp.arange(8) < 3, h - h.mean(0), h)
            return jnp.mean(jnp.square(jnp.sin(h)) * (1 + x))

        return 0.9 * mu + 0.1 * jax.grad(loss)(bias)

    mu = normal(8, seed=3) * np.where(np.arange(8) < 3, 1e-10, 1e-3).astype("f")
    report = compare(step, policy="fp32")(mu, normal(8), normal(999, 8, seed=1))
    assert report.faults == (), str(report)


@pytest.mark.parametrize(
    ("data_error", "format_error", "unmoved", "is_lost"),
    [(2e8, 1.0, 0.0, False), (0.6, 1.0, 0.0, True), (0.6, 0.1, 0.9, True)],
    ids=["noise", "no room", "still"],
)
def test_a_step_that_is_noise_needs_no_room(data_error, format_error, unmoved, is_lost):
    """As of the bias of keys, whose gradient is zero but for rounding."""
    step = StateStep(5e-9, data_error, data_error, format_error, unmoved)
    assert step.is_lost == is_lost
