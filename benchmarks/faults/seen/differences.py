"""Differences of nearly equal numbers in filters, losses, statistics and layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import convolution, layer_norm, normal


@fault("cancellation", policy="fp32")
@source("Bucy and Joseph (1968): the short form of the covariance's update")
@inputs(
    lambda: np.cumsum(normal(502, 40, 12, scale=20.0), axis=0).astype(np.float32),
    "12 0.0001..0.0004 @501; f32 1000",
)
def kalman_variance_one_minus_gain(readings, noise, drift):
    """How sure Kalman filters of exact sensors are of something that moves a lot."""

    def step(state, reading):
        place, variance = state
        variance = variance + drift
        gain = variance / (variance + noise)
        place = place + gain * (reading - place)
        variance = (1.0 - gain) * variance  # fault
        # + variance = gain * noise
        return (place, variance), variance

    start = (readings[0], jnp.full_like(noise, 1.0))
    _, variances = jax.lax.scan(step, start, readings)
    return variances


@fault("cancellation")
@source("TRPO implementations: a negative KL divergence after a small step")
@inputs(
    "in: 10x32 w @511, spread: 32x6 w @513; mean: 32x6 w*6e-05 @514, "
    "spread: 32x6 w*6e-05; 48x10 @516"
)
def trust_region_kl_of_small_step(params, change, observations):
    """How far a small step has moved a Gaussian policy: the trust region's KL."""
    h = jnp.tanh(observations @ params["in"])
    spread = jnp.exp(jnp.clip(h @ params["spread"], -1.0, 1.0))
    shift = h @ change["mean"] / spread
    ratio = 1.0 + h @ change["spread"]  # -
    kl = (ratio**2 + shift**2) / 2 - jnp.log(ratio) - 0.5  # fault
    # + more = h @ change["spread"]
    # + kl = more**2 * (1.0 - more * (1 / 3 - more / 4)) + shift**2 / 2
    kl = kl.sum(-1)
    return kl


def contrastive_arguments():
    once = normal(533, 24, 24)
    other = once + normal(534, 24, 24, scale=1.5)
    return "in: 24x64 w @531, out: 64x64 w", np.concatenate([once, other]).astype(
        np.float32
    )


@fault("cancellation", "non-finite")
@source("SimCLR re-implementations: neg = rowsum - exp(1 / t) gives NaN")
@inputs(by=contrastive_arguments)
def simclr_row_sum_minus_self_similarity(params, views):
    """SimCLR's loss; the similarity to itself is taken out of every row's sum."""

    def loss_of(params):
        h = jax.nn.relu(views @ params["in"]) @ params["out"]
        z = h / jnp.linalg.norm(h, axis=-1, keepdims=True)
        cosine = z @ z.T / 0.05
        partner = jnp.roll(jnp.arange(len(z)), len(z) // 2)
        positive = cosine[jnp.arange(len(z)), partner]
        rest = jnp.exp(cosine).sum(-1) - jnp.exp(1.0 / 0.05)  # fault
        return jnp.mean(jnp.log(rest) - positive)  # -
        # + others = jnp.where(jnp.eye(len(z), dtype=bool), -1e9, cosine)
        # + return jnp.mean(jax.nn.logsumexp(others, axis=-1) - positive)

    return jax.value_and_grad(loss_of)(params)


def folded_arguments():
    """The images' brightness is most of what the first layer gives."""
    first = 0.2 * normal(541, 3, 3, 1, 8) + 1.0
    images = normal(542, 4, 12, 12, 1, scale=0.15, shift=60.0)
    x = np.asarray(convolution(images, first))[:, 1:-1, 1:-1]
    params = {
        "first": first.astype(np.float32),
        "gamma": np.ones(8, np.float32),
        "beta": normal(543, 8, scale=0.2),
        "mean": x.mean((0, 1, 2)).astype(np.float32),
        "variance": x.var((0, 1, 2)).astype(np.float32),
        "second": normal(544, 3, 3, 8, 4, scale=0.1),
    }
    return params, images


@fault("cancellation", "coarse", policy="fp32")
@source("deployment guides: folded batch norms lose accuracy in 16 bits")
@inputs(by=folded_arguments)
def batch_norm_folded_into_offset(params, images):
    """A batch norm folded for inference; its offset is added on the BF16 engine."""
    x = convolution(images, params["first"])
    scale = params["gamma"] / jnp.sqrt(params["variance"])
    offset = params["beta"] - params["mean"] * scale  # -
    y = (x * scale).astype(jnp.bfloat16) + offset.astype(jnp.bfloat16)  # fault
    # + y = ((x - params["mean"]) * scale + params["beta"]).astype(jnp.bfloat16)
    y = jax.nn.relu(y.astype(jnp.float32))
    return convolution(y, params["second"]).mean((1, 2))


@fault("cancellation", policy="fp32")
@source("quantitative finance questions: diff(log(price)) in FP32")
@inputs(
    "in: 47x16 w @552, out: 16x1 w",
    lambda: (4096.0 + np.cumsum(integers_of_ticks(551, 8, 48), axis=1) / 1024).astype(
        np.float32
    ),
)
def tick_returns_from_log_prices(params, prices):
    """Volatility from log prices tick by tick, and what a small network makes of it."""
    logs = jnp.log(prices)  # -
    returns = logs[:, 1:] - logs[:, :-1]  # fault
    # + change = prices[:, 1:] - prices[:, :-1]
    # + returns = jnp.log1p(change / prices[:, :-1])
    realized = jnp.sum(returns**2, axis=-1)
    skew = jnp.sum(returns**3, axis=-1) / realized**1.5
    seen = layer_norm(returns * 1e6)
    forecast = jnp.tanh(seen @ params["in"]) @ params["out"]
    return realized * 1e10, skew, forecast


def integers_of_ticks(seed, *shape):
    """Steps of a price in smallest units, mostly none or one."""
    return np.random.default_rng(seed).integers(-2, 3, shape)
