"""Faults in normalization layers and residual streams."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    attention,
    block,
    block_params,
    convolution,
    cross_entropy,
    feed_forward,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


def massive_arguments():
    sink = np.zeros((16, 64), np.float32)
    sink[0, 7], sink[0, 40] = 700.0, -410.0
    gain = uniform(201, 64, low=0.5, high=1.5)
    return {"body": block_params(202, 64), "sink": sink, "gain": gain}, "16x64 @203"


@fault("overflow", policy="fp16")
@source("LLaMA in FP16: x.pow(2) of outlier features beyond 256")
@inputs(by=massive_arguments)
def rms_norm_of_massive_activations(params, x):
    """A llama in FP16, in whose stream a few features have grown large."""

    def norm(x, gain):
        x = x.astype(jnp.float16)  # -
        # + x = x.astype(jnp.float16).astype(jnp.float32)
        square = x * x  # here
        power = jnp.mean(square.astype(jnp.float32), axis=-1, keepdims=True)  # -
        # + power = jnp.mean(square, axis=-1, keepdims=True)
        return x.astype(jnp.float32) * jax.lax.rsqrt(power + 1e-6) * gain  # -
        # + return x * jax.lax.rsqrt(power + 1e-6) * gain

    x = x + params["sink"]
    h = norm(x, params["gain"])
    x = x + attention(params["body"], h)
    return feed_forward(params["body"], norm(x, params["gain"]))


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


@fault("absorption", "coarse")
@source("Gemma reports: (1 + w) must be formed in FP32")
@inputs(
    lambda: (
        {"embed": weight(208, 24, 16), "head": weight(211, 16, 4)}
        | {
            "layers": {
                "rotation": np.linalg.qr(normal(209, 100, 16, 16))[0],
                "gain": normal(210, 100, 16, scale=0.0001, shift=0.0034),
            }
        }
    ),
    "16x24 @199",
)
def gain_stored_as_offset_from_one(params, x):
    """A deep isometric network; gains are stored as their distance from one."""

    def layer(x, w):
        x = x @ w["rotation"]
        factor = 1 + w["gain"].astype(jnp.bfloat16)  # fault
        return x * factor.astype(jnp.float32), None  # -
        # + return x + x * w["gain"].astype(jnp.bfloat16).astype(jnp.float32), None

    x = jnp.tanh(x @ params["embed"])
    x, _ = jax.lax.scan(layer, x, params["layers"])
    return x @ params["head"]


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


@fault("overflow", policy="fp16")
@source("MobileNet exports to FP16: the sum before the division is Inf")
@inputs(
    "first: 3x3x3x8 *0.3 @216, second: 3x3x8x8 *0.2, gain: 8 20..60, "
    "head: 8x10 w; 2x48x48x3 0..2 @220"
)
def global_pool_sums_in_half(params, images):
    """A CNN in FP16 with global average pooling, sum first."""
    x = jax.nn.relu(convolution(images, params["first"]))
    x = jax.nn.relu(convolution(x, params["second"])) * params["gain"]
    x = x.astype(jnp.float16)
    total = jnp.sum(x, axis=(1, 2))  # fault
    pooled = (total / (x.shape[1] * x.shape[2])).astype(jnp.float32)  # -
    # + pooled = jnp.sum(x.astype(jnp.float32), axis=(1, 2)) / (x.shape[1] * x.shape[2])
    return jax.nn.log_softmax(layer_norm(pooled) @ params["head"])


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
