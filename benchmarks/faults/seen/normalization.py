"""Layers in half precision: normalization, pooling, residual streams."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults import common
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import causal_attention, feed_forward
from benchmarks.faults.parts import (
    block,
    block_params,
    convolution,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


def features_arguments():
    mel = np.exp(normal(204, 64, 40) * 2)
    quiet = 10.0 ** (-12 + 0.004 * normal(205, 64, 10))
    mel[:, 30:] = quiet
    return "in: 40x64 w @206, out: 64x16 w", mel


@fault("cancellation")
@source("sherpa-onnx issue: E[x^2] - E[x]^2 of a mel bin at its log floor")
@inputs(by=features_arguments)
def log_mel_variance_in_one_pass(params, mel):
    """Per-feature normalization of log-mel frames; some bins sit on their floor."""
    log_mel = jnp.log10(jnp.maximum(mel, 1e-16))
    mean = log_mel.mean(0)
    variance = (log_mel * log_mel).mean(0) - mean * mean  # fault
    # + centred = log_mel - mean
    # + variance = (centred * centred).mean(0)
    x = (log_mel - mean) / jnp.sqrt(jnp.maximum(variance, 0) + 1e-9)  # -
    # + x = centred / jnp.sqrt(variance + 1e-9)
    x = jax.nn.relu(x @ params["in"])
    return jax.nn.log_softmax(x @ params["out"])


def constant_arguments():
    table = normal(212, 64, 12, scale=3.0, shift=1.0)
    table[:, 5] = (np.arange(64) > 40) * 2.0
    return (
        "in: 12x32 w @213, middle: 32x32 w, out: 32x3 w",
        table,
        np.arange(32, dtype=np.int32),
    )


@fault("non-finite", "singular")
@source("standardization without epsilon: 0/0 for a constant column")
@inputs(by=constant_arguments)
def constant_feature_standardized(params, table, rows):
    """Standardized tabular features, of which one is constant in this batch."""
    x = table[rows]
    centred = x - x.mean(0)
    spread = jnp.sqrt((centred * centred).mean(0))
    z = centred / spread  # fault
    # + z = centred / jnp.maximum(spread, 1e-3)
    h = jnp.tanh(z @ params["in"])
    h = jnp.tanh(h @ params["middle"]) + h
    return jax.nn.sigmoid(h @ params["out"])


@fault("absorption", "stagnation")
@source("residual streams in BF16: fp32_residual_connection of Megatron")
@inputs(
    lambda: (
        {"embed": weight(225, 8, 16, 3.0), "head": weight(227, 16, 4)}
        | {
            "layers": {
                "up": normal(222, 150, 16, 16, scale=0.25),
                "down": normal(223, 150, 16, 16, scale=0.25),
                "shift": normal(224, 150, 16, scale=0.1, shift=0.5),
            }
        }
    ),
    "12x8 @226",
)
def layer_scale_branch_vanishes(params, x):
    """A deep stack of which the branches are scaled by LayerScale."""

    def layer(x, w):
        y = layer_norm(x)
        branch = jax.nn.silu(y @ w["up"]) @ w["down"] + w["shift"]
        small = (0.012 * branch).astype(jnp.bfloat16)
        return x + small, None  # fault
        # + return x + small.astype(jnp.float32), None

    stream = (x @ params["embed"]).astype(jnp.bfloat16)  # -
    # + stream = (x @ params["embed"]).astype(jnp.bfloat16).astype(jnp.float32)
    out, _ = jax.lax.scan(layer, stream, params["layers"])
    return out.astype(jnp.float32) @ params["head"]  # -
    # + return out @ params["head"]


def stream_arguments():
    embed = normal(230, 32, 32, scale=2000.0)
    embed[:, 3] = 45000.0
    params = {
        "embed": embed,
        "gate": weight(231, 32, 64),
        "up": weight(232, 32, 64),
        "down": weight(233, 64, 32, 300.0),
        "body": block_params(234, 32),
        "head": weight(244, 32, 16),
    }
    h = np.asarray(layer_norm(embed))
    up = np.asarray(jax.nn.gelu(h @ params["gate"])) * (h @ params["up"])
    # The branch adds to the large feature, as trained T5s do.
    params["down"][:, 3] = 25000.0 * np.linalg.lstsq(up, np.ones(32), rcond=None)[0]
    return params, integers(245, 32, 16), integers(246, 16, 16)


@fault("overflow", policy="fp16")
@source("transformers: T5 and FLAN in FP16 are Inf after a feed-forward layer")
@inputs(by=stream_arguments)
def t5_residual_beyond_65504(params, tokens, labels):
    """T5's feed-forward layer in FP16: the residual stream leaves the range."""
    x = params["embed"][tokens].astype(jnp.float16)
    h = layer_norm(x)
    gate = jax.nn.gelu(h @ params["gate"]) * (h @ params["up"])
    branch = (gate @ params["down"]).astype(jnp.float16)
    x = x + branch  # fault
    # + x = x.astype(jnp.float32) + branch.astype(jnp.float32)
    h = layer_norm(block(params["body"], layer_norm(x)))
    return cross_entropy(h @ params["head"], labels)


@fault("cancellation")
@source("neural-network libraries: the fast variance option is wrong for a large mean")
@inputs(
    "block 32x48 @300",
    lambda: (np.round(normal(301, 20, 32, scale=0.06) * 1024) / 1024).astype(
        np.float32
    ),
    "f32 512",
)
def layer_norm_fast_variance(p, sensors, lift):
    """A block over sensor readings with a large offset; the variance takes one pass."""
    x = sensors + lift
    mean = jnp.mean(x, axis=-1, keepdims=True)
    square = jnp.mean(x * x, axis=-1, keepdims=True)  # -
    var = jnp.maximum(square - mean * mean, 0.0)  # fault
    # + centred = x - mean
    # + var = jnp.mean(centred * centred, axis=-1, keepdims=True)
    h = (x - mean) * jax.lax.rsqrt(var + 1e-6) * p["g1"] + p["b1"]  # -
    # + h = centred * jax.lax.rsqrt(var + 1e-6) * p["g1"] + p["b1"]
    h = h + causal_attention(p, h)
    return h + feed_forward(p, h)


@fault("overflow")
@source("T5-like models in FP16: activations above 256 square to infinity")
@inputs("block 32x64 @310; 16x32 @311 [0,5]=900 [0,19]=-420 [7,5]=610")
def rms_norm_squares_in_half(p, x):
    """RMS norm of an FP16 residual stream that has massive activations."""
    x = (x + 0.1 * feed_forward(p, x)).astype(jnp.float16)
    square = jnp.square(x)  # fault
    # + square = jnp.square(x.astype(jnp.float32))
    power = jnp.mean(square.astype(jnp.float32), axis=-1, keepdims=True)  # -
    # + power = jnp.mean(square, axis=-1, keepdims=True)
    h = x.astype(jnp.float32) * jax.lax.rsqrt(power + 1e-5) * p["g1"]
    out = x.astype(jnp.float32) + causal_attention(p, h)
    return h, common.layer_norm(out, p["g2"], p["b2"])


def epsilon_arguments():
    table = normal(321, 40, 32, scale=0.5)
    table[0] = 0
    tokens = np.random.default_rng(322).integers(1, 40, 16).astype(np.int32)
    tokens[12:] = 0
    return "block 32x48 @320", tokens, table


@fault("underflow", "singular", "non-finite")
@source("BERT in FP16: an epsilon of 1e-12 is zero there, constant rows give NaN")
@inputs(by=epsilon_arguments)
def half_layer_norm_tiny_epsilon(p, tokens, table):
    """BERT's embedding layer in FP16 with the epsilon of its FP32 checkpoint."""
    x = table[tokens].astype(jnp.float16)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = x - mean  # -
    # + centred = (x - mean).astype(jnp.float32)
    var = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(var + 1e-12)  # here
    h = (centred * scale).astype(jnp.float32) * p["g1"] + p["b1"]  # -
    # + h = centred * scale * p["g1"] + p["b1"]
    h = common.block(p, h)
    return h.mean(axis=0)


@fault("absorption", "stagnation")
@source("reports that running statistics freeze when the model is cast to BF16")
@inputs("3x3x2x4 *0.2 @330; 120x4x6x6x2 +0.3 @331; 4 0.9..1.6 @332; 4 =1")
def batch_norm_running_mean_bf16(kernel, batches, mean, var):
    """Running statistics of a batch norm after a convolution, kept in BF16."""

    def step(state, images):
        mean, var = state
        h = jax.nn.relu(convolution(images, kernel))
        batch_mean = jnp.mean(h, axis=(0, 1, 2))
        batch_var = jnp.var(h, axis=(0, 1, 2))
        gap = batch_mean - mean.astype(jnp.float32)  # -
        mean = mean + (0.01 * gap).astype(jnp.bfloat16)  # fault
        # + mean = mean + 0.01 * (batch_mean - mean)
        var = var + 0.01 * (batch_var - var)
        return (mean, var), None

    state = (mean.astype(jnp.bfloat16), var)  # -
    (mean, var), _ = jax.lax.scan(step, state, batches)  # -
    # + (mean, var), _ = jax.lax.scan(step, (mean, var), batches)
    h = jax.nn.relu(convolution(batches[0], kernel))
    scale = jax.lax.rsqrt(var + 1e-3)
    return (h - mean.astype(jnp.float32)) * scale, mean.astype(jnp.float32)  # -
    # + return (h - mean) * scale, mean


@fault("overflow", policy="fp16")
@source("JAX issue: linalg.norm narrows the sum of squares before its root")
@inputs(
    {
        "first": "v: 64x96 *45 @1 as f16, g: 96 1..2",
        "second": "v: 96x16 *45 @3 as f16, g: 16 1..2",
    },
    "24x64 @5",
)
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
