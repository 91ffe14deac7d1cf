"""Reinforcement learning: policies, values, returns and counters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp, mlp_params
from benchmarks.faults.parts import integers, normal, uniform


def _log_ratio(policy, delta, states, actions):
    """Of a linear Gaussian policy after an update, without a difference."""
    scaled = (actions - states @ policy["mean"]) / policy["std"]
    shift = states @ delta / policy["std"]
    return jnp.sum(shift * (scaled - 0.5 * shift), axis=-1)


def ppo_arguments():
    policy = {
        "mean": normal(100, 8, 3, scale=0.3),
        "std": uniform(104, 3, low=0.4, high=0.6),
    }
    states = normal(101, 64, 8)
    actions = states @ policy["mean"] + policy["std"] * normal(102, 64, 3)
    return policy, "8x3 *1e-05 @105", states, actions, "64 @103"


@fault("cancellation", policy="fp32")
@source("PPO code bases: the (r - 1) - log r estimate is negative for tiny updates")
@inputs(by=ppo_arguments)
def ppo_approximate_kl_ratio_minus_one(policy, delta, states, actions, advantages):
    """PPO's clipped loss and the KL estimate that stops an epoch early."""
    log_ratio = _log_ratio(policy, delta, states, actions)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 0.8, 1.2)
    loss = -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
    kl = jnp.mean((ratio - 1.0) - log_ratio)  # fault
    # + square = jnp.square(log_ratio)
    # + kl = jnp.mean(square * (0.5 + log_ratio / 6.0 + square / 24.0))
    return loss, kl, kl > 6e-9


def sac_arguments():
    params = mlp_params(120, 10, 32, 8)
    params[1]["w"] = params[1]["w"] * 6
    return params, "32x10 @121; 32x4 @122; 4 @123"


@fault("cancellation", "singular", "absorption", "non-finite")
@source("RL libraries: log-probability of a tanh-squashed Gaussian is inf")
@inputs(by=sac_arguments)
def sac_log_one_minus_tanh_squared(params, states, noise, q_weight):
    """Actor loss of soft actor-critic with a squashed Gaussian."""

    def loss(params):
        mean, log_std = jnp.split(mlp(params, states), 2, axis=-1)
        std = jnp.exp(jnp.clip(log_std, -5.0, 1.0))
        pre = mean + std * noise
        action = jnp.tanh(pre)
        gauss = -0.5 * jnp.square(noise) - jnp.clip(log_std, -5.0, 1.0) - 0.918939
        squash = jnp.log(1.0 - jnp.square(action))  # fault
        # + squash = 2.0 * (0.6931472 - pre - jax.nn.softplus(-2.0 * pre))
        log_prob = jnp.sum(gauss - squash, axis=-1)
        return jnp.mean(0.2 * log_prob - action @ q_weight)

    return jax.value_and_grad(loss)(params)


def ope_arguments():
    states = np.abs(normal(130, 24, 120, 6))
    target = normal(131, 6, 4, scale=0.02)
    target[:, 0] += 0.45
    return target, "6x4 *0.02 @132", states, "24x120 0..1 @133"


@fault("overflow", "non-finite")
@source("off-policy evaluation literature: products of ratios explode with length")
@inputs(by=ope_arguments)
def episode_importance_weights(target, behaviour, states, rewards):
    """Self-normalized importance sampling over whole episodes."""
    new = jax.nn.log_softmax(states @ target)[..., 0]
    old = jax.nn.log_softmax(states @ behaviour)[..., 0]
    total = jnp.sum(new - old, axis=1)
    weights = jnp.exp(total)  # fault
    share = weights / jnp.sum(weights)  # -
    # + share = jax.nn.softmax(total)
    returns = jnp.sum(rewards, axis=1)
    return jnp.sum(share * returns), 1.0 / jnp.sum(jnp.square(share))


@fault("non-finite", "underflow", "singular")
@source("actor-critic issues: p log p with p = 0 gives NaN")
@inputs("mlp 8x24x5 @140; 40x8 @141; 40 int 0..5 @142; 40 @143")
def entropy_bonus_of_cold_policy(params, states, actions, advantages):
    """Advantage actor-critic with an entropy bonus on a sharpened policy."""

    def loss(params):
        logits = mlp(params, states) / 0.02
        log_probs = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(log_probs, actions[:, None], axis=-1)[:, 0]
        probs = jax.nn.softmax(logits)
        entropy = -jnp.sum(probs * jnp.log(probs), axis=-1)  # fault
        # + entropy = -jnp.sum(probs * log_probs, axis=-1)
        return -jnp.mean(picked * advantages) - 0.01 * jnp.mean(entropy)

    return jax.value_and_grad(loss)(params)


def grpo_arguments():
    rewards = integers(153, 2, 12, 8).astype(np.float32)
    rewards[2], rewards[7] = 1.0, 0.0
    return "mlp 16x32x20 @150; 12x16 @151; 12x8 int 0..20 @152", rewards


@fault("non-finite", "singular")
@source("GRPO trainers: a group whose rewards all agree has no spread")
@inputs(by=grpo_arguments)
def grpo_group_of_equal_rewards(params, prompts, answers, rewards):
    """Policy gradient with advantages relative to a group of answers."""
    mean = jnp.mean(rewards, axis=1, keepdims=True)
    spread = jnp.sqrt(jnp.mean(jnp.square(rewards - mean), axis=1, keepdims=True))
    advantages = (rewards - mean) / spread  # fault
    # + advantages = (rewards - mean) / jnp.where(spread > 1e-4, spread, 1.0)

    def loss(params):
        scores = jax.nn.log_softmax(mlp(params, prompts))
        picked = jnp.take_along_axis(scores, answers, axis=-1)
        return -jnp.mean(picked * advantages)

    return jax.value_and_grad(loss)(params)


def _gae(deltas):
    def back(carry, delta):
        carry = delta + 0.95 * carry
        return carry, carry

    return jax.lax.scan(back, jnp.zeros(()), deltas, reverse=True)[1]


@fault("coarse", "cancellation", "absorption")
@source("RL in half precision: value estimates with a large mean lose their steps")
@inputs(
    "w: 8x24 *0.3 @160, head: 24 *0.2, mean: f32 1003.25; 101x8 @162; "
    "100 -0.3..0.3 @163"
)
def gae_values_in_bf16(params, states, rewards):
    """Advantages from a value head whose mean return is near 1,000."""
    hidden = jnp.tanh(states @ params["w"])
    scores = hidden @ params["head"]
    values = (scores + params["mean"]).astype(jnp.bfloat16)  # fault
    wide = values.astype(jnp.float32)  # -
    deltas = rewards + wide[1:] - wide[:-1]  # -
    # + deltas = rewards + (scores[1:] - scores[:-1])
    advantages = _gae(deltas)
    return advantages, advantages > 0


@fault("absorption", "stagnation")
@source("incremental means with step 1/n in a type of 8 bits")
@inputs("4 =400; f32 0.75 0.6875 0.5 0.25; 180x4 0.2..0.6 @170")
def bandit_running_means_bf16(counts, means, rewards):
    """A greedy bandit that keeps running means of its arms in BF16."""

    def pull(state, reward):
        counts, means = state
        arm = jnp.argmax(means)
        hit = jax.nn.one_hot(arm, means.size)
        counts = counts + hit
        change = hit * (reward - means.astype(jnp.float32)) / counts  # -
        # + change = hit * (reward - means) / counts
        means = means + change.astype(jnp.bfloat16)  # fault
        # + means = means + change
        return (counts, means), arm

    state = counts, means.astype(jnp.bfloat16)  # -
    (_, means), arms = jax.lax.scan(pull, state, rewards)  # -
    # + (_, means), arms = jax.lax.scan(pull, (counts, means), rewards)
    return means.astype(jnp.float32), arms  # -
    # + return means, arms


def frames_arguments():
    weights = normal(180, 4, 8, scale=0.3)
    return weights, weights, "f32 16777190; 180x8 @181"


@fault("absorption", "stagnation", "integer")
@source("long runs: a float step counter stops at 16,777,216")
@inputs(by=frames_arguments)
def frame_counter_in_fp32(weights, target, frames, observations):
    """Target-network copies by a float frame counter of a long run."""

    def step(state, observation):
        weights, target, frames = state
        error = jnp.tanh(weights @ observation) - jnp.tanh(target @ observation)
        weights = weights - 0.01 * jnp.outer(error, observation) + 0.002
        frames = frames + 1.0  # fault
        # + frames = frames + 1
        copy = jnp.mod(frames, 50.0) == 0.0  # -
        # + copy = frames % 50 == 0
        target = jnp.where(copy, weights, target)
        return (weights, target, frames), copy

    (weights, target, _), copies = jax.lax.scan(
        step, (weights, target, frames), observations
    )  # -
    # + (weights, target, _), copies = jax.lax.scan(
    # +     step, (weights, target, frames.astype(jnp.int32)), observations
    # + )
    return weights, target, copies
