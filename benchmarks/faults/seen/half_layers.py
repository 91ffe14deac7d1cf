"""Layers of FP16 networks whose intermediate values leave the format's range."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    convolution,
    cross_entropy,
    integers,
    normal,
    uniform,
    weight,
)


def weight_norm_faulty(params, x):
    """Two weight-normalized layers; directions are FP16 and have drifted far out."""

    def layer(x, name):
        v = params[name]["v"]
        length = jnp.linalg.norm(v, axis=0)  # fault
        kernel = v / length * params[name]["g"]
        return x @ kernel.astype(jnp.float32)

    h = nn.silu(layer(x, "first"))
    return layer(h, "second")


def weight_norm_healthy(params, x):
    def layer(x, name):
        v = params[name]["v"].astype(jnp.float32)
        length = jnp.linalg.norm(v, axis=0)
        kernel = v / length * params[name]["g"]
        return x @ kernel.astype(jnp.float32)

    h = nn.silu(layer(x, "first"))
    return layer(h, "second")


def weight_norm_arguments():
    def layer(seed, rows, columns):
        v = normal(seed, rows, columns, scale=45.0).astype(np.float16)
        return {"v": v, "g": uniform(seed + 1, columns, low=1.0, high=2.0)}

    params = {"first": layer(1, 64, 96), "second": layer(3, 96, 16)}
    return params, normal(5, 24, 64)


def gem_faulty(params, images, labels):
    """Generalized-mean pooling of a retrieval network with a learned exponent."""

    def loss_of(params):
        maps = jax.nn.relu(convolution(images, params["kernel"]))
        maps = jnp.maximum(maps, 0.05).astype(jnp.float16)
        powers = maps ** params["p"].astype(jnp.float16)  # fault
        mean = powers.astype(jnp.float32).mean((1, 2))
        pooled = mean ** (1.0 / params["p"])
        return cross_entropy(pooled @ params["head"], labels)

    return jax.value_and_grad(loss_of)(params)


def gem_healthy(params, images, labels):
    def loss_of(params):
        maps = jax.nn.relu(convolution(images, params["kernel"]))
        maps = jnp.maximum(maps, 0.05).astype(jnp.float32)
        powers = maps ** params["p"]
        mean = powers.mean((1, 2))
        pooled = mean ** (1.0 / params["p"])
        return cross_entropy(pooled @ params["head"], labels)

    return jax.value_and_grad(loss_of)(params)


def gem_arguments():
    params = {
        "kernel": normal(11, 3, 3, 3, 8, scale=1.2),
        "p": np.float32(4.5),
        "head": weight(12, 8, 5, 0.3),
    }
    return params, normal(13, 6, 10, 10, 3, shift=0.3), integers(14, 5, 6)


def swiglu_faulty(params, x):
    """The feed-forward part of a checkpoint that was trained in BF16, run in FP16."""
    x = x.astype(jnp.float16)
    gate = nn.silu(x @ params["gate"])
    up = x @ params["up"]
    hidden = gate * up  # fault
    out = hidden @ params["down"]
    return x.astype(jnp.float32) + out.astype(jnp.float32)


def swiglu_healthy(params, x):
    x = x.astype(jnp.float16)
    gate = nn.silu(x @ params["gate"])
    up = x @ params["up"]
    hidden = gate * (up / 64)
    out = hidden @ params["down"]
    return x.astype(jnp.float32) + 64 * out.astype(jnp.float32)


def swiglu_arguments():
    params = {
        "gate": weight(21, 32, 64, 130.0),
        "up": weight(22, 32, 64, 130.0),
        "down": weight(23, 64, 32, 2e-2),
    }
    half = {name: w.astype(np.float16) for name, w in params.items()}
    return half, normal(24, 12, 32)


def cloud_faulty(params, depth, pixels):
    """A point-cloud encoder on a depth picture in millimetres, as the camera has it."""
    focal = jnp.asarray(615.0, jnp.float16)
    sides = pixels * depth[:, None] / focal  # fault
    points = jnp.concatenate([sides, depth[:, None]], axis=1)
    points = points.astype(jnp.float32) / 1000.0
    h = nn.relu(points @ params["in"])
    h = nn.relu(h @ params["middle"])
    return h.max(0) @ params["out"]


def cloud_healthy(params, depth, pixels):
    focal = jnp.asarray(615.0, jnp.float16)
    sides = pixels / focal * depth[:, None]
    points = jnp.concatenate([sides, depth[:, None]], axis=1)
    points = points.astype(jnp.float32) / 1000.0
    h = nn.relu(points @ params["in"])
    h = nn.relu(h @ params["middle"])
    return h.max(0) @ params["out"]


def cloud_arguments():
    params = {
        "in": weight(41, 3, 32),
        "middle": weight(42, 32, 64),
        "out": weight(43, 64, 8),
    }
    depth = uniform(44, 200, low=500.0, high=4200.0).astype(np.float16)
    pixels = np.round(uniform(45, 200, 2, low=-320.0, high=320.0))
    return params, depth, pixels.astype(np.float16)


def block_sum_faulty(codes, scales, minima, x):
    """A 4-bit layer with minima; blocks of activations carry their sum along."""
    blocks = x.reshape(x.shape[0], -1, 32)
    step = jnp.abs(blocks).max(-1) / 127.0
    bytes_ = jnp.round(blocks / step[..., None])
    sums = (bytes_.sum(-1) * step).astype(jnp.float16)  # fault
    dots = jnp.einsum("rbk,obk->rob", bytes_, codes)
    scaled = jnp.sum(dots * step[:, None] * scales, axis=-1)
    offset = jnp.sum(sums[:, None].astype(jnp.float32) * minima, axis=-1)
    return scaled + offset


def block_sum_healthy(codes, scales, minima, x):
    blocks = x.reshape(x.shape[0], -1, 32)
    step = jnp.abs(blocks).max(-1) / 127.0
    bytes_ = jnp.round(blocks / step[..., None])
    sums = (bytes_.sum(-1) * step).astype(jnp.bfloat16)
    dots = jnp.einsum("rbk,obk->rob", bytes_, codes)
    scaled = jnp.sum(dots * step[:, None] * scales, axis=-1)
    offset = jnp.sum(sums[:, None].astype(jnp.float32) * minima, axis=-1)
    return scaled + offset


def block_sum_arguments():
    codes = integers(61, 16, 12, 4, 32).astype(np.float32)
    scales = uniform(62, 12, 4, low=1e-3, high=2e-3)
    minima = -7.5 * uniform(63, 12, 4, low=1e-3, high=2e-3)
    x = normal(64, 6, 128, scale=500.0)
    x[2, 32:64] = uniform(65, 32, low=2500.0, high=6000.0)
    x[5, 64:96] = uniform(66, 32, low=2500.0, high=6000.0)
    return codes, scales, minima, x


FAULTS = (
    Fault(
        name="half-weight-norm-of-long-directions",
        kinds=("overflow",),
        faulty=weight_norm_faulty,
        healthy=weight_norm_healthy,
        arguments=weight_norm_arguments,
        policy="fp16",
        source="JAX issue: linalg.norm narrows the sum of squares before its root",
    ),
    Fault(
        name="gem-pooling-power-in-half",
        kinds=("overflow",),
        faulty=gem_faulty,
        healthy=gem_healthy,
        arguments=gem_arguments,
        policy="bf16",
        source="image retrieval: generalized-mean pooling gives NaN under AMP",
    ),
    Fault(
        name="swiglu-product-beyond-half",
        kinds=("overflow",),
        faulty=swiglu_faulty,
        healthy=swiglu_healthy,
        arguments=swiglu_arguments,
        policy="fp16",
        source="serving engines: BF16 checkpoints in FP16 print '!!!!' after down_proj",
    ),
    Fault(
        name="depth-millimetres-times-pixels-in-half",
        kinds=("overflow",),
        faulty=cloud_faulty,
        healthy=cloud_healthy,
        arguments=cloud_arguments,
        policy="bf16",
        source="RGB-D pipelines: back-projection multiplies before it divides",
    ),
    Fault(
        name="quantized-block-sum-stored-in-half",
        kinds=("overflow",),
        faulty=block_sum_faulty,
        healthy=block_sum_healthy,
        arguments=block_sum_arguments,
        policy="bf16",
        source="llama.cpp pull requests on the FP16 sum of a Q8_1 block",
    ),
)
