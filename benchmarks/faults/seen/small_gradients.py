"""Updates, penalties and weights of training that a format flushes to zero."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)

FP8_UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")


@fault("underflow", policy=FP8_UNSCALED)
@source("u-muP and FP8 papers: weights below E4M3's range without a scale")
@inputs(
    "in: 32x64 w*2 @401, middle: 64x64 w*2, head: 64x10 *0.0005; 16x32 @404; "
    "16 int 0..10 @405"
)
def fp8_head_of_tiny_initial_weights(params, x, labels):
    """A step of a model whose head starts out tiny, as muP wants it; FP8 matmuls."""

    def loss_of(params):
        h = jax.nn.gelu(x @ params["in"])
        h = h + jax.nn.gelu(layer_norm(h) @ params["middle"])
        logits = 64.0 * (layer_norm(h) @ params["head"])  # fault
        # + logits = layer_norm(h) @ (64.0 * params["head"])
        return cross_entropy(logits, labels)

    grads = jax.grad(loss_of)(params)
    return grads["in"], grads["middle"]


def smoothing_arguments():
    """The head is fitted to the labels, so that the smoothing is most of the loss."""
    x, inner = normal(411, 6, 16), weight(412, 16, 32)
    labels = integers(413, 50257, 6)
    h = np.asarray(jax.nn.gelu(x @ inner))
    head = normal(414, 32, 50257, scale=0.02)
    head[:, labels] += 22.0 * np.linalg.pinv(h)
    return {"in": inner, "head": head}, x, labels, "f16 0.001"


@fault("underflow", policy="fp16")
@source("AMP questions: smoothing / vocabulary as an FP16 tensor")
@inputs(by=smoothing_arguments)
def label_smoothing_share_in_half(params, x, labels, smoothing):
    """Label smoothing over a large vocabulary; targets are FP16, as the logits were."""
    h = jax.nn.gelu(x @ params["in"])
    logp = jax.nn.log_softmax(h @ params["head"])
    rest = smoothing / jnp.asarray(logp.shape[-1], jnp.float16)  # fault
    # + rest = smoothing.astype(jnp.float32)
    picked = jnp.take_along_axis(logp, labels[:, None], axis=-1)[:, 0]
    spread = rest.astype(jnp.float32) * logp.sum(-1)  # -
    # + spread = rest * logp.mean(-1)
    return -(1.0 - smoothing.astype(jnp.float32)) * picked - spread  # -
    # + return -(1.0 - rest) * picked - spread


@fault("underflow")
@source("latent diffusion: a KL weight of 1e-6 inside of autocast")
@inputs(
    "encoder: 48x64 w @421, mean: 64x16 w, log_var: 64x16 w, middle: 16x64 w, "
    "decoder: 64x48 w; 64x48 @426"
)
def latent_prior_weight_in_half(params, pictures):
    """An autoencoder with a slight pull to the prior, as latent diffusion has it."""

    def loss_of(params):
        h = jax.nn.silu(pictures @ params["encoder"])
        mean, log_var = h @ params["mean"], h @ params["log_var"] - 12.0
        restored = jax.nn.silu(mean @ params["middle"]) @ params["decoder"]
        each = (0.5 * (mean**2 + jnp.exp(log_var) - 1 - log_var)).astype(
            jnp.float16
        )  # -
        # + each = 0.5 * (mean**2 + jnp.exp(log_var) - 1 - log_var)
        pull = jnp.mean(each * jnp.asarray(1e-6, jnp.float16))  # fault
        # + pull = jnp.mean(each) * 1e-6
        return jnp.mean((restored - pictures) ** 2) + pull.astype(jnp.float32)  # -
        # + return jnp.mean((restored - pictures) ** 2) + pull

    return jax.grad(loss_of)(params)["log_var"]


def rate_arguments():
    def dense(seed, rows, columns):
        kernel = weight(seed, rows, columns)
        return {"kernel": kernel, "bias": np.zeros(columns, np.float32)}

    params = {"in": dense(441, 16, 48), "out": dense(442, 48, 4)}
    x = normal(443, 64, 16)
    h = np.maximum(x @ params["in"]["kernel"], 0)
    y = h @ params["out"]["kernel"] + normal(444, 64, 4, scale=0.1)
    return params, x, y.astype(np.float32), np.float16(1e-6)


@fault("underflow")
@source("Micikevicius et al., Mixed Precision Training: updates below 2**-24")
@inputs(by=rate_arguments)
def update_times_rate_in_half(params, x, y, rate):
    """What a careful fine-tuning adds to FP32 weights; the update is FP16."""

    def loss_of(params):
        h = nn.relu(nn.Dense(48).apply({"params": params["in"]}, x))
        out = nn.Dense(4).apply({"params": params["out"]}, h)
        return jnp.mean((out - y) ** 2)

    grads = jax.grad(loss_of)(params)
    half = jax.tree.map(lambda g: g.astype(jnp.float16), grads)
    change = jax.tree.map(lambda g: g * rate, half)  # fault
    # + change = jax.tree.map(
    # +     lambda g: g.astype(jnp.float32) * rate.astype(jnp.float32), half
    # + )
    return jax.tree.map(lambda c: c.astype(jnp.float32), change)  # -
    # + return change


def weighted_arguments():
    """Words of heavy rows are not those of light ones."""
    bags = np.zeros((128, 40), np.float32)
    light = (uniform(451, 128, 32) < 0.15).astype(np.float32)
    heavy = np.arange(128) % 16 == 5
    bags[:, :32] = light * ~heavy[:, None]
    bags[heavy, 32:] = 1.0
    importance = np.where(heavy, 4e6, 1.0).astype(np.float32)
    counts = np.random.default_rng(453).poisson(1.0, (128, 6)).astype(np.float32)
    return "40x6 *0.3 @452", bags, counts, importance


@fault("underflow", policy="mxfp8", target="trn3")
@source("MX formats' papers: small elements of a block with an outlier vanish")
@inputs(by=weighted_arguments)
def mx_gradient_blocks_with_heavy_rows(slopes, bags, counts, importance):
    """A Poisson regression's step by coordinates; few rows stand for very many."""
    rate = jnp.exp(jnp.clip(bags @ slopes, -4.0, 4.0))
    error = importance[:, None] * (rate - counts)  # -
    gradient = bags.T @ error  # fault
    # + weighed = bags * importance[:, None]
    # + gradient = weighed.T @ (rate - counts)
    curvature = (bags * bags * importance[:, None]).T @ rate  # -
    # + curvature = (bags * weighed).T @ rate
    return gradient / (curvature + 1e-3)
