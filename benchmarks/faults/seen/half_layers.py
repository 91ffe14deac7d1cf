"""Layers of FP16 networks whose intermediate values leave the format's range."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    convolution,
    cross_entropy,
    integers,
    normal,
    uniform,
    weight,
)


def weight_norm_arguments():
    def layer(seed, rows, columns):
        v = normal(seed, rows, columns, scale=45.0).astype(np.float16)
        return {"v": v, "g": uniform(seed + 1, columns, low=1.0, high=2.0)}

    params = {"first": layer(1, 64, 96), "second": layer(3, 96, 16)}
    return params, normal(5, 24, 64)


@fault("overflow", policy="fp16")
@source("JAX issue: linalg.norm narrows the sum of squares before its root")
@inputs(by=weight_norm_arguments)
def half_weight_norm_of_long_directions(params, x):
    """Two weight-normalized layers; directions are FP16 and have drifted far out."""

    def layer(x, name):
        v = params[name]["v"]  # -
        # + v = params[name]["v"].astype(jnp.float32)
        length = jnp.linalg.norm(v, axis=0)  # here
        kernel = v / length * params[name]["g"]
        return x @ kernel.astype(jnp.float32)

    h = nn.silu(layer(x, "first"))
    return layer(h, "second")


@fault("overflow")
@source("image retrieval: generalized-mean pooling gives NaN under AMP")
@inputs(
    "kernel: 3x3x3x8 *1.2 @11, p: f32 4.5, head: 8x5 w*0.3; 6x10x10x3 +0.3 @13; "
    "6 int 0..5 @14"
)
def gem_pooling_power_in_half(params, images, labels):
    """Generalized-mean pooling of a retrieval network with a learned exponent."""

    def loss_of(params):
        maps = jax.nn.relu(convolution(images, params["kernel"]))
        maps = jnp.maximum(maps, 0.05).astype(jnp.float16)  # -
        # + maps = jnp.maximum(maps, 0.05).astype(jnp.float32)
        powers = maps ** params["p"].astype(jnp.float16)  # fault
        # + powers = maps ** params["p"]
        mean = powers.astype(jnp.float32).mean((1, 2))  # -
        # + mean = powers.mean((1, 2))
        pooled = mean ** (1.0 / params["p"])
        return cross_entropy(pooled @ params["head"], labels)

    return jax.value_and_grad(loss_of)(params)


@fault("overflow", policy="fp16")
@source("serving engines: BF16 checkpoints in FP16 print '!!!!' after down_proj")
@inputs(
    lambda: {
        name: w.astype(np.float16)
        for name, w in {
            "gate": weight(21, 32, 64, 130.0),
            "up": weight(22, 32, 64, 130.0),
            "down": weight(23, 64, 32, 2e-2),
        }.items()
    },
    "12x32 @24",
)
def swiglu_product_beyond_half(params, x):
    """The feed-forward part of a checkpoint that was trained in BF16, run in FP16."""
    x = x.astype(jnp.float16)
    gate = nn.silu(x @ params["gate"])
    up = x @ params["up"]
    hidden = gate * up  # fault
    # + hidden = gate * (up / 64)
    out = hidden @ params["down"]
    return x.astype(jnp.float32) + out.astype(jnp.float32)  # -
    # + return x.astype(jnp.float32) + 64 * out.astype(jnp.float32)


@fault("overflow")
@source("RGB-D pipelines: back-projection multiplies before it divides")
@inputs(
    "in: 3x32 w @41, middle: 32x64 w, out: 64x8 w",
    lambda: uniform(44, 200, low=500.0, high=4200.0).astype(np.float16),
    lambda: np.round(uniform(45, 200, 2, low=-320.0, high=320.0)).astype(np.float16),
)
def depth_millimetres_times_pixels_in_half(params, depth, pixels):
    """A point-cloud encoder on a depth picture in millimetres, as the camera has it."""
    focal = jnp.asarray(615.0, jnp.float16)
    sides = pixels * depth[:, None] / focal  # fault
    # + sides = pixels / focal * depth[:, None]
    points = jnp.concatenate([sides, depth[:, None]], axis=1)
    points = points.astype(jnp.float32) / 1000.0
    h = nn.relu(points @ params["in"])
    h = nn.relu(h @ params["middle"])
    return h.max(0) @ params["out"]


def block_sum_arguments():
    codes = integers(61, 16, 12, 4, 32).astype(np.float32)
    minima = -7.5 * uniform(63, 12, 4, low=1e-3, high=2e-3)
    x = normal(64, 6, 128, scale=500.0)
    x[2, 32:64] = uniform(65, 32, low=2500.0, high=6000.0)
    x[5, 64:96] = uniform(66, 32, low=2500.0, high=6000.0)
    return codes, "12x4 0.001..0.002 @62", minima, x


@fault("overflow")
@source("llama.cpp pull requests on the FP16 sum of a Q8_1 block")
@inputs(by=block_sum_arguments)
def quantized_block_sum_stored_in_half(codes, scales, minima, x):
    """A 4-bit layer with minima; blocks of activations carry their sum along."""
    blocks = x.reshape(x.shape[0], -1, 32)
    step = jnp.abs(blocks).max(-1) / 127.0
    bytes_ = jnp.round(blocks / step[..., None])
    sums = (bytes_.sum(-1) * step).astype(jnp.float16)  # fault
    # + sums = (bytes_.sum(-1) * step).astype(jnp.bfloat16)
    dots = jnp.einsum("rbk,obk->rob", bytes_, codes)
    scaled = jnp.sum(dots * step[:, None] * scales, axis=-1)
    offset = jnp.sum(sums[:, None].astype(jnp.float32) * minima, axis=-1)
    return scaled + offset
