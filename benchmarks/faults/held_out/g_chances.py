"""Chances and returns: likelihoods, policies, sampling, counts, times."""

import jax
import jax.numpy as jnp

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp


@fault("underflow", policy="fp32")
@source("the forward algorithm of hidden Markov models without normalization")
@inputs("5x5 *1.5 @1; 5x7 @2; 400 int 0..7 @3")
def forward_algorithm_without_scales(transitions, emissions, seen):
    step = jax.nn.softmax(transitions, axis=-1)
    emit = jax.nn.softmax(emissions, axis=-1)

    def turn(state, symbol):
        alpha, total = state
        alpha = (alpha @ step) * emit[:, symbol]  # here
        # + total = total + jnp.log(alpha.sum())
        # + alpha = alpha / alpha.sum()
        return (alpha, total), None

    (alpha, total), _ = jax.lax.scan(turn, (jnp.full(5, 0.2), jnp.float32(0)), seen)
    return total + jnp.log(alpha.sum())


@fault("overflow", policy="fp32")
@source("exported likelihoods of counts with a table of factorials")
@inputs("60 int 1..48 @11; 60x4 *0.3 @12; 4 @13; f32 2.5")
def factorials_of_counts(counts, x, w, base):
    def likelihood(counts, rate):
        table = jnp.log(jnp.cumprod(jnp.arange(1.0, 49.0)))  # fault
        # + table = jnp.cumsum(jnp.log(jnp.arange(1.0, 49.0)))
        return counts * rate - jnp.exp(rate) - table[counts - 1]

    rate = base + x @ w
    stored = jax.export.export(jax.jit(likelihood))(counts, rate)
    return -jnp.mean(nj.load(stored.serialize())(counts, rate)), jnp.exp(rate)


@fault("underflow", "non-finite", policy="fp32")
@source("returns by a cumulative sum that is divided by powers of the discount")
@inputs("1200 +0.5 @51; 1200 +4 @52; f32 0.9")
def returns_by_powers_of_the_discount(rewards, baseline, gamma):
    weights = gamma ** jnp.arange(1200.0)  # fault
    returns = jnp.cumsum((rewards * weights)[::-1])[::-1] / weights  # -
    # + def turn(rest, reward):
    # +     return (reward + gamma * rest,) * 2
    # + returns = jax.lax.scan(turn, jnp.float32(0), rewards, reverse=True)[1]
    advantage = returns - baseline
    return advantage / jnp.sqrt(jnp.mean(jnp.square(advantage)))


@fault("underflow", "non-finite", policy="fp32")
@source("ratios of densities of policies with many dimensions")
@inputs("mlp 10x16x64 @61; mlp 10x16x64 @61; 48x10 @63; 48x64 @64; 48 @65; f32 0.02")
def ratio_of_two_densities(params, old, x, noise, advantage, shift):
    actions = mlp(old, x) + 2.0 * noise
    old = jax.tree.map(lambda a: a * (1.0 + shift), old)

    def density(params):
        z = actions - mlp(params, x)
        return jnp.exp(-0.5 * jnp.sum(z * z, axis=-1))  # fault
        # + return -0.5 * jnp.sum(z * z, axis=-1)

    def loss(params):
        ratio = density(params) / density(old)  # -
        # + ratio = jnp.exp(density(params) - density(old))
        clipped = jnp.clip(ratio, 0.8, 1.2)
        return -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)


@fault("non-finite", "singular", policy="fp32")
@source("entropy bonuses that are NaN as soon as a policy is sure")
@inputs("24x8 @71; 8x6 *60 @72; 24 int 0..6 @73; 24 @74")
def entropy_of_a_sure_policy(x, w, action, advantage):
    share, scores = jax.nn.softmax(x @ w), jax.nn.log_softmax(x @ w)
    entropy = -jnp.sum(share * jnp.log(share), axis=-1)  # fault
    # + entropy = -jnp.sum(share * scores, axis=-1)
    taken = jnp.take_along_axis(scores, action[:, None], axis=-1)[:, 0]
    return -jnp.mean(taken * advantage + 0.01 * entropy), entropy


@fault("singular", "cancellation", "non-finite", policy="bf16")
@source("squashed Gaussian policies: the logarithm of one minus tanh squared")
@inputs("32x8 *2 @81; 8x4 *0.9 @82; 32x4 *0.5 @83")
def density_of_a_squashed_action(x, w, noise):
    def loss(w):
        u = x @ w + noise
        slope = jnp.log(1.0 - jnp.square(jnp.tanh(u)))  # fault
        # + slope = 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))
        density = jnp.sum(-0.5 * noise**2 - slope, axis=-1)
        return jnp.mean(0.1 * density - jnp.tanh(u).sum(-1))

    return jax.value_and_grad(loss)(w)


@fault("coarse", "stagnation", "absorption", policy="bf16")
@source("prioritized replay with sums of priorities in half")
@inputs("1500 0.5..1.5 @91; 64 0..1 @92; f32 0.6")
def draws_from_sums_of_priorities(priority, chance, beta):
    sums = jnp.cumsum(priority.astype(jnp.bfloat16))  # fault
    # + sums = jnp.cumsum(priority)
    sums = sums.astype(jnp.float32)
    drawn = jnp.searchsorted(sums, chance * sums[-1], method="compare_all")
    weight = (1500 * priority[drawn] / sums[-1]) ** -beta
    return drawn, weight / weight.max()


@fault("coarse", "singular", "non-finite", "cancellation", policy="bf16")
@source("values that are scaled by the horizon, 1 / (1 - discount)")
@inputs("32x12 @101; mlp 12x24x1 @102; 32 +0.5 @104; f32 0.9992")
def horizon_of_a_discount_in_half(x, params, rewards, gamma):
    horizon = 1.0 / (1.0 - gamma.astype(jnp.bfloat16))  # fault
    # + horizon = 1.0 / (1.0 - gamma)
    value = mlp(params, x)[:, 0] * horizon.astype(jnp.float32)
    target = rewards[:-1] + gamma * value[1:]
    return value, target


@fault("integer", policy="bf16")
@source("keys of pairs of tokens in int32")
@inputs("256 int 0..50257 @111; 256 int 0..50257 @112; 256 @113")
def keys_of_pairs_of_tokens(left, right, weight):
    key = left * 50257 + right  # fault
    # + key = left.astype(jnp.uint32) * 50257 + right.astype(jnp.uint32)
    first = (key // 50257).astype(jnp.int32)
    near = jnp.abs(first[:, None] - first) < 500
    return first, near.astype(jnp.float32) @ weight
