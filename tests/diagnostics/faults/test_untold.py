"""What is wrong in float64 too, so that no result tells: scales that do not fit in one
turn, codes that are nothing and divide, constants that a format does not hold, Inf that
a quotient swallows, and numbers that vanish beside larger ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.api.compare import compare
from neuronjax.diagnostics.faults.naming import MISREAD
from tests.arrays import normal
from tests.diagnostics.faults.marked import assert_named

# Each is (kind, policy, faulty, healthy, arguments); the faulty line says so.


def delayed(batches, w):
    def step(largest, x):
        low = jnp.clip(x * (240 / largest), -240, 240)  # here
        y = (low.astype(jnp.float8_e4m3).astype(jnp.float32) * (largest / 240)) @ w
        return jnp.abs(x).max(), y

    return jax.lax.scan(step, jnp.float32(4), batches)[1]


def current(batches, w):
    def step(largest, x):
        largest = jnp.abs(x).max()
        low = jnp.clip(x * (240 / largest), -240, 240)
        y = (low.astype(jnp.float8_e4m3).astype(jnp.float32) * (largest / 240)) @ w
        return largest, y

    return jax.lax.scan(step, jnp.float32(4), batches)[1]


def louder():
    batches = normal(12, 8, 16)
    batches[6:] *= 50
    return [batches, normal(16, 4, seed=1)]


def delayed_codes(batches):
    def step(largest, x):
        codes = jnp.round(x * (127 / largest))  # here
        codes = codes.astype(jnp.int8)
        return jnp.abs(x).max(), codes.astype(jnp.float32) * (largest / 127)

    return jax.lax.scan(step, jnp.float32(20), batches)[1]


def current_codes(batches):
    def step(largest, x):
        largest = jnp.abs(x).max()
        codes = jnp.round(x * (127 / largest)).astype(jnp.int8)
        return largest, codes.astype(jnp.float32) * (largest / 127)

    return jax.lax.scan(step, jnp.float32(20), batches)[1]


def softer():
    batches = 20 * np.sin(np.arange(12 * 128, dtype=np.float32)).reshape(12, 8, 16)
    batches[6:] *= 1e-3
    return [batches]


def moments(p, m, v):
    largest = v.max()
    codes = jnp.round(v / largest * 255).astype(jnp.uint8)  # here
    v = codes.astype(jnp.float32) * (largest / 255)
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8)


def moments_in_logarithms(p, m, v):
    largest = v.max()
    level = jnp.round(-8 * jnp.log2(jnp.maximum(v / largest, 2.0**-31)))
    v = largest * jnp.exp2(level.astype(jnp.uint8).astype(jnp.float32) / -8)
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8)


def averaged(kept, x):
    kept = kept.astype(jnp.bfloat16) * 0.999  # here
    return kept.astype(jnp.float32) + 0.001 * x


def averaged_in_fp32(kept, x):
    return kept * 0.999 + 0.001 * x


def scaled_loss(w, x):
    def loss(w):
        return jnp.mean(x @ w).astype(jnp.float16) * 65536.0  # here

    return jax.grad(loss)(w) / 65536


def scaled_loss_less(w, x):
    def loss(w):
        return jnp.mean(x @ w).astype(jnp.float16) * 512.0

    return jax.grad(loss)(w) / 512


def adam(p, m, v, n):
    share = jnp.floor(n / 1000)
    root = jnp.sqrt(v / share)  # here
    return p - m / (root + 1e-8)


def adam_with_its_share(p, m, v, n):
    return p - m / (jnp.sqrt(v / (1 - 0.999**n)) + 1e-8)


def tokens(batches, rows):
    total = batches * 1024 + rows  # here
    return total.astype(jnp.float32) / 1e6


def tokens_of_floats(batches, rows):
    return batches.astype(jnp.float32) * 1.024e-3 + rows.astype(jnp.float32) / 1e6


PARAMETERS = [normal(64), normal(64, seed=1, scale=1e-3)]
SPREAD = np.exp(2.0 * normal(64, seed=2)) * np.float32(1e-6)

CASES = [
    ("saturation", "fp32", delayed, current, louder()),
    ("coarse", "fp32", delayed_codes, current_codes, softer()),
    ("coarse", "fp32", moments, moments_in_logarithms, [*PARAMETERS, SPREAD]),
    ("coarse", "fp32", averaged, averaged_in_fp32, [normal(32), normal(32, seed=1)]),
    (
        "overflow",
        "fp32",
        scaled_loss,
        scaled_loss_less,
        [normal(16, 4), normal(8, 16, seed=1)],
    ),
    # A scalar that wraps, and is spread over an array.
    (
        "integer",
        "fp32",
        tokens,
        tokens_of_floats,
        [np.int32(3_000_000), np.arange(8, dtype=np.int32)],
    ),
    (
        "singular",
        "fp32",
        adam,
        adam_with_its_share,
        [*PARAMETERS, SPREAD, np.float32(5)],
    ),
]


@pytest.mark.slow_cases("delayed", "delayed_codes", "moments", "scaled_loss")
@pytest.mark.parametrize(
    ("kind", "policy", "faulty", "healthy", "arguments"),
    CASES,
    ids=[case[2].__name__ for case in CASES],
)
def test_the_kind_and_line_and_its_twin(kind, policy, faulty, healthy, arguments):
    assert_named(kind, faulty, healthy, arguments, policy=policy)


@pytest.mark.parametrize(
    ("faulty", "words"),
    [(averaged, "0.999 is 1 in bfloat16"), (scaled_loss, "65536 is Inf in float16")],
)
def test_a_constant_is_named_as_it_is_written_and_held(faulty, words):
    [arguments] = [case[4] for case in CASES if case[2] is faulty]
    fault = compare(faulty)(*arguments).faults[0]
    assert (fault.evidence, fault.remedy) == (words, MISREAD)


@pytest.mark.slow
def test_a_mask_may_be_inf():
    def attention(x):
        half = (x @ x.T).astype(jnp.float16)
        causal = jnp.tril(jnp.ones(half.shape, bool))
        return jax.nn.softmax(jnp.where(causal, half, -1e9).astype(jnp.float32)) @ x

    assert compare(attention, policy="fp32")(normal(12, 4)).faults == ()


@pytest.mark.slow
def test_what_is_nothing_beside_another_may_vanish():
    def losses(residual):
        size = jnp.abs(residual)
        return size + jax.nn.softplus(-2 * size)

    def vanishing(residual):
        return jax.nn.softplus(-2 * jnp.abs(residual))

    residual = np.linspace(100, 200, 32, dtype=np.float32)
    assert compare(losses)(residual).faults == ()
    assert [f.kind for f in compare(vanishing)(residual).faults] == ["underflow"]


SCALE = 2.0**20


def unscaled_in_half(x):
    return (x.astype(jnp.float16) / SCALE).astype(jnp.float32)  # here


def unscaled_in_fp32(x):
    return x.astype(jnp.float16).astype(jnp.float32) / SCALE


def test_a_scale_that_is_inf_is_at_fault_though_its_line_has_only_its_name():
    both = unscaled_in_half, unscaled_in_fp32
    assert_named("overflow", *both, (normal(16),), policy="fp32")
    report = compare(unscaled_in_half, policy="fp32")(normal(16))
    assert "a constant is Inf in float16" in str(report)
