"""Training steps whose loss, by hand, goes wrong: masks, ratios, temperatures."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp
from benchmarks.faults.parts import block, cross_entropy, layer_norm


def adam(params, grads, rate=1e-2):
    """The first step of Adam."""
    mu = jax.tree.map(lambda g: 0.1 * g, grads)
    nu = jax.tree.map(lambda g: 0.001 * g * g, grads)
    moved = jax.tree.map(
        lambda p, m, v: p - rate * 10 * m / (jnp.sqrt(1000 * v) + 1e-4), params, mu, nu
    )
    return moved, mu, nu


@fault("underflow", "singular", "non-finite", policy="mxfp8", target="trn3")
@source("reports of preference training (DPO): the log of a sigmoid that is zero")
@inputs("block 32 @14", "6x10x32 @20; 32x24 *6 @21; 6x10 int 0..24 @22; 6 40..160 @23")
def preferences_that_are_all_against(params, tokens, unembed, chosen, reference):
    def score(params, x, ids):
        h = jax.vmap(lambda s: block(params, s))(x)
        logits = layer_norm(h) @ unembed
        picked = jax.nn.log_softmax(logits)
        return jnp.sum(jnp.take_along_axis(picked, ids[..., None], -1)[..., 0], -1)

    def loss(params):
        margin = 0.1 * score(params, tokens, chosen) - reference
        ahead = jnp.log(jax.nn.sigmoid(margin))  # fault
        # + ahead = jax.nn.log_sigmoid(margin)
        return -jnp.mean(ahead), jnp.mean(margin > 0)

    (value, right), grads = jax.value_and_grad(loss, has_aux=True)(params)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), grads)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), value, right


@fault("cancellation", policy="fp32")
@source("reports of GRPO: groups of equal rewards have advantages of rounding noise")
@inputs("mlp 10x16x4 @27", "8x6x10 @28; 8x6 int 0..4 @29; 8x6 int 0..3 @30")
def advantages_of_equal_rewards(params, x, actions, rewards):
    level = jnp.array([0.1, 0.9, 1.3])
    rewards = jnp.where(jnp.arange(8)[:, None] < 4, 1, rewards)
    rewards = level[rewards]

    def loss(params, gain):
        scores = jax.nn.log_softmax(mlp(params, x))
        chosen = jnp.take_along_axis(scores, actions[..., None], axis=-1)[..., 0]
        chance = jax.nn.softmax(scores)
        entropy = -jnp.sum(chance * scores, axis=-1)
        return -jnp.mean(gain * chosen + 0.01 * entropy)

    mean = jnp.mean(rewards, axis=1, keepdims=True)
    apart = rewards - mean  # fault
    # + apart = rewards - rewards[:, :1]
    # + apart = apart - jnp.mean(apart, axis=1, keepdims=True)
    spread = jnp.sqrt(jnp.mean(jnp.square(apart), axis=1, keepdims=True))
    gain = apart / (spread + 1e-8)
    value, grads = jax.value_and_grad(loss)(params, gain)
    momentum = jax.tree.map(lambda g: 0.1 * g, grads)
    return jax.tree.map(lambda p, m: p - m, params, momentum), gain, value


@fault("non-finite", "singular", policy="fp8")
@source("reports of policies with illegal actions: 0 log 0 in the entropy")
@inputs("mlp 12x16x6 @31", "24x12 @32; 24x6 int 0..3 @33; 24 @34")
def entropy_with_illegal_actions(params, states, illegal, gains):
    legal = (illegal > 0).at[:, 0].set(True)

    def loss(params):
        logits = jnp.where(legal, mlp(params, states), -jnp.inf)
        chance = jax.nn.softmax(logits)
        entropy = -jnp.sum(chance * jnp.log(chance), axis=-1)  # fault
        # + safe = jnp.where(legal, chance, 1.0)
        # + entropy = -jnp.sum(chance * jnp.log(safe), axis=-1)
        surrogate = gains * jnp.log(chance[:, 0])
        return -jnp.mean(surrogate + 0.05 * entropy)

    value, grads = jax.value_and_grad(loss)(params)
    params, mu, nu = adam(params, grads)
    return params, mu, nu, value


@fault("uniform", "coarse", policy="fp32")
@source("reports of classifiers whose logits, far from zero, are rounded to BF16")
@inputs("mlp 16x24x12 @35", "32x16 @36; 32 int 0..12 @37; 24 +20 @38")
def logits_with_a_common_offset(params, x, labels, shift):
    def loss(params):
        h = jnp.tanh(x @ params[0]["w"] + params[0]["b"]) + shift
        weights = 0.2 * params[1]["w"] + 1.25
        logits = (h @ weights + params[1]["b"]).astype(jnp.bfloat16)  # fault
        # + logits = h @ weights + params[1]["b"]
        scores = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], 1)), scores

    (value, scores), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return adam(params, grads)[:2], jnp.exp(scores), value


@fault("underflow", policy="fp16")
@source("reports of mixed precision without loss scaling: gradients vanish in half")
@inputs("block 24 @39", "16x24 @45; 24x10 w @46; 16 int 0..10 @47", "f32 3e-8")
def gradients_without_a_loss_scale(params, x, readout, labels, share):
    scale = jnp.float32(1)  # -
    # + scale = jnp.float32(2**24)

    def loss(params):
        h = layer_norm(x)
        h = x + jax.nn.gelu(h @ params["up"]) @ params["down"]
        logits = layer_norm(h) @ readout  # here
        return scale * share * cross_entropy(logits, labels)

    params = {name: params[name] for name in ("up", "down")}
    value, grads = jax.value_and_grad(loss)(params)
    grads = jax.tree.map(lambda g: g / scale, grads)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    moves = jax.tree.map(lambda g: 0.1 * g / (norm + 1e-12), grads)
    return jax.tree.map(jnp.subtract, params, moves), moves, value / scale


@fault("singular", "non-finite", policy="bf16")
@source("reports of Gumbel softmax whose uniform numbers, as BF16, round to 1")
@inputs(
    "mlp 10x16x12 @48", "200x10 @49; 200x12 0.0001..0.99999 @50; 12x6 w @51; 200x6 @52"
)
def noise_of_uniform_numbers_that_are_one(params, x, noise, codebook, y):
    def loss(params):
        logits = jax.nn.log_softmax(mlp(params, x))
        gumbel = -jnp.log(-jnp.log(noise.astype(jnp.bfloat16)))  # fault
        # + gumbel = -jnp.log(-jnp.log(noise))
        soft = jax.nn.softmax((logits + gumbel.astype(jnp.float32)) / 0.7)
        hard = jax.nn.one_hot(jnp.argmax(soft, axis=-1), 12)
        chosen = soft + jax.lax.stop_gradient(hard - soft) * 0.1
        used = jnp.mean(soft, axis=0)
        spread = jnp.sum(used * jnp.log(used + 1e-9))
        return jnp.mean(jnp.square(chosen @ codebook - y)) + 0.01 * spread

    value, grads = jax.value_and_grad(loss)(params)
    params, mu, _ = adam(params, grads)
    return params, mu, value
