"""Faults in images, sound, graphs and linear algebra."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    attention,
    block_params,
    convolution,
    feed_forward,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


def render_faulty(params, coordinates, target):
    """Fits a coordinate network to a picture; the loss is taken in sRGB."""

    def loss_of(params):
        h = jnp.sin(4 * coordinates @ params["in"])
        h = jnp.sin(h @ params["middle"])
        light = jnp.clip(h @ params["out"], 0.0, 1.0)
        bright = 1.055 * light ** (1 / 2.4) - 0.055  # fault
        dark = 12.92 * light
        shown = jnp.where(light > 0.0031308, bright, dark)
        return jnp.mean((shown - target) ** 2)

    value, grads = jax.value_and_grad(loss_of)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def render_healthy(params, coordinates, target):
    def loss_of(params):
        h = jnp.sin(4 * coordinates @ params["in"])
        h = jnp.sin(h @ params["middle"])
        light = jnp.clip(h @ params["out"], 0.0, 1.0)
        safe = jnp.maximum(light, 0.0031308)
        bright = 1.055 * safe ** (1 / 2.4) - 0.055
        dark = 12.92 * light
        shown = jnp.where(light > 0.0031308, bright, dark)
        return jnp.mean((shown - target) ** 2)

    value, grads = jax.value_and_grad(loss_of)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def render_arguments():
    params = {
        "in": weight(610, 2, 32),
        "middle": weight(611, 32, 32, 2.0),
        "out": weight(612, 32, 3),
    }
    return params, uniform(613, 64, 2), uniform(614, 64, 3)


def speech_faulty(params, frames):
    """Whisper's features of a recording with a second of digital silence."""
    n = frames.shape[-1]
    angle = 2 * jnp.pi * jnp.outer(jnp.arange(n), jnp.arange(n // 2)) / n
    real, imaginary = frames @ jnp.cos(angle), frames @ jnp.sin(angle)
    power = real * real + imaginary * imaginary
    mel = power @ params["filters"]
    log_mel = jnp.log10(mel)  # fault
    log_mel = (log_mel - log_mel.mean()) / 4.0
    x = jax.nn.gelu(log_mel @ params["in"])
    x = x + attention(params["body"], layer_norm(x))
    return x.mean(0) @ params["out"]


def speech_healthy(params, frames):
    n = frames.shape[-1]
    angle = 2 * jnp.pi * jnp.outer(jnp.arange(n), jnp.arange(n // 2)) / n
    real, imaginary = frames @ jnp.cos(angle), frames @ jnp.sin(angle)
    power = real * real + imaginary * imaginary
    mel = power @ params["filters"]
    log_mel = jnp.log10(jnp.maximum(mel, 1e-10))
    log_mel = (log_mel - log_mel.mean()) / 4.0
    x = jax.nn.gelu(log_mel @ params["in"])
    x = x + attention(params["body"], layer_norm(x))
    return x.mean(0) @ params["out"]


def speech_arguments():
    frames = normal(615, 24, 64)
    frames[9:14] = 0.0
    params = {
        "filters": uniform(616, 32, 20),
        "in": weight(617, 20, 32),
        "body": block_params(618, 32),
        "out": weight(628, 32, 4),
    }
    return params, frames


def sentences_faulty(params, tokens, lengths):
    """Sentence embeddings of unit length; one sentence of the batch is empty."""

    def loss_of(params):
        x = params["embed"][tokens]
        inside = (jnp.arange(tokens.shape[1]) < lengths[:, None])[..., None]
        x = (x + feed_forward(params["body"], layer_norm(x))) * inside
        pooled = x.sum(1) / jnp.maximum(lengths, 1)[:, None]
        size = jnp.sqrt(jnp.sum(pooled * pooled, -1, keepdims=True))  # fault
        unit = pooled / jnp.maximum(size, 1e-6)
        return jnp.mean((unit @ unit.T - jnp.eye(len(unit))) ** 2)

    value, grads = jax.value_and_grad(loss_of)(params)
    return value, grads["embed"]


def sentences_healthy(params, tokens, lengths):
    def loss_of(params):
        x = params["embed"][tokens]
        inside = (jnp.arange(tokens.shape[1]) < lengths[:, None])[..., None]
        x = (x + feed_forward(params["body"], layer_norm(x))) * inside
        pooled = x.sum(1) / jnp.maximum(lengths, 1)[:, None]
        square = jnp.sum(pooled * pooled, -1, keepdims=True)
        unit = pooled * jax.lax.rsqrt(jnp.maximum(square, 1e-12))
        return jnp.mean((unit @ unit.T - jnp.eye(len(unit))) ** 2)

    value, grads = jax.value_and_grad(loss_of)(params)
    return value, grads["embed"]


def sentences_arguments():
    params = {"embed": normal(629, 40, 16), "body": block_params(630, 16)}
    return params, integers(640, 40, 8, 6), np.array([6, 3, 5, 0, 6, 2, 4, 6], np.int32)


def graph_faulty(params, x, sources, targets):
    """Two graph attention layers; a few nodes have no neighbours."""

    def layer(x, p):
        h = x @ p["w"]
        score = (h @ p["a"])[sources, 0] + (h @ p["b"])[targets, 0]
        odds = jnp.exp(jnp.tanh(jax.nn.leaky_relu(score, 0.2)))
        total = jax.ops.segment_sum(odds, targets, x.shape[0])
        read = jax.ops.segment_sum(odds[:, None] * h[sources], targets, x.shape[0])
        read = read / total[:, None]  # fault
        return jax.nn.elu(h + read)

    x = layer(x, params["first"])
    x = layer(x, params["second"])
    return x @ params["out"]


def graph_healthy(params, x, sources, targets):
    def layer(x, p):
        h = x @ p["w"]
        score = (h @ p["a"])[sources, 0] + (h @ p["b"])[targets, 0]
        odds = jnp.exp(jnp.tanh(jax.nn.leaky_relu(score, 0.2)))
        total = jax.ops.segment_sum(odds, targets, x.shape[0])
        read = jax.ops.segment_sum(odds[:, None] * h[sources], targets, x.shape[0])
        read = read / jnp.where(total > 0, total, 1.0)[:, None]
        return jax.nn.elu(h + read)

    x = layer(x, params["first"])
    x = layer(x, params["second"])
    return x @ params["out"]


def graph_arguments():
    def layer(seed):
        return {
            "w": weight(seed, 16, 16),
            "a": weight(seed + 1, 16, 1),
            "b": weight(seed + 2, 16, 1),
        }

    params = {"first": layer(641), "second": layer(645), "out": weight(649, 16, 3)}
    return params, normal(650, 30, 16), integers(651, 30, 80), integers(652, 26, 80)


def basis_faulty(params, image):
    """Projects features on the span of a network's nearly parallel directions."""
    x = jax.nn.relu(convolution(image, params["kernel"], 2))
    x = x.reshape(-1, x.shape[-1])

    def add(basis, pair):
        i, v = pair
        inside = jnp.sum(basis * v[:, None], axis=0)
        v = v - jnp.sum(basis * inside, axis=1)  # fault
        v = v / jnp.sqrt(jnp.sum(v * v))
        return basis.at[:, i].set(v), None

    directions = params["directions"]
    start = jnp.zeros(directions.T.shape)
    index = jnp.arange(len(directions))
    basis, _ = jax.lax.scan(add, start, (index, directions))
    return (x @ basis) @ basis.T, basis.T @ basis


def basis_healthy(params, image):
    x = jax.nn.relu(convolution(image, params["kernel"], 2))
    x = x.reshape(-1, x.shape[-1])
    # Householder's reflections, one for each direction.
    directions = params["directions"]
    count, size = directions.shape

    def reflect(carry, i):
        rest, basis = carry
        below = jnp.arange(size) >= i
        v = jnp.where(below, rest[:, i], 0.0)
        top = v[i]
        v = v.at[i].add(jnp.where(top < 0, -1.0, 1.0) * jnp.sqrt(jnp.sum(v * v)))
        v = v / jnp.sqrt(jnp.sum(v * v))
        rest = rest - 2 * v[:, None] * jnp.sum(v[:, None] * rest, axis=0)
        basis = basis - 2 * jnp.sum(basis * v, axis=1)[:, None] * v
        return (rest, basis), None

    start = (directions.T, jnp.eye(size))
    (_, basis), _ = jax.lax.scan(reflect, start, jnp.arange(count))
    basis = basis[:, :count]
    return (x @ basis) @ basis.T, basis.T @ basis


def basis_arguments():
    common = normal(653, 1, 16)
    params = {
        "kernel": normal(654, 3, 3, 3, 16, scale=0.2),
        "directions": common + 3e-4 * normal(655, 6, 16),
    }
    return params, normal(656, 1, 8, 8, 3)


FAULTS = (
    Fault(
        name="srgb-power-behind-where",
        kinds=("singular", "non-finite"),
        faulty=render_faulty,
        healthy=render_healthy,
        arguments=render_arguments,
        policy="bf16",
        source="JAX FAQ: the branch that where() drops still has an infinite gradient",
    ),
    Fault(
        name="log-mel-of-digital-silence",
        kinds=("singular", "non-finite"),
        faulty=speech_faulty,
        healthy=speech_healthy,
        arguments=speech_arguments,
        policy="bf16",
        source="speech front ends: log10 of an exactly silent frame is -Inf",
    ),
    Fault(
        name="norm-of-empty-sentence",
        kinds=("singular", "non-finite"),
        faulty=sentences_faulty,
        healthy=sentences_healthy,
        arguments=sentences_arguments,
        policy="bf16",
        source="JAX issue 3058: NaN in the gradient of a norm at zero",
    ),
    Fault(
        name="graph-attention-without-neighbours",
        kinds=("non-finite", "singular"),
        faulty=graph_faulty,
        healthy=graph_healthy,
        arguments=graph_arguments,
        policy="bf16",
        source="jraph and PyG: softmax over no edges divides zero by zero",
    ),
    Fault(
        name="classical-gram-schmidt",
        kinds=("cancellation",),
        faulty=basis_faulty,
        healthy=basis_healthy,
        arguments=basis_arguments,
        policy="bf16",
        source="Björck, Solving Linear Least Squares Problems by Gram-Schmidt, 1967",
    ),
)
