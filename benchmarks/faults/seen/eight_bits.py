"""Faults of 8-bit and 4-bit formats that a policy casts to."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import layer_norm, uniform, weight

UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")


SATURATING = dataclasses.replace(UNSCALED, overflow="saturate")


def sink_arguments():
    sink = np.zeros((16, 64), np.float32)
    sink[0, 21] = 9000.0
    params = {"sink": sink, "up": weight(480, 64, 64), "down": weight(481, 64, 32)}
    return params, "16x64 *0.02 @482"


@fault("underflow", "coarse", policy="fp8")
@source("Sun et al., Massive Activations; FP8 with one scale per tensor")
@inputs(by=sink_arguments)
def fp8_tensor_scale_of_one_huge_token(params, x):
    """A layer behind massive activations of one token, scaled per tensor."""
    x = x + params["sink"]
    up = x @ params["up"]  # fault
    # + size = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    # + up = ((x / size) @ params["up"]) * size
    h = layer_norm(up)
    h = jax.nn.silu(h) * h
    return layer_norm(h @ params["down"])


@fault("overflow", "saturation", "non-finite", policy=UNSCALED)
@source("neuronx-cc with fp8 casts: 240 is the largest E4M3 number of trn2")
@inputs(
    "bank: 64x16 w*4 @483, in: 16x32 w*2, out: 32x5 w",
    lambda: np.round(uniform(486, 24, 64, low=-2047.0, high=2047.0)),
)
def fp8_raw_samples_unscaled(params, frames):
    """A linear filter bank on raw 12-bit samples, without scaling."""
    bands = frames @ params["bank"]  # fault
    # + bands = ((frames / 32.0) @ params["bank"]) * 32.0
    level = bands * bands / 4096.0**2
    h = jax.nn.relu(jnp.log1p(level) @ params["in"])
    return jax.nn.log_softmax(h @ params["out"])


def tabular_arguments():
    table = uniform(487, 48, 8, low=500.0, high=9000.0)
    first = weight(488, 8, 32, 2.0)
    params = {
        "in": first,
        "shift": (table @ first).mean(0),
        "size": (table @ first).std(0) + 1,
        "middle": weight(489, 32, 16, 2.0),
        "out": weight(490, 16, 1, 3.0),
    }
    return params, table


@fault("saturation", "uniform", policy=SATURATING)
@source("saturating FP8 casts: all large inputs become the same")
@inputs(by=tabular_arguments)
def fp8_incomes_saturate(params, table):
    """Credit scores from raw incomes and balances; casts saturate."""
    h = table @ params["in"]  # fault
    # + mean, spread = table.mean(0), table.std(0)
    # + z = (table - mean) / spread
    # + folded = params["in"] * spread[:, None] / 1024.0
    # + offset = jnp.sum(mean[:, None] * params["in"], axis=0)
    # + h = (z @ folded) * 1024.0
    # + h = jnp.tanh((h + (offset - params["shift"])) / params["size"])
    h = jnp.tanh((h - params["shift"]) / params["size"])  # -
    h = jnp.tanh(h @ params["middle"])
    return jax.nn.sigmoid(h @ params["out"])


@fault("underflow", policy=UNSCALED)
@source("Micikevicius et al., FP8 Formats for Deep Learning: scaled gradients")
@inputs("w: 32x16 w @491, b: 16; 128x32 @493; 128 int 0..16 @494")
def fp8_gradients_of_a_probe_unscaled(head, features, labels):
    """The gradient of a linear probe over a large batch, in FP8 without a scale."""

    # + scale = 2.0**15
    def loss_of(head):
        h = layer_norm(features)
        scores = h @ head["w"]  # here
        logits = scores + head["b"]
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1)
        return -picked.sum() / 2**17  # -
        # + return -picked.sum() * (scale / 2**17)

    grads = jax.grad(loss_of)(head)
    return jax.tree.map(lambda p, g: p - 6000.0 * g, head, grads)  # -
    # + return jax.tree.map(lambda p, g: p - (6000.0 / scale) * g, head, grads)


def weather_arguments():
    units = np.full(32, 0.004, np.float32)
    units[3], units[20] = 60000.0, 290.0
    table = uniform(530, 24, 32, low=-1.0) * units
    first = weight(531, 32, 32) / units[:, None]
    params = {
        "in": first,
        "middle": weight(532, 32, 32),
        "out": weight(533, 32, 3),
    }
    return params, table


@fault("underflow", "coarse", policy="mxfp8", target="trn3")
@source("OCP MX: an outlier sets the exponent of its block of 32")
@inputs(by=weather_arguments)
def mx_block_with_pascals(params, table):
    """Forecasts from anomalies in mixed units: pascal beside grams per gram."""
    h = table @ params["in"]  # fault
    # + size = jnp.max(jnp.abs(table), axis=0)
    # + h = (table / size) @ (params["in"] * size[:, None])
    h = jnp.tanh(h)
    h = jnp.tanh(h @ params["middle"]) + h
    return h @ params["out"]


def folded_arguments():
    gains = np.ones(64, np.float32)
    gains[[5, 40]] = 200.0, 350.0
    params = {
        "in": weight(534, 64, 64),
        "quiet": 1 / np.where(gains > 1, gains * 20, 1).astype(np.float32),
        "folded": weight(535, 64, 64, 3.0) * gains[:, None],
        "out": weight(536, 64, 8),
    }
    return params, "16x64 @537"


@fault("underflow", "coarse", policy="mxfp4", target="trn3")
@source("SmoothQuant and AWQ: folded gains make outlier rows of weights")
@inputs(by=folded_arguments)
def mxfp4_gains_folded_into_weights(params, x):
    """MXFP4 weights, into which the gains of the norm before were folded."""
    h = jax.nn.silu(x @ params["in"])
    h = h * params["quiet"]  # -
    # + gains = jnp.max(jnp.abs(params["folded"]), axis=1)
    # + h = h * (params["quiet"] * gains)
    y = h @ params["folded"]  # fault
    # + y = h @ (params["folded"] / gains[:, None])
    return layer_norm(x + y) @ params["out"]
