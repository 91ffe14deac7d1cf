"""What the interpreter gives to XLA: equal work once, and as few operations as do."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.execution import shortcuts


def emulated(function, *arguments, policy="fp32"):
    """The text of the program that XLA gets."""
    call = nj.jit(function, target="trn2", policy=policy)
    return jax.jit(lambda *a: call(*a)).lower(*arguments).as_text()


def angles(x, layers):
    """What every layer of a model with rotary embeddings makes anew."""
    for _ in range(layers):
        positions = jax.lax.iota(jnp.float32, x.shape[-1])
        x = x * jnp.sin(positions * 0.5)
    return x


def sines(text):
    """Calls of kernels that XLA keeps apart."""
    return text.count('inlineable = "false"')


X = np.linspace(-2, 2, 512, dtype=np.float32).reshape(8, 64)


@pytest.mark.parametrize("layers", [1, 4])
def test_equal_work_is_emulated_once(layers):
    text = emulated(lambda x: angles(x, layers), X)
    assert sines(text) == sines(emulated(lambda x: angles(x, 1), X))


def test_large_results_are_made_again(monkeypatch):
    """So that a program can trade time for memory."""
    monkeypatch.setattr(shortcuts, "REUSED_BYTES", 100)
    assert sines(emulated(lambda x: angles(x, 4), X)) >= 4


@pytest.mark.slow
def test_other_operands_are_other_work():
    def run(x, y):
        return jnp.sin(x) + 2 * jnp.sin(y) + jnp.cos(x)

    expected = run(X.astype(np.float64), 3.0 * X)
    np.testing.assert_allclose(
        nj.jit(run, target="trn2", policy="fp32")(X, 3 * X), expected, atol=1e-5
    )


@pytest.mark.parametrize("policy", ["fp32", "bf16", "fp8"])
def test_reuse_changes_no_bit(policy):
    def run(x):
        w = jnp.sin(jax.lax.iota(jnp.float32, 64 * 32)).reshape(64, 32)
        v = jnp.sin(jax.lax.iota(jnp.float32, 64 * 32)).reshape(64, 32)
        return angles(x, 3), x @ w - x @ v, jnp.tanh(x @ w) * jnp.tanh(x @ v)

    call = nj.jit(run, target="trn2", policy=policy)
    compiled = call(X)
    with jax.disable_jit():
        alone = call(X)
    for a, b in zip(compiled, alone, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("policy", ["fp32", "bf16", "fp16"])
def test_composed_roots_quotients_and_casts_are_those_of_single_operations(policy):
    """Among what XLA would rewrite: 1 / sqrt, a / (b / c), round trips, x / y + z."""

    def run(x):
        y, z = jnp.abs(x) + 0.3, jnp.abs(x[:1]) + 0.7
        half = (x / y).astype(jnp.float16).astype(jnp.float32) * 3
        bf16 = (half - x).astype(jnp.bfloat16).astype(jnp.float32) / z
        roots = 1 / jnp.sqrt(y) + jnp.sqrt(y) / jnp.sqrt(z) + jax.lax.rsqrt(y) * half
        return bf16 + half, roots, x / (y / z) + (x / y) / z, jnp.sqrt(-y) / z

    call = nj.jit(run, target="trn2", policy=policy)
    compiled = call(X)
    with jax.disable_jit():
        alone = call(X)
    for a, b in zip(compiled, alone, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_every_stochastic_rounding_is_its_own():
    """Equal casts of one number draw other bits."""
    policy = dataclasses.replace(nj.Policy.preset("bf16"), rounding="stochastic")

    def run(x):
        return x.astype(jnp.bfloat16), x.astype(jnp.bfloat16)

    one, other = nj.jit(run, target="trn2", policy=policy)(X)
    assert (np.asarray(one) != np.asarray(other)).any()


HALF = X.astype(jnp.bfloat16)
WIDE = np.zeros((64, 256), jnp.bfloat16)  # two K tiles
#: StableHLO operations of an instruction beyond those of its arguments and of what
#: every program has: XLA's time to compile follows them. With little room.
OPERATIONS = {
    "cast to bfloat16": (lambda x: x.astype(jnp.bfloat16), (X,), 31),
    "cast to float16": (lambda x: x.astype(jnp.float16), (X,), 13),
    "widening of bfloat16": (lambda x: x.astype(jnp.float32), (HALF,), 16),
    "sum": (lambda x, y: x + y, (X, X), 3),
    "product": (lambda x, y: x * y, (X, X), 5),
    "quotient": (lambda x, y: x / y, (X, X), 22),
    "contraction": (
        lambda x, y: jnp.dot(x, y, preferred_element_type=jnp.float32),
        (WIDE, WIDE.T),
        39,
    ),
}


def operations(function, arguments):
    return emulated(function, *arguments, policy="bf16").count("= stablehlo.")


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_an_instruction(name):
    function, arguments, most = OPERATIONS[name]
    around = operations(lambda *x: [a.T for a in x], arguments)
    assert operations(function, arguments) - around <= most


@pytest.mark.parametrize("eager", [False, True])
def test_a_quotient_that_is_nan_has_one_bit_pattern_inside_a_program(eager):
    """Not the host's: what reads its bits would tell hosts apart."""

    def run(x, y):
        quotient = x / y
        return jax.lax.bitcast_convert_type(quotient, jnp.uint32), quotient * 2

    x, y = np.float32([0, np.inf, -np.inf, 6]), np.float32([-0.0, -np.inf, np.inf, 3])
    with jax.disable_jit(eager):
        bits, twice = nj.jit(run, target="trn2", policy="fp32")(x, y)
    nan = 0x7FC00000
    np.testing.assert_array_equal(bits, np.uint32([nan, nan, nan, 0x40000000]))
    np.testing.assert_array_equal(twice, np.float32([np.nan, np.nan, np.nan, 4]))
