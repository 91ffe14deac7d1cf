"""Optimizers, checks of gradients, and what a training loop counts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import cross_entropy, integers, normal, weight


def check_faulty(params, x, y):
    """Loss scaling: a step is skipped unless the sum of the gradients is finite."""

    def loss_of(params):
        h = jax.nn.relu(x @ params["in"])
        return 1024.0 * jnp.mean((h @ params["out"] - y) ** 2)

    grads = jax.tree.map(lambda g: g.astype(jnp.float16), jax.grad(loss_of)(params))
    total = jnp.sum(grads["in"]) + jnp.sum(grads["out"])  # fault
    fine = jnp.isfinite(total)
    rate = 0.05 / 1024.0
    return jax.tree.map(
        lambda g: jnp.where(fine, -rate * g.astype(jnp.float32), 0.0), grads
    )


def check_healthy(params, x, y):
    def loss_of(params):
        h = jax.nn.relu(x @ params["in"])
        return 1024.0 * jnp.mean((h @ params["out"] - y) ** 2)

    grads = jax.tree.map(lambda g: g.astype(jnp.float16), jax.grad(loss_of)(params))
    fine = jnp.isfinite(grads["in"]).all() & jnp.isfinite(grads["out"]).all()
    rate = 0.05 / 1024.0
    return jax.tree.map(
        lambda g: jnp.where(fine, -rate * g.astype(jnp.float32), 0.0), grads
    )


def check_arguments():
    params = {"in": weight(9600, 16, 64), "out": weight(9601, 64, 4)}
    return params, np.abs(normal(9602, 32, 16)), normal(9603, 32, 4) - 6.0


def surgery_faulty(params, x, depth, labels, has_depth):
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
    return a - onto * b + b


def surgery_healthy(params, x, depth, labels, has_depth):
    def depth_loss(params):
        h = jax.nn.relu(x @ params)
        error = jnp.where(has_depth, (h[:, 0] - depth) ** 2, 0.0)
        return error.sum() / jnp.maximum(has_depth.sum(), 1)

    def class_loss(params):
        return cross_entropy(jax.nn.relu(x @ params)[:, 1:], labels)

    a, b = jax.grad(class_loss)(params), jax.grad(depth_loss)(params)
    conflict = jnp.minimum(jnp.sum(a * b), 0.0)
    onto = conflict / jnp.maximum(jnp.sum(b * b), 1e-30)
    return a - onto * b + b


def surgery_arguments():
    params = weight(9610, 16, 9)
    absent = np.zeros(24, bool)
    return params, normal(9611, 24, 16), normal(9612, 24), integers(9613, 8, 24), absent


def budget_faulty(params, batches, labels, noise, spent):
    """Differentially private steps; the budget has the dtype of the weights."""

    def step(carry, batch):
        w, spent = carry
        x, y, n = batch
        g = jax.vmap(jax.grad(lambda w, x, y: (x @ w - y) ** 2), (None, 0, 0))(w, x, y)
        g = g / jnp.maximum(jnp.linalg.norm(g, axis=1, keepdims=True), 1.0)
        spent = spent + jnp.asarray(2.4e-3, jnp.float16)  # fault
        return (w - 0.05 * (g.mean(0) + 0.1 * n), spent), None

    start = params, spent.astype(jnp.float16)
    (w, spent), _ = jax.lax.scan(step, start, (batches, labels, noise))
    return w, 10.0 - spent.astype(jnp.float32)


def budget_healthy(params, batches, labels, noise, spent):
    def step(carry, batch):
        w, spent = carry
        x, y, n = batch
        g = jax.vmap(jax.grad(lambda w, x, y: (x @ w - y) ** 2), (None, 0, 0))(w, x, y)
        g = g / jnp.maximum(jnp.linalg.norm(g, axis=1, keepdims=True), 1.0)
        return (w - 0.05 * (g.mean(0) + 0.1 * n), spent + 2.4e-3), None

    (w, spent), _ = jax.lax.scan(step, (params, spent), (batches, labels, noise))
    return w, 10.0 - spent


def budget_arguments():
    x = normal(9620, 300, 4, 8)
    labels = x @ normal(9621, 8)
    return normal(9622, 8), x, labels, normal(9623, 300, 8), np.float32(8.0)


def total_faulty(params, batches, labels, total):
    """A metric's total comes from a checkpoint; an epoch's loss is a difference."""

    def step(carry, batch):
        x, y = batch
        logits = jax.nn.gelu(x @ params["in"]) @ params["out"]
        carry = carry + cross_entropy(logits, y)  # fault
        return carry, None

    end, _ = jax.lax.scan(step, total, (batches, labels))
    return (end - total) / batches.shape[0]


def total_healthy(params, batches, labels, total):
    def step(carry, batch):
        x, y = batch
        logits = jax.nn.gelu(x @ params["in"]) @ params["out"]
        carry = carry + cross_entropy(logits, y)
        return carry, None

    grown, _ = jax.lax.scan(step, jnp.zeros_like(total), (batches, labels))
    return grown / batches.shape[0]


def total_arguments():
    params = {"in": weight(9630, 12, 24), "out": weight(9631, 24, 6)}
    batches, labels = normal(9632, 48, 8, 12), integers(9633, 6, 48, 8)
    return params, batches, labels, np.float32(2.0e8)


def reduced_faulty(params, shards, labels):
    """Gradients of 48 workers, added up on their way around a ring in E5M2."""

    def loss_of(w, x, y):
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    grads = jax.vmap(jax.grad(loss_of), (None, 0, 0))(params, shards, labels)
    sent = grads.astype(jnp.float8_e5m2)

    def hop(total, own):
        total = total.astype(jnp.float32) + own.astype(jnp.float32)
        return total.astype(jnp.float8_e5m2), None  # fault

    total = jax.lax.scan(hop, sent[0], sent[1:])[0]
    return params - 0.1 * total.astype(jnp.float32), total.astype(jnp.float32)


def reduced_healthy(params, shards, labels):
    def loss_of(w, x, y):
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    grads = jax.vmap(jax.grad(loss_of), (None, 0, 0))(params, shards, labels)
    sent = grads.astype(jnp.float8_e5m2)

    def hop(total, own):
        return total + own.astype(jnp.float32), None

    total = jax.lax.scan(hop, sent[0].astype(jnp.float32), sent[1:])[0]
    return params - 0.1 * total, total


def reduced_arguments():
    shards = normal(9640, 48, 16, 12)
    labels = np.tanh(shards @ normal(9641, 12, 4))
    return weight(9642, 12, 4, 0.1), shards, labels.astype(np.float32)


def statistics_faulty(params, x, y):
    """A Shampoo step whose left statistics are kept in BF16; correlated inputs."""
    error = x @ params - y
    grads = jnp.einsum("sbi,sbj->sij", x, error) / x.shape[1]
    left = jnp.einsum("sij,skj->ik", grads, grads).astype(jnp.bfloat16)  # fault
    left = left.astype(jnp.float32)
    size = jnp.trace(left)
    eye = jnp.eye(left.shape[0])
    a, root = left / size + 1e-5 * eye, eye
    for _ in range(16):
        step = 0.5 * (3.0 * eye - root @ a)
        a, root = a @ step, step @ root
    return root @ grads[-1]


def statistics_healthy(params, x, y):
    error = x @ params - y
    grads = jnp.einsum("sbi,sbj->sij", x, error) / x.shape[1]
    left = jnp.einsum("sij,skj->ik", grads, grads)
    size = jnp.trace(left)
    eye = jnp.eye(left.shape[0])
    a, root = left / size + 1e-5 * eye, eye
    for _ in range(16):
        step = 0.5 * (3.0 * eye - root @ a)
        a, root = a @ step, step @ root
    return root @ grads[-1]


def statistics_arguments():
    x = normal(9650, 6, 16, 1) + 0.02 * normal(9651, 6, 16, 8)
    return weight(9652, 8, 12), x, normal(9653, 6, 16, 12)


def probe_faulty(params, x, y):
    """A linear probe on two features that nearly agree, by normal equations."""
    h = jnp.tanh(x @ params["in"])
    first, second = h @ params["a"], h @ params["b"]
    aa, ab, bb = first @ first, first @ second, second @ second
    rest = bb - ab * ab / aa  # fault
    slope = (second @ y - (first @ y) * ab / aa) / rest
    return slope, (first @ y - slope * ab) / aa


def probe_healthy(params, x, y):
    h = jnp.tanh(x @ params["in"])
    first, second = h @ params["a"], h @ params["b"]
    aa, ab = first @ first, first @ second
    only = second - first * (ab / aa)
    slope = (only @ y) / (only @ only)
    return slope, (first @ y - slope * ab) / aa


def probe_arguments():
    params = {"in": weight(9660, 12, 16), "a": normal(9661, 16)}
    params["b"] = params["a"] + 1e-4 * normal(9662, 16)
    return params, normal(9663, 64, 12), normal(9664, 64)


def utilization_faulty(layers, tokens, seconds, peak):
    """Model FLOPs utilization of steps: six times weights times tokens."""
    weights = jnp.sum(layers)
    flops = 6 * weights * tokens  # fault
    used = flops.astype(jnp.float32) / (seconds * peak)
    return used, jnp.mean(used)


def utilization_healthy(layers, tokens, seconds, peak):
    weights = jnp.sum(layers).astype(jnp.float32)
    used = 6.0 * weights * (tokens.astype(jnp.float32) / (seconds * peak))
    return used, jnp.mean(used)


def utilization_arguments():
    layers = np.array([38597376] + 12 * [7087872], np.int32)
    tokens = 32768 + 512 * integers(9670, 16, 10)
    seconds = 0.4 + 0.05 * np.abs(normal(9671, 10))
    return layers, tokens, seconds, np.float32(9.1e13)


FAULTS = (
    Fault(
        name="finite-check-by-sum-in-half",
        kinds=("overflow",),
        faulty=check_faulty,
        healthy=check_healthy,
        arguments=check_arguments,
        policy="fp16",
        source="overflow checks of loss scalers that look at a sum",
    ),
    Fault(
        name="gradient-surgery-with-absent-task",
        kinds=("non-finite",),
        faulty=surgery_faulty,
        healthy=surgery_healthy,
        arguments=surgery_arguments,
        policy="fp8",
        source="report of a NaN projection in PCGrad: the other gradient is zero",
    ),
    Fault(
        name="privacy-budget-in-half",
        kinds=("stagnation", "absorption"),
        faulty=budget_faulty,
        healthy=budget_healthy,
        arguments=budget_arguments,
        policy="bf16",
        source="counters that inherit the dtype of a model's weights",
    ),
    Fault(
        name="epoch-loss-on-resumed-total",
        kinds=("stagnation", "absorption"),
        faulty=total_faulty,
        healthy=total_healthy,
        arguments=total_arguments,
        policy="bf16",
        source="streaming metrics in FP32 that stop after long runs",
    ),
    Fault(
        name="ring-reduction-in-e5m2",
        kinds=("stagnation", "coarse", "absorption"),
        faulty=reduced_faulty,
        healthy=reduced_healthy,
        arguments=reduced_arguments,
        policy="bf16",
        source="FP8 gradient reduction of FP8-LM",
    ),
    Fault(
        name="shampoo-statistics-in-bf16",
        kinds=("coarse",),
        faulty=statistics_faulty,
        healthy=statistics_healthy,
        arguments=statistics_arguments,
        policy="fp32",
        source="Shampoo implementations with low-precision preconditioners",
    ),
    Fault(
        name="collinear-probe-by-normal-equations",
        kinds=("cancellation",),
        faulty=probe_faulty,
        healthy=probe_healthy,
        arguments=probe_arguments,
        policy="fp32",
        source="Higham's and Lauchli's examples against normal equations",
    ),
    Fault(
        name="utilization-from-int32-flops",
        kinds=("integer",),
        faulty=utilization_faulty,
        healthy=utilization_healthy,
        arguments=utilization_arguments,
        policy="bf16",
        source="negative model FLOPs utilization in a log",
    ),
)
