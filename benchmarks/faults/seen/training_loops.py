"""Loss scales, accumulated and compressed gradients, streamed statistics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import conv, layer_norm, mlp
from benchmarks.faults.parts import integers, normal, uniform


@fault("overflow", policy="fp16")
@source("mixed-precision issues: the initial scale itself overflows an FP16 loss")
@inputs("w1: 16x32 *0.3 @500, w2: 32x10 *0.3; 32x16 @502; 32 int 0..10 @503")
def first_loss_scale_65536(params, x, labels):
    """A step in FP16 with the customary first loss scale of 65,536."""

    def loss(params):
        h = jax.nn.relu(x.astype(jnp.float16) @ params["w1"].astype(jnp.float16))
        logits = (h @ params["w2"].astype(jnp.float16)).astype(jnp.float32)
        scores = jax.nn.log_softmax(logits)
        nll = -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=-1))
        return nll.astype(jnp.float16) * jnp.asarray(65536.0, jnp.float16)  # fault
        # + return nll.astype(jnp.float16) * jnp.asarray(512.0, jnp.float16)

    grads = jax.grad(loss)(params)
    grads = jax.tree.map(lambda g: g / 65536.0, grads)  # -
    # + grads = jax.tree.map(lambda g: g / 512.0, grads)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def _segmentation_loss(params, images, masks):
    h = jax.nn.relu(conv(images, params["a"]))
    logits = conv(h, params["b"])[..., 0]
    each = jax.nn.softplus(logits) - masks * logits
    return jnp.mean(each) * 1e-3


@fault("underflow", policy="fp32")
@source("FP16 gradient compression: small gradients are divided, then flushed")
@inputs(
    "a: 3x3x3x6 *0.2 @510, b: 3x3x6x1 *0.02",
    lambda: 0.1 * normal(513, 2, 16, 16, 3),
    lambda: (uniform(512, 2, 16, 16, low=0, high=1) > 0.5).astype(np.float32),
)
def gradients_sent_in_half_unscaled(params, images, masks):
    """Gradients of an auxiliary loss travel in FP16; Adam's first step follows."""
    grads = jax.grad(_segmentation_loss)(params, images, masks)
    sent = jax.tree.map(lambda g: (g / 64).astype(jnp.float16), grads)  # fault
    # + sent = jax.tree.map(lambda g: (g * 4194304).astype(jnp.float16), grads)
    arrived = jax.tree.map(lambda g: g.astype(jnp.float32) * 64, sent)  # -
    # + arrived = jax.tree.map(lambda g: g.astype(jnp.float32) / 4194304, sent)

    def move(p, g):
        return p - 1e-3 * g / (jnp.abs(g) + 1e-9)

    return arrived, jax.tree.map(move, params, arrived)


@fault("absorption", "stagnation")
@source("training libraries: accumulate gradients in FP32, not in the model's BF16")
@inputs("mlp 6x12x2 @520; 200x4x6 *0.1 +0.7 @521; 200x4x2 *0.05 +2 @522")
def gradient_accumulation_bf16(params, batches, targets):
    """Gradients of 200 small batches are added up in BF16."""

    def loss(params, x, y):
        return jnp.mean(jnp.square(mlp(params, x) - y))

    def add(total, xy):
        grads = jax.grad(loss)(params, *xy)

        def plus(t, g):  # -
            return t + g.astype(jnp.bfloat16)  # fault

        return jax.tree.map(plus, total, grads), None  # -
        # + return jax.tree.map(lambda t, g: t + g, total, grads), None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bfloat16), params)  # -
    # + zeros = jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(add, zeros, (batches, targets))
    return jax.tree.map(lambda t: t.astype(jnp.float32) / 200, total)  # -
    # + return jax.tree.map(lambda t: t / 200, total)


@fault("absorption", "stagnation", "integer")
@source("histograms with floating counts stop at the type's largest odd integer")
@inputs(
    "k: 3x3x2x6 @530; 200x1x2x2x2 @531; 17 even -1.5..2.5",
    lambda: integers(532, 250, 18, low=130) * 4,
)
def calibration_histogram_bf16(params, images, edges, counts):
    """Counts of activations, continued over more images, kept in BF16."""

    def count(hist, image):
        h = layer_norm(jax.nn.relu(conv(image, params["k"])), 1.0, 0.0)
        bins = jnp.searchsorted(edges, h.reshape(-1))
        found = jax.nn.one_hot(bins, edges.size + 1, dtype=jnp.float32)  # -
        # + found = jax.nn.one_hot(bins, edges.size + 1, dtype=jnp.int32)
        new = jnp.sum(found, axis=0)  # -
        hist = hist + new.astype(jnp.bfloat16)  # fault
        return hist, None  # -
        # + return hist + jnp.sum(found, axis=0), None

    hist, _ = jax.lax.scan(count, counts.astype(jnp.bfloat16), images)  # -
    # + hist, _ = jax.lax.scan(count, counts, images)
    hist = hist.astype(jnp.float32)
    cdf = jnp.cumsum(hist) / jnp.sum(hist)
    return hist, jnp.argmax(cdf > 0.98)
