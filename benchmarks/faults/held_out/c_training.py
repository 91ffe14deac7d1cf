"""Optimizers, checks of gradients, and what a training loop counts."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import cross_entropy, integers, normal, weight


@fault("overflow", policy="fp16")
@source("overflow checks of loss scalers that look at a sum")
@inputs(
    "in: 16x64 w @9600, out: 64x4 w",
    lambda: np.abs(normal(9602, 32, 16)),
    lambda: normal(9603, 32, 4) - 6.0,
)
def finite_check_by_sum_in_half(params, x, y):
    """Loss scaling: a step is skipped unless the sum of the gradients is finite."""

    def loss_of(params):
        h = jax.nn.relu(x @ params["in"])
        return 1024.0 * jnp.mean((h @ params["out"] - y) ** 2)

    grads = jax.tree.map(lambda g: g.astype(jnp.float16), jax.grad(loss_of)(params))
    total = jnp.sum(grads["in"]) + jnp.sum(grads["out"])  # fault
    fine = jnp.isfinite(total)  # -
    # + fine = jnp.isfinite(grads["in"]).all() & jnp.isfinite(grads["out"]).all()
    rate = 0.05 / 1024.0
    return jax.tree.map(
        lambda g: jnp.where(fine, -rate * g.astype(jnp.float32), 0.0), grads
    )


@fault("non-finite", policy="fp8")
@source("report of a NaN projection in PCGrad: the other gradient is zero")
@inputs("16x9 w @9610; 24x16 @9611; 24 @9612; 24 int 0..8 @9613", np.zeros(24, bool))
def gradient_surgery_with_absent_task(params, x, depth, labels, has_depth):
    """PCGrad for two tasks; no picture of this batch has depth."""

    def depth_loss(params):
        h = jax.nn.relu(x @ params)
        error = jnp.where(has_depth, (h[:, 0] - depth) ** 2, 0.0)
        return error.sum() / jnp.maximum(has_depth.sum(), 1)

    def class_loss(params):
        return cross_entropy(jax.nn.relu(x @ params)[:, 1:], labels)

    a, b = jax.grad(class_loss)(params), jax.grad(depth_loss)(params)
    conflict = jnp.minimum(jnp.sum(a * b), 0.0)
    onto = conflict / jnp.sum(b * b)  # fault
    # + onto = conflict / jnp.maximum(jnp.sum(b * b), 1e-30)
    return a - onto * b + b


def budget_arguments():
    x = normal(9620, 300, 4, 8)
    labels = x @ normal(9621, 8)
    return "8 @9622", x, labels, "300x8 @9623; f32 8"


@fault("stagnation", "absorption")
@source("counters that inherit the dtype of a model's weights")
@inputs(by=budget_arguments)
def privacy_budget_in_half(params, batches, labels, noise, spent):
    """Differentially private steps; the budget has the dtype of the weights."""

    def step(carry, batch):
        w, spent = carry
        x, y, n = batch
        g = jax.vmap(jax.grad(lambda w, x, y: (x @ w - y) ** 2), (None, 0, 0))(w, x, y)
        g = g / jnp.maximum(jnp.linalg.norm(g, axis=1, keepdims=True), 1.0)
        spent = spent + jnp.asarray(2.4e-3, jnp.float16)  # fault
        return (w - 0.05 * (g.mean(0) + 0.1 * n), spent), None  # -
        # + return (w - 0.05 * (g.mean(0) + 0.1 * n), spent + 2.4e-3), None

    start = params, spent.astype(jnp.float16)  # -
    (w, spent), _ = jax.lax.scan(step, start, (batches, labels, noise))  # -
    # + (w, spent), _ = jax.lax.scan(step, (params, spent), (batches, labels, noise))
    return w, 10.0 - spent.astype(jnp.float32)  # -
    # + return w, 10.0 - spent


@fault("stagnation", "absorption")
@source("streaming metrics in FP32 that stop after long runs")
@inputs("in: 12x24 w @9630, out: 24x6 w; 48x8x12 @9632; 48x8 int 0..6 @9633; f32 2e+08")
def epoch_loss_on_resumed_total(params, batches, labels, total):
    """A metric's total comes from a checkpoint; an epoch's loss is a difference."""

    def step(carry, batch):
        x, y = batch
        logits = jax.nn.gelu(x @ params["in"]) @ params["out"]
        carry = carry + cross_entropy(logits, y)  # here
        return carry, None

    end, _ = jax.lax.scan(step, total, (batches, labels))  # -
    return (end - total) / batches.shape[0]  # -
    # + grown, _ = jax.lax.scan(step, jnp.zeros_like(total), (batches, labels))
    # + return grown / batches.shape[0]


def reduced_arguments():
    shards = normal(9640, 48, 16, 12)
    labels = np.tanh(shards @ normal(9641, 12, 4))
    return "12x4 w*0.1 @9642", shards, labels.astype(np.float32)


@fault("stagnation", "coarse", "absorption")
@source("FP8 gradient reduction of FP8-LM")
@inputs(by=reduced_arguments)
def ring_reduction_in_e5m2(params, shards, labels):
    """Gradients of 48 workers, added up on their way around a ring in E5M2."""

    def loss_of(w, x, y):
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    grads = jax.vmap(jax.grad(loss_of), (None, 0, 0))(params, shards, labels)
    sent = grads.astype(jnp.float8_e5m2)

    def hop(total, own):
        total = total.astype(jnp.float32) + own.astype(jnp.float32)  # -
        return total.astype(jnp.float8_e5m2), None  # fault
        # + return total + own.astype(jnp.float32), None

    total = jax.lax.scan(hop, sent[0], sent[1:])[0]  # -
    # + total = jax.lax.scan(hop, sent[0].astype(jnp.float32), sent[1:])[0]
    return params - 0.1 * total.astype(jnp.float32), total.astype(jnp.float32)  # -
    # + return params - 0.1 * total, total


@fault("coarse", policy="fp32")
@source("Shampoo implementations with low-precision preconditioners")
@inputs(
    "8x12 w @9652",
    lambda: normal(9650, 6, 16, 1) + 0.02 * normal(9651, 6, 16, 8),
    "6x16x12 @9653",
)
def shampoo_statistics_in_bf16(params, x, y):
    """A Shampoo step whose left statistics are kept in BF16; correlated inputs."""
    error = x @ params - y
    grads = jnp.einsum("sbi,sbj->sij", x, error) / x.shape[1]
    left = jnp.einsum("sij,skj->ik", grads, grads).astype(jnp.bfloat16)  # fault
    # + left = jnp.einsum("sij,skj->ik", grads, grads)
    left = left.astype(jnp.float32)  # -
    size = jnp.trace(left)
    eye = jnp.eye(left.shape[0])
    a, root = left / size + 1e-5 * eye, eye
    for _ in range(16):
        step = 0.5 * (3.0 * eye - root @ a)
        a, root = a @ step, step @ root
    return root @ grads[-1]


def probe_arguments():
    params = {"in": weight(9660, 12, 16), "a": normal(9661, 16)}
    params["b"] = params["a"] + 1e-4 * normal(9662, 16)
    return params, "64x12 @9663; 64 @9664"


@fault("cancellation", policy="fp32")
@source("Higham's and Lauchli's examples against normal equations")
@inputs(by=probe_arguments)
def collinear_probe_by_normal_equations(params, x, y):
    """A linear probe on two features that nearly agree, by normal equations."""
    h = jnp.tanh(x @ params["in"])
    first, second = h @ params["a"], h @ params["b"]
    aa, ab, bb = first @ first, first @ second, second @ second  # -
    rest = bb - ab * ab / aa  # fault
    slope = (second @ y - (first @ y) * ab / aa) / rest  # -
    # + aa, ab = first @ first, first @ second
    # + only = second - first * (ab / aa)
    # + slope = (only @ y) / (only @ only)
    return slope, (first @ y - slope * ab) / aa


@fault("integer")
@source("negative model FLOPs utilization in a log")
@inputs(
    np.array([38597376] + 12 * [7087872], np.int32),
    lambda: 32768 + 512 * integers(9670, 16, 10),
    lambda: 0.4 + 0.05 * np.abs(normal(9671, 10)),
    "f32 9.1e+13",
)
def utilization_from_int32_flops(layers, tokens, seconds, peak):
    """Model FLOPs utilization of steps: six times weights times tokens."""
    weights = jnp.sum(layers)  # -
    # + weights = jnp.sum(layers).astype(jnp.float32)
    flops = 6 * weights * tokens  # fault
    used = flops.astype(jnp.float32) / (seconds * peak)  # -
    # + used = 6.0 * weights * (tokens.astype(jnp.float32) / (seconds * peak))
    return used, jnp.mean(used)
