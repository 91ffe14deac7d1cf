"""Matmuls whose operands or sums the policy lowers to 8, 4 or 16 bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import layer_norm, normal, uniform


def fp8_outlier_channel(p, x, smooth):
    """A feed-forward layer; one channel of its input is 10^6 times the others."""
    gate = jax.nn.sigmoid(layer_norm(x / smooth, 1.0, 0.0) @ p["gate"])
    hidden = x @ p["up"]  # fault
    hidden = jax.nn.gelu(hidden) * gate
    return hidden @ p["down"]


def fp8_smoothed(p, x, smooth):
    gate = jax.nn.sigmoid(layer_norm(x / smooth, 1.0, 0.0) @ p["gate"])
    hidden = (x / smooth) @ (p["up"] * smooth[:, None])
    hidden = jax.nn.gelu(hidden) * gate
    return hidden @ p["down"]


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


def fp8_gradients_flushed(w, head, x, labels):
    """One of 2,048 accumulated batches; one FP8 matmul, gradients unscaled."""

    def loss(w):
        hidden = x @ w  # fault
        hidden = jax.nn.relu(hidden)
        logits = jnp.sum(hidden[:, :, None] * head, axis=1)
        scores = jax.nn.log_softmax(logits)
        nll = -jnp.take_along_axis(scores, labels[:, None], axis=-1)
        return jnp.mean(nll) / 2048

    return jax.grad(loss)(w)


def fp8_gradients_scaled(w, head, x, labels):
    def loss(w):
        hidden = x @ w
        hidden = jax.nn.relu(hidden)
        logits = jnp.sum(hidden[:, :, None] * head, axis=1)
        scores = jax.nn.log_softmax(logits)
        nll = -jnp.take_along_axis(scores, labels[:, None], axis=-1)
        return jnp.mean(nll) / 2048 * 2.0**22

    return jax.grad(loss)(w) / 2.0**22


def gradients_arguments():
    labels = np.random.default_rng(1013).integers(0, 6, 128).astype(np.int32)
    head = normal(1011, 24, 6, scale=0.2)
    return normal(1010, 16, 24, scale=0.3), head, normal(1012, 128, 16), labels


def fp8_saturated_hidden(p, x):
    """Squared ReLU between two layers: its values pass 240 and are clipped."""
    h = layer_norm(x, p["gain"], p["bias"])
    hidden = jnp.square(jax.nn.relu(h @ p["up"]))
    out = hidden @ p["down"]  # fault
    return layer_norm(x + out, 1.0, 0.0)


def fp8_rescaled_hidden(p, x):
    h = layer_norm(x, p["gain"], p["bias"])
    hidden = jnp.square(jax.nn.relu(h @ p["up"]))
    out = ((hidden / 64.0) @ p["down"]) * 64.0
    return layer_norm(x + out, 1.0, 0.0)


def saturated_arguments():
    p = {
        "gain": uniform(1020, 0.8, 1.2, 24),
        "bias": normal(1021, 24, scale=0.1),
        "up": normal(1022, 24, 48, scale=5.0),
        "down": normal(1023, 48, 24, scale=0.1),
    }
    return p, normal(1024, 20, 24)


def mx_outlier_weights(p, x, rows):
    """A projection in MXFP4; a few rows of its weights are large and hardly used."""
    h = jnp.tanh(x)
    out = h @ p["w"]  # fault
    return x + jax.nn.silu(out) * p["gain"]


def mx_outliers_apart(p, x, rows):
    h = jnp.tanh(x)
    body = p["w"].at[rows].set(0.0)
    out = h @ body
    extra = h[:, rows][:, :, None] * p["w"][rows][None]
    out = out + jnp.sum(extra, axis=1)
    return x + jax.nn.silu(out) * p["gain"]


def mx_outlier_arguments():
    w = normal(1030, 64, 64, scale=0.15)
    rows = np.array([9, 44], np.int32)
    w[rows] = 12.0 * np.sign(w[rows])
    x = normal(1031, 24, 64)
    x[:, rows] *= 0.004
    return {"w": w, "gain": uniform(1032, 0.5, 1.5, 64)}, x, rows


def mx_merged_identity(merged, mixers, x):
    """A residual layer whose checkpoint holds one weight, identity and all."""
    h = layer_norm(x, 1.0, 0.0)
    out = h @ merged  # fault
    moved = out - h
    return moved, jax.nn.softmax(moved @ mixers, axis=-1)


def mx_identity_apart(merged, mixers, x):
    h = layer_norm(x, 1.0, 0.0)
    moved = h @ (merged - jnp.eye(merged.shape[0]))
    return moved, jax.nn.softmax(moved @ mixers, axis=-1)


def mx_identity_arguments():
    merged = np.eye(64, dtype=np.float32) + normal(1040, 64, 64, scale=0.012)
    return merged, normal(1041, 64, 8), normal(1042, 24, 64)


def mx_mixed_units(p, table, spread):
    """A tabular model in MXFP8; prices and rates share a block of 32 columns."""
    inner = table @ p["w"]  # fault
    hidden = jnp.tanh(inner + p["b"])
    return jax.nn.sigmoid(hidden @ p["out"])


def mx_equal_units(p, table, spread):
    inner = (table / spread) @ (p["w"] * spread[:, None])
    hidden = jnp.tanh(inner + p["b"])
    return jax.nn.sigmoid(hidden @ p["out"])


def mx_units_arguments():
    spread = 10.0 ** np.random.default_rng(1053).integers(-4, 7, 32)
    spread = spread.astype(np.float32)
    w = (normal(1050, 32, 24, scale=0.25) / spread[:, None]).astype(np.float32)
    p = {"w": w, "b": normal(1051, 24, scale=0.2), "out": normal(1054, 24, 3)}
    return p, (normal(1052, 40, 32) * spread).astype(np.float32), spread


def psum_bf16_long_sum(p, x):
    """A bag-of-words layer over 8,192 columns; partial sums are rounded to BF16."""
    counts = jnp.log1p(x)
    hidden = counts @ p["w"]  # fault
    hidden = jnp.tanh(hidden * 0.005 + p["bias"])
    return hidden, hidden @ p["out"]


def psum_bf16_short_sums(p, x):
    counts = jnp.log1p(x)
    pieces = counts.reshape(x.shape[0], -1, 128)
    rows = p["w"].reshape(-1, 128, p["w"].shape[1])
    hidden = jnp.sum(jnp.einsum("bck,ckn->cbn", pieces, rows), axis=0)
    hidden = jnp.tanh(hidden * 0.005 + p["bias"])
    return hidden, hidden @ p["out"]


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


FAULTS = (
    Fault(
        name="fp8-one-outlier-channel",
        kinds=("underflow", "coarse"),
        faulty=fp8_outlier_channel,
        healthy=fp8_smoothed,
        arguments=outlier_arguments,
        policy="fp8",
        source="SmoothQuant and LLM.int8: outlier channels under a scale per tensor",
    ),
    Fault(
        name="fp8-gradients-of-long-accumulation",
        kinds=("underflow",),
        faulty=fp8_gradients_flushed,
        healthy=fp8_gradients_scaled,
        arguments=gradients_arguments,
        policy=nj.Policy(auto_cast="matmult", auto_cast_type="fp8"),
        source="FP8 training papers: unscaled gradients lie below E5M2",
    ),
    Fault(
        name="fp8-squared-relu-clipped",
        kinds=("saturation",),
        faulty=fp8_saturated_hidden,
        healthy=fp8_rescaled_hidden,
        arguments=saturated_arguments,
        policy=nj.Policy(
            auto_cast="matmult", auto_cast_type="fp8", overflow="saturate"
        ),
        source="FP8 training reports: gated and squared activations outgrow the format",
    ),
    Fault(
        name="mxfp4-large-rows-in-blocks",
        kinds=("underflow", "coarse"),
        faulty=mx_outlier_weights,
        healthy=mx_outliers_apart,
        arguments=mx_outlier_arguments,
        policy="mxfp4",
        target="trn3",
        source="microscaling literature: an outlier takes its whole block's digits",
    ),
    Fault(
        name="mxfp4-merged-residual",
        kinds=("coarse", "underflow", "absorption"),
        faulty=mx_merged_identity,
        healthy=mx_identity_apart,
        arguments=mx_identity_arguments,
        policy="mxfp4",
        target="trn3",
        source="weight merging before 4-bit quantization loses the small update",
    ),
    Fault(
        name="mxfp8-columns-of-many-units",
        kinds=("underflow", "coarse"),
        faulty=mx_mixed_units,
        healthy=mx_equal_units,
        arguments=mx_units_arguments,
        policy="mxfp8",
        target="trn3",
        source="tabular models without standardized columns, in block formats",
    ),
    Fault(
        name="matmul-partial-sums-in-bf16",
        kinds=("stagnation", "absorption"),
        faulty=psum_bf16_long_sum,
        healthy=psum_bf16_short_sums,
        arguments=psum_arguments,
        policy=nj.Policy(
            auto_cast="matmult", auto_cast_type="bf16", psum_dtype="bfloat16"
        ),
        target="trn3",
        source="reports on reduced-precision accumulation of long contractions",
    ),
)
