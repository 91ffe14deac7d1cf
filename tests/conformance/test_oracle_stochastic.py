"""Stochastic rounding: the neighbours, the odds, and which calls draw the same bits."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from tests.oracles import data, floats

STOCHASTIC = functools.partial(nj.Policy, rounding="stochastic")
DTYPES = {
    "bf16": jnp.bfloat16,
    "fp16": jnp.float16,
    "e5m2": jnp.float8_e5m2,
    "e4m3": jnp.float8_e4m3,
}
COUNT = 4096


@functools.cache
def casts(seed: int = 0):
    """Casts FP32 to every format of `DTYPES`, each back in FP32."""

    def program(x):
        return {k: x.astype(t).astype(jnp.float32) for k, t in DTYPES.items()}

    return nj.jit(program, target="trn2", policy=STOCHASTIC(seed=seed))


def moderate(rng) -> np.ndarray:
    """Numbers within the range of every format, among them its subnormals."""
    exponents = rng.integers(-18, 5, (COUNT,))
    x = data.normal(rng, (COUNT,)) * np.exp2(exponents).astype(np.float32)
    return x.astype(np.float32)


@pytest.mark.slow
def test_results_are_neighbours_and_both_occur():
    x = moderate(np.random.default_rng(1))
    for name, out in casts().with_rounding_seed(3)(x).items():
        low, high = floats.neighbours(x, name)
        got = np.asarray(out)
        assert np.all((got == low) | (got == high)), name
        between = low != high
        assert 0.1 < np.mean(got[between] == low[between]) < 0.9, name


@pytest.mark.slow
def test_exact_and_special_values_stay():
    rng = np.random.default_rng(2)
    x = np.concatenate([moderate(rng), np.float32([0, -0.0, np.inf, -np.inf, np.nan])])
    for name in DTYPES:
        exact = floats.round_to(x, name)
        out = casts().with_rounding_seed(4)(exact)[name]
        floats.same_bits(out, exact, name)


@pytest.mark.parametrize("fraction", [0.0625, 0.25, 0.5, 0.8125])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_odds_are_the_distances(fraction, sign):
    """Rounded up as often as the place between the neighbours says, within 4 sigma."""
    calls = 8
    for name, fmt in floats.FORMATS.items():
        if name not in DTYPES:
            continue
        ulp = 2.0 ** (1 - fmt.digits)
        x = np.full(COUNT, sign * (1 + fraction * ulp), np.float32)
        outs = [casts().with_rounding_seed(i)(x)[name] for i in range(calls)]
        away = np.sum(np.abs(np.stack(outs)) > 1)
        trials = calls * COUNT
        sigma = np.sqrt(trials * fraction * (1 - fraction))
        assert abs(away - trials * fraction) < 4 * sigma, (name, away / trials)


def test_unbiased_on_numbers_of_every_size():
    x = moderate(np.random.default_rng(3))
    calls = 16
    outs = [casts().with_rounding_seed(i)(x) for i in range(calls)]
    for name in DTYPES:
        low, high = (v.astype(np.float64) for v in floats.neighbours(x, name))
        gap = np.where(high > low, high - low, 1)
        place = (floats.flush(x) - low) / gap
        errors = np.stack([np.asarray(out[name]) for out in outs]) - np.float64(x)
        variance = calls * np.sum(place * (1 - place))
        assert abs(np.sum(errors / gap)) < 4 * np.sqrt(variance), name


@pytest.mark.slow
def test_which_calls_draw_the_same_bits():
    x = np.full(COUNT, 1.001, np.float32)

    def bits(out):
        return np.stack([np.asarray(out[name]) for name in DTYPES])

    first = bits(casts().with_rounding_seed(7)(x))
    assert np.array_equal(first, bits(casts().with_rounding_seed(7)(x)))
    traced = jax.jit(lambda i, x: casts().with_rounding_seed(i)(x))
    assert np.array_equal(first, bits(traced(7, x)))
    with jax.disable_jit():
        assert np.array_equal(first, bits(casts().with_rounding_seed(7)(x)))
    others = [
        bits(casts().with_rounding_seed(8)(x)),
        bits(casts(seed=1).with_rounding_seed(7)(x)),
    ]
    for other in others:
        assert not np.array_equal(first[0], other[0])
    assert np.mean(first[0] == others[0][0]) > 0.5  # 1.001 is mostly rounded down
    successive = [bits(casts()(x)) for _ in range(2)]
    assert not np.array_equal(*successive)


@pytest.fixture(scope="module")
def weighted():
    """An emulated weighted sum of BF16 casts, its argument and its weights."""
    rng = np.random.default_rng(6)
    x, weights = data.normal(rng, (COUNT,)), data.normal(rng, (COUNT,))

    def loss(x):
        return jnp.sum(x.astype(jnp.bfloat16).astype(jnp.float32) * weights)

    return nj.jit(loss, target="trn2", policy=STOCHASTIC()), x, weights


def assert_draws(weights, *draws) -> None:
    """Gradients of the sum: the cast's transpose casts the weights."""
    low, high = floats.neighbours(weights, "bf16")
    for draw in draws:
        assert np.all((draw == low) | (draw == high))
        assert 0.4 < np.mean(draw == low) < 0.6


@pytest.mark.slow
def test_gradients_draw_the_bits_of_their_seed(weighted):
    emulated, x, weights = weighted
    draws = [
        np.asarray(jax.grad(emulated.with_rounding_seed(seed))(x)) for seed in (9, 9, 8)
    ]
    assert_draws(weights, *draws)
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_gradients_without_a_seed_are_refused(weighted):
    """A transformation traces the call."""
    emulated, x, _ = weighted
    with pytest.raises(nj.InvalidProgramError, match="with_rounding_seed"):
        jax.grad(emulated)(x)


def test_a_traced_call_without_a_seed_is_refused():
    with pytest.raises(nj.InvalidProgramError, match="with_rounding_seed"):
        jax.jit(lambda x: casts()(x))(np.ones(4, np.float32))


@pytest.mark.slow
def test_elements_ops_and_iterations_draw_different_bits():
    x = np.full(COUNT, 1 + 2.0**-8, np.float32)

    def program(x):
        pair = [x.astype(jnp.bfloat16), (-x).astype(jnp.bfloat16)]
        cast = lax.scan(lambda c, _: (c, c.astype(jnp.bfloat16)), x, None, length=3)
        return [*pair, *cast[1]]

    outs = nj.jit(program, policy=STOCHASTIC()).with_rounding_seed(0)(x)
    up = [np.abs(np.asarray(out, np.float32)) > 1 for out in outs]
    for i in range(len(up)):
        for j in range(i):
            # Independent fair draws agree half the time.
            agree = np.mean(up[i] == up[j])
            assert abs(agree - 0.5) < 4 * 0.5 / np.sqrt(COUNT), (i, j, agree)
        shifted = np.mean(up[i][1:] == up[i][:-1])
        assert abs(shifted - 0.5) < 4 * 0.5 / np.sqrt(COUNT), (i, shifted)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8_e4m3"])
def test_the_casts_of_matmul_operands_are_stochastic(name):
    """A product with the identity shows the rounded operand itself."""
    rng = np.random.default_rng(5)
    x, identity = data.normal(rng, (64, 40)), np.eye(40, dtype=np.float32)
    policy = STOCHASTIC(auto_cast="matmult", auto_cast_type=name)
    dot = nj.jit(lambda x, i: x @ i, target="trn2", policy=policy)
    out = np.asarray(dot.with_rounding_seed(1)(x, identity))
    low, high = floats.neighbours(x, name.removeprefix("fp8_"))
    assert np.all((out == low) | (out == high))
    assert 0.4 < np.mean(out == low) < 0.6
    with jax.disable_jit():
        floats.same_bits(dot.with_rounding_seed(1)(x, identity), out, "op by op")


@pytest.mark.slow
def test_the_published_sum_ends_near_2048():
    """1024 + 2048 x 0.5 in FP16: 1024 to nearest, 2048 on average stochastically."""

    def total(x):
        def step(c, _):
            return c + jnp.float16(0.5), None

        return lax.scan(step, x, None, length=2048)[0]

    x = np.full(64, 1024, np.float16)
    assert np.all(np.asarray(nj.jit(total)(x)) == 1024)
    emulated = nj.jit(total, policy=STOCHASTIC())
    out = np.asarray(emulated.with_rounding_seed(2)(x), np.float64)
    deviation = np.sqrt(2048 * 0.25)  # of one sum, while its unit is 1
    assert np.all(np.abs(out - 2048) < 6 * deviation)
    assert abs(np.mean(out) - 2048) < 4 * deviation / np.sqrt(out.size)
    assert len(set(out)) > 10


@pytest.mark.slow
def test_the_published_sum_by_calls_from_python_ends_near_2048():
    """Every call counts, so every step draws bits of its own."""
    step = nj.jit(lambda c: c + jnp.float16(0.5), policy=STOCHASTIC())
    total = jnp.full(64, 1024, jnp.float16)
    for _ in range(2048):
        total = step(total)
    out, deviation = np.asarray(total, np.float64), np.sqrt(2048 * 0.25)
    assert abs(np.mean(out) - 2048) < 4 * deviation / np.sqrt(out.size)
    assert len(set(out)) > 10
