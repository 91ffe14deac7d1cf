"""Loss scales, accumulated and compressed gradients, streamed statistics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import (
    conv,
    integers,
    layer_norm,
    mlp,
    mlp_params,
    normal,
    uniform,
)


def loss_scale_too_high(params, x, labels):
    """A step in FP16 with the customary first loss scale of 65,536."""

    def loss(params):
        h = jax.nn.relu(x.astype(jnp.float16) @ params["w1"].astype(jnp.float16))
        logits = (h @ params["w2"].astype(jnp.float16)).astype(jnp.float32)
        scores = jax.nn.log_softmax(logits)
        nll = -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=-1))
        return nll.astype(jnp.float16) * jnp.asarray(65536.0, jnp.float16)  # fault

    grads = jax.grad(loss)(params)
    grads = jax.tree.map(lambda g: g / 65536.0, grads)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def loss_scale_moderate(params, x, labels):
    def loss(params):
        h = jax.nn.relu(x.astype(jnp.float16) @ params["w1"].astype(jnp.float16))
        logits = (h @ params["w2"].astype(jnp.float16)).astype(jnp.float32)
        scores = jax.nn.log_softmax(logits)
        nll = -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=-1))
        return nll.astype(jnp.float16) * jnp.asarray(512.0, jnp.float16)

    grads = jax.grad(loss)(params)
    grads = jax.tree.map(lambda g: g / 512.0, grads)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def loss_scale_arguments():
    params = {
        "w1": normal(500, 16, 32, scale=0.3),
        "w2": normal(501, 32, 10, scale=0.3),
    }
    return params, normal(502, 32, 16), integers(503, 0, 10, 32)


def _segmentation_loss(params, images, masks):
    h = jax.nn.relu(conv(images, params["a"]))
    logits = conv(h, params["b"])[..., 0]
    each = jax.nn.softplus(logits) - masks * logits
    return jnp.mean(each) * 1e-3


def gradients_sent_in_half(params, images, masks):
    """Gradients of an auxiliary loss travel in FP16; Adam's first step follows."""
    grads = jax.grad(_segmentation_loss)(params, images, masks)
    sent = jax.tree.map(lambda g: (g / 64).astype(jnp.float16), grads)  # fault
    arrived = jax.tree.map(lambda g: g.astype(jnp.float32) * 64, sent)

    def move(p, g):
        return p - 1e-3 * g / (jnp.abs(g) + 1e-9)

    return arrived, jax.tree.map(move, params, arrived)


def gradients_sent_scaled(params, images, masks):
    grads = jax.grad(_segmentation_loss)(params, images, masks)
    sent = jax.tree.map(lambda g: (g * 4194304).astype(jnp.float16), grads)
    arrived = jax.tree.map(lambda g: g.astype(jnp.float32) / 4194304, sent)

    def move(p, g):
        return p - 1e-3 * g / (jnp.abs(g) + 1e-9)

    return arrived, jax.tree.map(move, params, arrived)


def gradients_sent_arguments():
    params = {
        "a": normal(510, 3, 3, 3, 6, scale=0.2),
        "b": normal(511, 3, 3, 6, 1, scale=0.02),
    }
    masks = (uniform(512, 0, 1, 2, 16, 16) > 0.5).astype(np.float32)
    return params, 0.1 * normal(513, 2, 16, 16, 3), masks


def accumulation_bf16(params, batches, targets):
    """Gradients of 200 small batches are added up in BF16."""

    def loss(params, x, y):
        return jnp.mean(jnp.square(mlp(params, x) - y))

    def add(total, xy):
        grads = jax.grad(loss)(params, *xy)

        def plus(t, g):
            return t + g.astype(jnp.bfloat16)  # fault

        return jax.tree.map(plus, total, grads), None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bfloat16), params)
    total, _ = jax.lax.scan(add, zeros, (batches, targets))
    return jax.tree.map(lambda t: t.astype(jnp.float32) / 200, total)


def accumulation_fp32(params, batches, targets):
    def loss(params, x, y):
        return jnp.mean(jnp.square(mlp(params, x) - y))

    def add(total, xy):
        grads = jax.grad(loss)(params, *xy)
        return jax.tree.map(lambda t, g: t + g, total, grads), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(add, zeros, (batches, targets))
    return jax.tree.map(lambda t: t / 200, total)


def accumulation_arguments():
    targets = normal(522, 200, 4, 2, scale=0.05, shift=2.0)
    inputs = normal(521, 200, 4, 6, scale=0.1, shift=0.7)
    return mlp_params(520, 6, 12, 2), inputs, targets


def histogram_bf16(params, images, edges, counts):
    """Counts of activations, continued over more images, kept in BF16."""

    def count(hist, image):
        h = layer_norm(jax.nn.relu(conv(image, params["k"])), 1.0, 0.0)
        bins = jnp.searchsorted(edges, h.reshape(-1))
        found = jax.nn.one_hot(bins, edges.size + 1, dtype=jnp.float32)
        new = jnp.sum(found, axis=0)
        hist = hist + new.astype(jnp.bfloat16)  # fault
        return hist, None

    hist, _ = jax.lax.scan(count, counts.astype(jnp.bfloat16), images)
    hist = hist.astype(jnp.float32)
    cdf = jnp.cumsum(hist) / jnp.sum(hist)
    return hist, jnp.argmax(cdf > 0.98)


def histogram_int(params, images, edges, counts):
    def count(hist, image):
        h = layer_norm(jax.nn.relu(conv(image, params["k"])), 1.0, 0.0)
        bins = jnp.searchsorted(edges, h.reshape(-1))
        found = jax.nn.one_hot(bins, edges.size + 1, dtype=jnp.int32)
        return hist + jnp.sum(found, axis=0), None

    hist, _ = jax.lax.scan(count, counts, images)
    hist = hist.astype(jnp.float32)
    cdf = jnp.cumsum(hist) / jnp.sum(hist)
    return hist, jnp.argmax(cdf > 0.98)


def histogram_arguments():
    images = normal(531, 200, 1, 2, 2, 2)
    counts = integers(532, 130, 250, 18) * 4
    edges = np.linspace(-1.5, 2.5, 17).astype(np.float32)
    return {"k": normal(530, 3, 3, 2, 6)}, images, edges, counts


FAULTS = (
    Fault(
        name="first-loss-scale-65536",
        kinds=("overflow",),
        faulty=loss_scale_too_high,
        healthy=loss_scale_moderate,
        arguments=loss_scale_arguments,
        policy="fp16",
        source=(
            "mixed-precision issues: the initial scale itself overflows an FP16 loss"
        ),
    ),
    Fault(
        name="gradients-sent-in-half-unscaled",
        kinds=("underflow",),
        faulty=gradients_sent_in_half,
        healthy=gradients_sent_scaled,
        arguments=gradients_sent_arguments,
        policy="fp32",
        source="FP16 gradient compression: small gradients are divided, then flushed",
    ),
    Fault(
        name="gradient-accumulation-bf16",
        kinds=("absorption", "stagnation"),
        faulty=accumulation_bf16,
        healthy=accumulation_fp32,
        arguments=accumulation_arguments,
        policy="bf16",
        source=(
            "training libraries: accumulate gradients in FP32, not in the model's BF16"
        ),
    ),
    Fault(
        name="calibration-histogram-bf16",
        kinds=("absorption", "stagnation", "integer"),
        faulty=histogram_bf16,
        healthy=histogram_int,
        arguments=histogram_arguments,
        policy="bf16",
        source="histograms with floating counts stop at the type's largest odd integer",
    ),
)
