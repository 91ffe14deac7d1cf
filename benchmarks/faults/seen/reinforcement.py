"""Reinforcement learning: policies, values, returns and counters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import integers, mlp, mlp_params, normal, uniform


def _log_ratio(policy, delta, states, actions):
    """Of a linear Gaussian policy after an update, without a difference."""
    scaled = (actions - states @ policy["mean"]) / policy["std"]
    shift = states @ delta / policy["std"]
    return jnp.sum(shift * (scaled - 0.5 * shift), axis=-1)


def ppo_k3_difference(policy, delta, states, actions, advantages):
    """PPO's clipped loss and the KL estimate that stops an epoch early."""
    log_ratio = _log_ratio(policy, delta, states, actions)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 0.8, 1.2)
    loss = -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
    kl = jnp.mean((ratio - 1.0) - log_ratio)  # fault
    return loss, kl, kl > 6e-9


def ppo_k3_series(policy, delta, states, actions, advantages):
    log_ratio = _log_ratio(policy, delta, states, actions)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 0.8, 1.2)
    loss = -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))
    square = jnp.square(log_ratio)
    kl = jnp.mean(square * (0.5 + log_ratio / 6.0 + square / 24.0))
    return loss, kl, kl > 6e-9


def ppo_arguments():
    policy = {"mean": normal(100, 8, 3, scale=0.3), "std": uniform(104, 0.4, 0.6, 3)}
    states = normal(101, 64, 8)
    actions = states @ policy["mean"] + policy["std"] * normal(102, 64, 3)
    return policy, normal(105, 8, 3, scale=1e-5), states, actions, normal(103, 64)


def sac_log_tanh(params, states, noise, q_weight):
    """Actor loss of soft actor-critic with a squashed Gaussian."""

    def loss(params):
        mean, log_std = jnp.split(mlp(params, states), 2, axis=-1)
        std = jnp.exp(jnp.clip(log_std, -5.0, 1.0))
        pre = mean + std * noise
        action = jnp.tanh(pre)
        gauss = -0.5 * jnp.square(noise) - jnp.clip(log_std, -5.0, 1.0) - 0.918939
        squash = jnp.log(1.0 - jnp.square(action))  # fault
        log_prob = jnp.sum(gauss - squash, axis=-1)
        return jnp.mean(0.2 * log_prob - action @ q_weight)

    return jax.value_and_grad(loss)(params)


def sac_softplus(params, states, noise, q_weight):
    def loss(params):
        mean, log_std = jnp.split(mlp(params, states), 2, axis=-1)
        std = jnp.exp(jnp.clip(log_std, -5.0, 1.0))
        pre = mean + std * noise
        action = jnp.tanh(pre)
        gauss = -0.5 * jnp.square(noise) - jnp.clip(log_std, -5.0, 1.0) - 0.918939
        squash = 2.0 * (0.6931472 - pre - jax.nn.softplus(-2.0 * pre))
        log_prob = jnp.sum(gauss - squash, axis=-1)
        return jnp.mean(0.2 * log_prob - action @ q_weight)

    return jax.value_and_grad(loss)(params)


def sac_arguments():
    params = mlp_params(120, 10, 32, 8)
    params[1]["w"] = params[1]["w"] * 6
    return params, normal(121, 32, 10), normal(122, 32, 4), normal(123, 4)


def ope_product_of_ratios(target, behaviour, states, rewards):
    """Self-normalized importance sampling over whole episodes."""
    new = jax.nn.log_softmax(states @ target)[..., 0]
    old = jax.nn.log_softmax(states @ behaviour)[..., 0]
    total = jnp.sum(new - old, axis=1)
    weights = jnp.exp(total)  # fault
    share = weights / jnp.sum(weights)
    returns = jnp.sum(rewards, axis=1)
    return jnp.sum(share * returns), 1.0 / jnp.sum(jnp.square(share))


def ope_softmax(target, behaviour, states, rewards):
    new = jax.nn.log_softmax(states @ target)[..., 0]
    old = jax.nn.log_softmax(states @ behaviour)[..., 0]
    total = jnp.sum(new - old, axis=1)
    share = jax.nn.softmax(total)
    returns = jnp.sum(rewards, axis=1)
    return jnp.sum(share * returns), 1.0 / jnp.sum(jnp.square(share))


def ope_arguments():
    states = np.abs(normal(130, 24, 120, 6))
    target = normal(131, 6, 4, scale=0.02)
    target[:, 0] += 0.45
    behaviour = normal(132, 6, 4, scale=0.02)
    return target, behaviour, states, uniform(133, 0, 1, 24, 120)


def entropy_of_cold_policy(params, states, actions, advantages):
    """Advantage actor-critic with an entropy bonus on a sharpened policy."""

    def loss(params):
        logits = mlp(params, states) / 0.02
        log_probs = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(log_probs, actions[:, None], axis=-1)[:, 0]
        probs = jax.nn.softmax(logits)
        entropy = -jnp.sum(probs * jnp.log(probs), axis=-1)  # fault
        return -jnp.mean(picked * advantages) - 0.01 * jnp.mean(entropy)

    return jax.value_and_grad(loss)(params)


def entropy_from_logits(params, states, actions, advantages):
    def loss(params):
        logits = mlp(params, states) / 0.02
        log_probs = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(log_probs, actions[:, None], axis=-1)[:, 0]
        probs = jax.nn.softmax(logits)
        entropy = -jnp.sum(probs * log_probs, axis=-1)
        return -jnp.mean(picked * advantages) - 0.01 * jnp.mean(entropy)

    return jax.value_and_grad(loss)(params)


def entropy_arguments():
    return (
        mlp_params(140, 8, 24, 5),
        normal(141, 40, 8),
        integers(142, 0, 5, 40),
        normal(143, 40),
    )


def grpo_divide_by_std(params, prompts, answers, rewards):
    """Policy gradient with advantages relative to a group of answers."""
    mean = jnp.mean(rewards, axis=1, keepdims=True)
    spread = jnp.sqrt(jnp.mean(jnp.square(rewards - mean), axis=1, keepdims=True))
    advantages = (rewards - mean) / spread  # fault

    def loss(params):
        scores = jax.nn.log_softmax(mlp(params, prompts))
        picked = jnp.take_along_axis(scores, answers, axis=-1)
        return -jnp.mean(picked * advantages)

    return jax.value_and_grad(loss)(params)


def grpo_guarded(params, prompts, answers, rewards):
    mean = jnp.mean(rewards, axis=1, keepdims=True)
    spread = jnp.sqrt(jnp.mean(jnp.square(rewards - mean), axis=1, keepdims=True))
    advantages = (rewards - mean) / jnp.where(spread > 1e-4, spread, 1.0)

    def loss(params):
        scores = jax.nn.log_softmax(mlp(params, prompts))
        picked = jnp.take_along_axis(scores, answers, axis=-1)
        return -jnp.mean(picked * advantages)

    return jax.value_and_grad(loss)(params)


def grpo_arguments():
    rewards = integers(153, 0, 2, 12, 8).astype(np.float32)
    rewards[2], rewards[7] = 1.0, 0.0
    return (
        mlp_params(150, 16, 32, 20),
        normal(151, 12, 16),
        integers(152, 0, 20, 12, 8),
        rewards,
    )


def _gae(deltas):
    def back(carry, delta):
        carry = delta + 0.95 * carry
        return carry, carry

    return jax.lax.scan(back, jnp.zeros(()), deltas, reverse=True)[1]


def gae_bf16_values(params, states, rewards):
    """Advantages from a value head whose mean return is near 1,000."""
    hidden = jnp.tanh(states @ params["w"])
    scores = hidden @ params["head"]
    values = (scores + params["mean"]).astype(jnp.bfloat16)  # fault
    wide = values.astype(jnp.float32)
    deltas = rewards + wide[1:] - wide[:-1]
    advantages = _gae(deltas)
    return advantages, advantages > 0


def gae_fp32_values(params, states, rewards):
    hidden = jnp.tanh(states @ params["w"])
    scores = hidden @ params["head"]  # all but the mean, which cancels
    deltas = rewards + (scores[1:] - scores[:-1])
    advantages = _gae(deltas)
    return advantages, advantages > 0


def gae_arguments():
    params = {
        "w": normal(160, 8, 24, scale=0.3),
        "head": normal(161, 24, scale=0.2),
        "mean": np.float32(1003.25),
    }
    return params, normal(162, 101, 8), uniform(163, -0.3, 0.3, 100)


def bandit_bf16_means(counts, means, rewards):
    """A greedy bandit that keeps running means of its arms in BF16."""

    def pull(state, reward):
        counts, means = state
        arm = jnp.argmax(means)
        hit = jax.nn.one_hot(arm, means.size)
        counts = counts + hit
        change = hit * (reward - means.astype(jnp.float32)) / counts
        means = means + change.astype(jnp.bfloat16)  # fault
        return (counts, means), arm

    state = counts, means.astype(jnp.bfloat16)
    (_, means), arms = jax.lax.scan(pull, state, rewards)
    return means.astype(jnp.float32), arms


def bandit_fp32_means(counts, means, rewards):
    def pull(state, reward):
        counts, means = state
        arm = jnp.argmax(means)
        hit = jax.nn.one_hot(arm, means.size)
        counts = counts + hit
        change = hit * (reward - means) / counts
        means = means + change
        return (counts, means), arm

    (_, means), arms = jax.lax.scan(pull, (counts, means), rewards)
    return means, arms


def bandit_arguments():
    means = np.array([0.75, 0.6875, 0.5, 0.25], np.float32)
    rewards = uniform(170, 0.2, 0.6, 180, 4)
    return np.full(4, 400, np.float32), means, rewards


def frames_in_float(weights, target, frames, observations):
    """Target-network copies by a float frame counter of a long run."""

    def step(state, observation):
        weights, target, frames = state
        error = jnp.tanh(weights @ observation) - jnp.tanh(target @ observation)
        weights = weights - 0.01 * jnp.outer(error, observation) + 0.002
        frames = frames + 1.0  # fault
        copy = jnp.mod(frames, 50.0) == 0.0
        target = jnp.where(copy, weights, target)
        return (weights, target, frames), copy

    (weights, target, _), copies = jax.lax.scan(
        step, (weights, target, frames), observations
    )
    return weights, target, copies


def frames_in_int(weights, target, frames, observations):
    def step(state, observation):
        weights, target, frames = state
        error = jnp.tanh(weights @ observation) - jnp.tanh(target @ observation)
        weights = weights - 0.01 * jnp.outer(error, observation) + 0.002
        frames = frames + 1
        copy = frames % 50 == 0
        target = jnp.where(copy, weights, target)
        return (weights, target, frames), copy

    (weights, target, _), copies = jax.lax.scan(
        step, (weights, target, frames.astype(jnp.int32)), observations
    )
    return weights, target, copies


def frames_arguments():
    weights = normal(180, 4, 8, scale=0.3)
    return weights, weights, np.float32(16_777_190), normal(181, 180, 8)


FAULTS = (
    Fault(
        name="ppo-approximate-kl-ratio-minus-one",
        kinds=("cancellation",),
        faulty=ppo_k3_difference,
        healthy=ppo_k3_series,
        arguments=ppo_arguments,
        policy="fp32",
        source=(
            "PPO code bases: the (r - 1) - log r estimate is negative for tiny updates"
        ),
    ),
    Fault(
        name="sac-log-one-minus-tanh-squared",
        kinds=("cancellation", "singular", "absorption", "non-finite"),
        faulty=sac_log_tanh,
        healthy=sac_softplus,
        arguments=sac_arguments,
        policy="bf16",
        source="RL libraries: log-probability of a tanh-squashed Gaussian is inf",
    ),
    Fault(
        name="episode-importance-weights",
        kinds=("overflow", "non-finite"),
        faulty=ope_product_of_ratios,
        healthy=ope_softmax,
        arguments=ope_arguments,
        policy="bf16",
        source=(
            "off-policy evaluation literature: products of ratios explode with length"
        ),
    ),
    Fault(
        name="entropy-bonus-of-cold-policy",
        kinds=("non-finite", "underflow", "singular"),
        faulty=entropy_of_cold_policy,
        healthy=entropy_from_logits,
        arguments=entropy_arguments,
        policy="bf16",
        source="actor-critic issues: p log p with p = 0 gives NaN",
    ),
    Fault(
        name="grpo-group-of-equal-rewards",
        kinds=("non-finite", "singular"),
        faulty=grpo_divide_by_std,
        healthy=grpo_guarded,
        arguments=grpo_arguments,
        policy="bf16",
        source="GRPO trainers: a group whose rewards all agree has no spread",
    ),
    Fault(
        name="gae-values-in-bf16",
        kinds=("coarse", "cancellation", "absorption"),
        faulty=gae_bf16_values,
        healthy=gae_fp32_values,
        arguments=gae_arguments,
        policy="bf16",
        source=(
            "RL in half precision: value estimates with a large mean lose their steps"
        ),
    ),
    Fault(
        name="bandit-running-means-bf16",
        kinds=("absorption", "stagnation"),
        faulty=bandit_bf16_means,
        healthy=bandit_fp32_means,
        arguments=bandit_arguments,
        policy="bf16",
        source="incremental means with step 1/n in a type of 8 bits",
    ),
    Fault(
        name="frame-counter-in-fp32",
        kinds=("absorption", "stagnation", "integer"),
        faulty=frames_in_float,
        healthy=frames_in_int,
        arguments=frames_arguments,
        policy="bf16",
        source="long runs: a float step counter stops at 16,777,216",
    ),
)
