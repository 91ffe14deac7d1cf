"""Integers, FP8 scaling and loss scale: parts of a policy with rules of their own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from tests import zoo
from tests.conformance.bits import assert_same

FP32_INTEGERS = nj.Policy(integer_path="fp32")
DELAYED = nj.Policy(
    auto_cast="matmult", auto_cast_type="fp8", scaling="delayed", amax_history_length=3
)
A = np.array([2**24 + 1, 5, -7, 2**31 - 1], np.int32)
B = np.array([2, 3, 4, 5], np.int32)


def through_float32(x):
    """An FP32 result as an integer: to nearest even, saturating."""
    rounded = np.rint(np.float32(x).astype(np.float64))
    return np.clip(rounded, -(2**31), 2**31 - 1).astype(np.int32)


@pytest.mark.slow_cases("op by op")
@pytest.mark.parametrize("eager", [False, True], ids=["jitted", "op by op"])
def test_integers_through_fp32(eager):
    def program(a, b):
        scattered = jnp.zeros(2, jnp.int32).at[jnp.array([0, 0, 1, 1])].add(a)
        return a + b, a - b, a * b, a.sum(), scattered, a @ b

    emulated = nj.jit(program, policy=FP32_INTEGERS)
    with jax.disable_jit(eager):
        got = emulated(A, B)
    a, b = A.astype(np.float32), B.astype(np.float32)
    total = np.float32(0)
    for x in a:
        total = total + x
    expected = (a + b, a - b, a * b, total, [a[0] + a[1], a[2] + a[3]])
    for one, other in zip(got[:5], expected, strict=True):
        np.testing.assert_array_equal(one, through_float32(other))
    assert got[5] == 2**31 - 1  # saturated


def test_integers_are_exact_by_default():
    got = nj.jit(lambda a, b: (a * b, a.sum()))(A, B)
    np.testing.assert_array_equal(got[0], A * B)
    assert got[1] == A.sum(dtype=np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp_sgd", "gpt_scan"])
def test_delayed_scaling_over_two_steps(name):
    function, args = zoo.PROGRAMS[name].make(0, "tiny")
    step = nj.jit(function, target="trn3", policy=DELAYED)
    empty = compiled = by_op = step.init_amax_history(*args)
    assert empty.shape[0] == 3
    assert empty.shape[1] > 0
    for _ in range(2):
        outputs, compiled = step.with_amax_history(compiled)(*args)
        with jax.disable_jit():
            others, by_op = step.with_amax_history(by_op)(*args)
        assert_same((outputs, compiled), (others, by_op))
    history = np.asarray(compiled)
    assert (history[:2] >= 0).all()
    assert history[0].any()
    assert not history[2].any(), "two steps fill two rows"


@pytest.mark.slow
def test_delayed_scaling_uses_the_previous_amax():
    """Values 2^20 times larger than a step ago overflow; one step later they do not."""
    step = nj.jit(lambda x, w: x @ w, target="trn2", policy=DELAYED)
    x, w = np.ones((2, 4), np.float32), np.ones((4, 2), np.float32)
    history = step.init_amax_history(x, w)
    _, history = step.with_amax_history(history)(x, w)
    large = x * np.float32(2.0**20)
    overflowed, history = step.with_amax_history(history)(large, w)
    scaled, _ = step.with_amax_history(history)(large, w)
    assert np.isinf(overflowed).all()
    np.testing.assert_array_equal(scaled, large @ w)


@pytest.mark.slow
def test_delayed_scaling_of_a_matmul_in_the_condition_of_a_loop():
    def function(w):
        return jax.lax.while_loop(lambda w: (w @ w).sum() < 1e4, lambda w: w * 2, w)

    w = np.ones((4, 4), np.float32)
    step = nj.jit(function, policy=DELAYED)
    step = step.with_amax_history(step.init_amax_history(w))
    found = step(w)
    assert np.asarray(found[1])[0, 0] == 16
    with jax.disable_jit():
        assert_same(found, step(w))


def test_delayed_scaling_refusals():
    step = nj.jit(lambda x: (x @ x).sum(), policy=DELAYED)
    x = np.ones((3, 3), np.float32)
    with pytest.raises(nj.InvalidProgramError, match="init_amax_history"):
        step(x)
    with pytest.raises(nj.InvalidProgramError, match=r"\(3, 7\).*needs \(3, 1\)"):
        step.with_amax_history(jnp.zeros((3, 7)))(x)
    history = step.init_amax_history(x)
    with pytest.raises(nj.UnsupportedError, match=r"grad cannot transform .* delayed"):
        jax.grad(lambda x: step.with_amax_history(history)(x)[0])(x)
    with pytest.raises(nj.UnsupportedError, match=r"vmap cannot transform .* delayed"):
        jax.vmap(lambda x: step.with_amax_history(history)(x)[0])(x[None])


@pytest.mark.slow
def test_loss_scale_saves_small_gradients_in_fp16():
    def loss(w, x):
        return jnp.sum((x @ w) * 1e-9)

    x, w = np.ones((4, 8), np.float32), np.ones((8, 4), np.float32)
    plain = nj.Policy(auto_cast="matmult", auto_cast_type="fp16")
    scaled = nj.Policy(auto_cast="matmult", auto_cast_type="fp16", loss_scale=2.0**20)
    lost = jax.grad(nj.jit(loss, policy=plain))(w, x)
    kept = jax.grad(nj.jit(loss, policy=scaled))(w, x)
    assert not np.asarray(lost).any()
    np.testing.assert_allclose(kept, jax.grad(loss)(w, x), rtol=2e-3)


def test_loss_scale_cannot_reach_gradients_inside():
    policy = nj.Policy(auto_cast="matmult", loss_scale=8.0)
    step = nj.jit(jax.grad(lambda w: jnp.sum(w @ w)), policy=policy)
    with pytest.raises(nj.InvalidProgramError, match="loss_scale"):
        step(np.ones((2, 2), np.float32))
