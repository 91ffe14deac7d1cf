"""Weights, multipliers and accumulators of training that lose their updates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import normal


@fault("absorption", "stagnation", "coarse", policy="fp8")
@source("PEFT issues: merging an adapter into 16-bit weights loses most of it")
@inputs(
    lambda: np.asarray(
        jnp.asarray(normal(100, 24, 16, scale=0.15))
        .astype(jnp.bfloat16)
        .astype(jnp.float32)
    ),
    {
        "down": lambda: normal(101, 24, 4) + normal(103, 24, 24, 4, scale=0.3),
        "up": lambda: normal(102, 4, 16) + normal(104, 24, 4, 16, scale=0.3),
        "alpha": "24 =4e-05",
    },
    "12x24 @105",
)
def b_adapters_merged_in_bf16(base, adapters, probes):
    """Twenty-four LoRA adapters are merged into a matrix, one after the other."""

    def merge(w, adapter):
        delta = adapter["alpha"] * (adapter["down"] @ adapter["up"])
        w = w + delta.astype(w.dtype)  # fault
        return w, jnp.sqrt(jnp.mean(delta * delta))  # -
        # + return w + delta, jnp.sqrt(jnp.mean(delta * delta))

    merged, sizes = jax.lax.scan(merge, base.astype(jnp.bfloat16), adapters)  # -
    # + merged, sizes = jax.lax.scan(merge, base, adapters)
    change = merged.astype(jnp.float32) - base  # -
    # + change = merged - base
    return merged, sizes, probes @ change


@fault("absorption", "stagnation", policy="fp8")
@source("safe RL issues: dual variables cast with the model never move")
@inputs(
    "in: 8x16 *0.35 @110, out: 16x1 *0.3; 400x16x8 @112",
    lambda: (
        np.random.default_rng(113).uniform(0.5, 1.5, (400, 16, 1)).astype(np.float32)
    ),
    "f32 0.25",
)
def b_lagrange_multiplier_in_bf16(policy, states, costs, limit):
    """PPO-Lagrangian: a multiplier grows while the cost is above its limit."""
    optimizer = optax.adam(3e-4)

    def objective(w, multiplier, batch, cost):
        act = jax.nn.sigmoid(jnp.tanh(batch @ w["in"]) @ w["out"])
        spent = jnp.mean(act * cost)
        gain = jnp.mean(act * batch[:, :1])
        return multiplier * spent - gain, spent

    def step(carry, xs):
        w, state, multiplier = carry
        grads, spent = jax.grad(objective, has_aux=True)(
            w, multiplier.astype(jnp.float32), *xs
        )  # -
        # + grads, spent = jax.grad(objective, has_aux=True)(w, multiplier, *xs)
        updates, state = optimizer.update(grads, state)
        excess = (0.01 * (spent - limit)).astype(multiplier.dtype)  # -
        multiplier = jnp.maximum(multiplier + excess, 0)  # fault
        # + multiplier = jnp.maximum(multiplier + 0.01 * (spent - limit), 0)
        return (optax.apply_updates(w, updates), state, multiplier), spent

    start = (policy, optimizer.init(policy), jnp.ones((), jnp.bfloat16))  # -
    # + start = (policy, optimizer.init(policy), jnp.ones(()))
    (w, _, multiplier), spent = jax.lax.scan(step, start, (states, costs))
    return multiplier, spent[-1], w["out"]


@fault("stagnation", "absorption")
@source("optimizer issues: state that inherits the parameters' bfloat16")
@inputs(
    "slope: 12 =0, bias: f32 0; 1500x8x12 @120",
    lambda: (np.random.default_rng(121).random((1500, 8)) < 0.4).astype(np.float32),
)
def b_adagrad_sums_in_bf16(weights, clicks, labels):
    """Adagrad for a click model keeps its sums of squares in BF16."""

    def loss(w, x, y):
        logit = x @ w["slope"] + w["bias"]
        return jnp.mean(jax.nn.softplus(logit) - y * logit)

    def step(carry, batch):
        w, sums = carry
        g = jax.grad(loss)(w, *batch)
        squares = jax.tree.map(lambda v: jnp.square(v).astype(jnp.bfloat16), g)  # -
        sums = jax.tree.map(jnp.add, sums, squares)  # fault
        # + sums = jax.tree.map(lambda s, v: s + jnp.square(v), sums, g)

        def move(p, v, s):
            return p - 0.05 * v * jax.lax.rsqrt(s.astype(jnp.float32) + 1e-7)  # -
            # + return p - 0.05 * v * jax.lax.rsqrt(s + 1e-7)

        return (jax.tree.map(move, w, g, sums), sums), None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bfloat16), weights)  # -
    # + zeros = jax.tree.map(jnp.zeros_like, weights)
    (w, sums), _ = jax.lax.scan(step, (weights, zeros), (clicks, labels))
    return w, sums


@fault("stale-scale", "saturation")
@source("8-bit optimizers: state must be scaled by its own largest value")
@inputs("in: 6x12 *0.4 @130, out: 12x2 *0.3; 30x16x6 @132; 30x16x2 +1.5 @133")
def b_int8_momentum_with_old_scale(params, batches, targets):
    """Momentum is stored as INT8 codes with the largest value of the step before."""

    def loss(w, x, y):
        return jnp.mean(jnp.square(jnp.tanh(x @ w["in"]) @ w["out"] - y))

    def store(m, top):
        return jnp.clip(jnp.round(m / top * 127.0), -127, 127).astype(jnp.int8)  # here

    def step(carry, batch):
        w, codes, tops = carry
        g = jax.grad(loss)(w, *batch)
        m = jax.tree.map(lambda c, t: c.astype(jnp.float32) * t / 127.0, codes, tops)
        m = jax.tree.map(lambda a, b: 0.9 * a + b, m, g)
        # + tops = jax.tree.map(lambda v: jnp.maximum(jnp.max(jnp.abs(v)), 1e-8), m)
        codes = jax.tree.map(store, m, tops)
        kept = jax.tree.map(lambda c, t: c.astype(jnp.float32) * t / 127.0, codes, tops)
        tops = jax.tree.map(lambda v: jnp.maximum(jnp.max(jnp.abs(v)), 1e-8), kept)  # -
        w = jax.tree.map(lambda p, v: p - 0.02 * v, w, kept)
        return (w, codes, tops), kept["out"]

    codes = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.int8), params)
    tops = jax.tree.map(lambda p: jnp.full((), 0.02), params)
    (w, _, _), trace = jax.lax.scan(step, (params, codes, tops), (batches, targets))
    return w, trace


def rating_arguments():
    rng = np.random.default_rng(140)
    pairs = np.stack([rng.permutation(8)[:2] for _ in range(1200)]).astype(np.int32)
    strength = np.linspace(-120, 120, 8)
    gap = strength[pairs[:, 1]] - strength[pairs[:, 0]]
    scores = rng.random(1200) < 1 / (1 + 10 ** (gap / 400))
    return pairs[:, 0], pairs[:, 1], scores.astype(np.float32), "8 =1500"


@fault("absorption", "stagnation", policy="fp32")
@source("ranking services: small K-factors and ratings of 1500 in FP16")
@inputs(by=rating_arguments)
def b_elo_ratings_in_half(first, second, scores, start):
    """Elo ratings of a server with many short games, stored in FP16."""

    def play(ratings, game):
        a, b, score = game
        gap = (ratings[b] - ratings[a]).astype(jnp.float32)  # -
        # + gap = ratings[b] - ratings[a]
        expected = 1.0 / (1.0 + jnp.power(10.0, gap / 400.0))
        gain = (0.8 * (score - expected)).astype(ratings.dtype)  # -
        # + gain = 0.8 * (score - expected)
        ratings = ratings.at[jnp.stack([a, b])].add(jnp.stack([gain, -gain]))  # here
        return ratings, expected

    half = start.astype(jnp.float16)  # -
    ratings, expected = jax.lax.scan(play, half, (first, second, scores))  # -
    # + ratings, expected = jax.lax.scan(play, start, (first, second, scores))
    ratings = ratings.astype(jnp.float32)  # -
    surprise = -jnp.mean(scores * jnp.log(expected))
    return ratings - jnp.mean(ratings), surprise
