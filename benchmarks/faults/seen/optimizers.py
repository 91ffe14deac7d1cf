"""Faults in optimizer updates and their states."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    block,
    block_params,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    weight,
)


def second_moment_faulty(params, moments, x, y):
    """A step of Adam whose second moment lives in FP16."""
    mean, square = moments

    def loss_of(params):
        h = jnp.tanh(x @ params["in"])
        return 1e-3 * jnp.mean((h @ params["out"] - y) ** 2)

    value, grads = jax.value_and_grad(loss_of)(params)

    def update(p, m, v, g):
        m = 0.9 * m + 0.1 * g
        half = g.astype(jnp.float16)
        v = v * 0.95 + 0.05 * (half * half)  # fault
        root = jnp.sqrt(v.astype(jnp.float32) / 0.05)
        return p - 1e-3 * (m / 0.1) / (root + 1e-8)

    return jax.tree.map(update, params, mean, square, grads), value


def second_moment_healthy(params, moments, x, y):
    mean, square = moments

    def loss_of(params):
        h = jnp.tanh(x @ params["in"])
        return 1e-3 * jnp.mean((h @ params["out"] - y) ** 2)

    value, grads = jax.value_and_grad(loss_of)(params)

    def update(p, m, v, g):
        m = 0.9 * m + 0.1 * g
        v = v.astype(jnp.float32) * 0.95 + 0.05 * (g * g)
        root = jnp.sqrt(v / 0.05)
        return p - 1e-3 * (m / 0.1) / (root + 1e-8)

    return jax.tree.map(update, params, mean, square, grads), value


def second_moment_arguments():
    params = {"in": weight(120, 16, 32), "out": weight(121, 32, 4)}
    zeros = {name: np.zeros_like(w) for name, w in params.items()}
    half = {name: w.astype(np.float16) for name, w in zeros.items()}
    return params, (zeros, half), normal(122, 64, 16), normal(123, 64, 4)


def epsilon_faulty(table, moments, tokens, epsilon):
    """Lazy Adam in FP16 for an embedding, of which a batch sees few rows."""
    m, v = moments

    def loss_of(table):
        h = table[tokens]
        return jnp.mean((h @ h.T - 1.0) ** 2)

    g = 32.0 * jax.grad(loss_of)(table)
    m = m * 0.9 + g.astype(jnp.float16) * 0.1
    v = v * 0.99 + (g * g) * 0.01
    root = jnp.sqrt(v).astype(jnp.float16)
    step = m / (root + epsilon.astype(jnp.float16))  # fault
    return table - 1e-3 * step.astype(jnp.float32)


def epsilon_healthy(table, moments, tokens, epsilon):
    m, v = moments

    def loss_of(table):
        h = table[tokens]
        return jnp.mean((h @ h.T - 1.0) ** 2)

    g = 32.0 * jax.grad(loss_of)(table)
    m = m * 0.9 + g.astype(jnp.float16) * 0.1
    v = v * 0.99 + (g * g) * 0.01
    root = jnp.sqrt(v)
    step = m.astype(jnp.float32) / (root + epsilon)
    return table - 1e-3 * step


def epsilon_arguments():
    moments = np.zeros((64, 16), np.float16), np.zeros((64, 16), np.float32)
    tokens = integers(125, 24, 32)
    return normal(124, 64, 16), moments, tokens, np.float32(1e-8)


def clipping_faulty(params, x, labels):
    """Gradient clipping by the global norm of FP16 gradients (loss scale 1024)."""

    def loss_of(params):
        h = layer_norm(block(params["body"], x))
        return 1024.0 * cross_entropy(h @ params["head"], labels)

    grads = jax.grad(loss_of)(params)
    grads = jax.tree.map(lambda g: g.astype(jnp.float16), grads)
    squares = jax.tree.map(lambda g: jnp.sum(g * g), grads)  # fault
    total = sum(s.astype(jnp.float32) for s in jax.tree.leaves(squares))
    shrink = jnp.minimum(1.0, 1024.0 / jnp.sqrt(total)) / 1024.0
    return jax.tree.map(lambda p, g: p - 0.1 * shrink * g, params, grads)


def clipping_healthy(params, x, labels):
    def loss_of(params):
        h = layer_norm(block(params["body"], x))
        return 1024.0 * cross_entropy(h @ params["head"], labels)

    grads = jax.grad(loss_of)(params)
    grads = jax.tree.map(lambda g: g.astype(jnp.float16), grads)
    squares = jax.tree.map(lambda g: jnp.sum(g.astype(jnp.float32) ** 2), grads)
    total = sum(jax.tree.leaves(squares))
    shrink = jnp.minimum(1.0, 1024.0 / jnp.sqrt(total)) / 1024.0
    return jax.tree.map(lambda p, g: p - 0.1 * shrink * g, params, grads)


def clipping_arguments():
    params = {"body": block_params(130, 32), "head": weight(140, 32, 16)}
    return params, normal(141, 24, 32), integers(142, 16, 24)


def pure_bf16_faulty(params, x, y):
    """Fine-tuning with weights that are BF16 only."""

    def loss_of(params, x, y):
        h = jnp.tanh(x @ params["in"].astype(jnp.float32))
        return jnp.mean((h @ params["out"].astype(jnp.float32) - y) ** 2)

    def step(params, batch):
        grads = jax.grad(loss_of)(params, *batch)
        moves = jax.tree.map(lambda g: (1e-3 * g).astype(jnp.bfloat16), grads)
        params = jax.tree.map(lambda p, m: p - m, params, moves)  # fault
        return params, None

    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    return jax.lax.scan(step, params, (x, y))[0]


def pure_bf16_healthy(params, x, y):
    def loss_of(params, x, y):
        h = jnp.tanh(x @ params["in"].astype(jnp.float32))
        return jnp.mean((h @ params["out"].astype(jnp.float32) - y) ** 2)

    def step(params, batch):
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        grads = jax.grad(loss_of)(half, *batch)
        moves = jax.tree.map(lambda g: 1e-3 * g.astype(jnp.float32), grads)
        return jax.tree.map(lambda p, m: p - m, params, moves), None

    params = jax.lax.scan(step, params, (x, y))[0]
    return jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)


def pure_bf16_arguments():
    x = normal(150, 100, 32, 16)
    y = np.tanh(x @ weight(151, 16, 4)) + 1.0
    params = {"in": weight(152, 16, 32), "out": normal(153, 32, 4, shift=0.7)}
    return params, x, y


def ema_faulty(params, average, x, y):
    """Training with an exponential moving average for evaluation."""

    def loss_of(params, x, y):
        return jnp.mean((jax.nn.silu(x @ params["in"]) @ params["out"] - y) ** 2)

    def step(carry, batch):
        params, average = carry
        grads = jax.grad(loss_of)(params, *batch)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        new = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        gaps = jax.tree.map(lambda n, a: n - a, new, average)
        average = jax.tree.map(lambda a, d: a + d * 0.001, average, gaps)  # fault
        return (params, average), None

    average = jax.tree.map(lambda a: a.astype(jnp.bfloat16), average)
    (_, average), _ = jax.lax.scan(step, (params, average), (x, y))
    return jax.tree.map(lambda a: a.astype(jnp.float32), average)


def ema_healthy(params, average, x, y):
    def loss_of(params, x, y):
        return jnp.mean((jax.nn.silu(x @ params["in"]) @ params["out"] - y) ** 2)

    def step(carry, batch):
        params, average = carry
        grads = jax.grad(loss_of)(params, *batch)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        new = jax.tree.map(lambda p: p.astype(jnp.float32), params)
        gaps = jax.tree.map(lambda n, a: n - a, new, average)
        average = jax.tree.map(lambda a, d: a + d * 0.001, average, gaps)
        return (params, average), None

    (_, average), _ = jax.lax.scan(step, (params, average), (x, y))
    return average


def ema_arguments():
    x = normal(154, 150, 16, 16)
    params = {"in": weight(155, 16, 16), "out": weight(156, 16, 2)}
    start = {"in": weight(157, 16, 16) + 1, "out": weight(158, 16, 2) + 1}
    return params, start, x, np.tanh(x @ weight(159, 16, 2))


def accumulation_faulty(params, x, labels):
    """Gradients of 128 micro-batches, added up in the buffer's BF16."""

    def loss_of(params, x, labels):
        return cross_entropy(jax.nn.relu(x @ params["in"]) @ params["out"], labels)

    def step(buffer, batch):
        grads = jax.grad(loss_of)(params, *batch)
        halves = jax.tree.map(lambda g: g.astype(jnp.bfloat16), grads)
        buffer = jax.tree.map(lambda b, g: b + g, buffer, halves)  # fault
        return buffer, None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bfloat16), params)
    buffer, _ = jax.lax.scan(step, zeros, (x, labels))
    return jax.tree.map(lambda b: b.astype(jnp.float32) / x.shape[0], buffer)


def accumulation_healthy(params, x, labels):
    def loss_of(params, x, labels):
        return cross_entropy(jax.nn.relu(x @ params["in"]) @ params["out"], labels)

    def step(buffer, batch):
        grads = jax.grad(loss_of)(params, *batch)
        halves = jax.tree.map(lambda g: g.astype(jnp.bfloat16), grads)
        buffer = jax.tree.map(lambda b, g: b + g.astype(b.dtype), buffer, halves)
        return buffer, None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    buffer, _ = jax.lax.scan(step, zeros, (x, labels))
    return jax.tree.map(lambda b: b / x.shape[0], buffer)


def accumulation_arguments():
    x = normal(160, 200, 8, 16, shift=1.0)
    x[:40] *= 8.0
    params = {"in": weight(161, 16, 16), "out": weight(162, 16, 4)}
    return params, x, np.zeros((200, 8), np.int32)


def decay_faulty(params, x, labels, rate):
    """AdamW's decoupled decay, with the factor in the dtype of the weights."""

    def loss_of(params, x, labels):
        return cross_entropy(jnp.tanh(x @ params["in"]) @ params["out"], labels)

    def step(params, batch):
        grads = jax.grad(loss_of)(params, *batch)
        scale = rate.astype(jnp.bfloat16) * 0.1
        keep = 1 - scale  # fault
        return jax.tree.map(
            lambda p, g: p * keep.astype(p.dtype) - 1e-3 * g, params, grads
        ), None

    return jax.lax.scan(step, params, (x, labels))[0]


def decay_healthy(params, x, labels, rate):
    def loss_of(params, x, labels):
        return cross_entropy(jnp.tanh(x @ params["in"]) @ params["out"], labels)

    def step(params, batch):
        grads = jax.grad(loss_of)(params, *batch)
        scale = rate.astype(jnp.bfloat16) * 0.1
        keep = 1 - scale.astype(jnp.float32)
        return jax.tree.map(lambda p, g: p * keep - 1e-3 * g, params, grads), None

    return jax.lax.scan(step, params, (x, labels))[0]


def warmup_faulty(params, adapter, x, y, steps):
    """LoRA's second matrix, from zero, in the first steps of a long warm-up."""

    def loss_of(adapter, x, y):
        h = jax.nn.gelu(x @ params["in"])
        guess = h @ params["out"] + (h @ params["down"]) @ adapter
        return jnp.mean((guess - y) ** 2)

    def step(adapter, batch):
        x, y, count = batch
        grad = jax.grad(loss_of)(adapter, x, y)
        rate = (2e-5 * count / 4000.0).astype(jnp.float16)  # fault
        return adapter - rate.astype(jnp.float32) * grad, None

    return jax.lax.scan(step, adapter, (x, y, steps))[0]


def warmup_healthy(params, adapter, x, y, steps):
    def loss_of(adapter, x, y):
        h = jax.nn.gelu(x @ params["in"])
        guess = h @ params["out"] + (h @ params["down"]) @ adapter
        return jnp.mean((guess - y) ** 2)

    def step(adapter, batch):
        x, y, count = batch
        grad = jax.grad(loss_of)(adapter, x, y)
        rate = 2e-5 * count / 4000.0
        return adapter - rate * grad, None

    return jax.lax.scan(step, adapter, (x, y, steps))[0]


def warmup_arguments():
    params = {
        "in": weight(167, 16, 32),
        "out": weight(168, 32, 4),
        "down": weight(169, 32, 8),
    }
    x, y = normal(170, 12, 16, 16), normal(175, 12, 16, 4)
    return params, np.zeros((8, 4), np.float32), x, y, np.arange(1, 13, dtype="f4")


def schedule_faulty(params, x, y, count):
    """SGD on a cosine schedule; `params.to(bf16)` has caught the step counter."""

    def step(carry, batch):
        params, count = carry
        x, y = batch
        error = x @ params - y
        progress = count.astype(jnp.float32) / 500.0
        rate = 0.05 * (1 + jnp.cos(jnp.pi * jnp.minimum(progress, 1.0)))
        params = params - rate * (x.T @ error) / x.shape[0]
        count = count + jnp.ones((), jnp.bfloat16)  # fault
        return (params, count), rate

    start = (params, count.astype(jnp.bfloat16))
    (params, count), rates = jax.lax.scan(step, start, (x, y))
    return params, count.astype(jnp.float32), rates


def schedule_healthy(params, x, y, count):
    def step(carry, batch):
        params, count = carry
        x, y = batch
        error = x @ params - y
        progress = count / 500.0
        rate = 0.05 * (1 + jnp.cos(jnp.pi * jnp.minimum(progress, 1.0)))
        params = params - rate * (x.T @ error) / x.shape[0]
        return (params, count + 1.0), rate

    (params, count), rates = jax.lax.scan(step, (params, count), (x, y))
    return params, count, rates


def schedule_arguments():
    x = normal(171, 200, 16, 8)
    y = x @ weight(172, 8, 2) + normal(173, 200, 16, 2, scale=0.5)
    return weight(174, 8, 2), x, y, np.float32(200.0)


FAULTS = (
    Fault(
        name="adam-square-of-half-gradient",
        kinds=("underflow",),
        faulty=second_moment_faulty,
        healthy=second_moment_healthy,
        arguments=second_moment_arguments,
        policy="bf16",
        source="FP16 Adam states: g * g of 1e-5 is below the smallest FP16 number",
    ),
    Fault(
        name="adam-epsilon-rounds-to-zero",
        kinds=("underflow", "singular", "non-finite"),
        faulty=epsilon_faulty,
        healthy=epsilon_healthy,
        arguments=epsilon_arguments,
        policy="fp16",
        source="PyTorch forum: Adam with model.half() gives NaN, eps=1e-8 is 0 in FP16",
    ),
    Fault(
        name="global-norm-of-scaled-half-gradients",
        kinds=("overflow",),
        faulty=clipping_faulty,
        healthy=clipping_healthy,
        arguments=clipping_arguments,
        policy="fp16",
        source="apex and fairseq: the FP16 gradient norm is Inf though no gradient is",
    ),
    Fault(
        name="weights-of-bf16-do-not-move",
        kinds=("absorption", "stagnation"),
        faulty=pure_bf16_faulty,
        healthy=pure_bf16_healthy,
        arguments=pure_bf16_arguments,
        policy="bf16",
        source="torchao and vLLM speculators: updates below half an ulp of a weight",
    ),
    Fault(
        name="ema-in-bf16",
        kinds=("absorption", "stagnation"),
        faulty=ema_faulty,
        healthy=ema_healthy,
        arguments=ema_arguments,
        policy="bf16",
        source="diffusers: the EMA of a BF16 model never leaves its first value",
    ),
    Fault(
        name="micro-batches-added-in-bf16",
        kinds=("stagnation", "absorption"),
        faulty=accumulation_faulty,
        healthy=accumulation_healthy,
        arguments=accumulation_arguments,
        policy="bf16",
        source="DeepSpeed and Megatron: accumulate_allreduce_grads_in_fp32",
    ),
    Fault(
        name="weight-decay-factor-is-one",
        kinds=("absorption", "coarse"),
        faulty=decay_faulty,
        healthy=decay_healthy,
        arguments=lambda: (
            {"in": weight(163, 16, 32), "out": weight(164, 32, 4)},
            normal(165, 150, 8, 16),
            integers(166, 4, 150, 8),
            np.float32(0.01),
        ),
        policy="bf16",
        source="OneTrainer issue: no weight decay with Adam in BF16",
    ),
    Fault(
        name="warm-up-rate-in-half",
        kinds=("underflow",),
        faulty=warmup_faulty,
        healthy=warmup_healthy,
        arguments=warmup_arguments,
        policy="fp16",
        source="FP16 schedules: the learning rate's first steps are zero or subnormal",
    ),
    Fault(
        name="step-counter-stops-at-256",
        kinds=("stagnation", "absorption", "integer"),
        faulty=schedule_faulty,
        healthy=schedule_healthy,
        arguments=schedule_arguments,
        policy="bf16",
        source="casting a whole train state to BF16, counters included",
    ),
)
