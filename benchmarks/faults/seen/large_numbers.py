"""Exponentials, powers, sums of squares and casts that leave a format's range."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    attention,
    block_params,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


def elu_faulty(params, x, labels):
    """A network of Flax with an ELU of its own; the features are not normalized."""

    def elu(x, slope=1.0):
        below = slope * (jnp.exp(x) - 1.0)  # fault
        return jnp.where(x > 0, x, below)

    def loss_of(params):
        h = elu(nn.Dense(48).apply({"params": params["in"]}, x))
        h = elu(nn.Dense(48).apply({"params": params["middle"]}, h))
        logits = nn.Dense(6).apply({"params": params["out"]}, h)
        return cross_entropy(logits, labels)

    return jax.value_and_grad(loss_of)(params)


def elu_healthy(params, x, labels):
    def elu(x, slope=1.0):
        below = slope * (jnp.exp(jnp.minimum(x, 0.0)) - 1.0)
        return jnp.where(x > 0, x, below)

    def loss_of(params):
        h = elu(nn.Dense(48).apply({"params": params["in"]}, x))
        h = elu(nn.Dense(48).apply({"params": params["middle"]}, h))
        logits = nn.Dense(6).apply({"params": params["out"]}, h)
        return cross_entropy(logits, labels)

    return jax.value_and_grad(loss_of)(params)


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


def perplexity_faulty(params, tokens):
    """The perplexity of one document under a small causal model."""
    x = params["embed"][tokens[:-1]]
    x = x + attention(params["body"], layer_norm(x))
    logits = layer_norm(x) @ params["embed"].T
    scores = jax.nn.log_softmax(logits)
    picked = jnp.take_along_axis(scores, tokens[1:, None], axis=-1)[:, 0]
    inverse = jnp.exp(-picked.sum())  # fault
    return inverse ** (1.0 / picked.size)


def perplexity_healthy(params, tokens):
    x = params["embed"][tokens[:-1]]
    x = x + attention(params["body"], layer_norm(x))
    logits = layer_norm(x) @ params["embed"].T
    scores = jax.nn.log_softmax(logits)
    picked = jnp.take_along_axis(scores, tokens[1:, None], axis=-1)[:, 0]
    return jnp.exp(-picked.mean())


def perplexity_arguments():
    params = {"embed": normal(111, 60, 24, scale=0.2), "body": block_params(112, 24)}
    return params, integers(122, 60, 65)


def hedge_faulty(experts, gains):
    """Hedge: experts are weighed by exponentials of what they have earned so far."""

    def day(weights, gain):
        share = weights / weights.sum()
        earned = share @ gain
        weights = weights * jnp.exp(0.5 * gain)  # fault
        return weights, earned

    first = jnp.ones(experts.shape[0])
    weights, earned = jax.lax.scan(day, first, gains)
    mixture = (weights / weights.sum()) @ experts
    return mixture, earned


def hedge_healthy(experts, gains):
    def day(logs, gain):
        share = jax.nn.softmax(logs)
        earned = share @ gain
        return logs + 0.5 * gain, earned

    first = jnp.zeros(experts.shape[0])
    logs, earned = jax.lax.scan(day, first, gains)
    mixture = jax.nn.softmax(logs) @ experts
    return mixture, earned


def hedge_arguments():
    skill = uniform(131, 10, low=0.3, high=0.5)
    skill[3] = 0.75
    gains = skill + normal(132, 320, 10, scale=0.1)
    return normal(133, 10, 12), gains.astype(np.float32)


def polynomial_faulty(support, dual, pictures):
    """A support vector machine on raw bytes: the kernel is normalized afterwards."""
    points = jnp.concatenate([support, pictures])
    gram = (points @ points.T / points.shape[1] + 1.0) ** 9  # fault
    length = jnp.sqrt(jnp.diag(gram))
    cosine = gram / length[:, None] / length[None, :]
    return cosine[len(support) :, : len(support)] @ dual


def polynomial_healthy(support, dual, pictures):
    points = jnp.concatenate([support, pictures])
    inner = points @ points.T / points.shape[1] + 1.0
    length = jnp.sqrt(jnp.diag(inner))
    cosine = (inner / length[:, None] / length[None, :]) ** 9
    return cosine[len(support) :, : len(support)] @ dual


def polynomial_arguments():
    support = np.round(uniform(141, 24, 64, high=255.0))
    pictures = np.round(uniform(142, 16, 64, high=255.0))
    return support, uniform(143, 24, 3, low=0.2, high=1.0), pictures


def bound_faulty(params, keys, values, queries):
    """Attention on a cache in E4M3, quantized as on the GPU the code comes from."""
    largest = 448.0
    scale = jnp.abs(keys).max() / largest
    cached = (keys / scale).astype(jnp.float8_e4m3)  # fault
    q = layer_norm(queries) @ params["q"]
    k = cached.astype(jnp.bfloat16).astype(jnp.float32) * scale
    probs = jax.nn.softmax(q @ k.T / q.shape[-1] ** 0.5)
    return probs @ values @ params["o"]


def bound_healthy(params, keys, values, queries):
    largest = 240.0
    scale = jnp.abs(keys).max() / largest
    cached = (keys / scale).astype(jnp.float8_e4m3)
    q = layer_norm(queries) @ params["q"]
    k = cached.astype(jnp.bfloat16).astype(jnp.float32) * scale
    probs = jax.nn.softmax(q @ k.T / q.shape[-1] ** 0.5)
    return probs @ values @ params["o"]


def bound_arguments():
    params = {"q": weight(151, 32, 32), "o": weight(152, 32, 32)}
    return params, normal(153, 40, 32), normal(154, 40, 32), normal(155, 12, 32)


FP8_UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")


def summed_faulty(params, x, sales):
    """A forecast of sales in cents; the squared error is summed, as in old code."""

    def loss_of(params):
        h = jax.nn.relu(x @ params["in"])
        forecast = 1e3 * (h @ params["out"])  # fault
        return jnp.sum((forecast - sales) ** 2)

    grads = jax.grad(loss_of)(params)
    rate = 1e-12
    return grads, jax.tree.map(lambda p, g: p - rate * g, params, grads)


def summed_healthy(params, x, sales):
    scale = 2.0**-20

    def loss_of(params):
        h = jax.nn.relu(x @ params["in"])
        forecast = 1e3 * (h @ params["out"])
        return jnp.sum((forecast - sales) ** 2 * scale)

    grads = jax.tree.map(lambda g: g / scale, jax.grad(loss_of)(params))
    rate = 1e-12
    return grads, jax.tree.map(lambda p, g: p - rate * g, params, grads)


def summed_arguments():
    params = {"in": weight(161, 16, 32), "out": weight(162, 32, 4)}
    sales = normal(164, 48, 4, scale=3e3, shift=9e3)
    return params, normal(163, 48, 16), sales


FAULTS = (
    Fault(
        name="elu-exponential-behind-where",
        kinds=("overflow", "non-finite"),
        faulty=elu_faulty,
        healthy=elu_healthy,
        arguments=elu_arguments,
        policy="mxfp8",
        target="trn3",
        source="JAX FAQ: gradients contain NaN where using where; hand-written ELUs",
    ),
    Fault(
        name="perplexity-exp-of-the-sum",
        kinds=("overflow",),
        faulty=perplexity_faulty,
        healthy=perplexity_healthy,
        arguments=perplexity_arguments,
        policy="fp8",
        source="forum questions: the perplexity of a long text is infinite",
    ),
    Fault(
        name="hedge-weights-never-renormalized",
        kinds=("overflow",),
        faulty=hedge_faulty,
        healthy=hedge_healthy,
        arguments=hedge_arguments,
        policy="fp32",
        source="bandit code: weights of Exp3 and Hedge become inf, then shares NaN",
    ),
    Fault(
        name="polynomial-kernel-of-raw-bytes",
        kinds=("overflow",),
        faulty=polynomial_faulty,
        healthy=polynomial_healthy,
        arguments=polynomial_arguments,
        policy="bf16",
        source="kernel machines' guides: scale features before a polynomial kernel",
    ),
    Fault(
        name="cache-scale-for-448-on-format-of-240",
        kinds=("overflow", "saturation"),
        faulty=bound_faulty,
        healthy=bound_healthy,
        arguments=bound_arguments,
        policy="bf16",
        source="vLLM and DeepEP pull requests on E4M3 formats with a maximum of 240",
    ),
    Fault(
        name="fp8-cotangent-of-summed-loss",
        kinds=("overflow", "saturation"),
        faulty=summed_faulty,
        healthy=summed_healthy,
        arguments=summed_arguments,
        policy=FP8_UNSCALED,
        source="FP8 training guides: gradients in E5M2 need a scale or a mean loss",
    ),
)
