"""Exponentials, powers, sums of squares and casts that leave a format's range."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    attention,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)

FP8_UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")


def elu_arguments():
    def dense(seed, rows, columns, gain=1.0):
        return {
            "kernel": weight(seed, rows, columns, gain),
            "bias": np.zeros(columns, np.float32),
        }

    params = {
        "in": dense(101, 20, 48),
        "middle": dense(102, 48, 48),
        "out": dense(103, 48, 6, 0.02),
    }
    return params, normal(104, 32, 20, scale=55.0), integers(105, 6, 32)


@fault("overflow", "non-finite", policy="mxfp8", target="trn3")
@source("JAX FAQ: gradients contain NaN where using where; hand-written ELUs")
@inputs(by=elu_arguments)
def elu_exponential_behind_where(params, x, labels):
    """A network of Flax with an ELU of its own; the features are not normalized."""

    def elu(x, slope=1.0):
        below = slope * (jnp.exp(x) - 1.0)  # fault
        # + below = slope * (jnp.exp(jnp.minimum(x, 0.0)) - 1.0)
        return jnp.where(x > 0, x, below)

    def loss_of(params):
        h = elu(nn.Dense(48).apply({"params": params["in"]}, x))
        h = elu(nn.Dense(48).apply({"params": params["middle"]}, h))
        logits = nn.Dense(6).apply({"params": params["out"]}, h)
        return cross_entropy(logits, labels)

    return jax.value_and_grad(loss_of)(params)


@fault("overflow", policy="fp8")
@source("forum questions: the perplexity of a long text is infinite")
@inputs("embed: 60x24 *0.2 @111, body: block 24; 65 int 0..60 @122")
def perplexity_exp_of_the_sum(params, tokens):
    """The perplexity of one document under a small causal model."""
    x = params["embed"][tokens[:-1]]
    x = x + attention(params["body"], layer_norm(x))
    logits = layer_norm(x) @ params["embed"].T
    scores = jax.nn.log_softmax(logits)
    picked = jnp.take_along_axis(scores, tokens[1:, None], axis=-1)[:, 0]
    inverse = jnp.exp(-picked.sum())  # fault
    return inverse ** (1.0 / picked.size)  # -
    # + return jnp.exp(-picked.mean())


def hedge_arguments():
    skill = uniform(131, 10, low=0.3, high=0.5)
    skill[3] = 0.75
    gains = skill + normal(132, 320, 10, scale=0.1)
    return "10x12 @133", gains.astype(np.float32)


@fault("overflow", policy="fp32")
@source("bandit code: weights of Exp3 and Hedge become inf, then shares NaN")
@inputs(by=hedge_arguments)
def hedge_weights_never_renormalized(experts, gains):
    """Hedge: experts are weighed by exponentials of what they have earned so far."""

    def day(weights, gain):  # -
        share = weights / weights.sum()
        earned = share @ gain
        weights = weights * jnp.exp(0.5 * gain)  # fault
        return weights, earned

    # + def day(logs, gain):
    # +     share = jax.nn.softmax(logs)
    # +     earned = share @ gain
    # +     return logs + 0.5 * gain, earned

    first = jnp.ones(experts.shape[0])  # -
    # + first = jnp.zeros(experts.shape[0])
    weights, earned = jax.lax.scan(day, first, gains)  # -
    mixture = (weights / weights.sum()) @ experts  # -
    # + logs, earned = jax.lax.scan(day, first, gains)
    # + mixture = jax.nn.softmax(logs) @ experts
    return mixture, earned


@fault("overflow")
@source("kernel machines' guides: scale features before a polynomial kernel")
@inputs(
    lambda: np.round(uniform(141, 24, 64, high=255.0)),
    "24x3 0.2..1 @143",
    lambda: np.round(uniform(142, 16, 64, high=255.0)),
)
def polynomial_kernel_of_raw_bytes(support, dual, pictures):
    """A support vector machine on raw bytes: the kernel is normalized afterwards."""
    points = jnp.concatenate([support, pictures])
    gram = (points @ points.T / points.shape[1] + 1.0) ** 9  # fault
    length = jnp.sqrt(jnp.diag(gram))  # -
    # + inner = points @ points.T / points.shape[1] + 1.0
    # + length = jnp.sqrt(jnp.diag(inner))
    cosine = gram / length[:, None] / length[None, :]  # -
    # + cosine = (inner / length[:, None] / length[None, :]) ** 9
    return cosine[len(support) :, : len(support)] @ dual


@fault("overflow", "saturation")
@source("vLLM and DeepEP pull requests on E4M3 formats with a maximum of 240")
@inputs("q: 32x32 w @151, o: 32x32 w; 40x32 @153; 40x32 @154; 12x32 @155")
def cache_scale_for_448_on_format_of_240(params, keys, values, queries):
    """Attention on a cache in E4M3, quantized as on the GPU the code comes from."""
    largest = 448.0  # -
    # + largest = 240.0
    scale = jnp.abs(keys).max() / largest
    cached = (keys / scale).astype(jnp.float8_e4m3)  # here
    q = layer_norm(queries) @ params["q"]
    k = cached.astype(jnp.bfloat16).astype(jnp.float32) * scale
    probs = jax.nn.softmax(q @ k.T / q.shape[-1] ** 0.5)
    return probs @ values @ params["o"]


@fault("overflow", "saturation", policy=FP8_UNSCALED)
@source("FP8 training guides: gradients in E5M2 need a scale or a mean loss")
@inputs("in: 16x32 w @161, out: 32x4 w; 48x16 @163; 48x4 *3000 +9000 @164")
def fp8_cotangent_of_summed_loss(params, x, sales):
    """A forecast of sales in cents; the squared error is summed, as in old code."""

    # + scale = 2.0**-20
    def loss_of(params):
        h = jax.nn.relu(x @ params["in"])
        forecast = 1e3 * (h @ params["out"])  # here
        return jnp.sum((forecast - sales) ** 2)  # -
        # + return jnp.sum((forecast - sales) ** 2 * scale)

    grads = jax.grad(loss_of)(params)  # -
    # + grads = jax.tree.map(lambda g: g / scale, jax.grad(loss_of)(params))
    rate = 1e-12
    return grads, jax.tree.map(lambda p, g: p - rate * g, params, grads)
