"""What a report tells of programs as people write them: integers that pass through a
matmul, weights in a loop, zeros behind a gather, and what only follows from a fault."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from neuronjax.api.compare import compare
from tests.arrays import normal
from tests.diagnostics.faults.marked import assert_named, marked_line

BF16 = jnp.bfloat16


# -- whole numbers that become indices -------------------------------------------------


def looked_up(scores, ids, table):
    picked = jax.nn.one_hot(jnp.argmax(scores, -1), 100)
    chosen = picked @ ids.astype(jnp.float32)  # here
    return table[chosen.astype(jnp.int32)]


def looked_up_by_index(scores, ids, table):
    return table[ids[jnp.argmax(scores, -1)]]


def identifiers():
    ids = np.random.default_rng(2).permutation(100).astype(np.int32)
    return normal(64, 100, seed=3), ids, normal(100, 16)


@pytest.mark.parametrize("policy", ["fp8", "bf16"])
def test_a_scale_does_not_help_identifiers(policy):
    scores, ids, table = identifiers()
    ids = ids + (0 if policy == "fp8" else 400)
    table = normal(500, 16)
    assert_named(
        "integer", looked_up, looked_up_by_index, (scores, ids, table), policy=policy
    )
    report = compare(looked_up, policy=policy, explain=False)(scores, ids, table)
    assert report.verdict is not None
    assert report.verdict.wrong


def packed(dtype):
    def slots(x, router, weights):
        expert = jnp.argmax(x @ router, -1)
        chosen = jax.nn.one_hot(expert, 4, dtype=dtype)
        place = ((jnp.cumsum(chosen, 0) - 1) * chosen).sum(-1)
        slot = expert * 700 + place.astype(jnp.int32)
        rows = jnp.zeros((2800, 8)).at[slot].set(x)
        return (rows @ weights)[slot]

    return slots


def test_positions_that_become_indices_come_before_what_the_indices_spoil():
    """The choice of an expert differs for a few; that is no fault and comes later."""
    given = normal(2048, 8), normal(8, 4, seed=1), normal(8, 8, seed=2)
    report = compare(packed(BF16), policy="bf16", explain=False)(*given)
    assert report.faults[0].kind == "integer"
    assert "place = " in _code(report.faults[0].record.source)
    twin = compare(packed(jnp.int32), policy="bf16", explain=False)(*given)
    assert twin.faults == ()


def _code(source):
    name, _, line = source.rpartition(":")
    with open(name) as file:
        return file.read().splitlines()[int(line) - 1]


# -- weights in a loop -----------------------------------------------------------------


def loss(weights, x, y):
    hidden = jax.nn.relu(x @ weights["in"].astype(jnp.float32))
    return jnp.square(hidden @ weights["out"].astype(jnp.float32) - y).mean()


def trained(weights, x, y):
    def step(weights, _):
        grads = jax.grad(loss)(weights, x, y)
        moved = jax.tree.map(
            lambda w, g: w - (1e-4 * g).astype(w.dtype),  # here
            weights,
            grads,
        )
        return moved, None

    weights = jax.tree.map(lambda w: w.astype(BF16), weights)
    return lax.scan(step, weights, None, 8)[0]


def trained_in_fp32(weights, x, y):
    def step(weights, _):
        grads = jax.grad(loss)(weights, x, y)
        return jax.tree.map(lambda w, g: w - 1e-4 * g, weights, grads), None

    return lax.scan(step, weights, None, 8)[0]


def trained_by_adam(weights, x, y):
    optimizer = optax.adamw(1e-4)

    def step(carried, _):
        weights, state = carried
        grads = jax.grad(loss)(weights, x, y)
        updates, state = optimizer.update(grads, state, weights)
        return (optax.apply_updates(weights, updates), state), None  # here

    weights = jax.tree.map(lambda w: w.astype(BF16), weights)
    state = optimizer.init(weights)
    return lax.scan(step, (weights, state), None, 8)[0][0]


def network():
    weights = {"in": normal(16, 32, scale=0.25), "out": normal(32, 4, seed=1)}
    return weights, normal(64, 16, seed=2), normal(64, 4, seed=3)


def test_steps_that_a_loop_loses_in_a_narrower_format_are_told():
    """The weights arrive in FP32; cast before the loop, they stay as they are."""
    assert_named("absorption", trained, trained_in_fp32, network(), policy="bf16")


def test_weights_that_stay_where_they_are_are_not_excused_by_signs_that_turn():
    weights, x, y = network()
    report = compare(trained_by_adam, policy="bf16", explain=False)(weights, x, y)
    assert report.verdict is not None
    assert {w.how for w in report.verdict.wrong} == {"lost"}
    assert {f.kind for f in report.faults} <= {"absorption", "stagnation"}
    assert report.faults


# -- zeros behind a gather -------------------------------------------------------------


def unlikely(logits, labels):
    shares = jax.nn.softmax(logits, -1)  # here
    return -jnp.log(jnp.take_along_axis(shares, labels[:, None], 1)).mean()


def unlikely_in_logarithms(logits, labels):
    shares = jax.nn.log_softmax(logits, -1)
    return -jnp.take_along_axis(shares, labels[:, None], 1).mean()


def test_a_gather_makes_no_zeros():
    labels = np.random.default_rng(0).integers(0, 128, 32).astype(np.int32)
    given = normal(32, 128, scale=60.0), labels
    assert_named("underflow", unlikely, unlikely_in_logarithms, given, policy="bf16")


# -- what follows from a fault ---------------------------------------------------------


def kept(scores, numbers):
    low = scores.astype(BF16)  # here
    least = lax.top_k(low, 64)[0][-1]
    chosen = jnp.where(low >= least, numbers, 0)
    return chosen.sum()


def test_what_only_hands_an_error_on_is_no_second_fault():
    scores = np.linspace(1, 1.02, 512, dtype=np.float32)
    scores = scores[np.random.default_rng(0).permutation(512)]
    report = compare(kept, policy="fp32", explain=False)(scores, normal(512))
    assert report.faults[0].record.source == marked_line(kept)
    assert "cancellation" not in [f.kind for f in report.faults]
    assert "already" not in str(report)


# 0.999 is 1 in BF16, where it meets the mean.
def averaged(w, goal):
    def step(carried, _):
        w, mean = carried
        w = w - 0.1 * (w - goal)
        return (w, (0.999 * mean + 0.001 * w).astype(BF16)), None  # here

    return lax.scan(step, (w, w.astype(BF16)), None, 300)[0]


def test_weights_that_have_arrived_are_no_fault_of_their_average():
    """Their last steps change nothing any more, for they are where they should be."""
    report = compare(averaged, policy="bf16", explain=False)(
        normal(64), normal(64, seed=1)
    )
    assert {f.record.source for f in report.faults} == {marked_line(averaged)}


def normed(w, u):
    w, u = w.astype(jnp.float16), u.astype(jnp.float16)
    for _ in range(3):
        v = w.T @ u
        v = v / jnp.linalg.norm(v.astype(jnp.float32)).astype(jnp.float16)
        u = w @ v
    return u.astype(jnp.float32)


def test_an_error_of_inf_is_an_overflow():
    report = compare(normed, policy="bf16", explain=False)(
        normal(64, 64, scale=40.0), normal(64)
    )
    assert report.faults[0].kind == "overflow"
    assert "error of inf" not in " ".join(f.evidence for f in report.faults)


# -- bounds ----------------------------------------------------------------------------


def grouped(least):
    def weights(x, w):
        groups = w.reshape(4, 32, 64)
        low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
        scale = (high - low) / 15
        zero = jnp.maximum(jnp.round(-low / scale), least)
        codes = jnp.clip(jnp.round(groups / scale + zero), 0, 15)
        return x @ ((codes - zero) * scale).reshape(128, 64)

    return weights


def test_codes_with_a_zero_point_are_codes():
    given = normal(16, 128), np.abs(normal(128, 64, scale=0.1)) + 0.2
    report = compare(grouped(-7), policy="bf16", explain=False)(*given)
    assert [f.kind for f in report.faults] == ["saturation"] * 2
    lines = [_code(f.record.source) for f in report.faults]
    assert "zero = " in lines[0], "the zero point comes before its codes"
    assert "codes = " in lines[1]
    twin = compare(grouped(-99), policy="bf16", explain=False)(*given)
    assert twin.faults == ()


# -- remedies --------------------------------------------------------------------------


def clipped_by_where(x):
    codes = x * 240.0 / jnp.mean(jnp.abs(x))
    codes = jnp.where(jnp.abs(codes) > 240.0, jnp.sign(codes) * 240.0, codes)  # here
    return codes.astype(jnp.float8_e4m3).astype(jnp.float32)


def test_a_scale_is_tried_on_the_numbers_and_not_on_their_bound():
    report = compare(clipped_by_where, policy="bf16")(normal(64, 64, scale=4.0))
    scale, bound = report.faults[:2]
    assert "jnp.mean" in _code(scale.record.source)
    assert bound.record.source == marked_line(clipped_by_where)
    assert "which leaves an error of 0.0" in bound.remedy


def normalized(x):
    return (x - x.mean(0)) / jnp.sqrt(x.astype(BF16).var(0)).astype(jnp.float32)  # here


def test_fp32_is_no_remedy_for_what_float64_makes_too():
    report = compare(normalized, policy="bf16")(normal(1, 32))
    assert report.faults[0].kind == "non-finite"
    assert "float64 has them too" in report.faults[0].evidence
    assert "FP32" not in report.faults[0].remedy
