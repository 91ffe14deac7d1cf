"""Matmuls whose operands or sums the policy lowers to 8, 4 or 16 bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import layer_norm
from benchmarks.faults.parts import normal, uniform


def outlier_arguments():
    smooth = np.full(32, 0.01, np.float32)
    smooth[11] = 16384.0
    up = normal(1000, 32, 48, scale=0.2) / smooth[:, None]
    p = {
        "gate": normal(1003, 32, 48, scale=0.2),
        "up": up.astype(np.float32) * 1.0,
        "down": normal(1001, 48, 8, scale=0.15),
    }
    return p, normal(1002, 24, 32) * smooth, smooth


@fault("underflow", "coarse", policy="fp8")
@source("SmoothQuant and LLM.int8: outlier channels under a scale per tensor")
@inputs(by=outlier_arguments)
def fp8_one_outlier_channel(p, x, smooth):
    """A feed-forward layer; one channel of its input is 10^6 times the others."""
    gate = jax.nn.sigmoid(layer_norm(x / smooth, 1.0, 0.0) @ p["gate"])
    hidden = x @ p["up"]  # fault
    # + hidden = (x / smooth) @ (p["up"] * smooth[:, None])
    hidden = jax.nn.gelu(hidden) * gate
    return hidden @ p["down"]


@fault("underflow", policy=nj.Policy(auto_cast="matmult", auto_cast_type="fp8"))
@source("FP8 training papers: unscaled gradients lie below E5M2")
@inputs("16x24 *0.3 @1010; 24x6 *0.2 @1011; 128x16 @1012; 128 int 0..6 @1013")
def fp8_gradients_of_long_accumulation(w, head, x, labels):
    """One of 2,048 accumulated batches; one FP8 matmul, gradients unscaled."""

    def loss(w):
        hidden = x @ w  # here
        hidden = jax.nn.relu(hidden)
        logits = jnp.sum(hidden[:, :, None] * head, axis=1)
        scores = jax.nn.log_softmax(logits)
        nll = -jnp.take_along_axis(scores, labels[:, None], axis=-1)
        return jnp.mean(nll) / 2048  # -
        # + return jnp.mean(nll) / 2048 * 2.0**22

    return jax.grad(loss)(w)  # -
    # + return jax.grad(loss)(w) / 2.0**22


@fault(
    "saturation",
    policy=nj.Policy(auto_cast="matmult", auto_cast_type="fp8", overflow="saturate"),
)
@source("FP8 training reports: gated and squared activations outgrow the format")
@inputs(
    "gain: 24 0.8..1.2 @1020, bias: 24 *0.1, up: 24x48 *5, down: 48x24 *0.1; "
    "20x24 @1024"
)
def fp8_squared_relu_clipped(p, x):
    """Squared ReLU between two layers: its values pass 240 and are clipped."""
    h = layer_norm(x, p["gain"], p["bias"])
    hidden = jnp.square(jax.nn.relu(h @ p["up"]))
    out = hidden @ p["down"]  # fault
    # + out = ((hidden / 64.0) @ p["down"]) * 64.0
    return layer_norm(x + out, 1.0, 0.0)


def mx_outlier_arguments():
    w = normal(1030, 64, 64, scale=0.15)
    rows = np.array([9, 44], np.int32)
    w[rows] = 12.0 * np.sign(w[rows])
    x = normal(1031, 24, 64)
    x[:, rows] *= 0.004
    return {"w": w, "gain": uniform(1032, 64, low=0.5, high=1.5)}, x, rows


@fault("underflow", "coarse", policy="mxfp4", target="trn3")
@source("microscaling literature: an outlier takes its whole block's digits")
@inputs(by=mx_outlier_arguments)
def mxfp4_large_rows_in_blocks(p, x, rows):
    """A projection in MXFP4; a few rows of its weights are large and hardly used."""
    h = jnp.tanh(x)
    out = h @ p["w"]  # fault
    # + body = p["w"].at[rows].set(0.0)
    # + out = h @ body
    # + extra = h[:, rows][:, :, None] * p["w"][rows][None]
    # + out = out + jnp.sum(extra, axis=1)
    return x + jax.nn.silu(out) * p["gain"]


@fault("coarse", "underflow", "absorption", policy="mxfp4", target="trn3")
@source("weight merging before 4-bit quantization loses the small update")
@inputs(
    lambda: np.eye(64, dtype=np.float32) + normal(1040, 64, 64, scale=0.012),
    "64x8 @1041; 24x64 @1042",
)
def mxfp4_merged_residual(merged, mixers, x):
    """A residual layer whose checkpoint holds one weight, identity and all."""
    h = layer_norm(x, 1.0, 0.0)
    out = h @ merged  # fault
    moved = out - h  # -
    # + moved = h @ (merged - jnp.eye(merged.shape[0]))
    return moved, jax.nn.softmax(moved @ mixers, axis=-1)


def mx_units_arguments():
    spread = 10.0 ** np.random.default_rng(1053).integers(-4, 7, 32)
    spread = spread.astype(np.float32)
    w = (normal(1050, 32, 24, scale=0.25) / spread[:, None]).astype(np.float32)
    p = {"w": w, "b": normal(1051, 24, scale=0.2), "out": normal(1054, 24, 3)}
    return p, (normal(1052, 40, 32) * spread).astype(np.float32), spread


@fault("underflow", "coarse", policy="mxfp8", target="trn3")
@source("tabular models without standardized columns, in block formats")
@inputs(by=mx_units_arguments)
def mxfp8_columns_of_many_units(p, table, spread):
    """A tabular model in MXFP8; prices and rates share a block of 32 columns."""
    inner = table @ p["w"]  # fault
    # + inner = (table / spread) @ (p["w"] * spread[:, None])
    hidden = jnp.tanh(inner + p["b"])
    return jax.nn.sigmoid(hidden @ p["out"])


def psum_arguments():
    w = normal(1060, 8192, 8, scale=0.005, shift=0.003)
    w[:128] += 1.2
    p = {
        "w": w,
        "bias": normal(1061, 8, scale=0.1),
        "out": normal(1062, 8, 4),
    }
    x = np.random.default_rng(1063).poisson(1.0, (6, 8192)).astype(np.float32)
    return p, x


@fault(
    "stagnation",
    "absorption",
    policy=nj.Policy(auto_cast="matmult", auto_cast_type="bf16", psum_dtype="bfloat16"),
    target="trn3",
)
@source("reports on reduced-precision accumulation of long contractions")
@inputs(by=psum_arguments)
def matmul_partial_sums_in_bf16(p, x):
    """A bag-of-words layer over 8,192 columns; partial sums are rounded to BF16."""
    counts = jnp.log1p(x)
    hidden = counts @ p["w"]  # fault
    # + pieces = counts.reshape(x.shape[0], -1, 128)
    # + rows = p["w"].reshape(-1, 128, p["w"].shape[1])
    # + hidden = jnp.sum(jnp.einsum("bck,ckn->cbn", pieces, rows), axis=0)
    hidden = jnp.tanh(hidden * 0.005 + p["bias"])
    return hidden, hidden @ p["out"]
