"""Optimizers, their states and schedules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import integers, mlp, mlp_params, normal, uniform


def _mean_square(params, x, y):
    return jnp.mean(jnp.square(mlp(params, x) - y))


def adam_half_second_moment(params, x, y):
    """Ten steps of Adam that stores its second moment in FP16."""

    def step(state, t):
        params, m, v = state
        grads = jax.grad(_mean_square)(params, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(
            lambda v, g: 0.99 * v.astype(jnp.float32) + 0.01 * jnp.square(g), v, grads
        )
        v = jax.tree.map(lambda v: v.astype(jnp.float16), v)  # fault
        c1, c2 = 1 - 0.9**t, 1 - 0.99**t

        def move(p, m, v):
            return p - 1e-3 * (m / c1) / (jnp.sqrt(v.astype(jnp.float32) / c2) + 1e-8)

        return (jax.tree.map(move, params, m, v), m, v), None

    m = jax.tree.map(jnp.zeros_like, params)
    v = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float16), params)
    steps = jnp.arange(1, 11).astype(jnp.float32)
    (new, _, _), _ = jax.lax.scan(step, (params, m, v), steps)
    return jax.tree.map(lambda a, b: a - b, new, params), _mean_square(new, x, y)


def adam_fp32_second_moment(params, x, y):
    def step(state, t):
        params, m, v = state
        grads = jax.grad(_mean_square)(params, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * jnp.square(g), v, grads)
        c1, c2 = 1 - 0.9**t, 1 - 0.99**t

        def move(p, m, v):
            return p - 1e-3 * (m / c1) / (jnp.sqrt(v / c2) + 1e-8)

        return (jax.tree.map(move, params, m, v), m, v), None

    m = jax.tree.map(jnp.zeros_like, params)
    steps = jnp.arange(1, 11).astype(jnp.float32)
    (new, _, _), _ = jax.lax.scan(step, (params, m, m), steps)
    return jax.tree.map(lambda a, b: a - b, new, params), _mean_square(new, x, y)


def adam_moment_arguments():
    params = mlp_params(400, 12, 24, 2)
    x = normal(401, 48, 12)
    y = np.tanh(x @ params[0]["w"] + params[0]["b"]) @ params[1]["w"] + params[1]["b"]
    y = y + 3e-3 * np.sign(normal(402, 48, 2)) * (1 + 0.3 * x[:, :2])
    return params, x, y.astype(np.float32)


def adam_half_epsilon(table, head, tokens, labels, m, v):
    """One Adam step on an embedding table with FP16 states; most rows are unused."""

    def loss(table):
        logits = jnp.mean(table[tokens], axis=1) @ head
        scores = jax.nn.log_softmax(logits)
        return -jnp.sum(jnp.take_along_axis(scores, labels[:, None], axis=-1))

    grads = jax.grad(loss)(table).astype(jnp.float16)
    m = 0.9 * m.astype(jnp.float16) + 0.1 * grads
    wide = grads.astype(jnp.float32)
    root = jnp.sqrt(0.99 * v.astype(jnp.float32) + 0.01 * jnp.square(wide))
    root = root.astype(jnp.float16)
    update = m / (root + 1e-8)  # fault
    return table - 1e-3 * update.astype(jnp.float32)


def adam_wide_epsilon(table, head, tokens, labels, m, v):
    def loss(table):
        logits = jnp.mean(table[tokens], axis=1) @ head
        scores = jax.nn.log_softmax(logits)
        return -jnp.sum(jnp.take_along_axis(scores, labels[:, None], axis=-1))

    grads = jax.grad(loss)(table).astype(jnp.float16)
    m = 0.9 * m.astype(jnp.float16) + 0.1 * grads
    wide = grads.astype(jnp.float32)
    root = jnp.sqrt(0.99 * v.astype(jnp.float32) + 0.01 * jnp.square(wide))
    update = m.astype(jnp.float32) / (root + 1e-8)
    return table - 1e-3 * update


def adam_epsilon_arguments():
    table = normal(410, 64, 16)
    tokens, labels = integers(411, 0, 20, 8, 6), integers(412, 0, 5, 8)
    zeros = np.zeros((64, 16), np.float32)
    return table, normal(413, 16, 5), tokens, labels, zeros, zeros


def adam_bf16_beta(params, x, y):
    """Bias correction with BF16 betas: 0.999 is not a BF16 number."""
    grads = jax.grad(_mean_square)(params, x, y)

    def step(state, t):
        params, m, v = state
        grads = jax.grad(_mean_square)(params, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * jnp.square(g), v, grads)
        c1 = 1 - 0.9**t
        c2 = 1 - jnp.asarray(0.999, jnp.bfloat16) ** t.astype(jnp.bfloat16)  # fault
        c2 = c2.astype(jnp.float32)

        def move(p, m, v):
            return p - 1e-3 * (m / c1) / (jnp.sqrt(v / c2) + 1e-8)

        return (jax.tree.map(move, params, m, v), m, v), None

    m = jax.tree.map(jnp.zeros_like, grads)
    steps = jnp.arange(1, 9).astype(jnp.float32)
    (new, _, _), _ = jax.lax.scan(step, (params, m, m), steps)
    return jax.tree.map(lambda a, b: a - b, new, params)


def adam_fp32_beta(params, x, y):
    grads = jax.grad(_mean_square)(params, x, y)

    def step(state, t):
        params, m, v = state
        grads = jax.grad(_mean_square)(params, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * jnp.square(g), v, grads)
        c1 = 1 - 0.9**t
        c2 = -jnp.expm1(t * -1.0005003e-3)

        def move(p, m, v):
            return p - 1e-3 * (m / c1) / (jnp.sqrt(v / c2) + 1e-8)

        return (jax.tree.map(move, params, m, v), m, v), None

    m = jax.tree.map(jnp.zeros_like, grads)
    steps = jnp.arange(1, 9).astype(jnp.float32)
    (new, _, _), _ = jax.lax.scan(step, (params, m, m), steps)
    return jax.tree.map(lambda a, b: a - b, new, params)


def adam_beta_arguments():
    return mlp_params(420, 8, 16, 3), normal(421, 32, 8), normal(422, 32, 3)


def sgd_bf16_weights(w, x, labels):
    """Sixty small steps of a classifier whose only weights are BF16."""

    def loss(w, batch):
        scores = jax.nn.log_softmax(x[batch] @ w)
        return -jnp.mean(jnp.take_along_axis(scores, labels[batch][:, None], axis=-1))

    def step(w, batch):
        grads = jax.grad(loss)(w.astype(jnp.float32), batch)
        change = 2e-3 * grads
        return w - change.astype(jnp.bfloat16), None  # fault

    batches = jnp.arange(60)[:, None] % 4 * 16 + jnp.arange(16)
    start = w.astype(jnp.bfloat16)
    end, _ = jax.lax.scan(step, start, batches)
    return end.astype(jnp.float32) - start.astype(jnp.float32)


def sgd_fp32_weights(w, x, labels):
    def loss(w, batch):
        scores = jax.nn.log_softmax(x[batch] @ w)
        return -jnp.mean(jnp.take_along_axis(scores, labels[batch][:, None], axis=-1))

    def step(w, batch):
        change = 2e-3 * jax.grad(loss)(w, batch)
        return w - change, None

    batches = jnp.arange(60)[:, None] % 4 * 16 + jnp.arange(16)
    start = w.astype(jnp.bfloat16).astype(jnp.float32)
    end, _ = jax.lax.scan(step, start, batches)
    return end - start


def sgd_arguments():
    w = np.sign(normal(430, 12, 6)) * uniform(431, 0.5, 1.0, 12, 6)
    return w, normal(432, 64, 12), integers(433, 0, 6, 64)


def ema_bf16(params, ema, x, y):
    """An average of weights with decay 0.9999, stored in BF16."""

    def step(state, t):
        params, ema = state
        grads = jax.grad(_mean_square)(params, x, y)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)

        def blend(e, p):
            gap = p - e.astype(jnp.float32)
            return e + (1e-4 * gap).astype(jnp.bfloat16)  # fault

        return (params, jax.tree.map(blend, ema, params)), None

    start = jax.tree.map(lambda e: e.astype(jnp.bfloat16), ema)
    (_, ema), _ = jax.lax.scan(step, (params, start), jnp.arange(150))
    return jax.tree.map(
        lambda a, b: a.astype(jnp.float32) - b.astype(jnp.float32), ema, start
    )


def ema_fp32(params, ema, x, y):
    def step(state, t):
        params, ema = state
        grads = jax.grad(_mean_square)(params, x, y)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        ema = jax.tree.map(lambda e, p: e + 1e-4 * (p - e), ema, params)
        return (params, ema), None

    start = jax.tree.map(lambda e: e.astype(jnp.bfloat16).astype(jnp.float32), ema)
    (_, ema), _ = jax.lax.scan(step, (params, start), jnp.arange(150))
    return jax.tree.map(lambda a, b: a - b, ema, start)


def ema_arguments():
    params = mlp_params(440, 6, 12, 2)
    ema = [{k: 0.5 * v + 0.3 for k, v in layer.items()} for layer in params]
    return params, ema, normal(441, 24, 6), normal(442, 24, 2)


def clip_norm_half(params, x, y):
    """Clipping by the global norm of FP16 gradients after a bad batch."""
    grads = jax.grad(_mean_square)(params, x, y)
    grads = jax.tree.map(lambda g: g.astype(jnp.float16), grads)
    total = sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads))  # fault
    norm = jnp.sqrt(total.astype(jnp.float32))
    factor = jnp.minimum(1.0, 1.0 / norm)
    updates = jax.tree.map(lambda g: 0.1 * factor * g.astype(jnp.float32), grads)
    return updates, norm


def clip_norm_fp32(params, x, y):
    grads = jax.grad(_mean_square)(params, x, y)
    grads = jax.tree.map(lambda g: g.astype(jnp.float16), grads)
    wide = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    total = sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(wide))
    norm = jnp.sqrt(total)
    factor = jnp.minimum(1.0, 1.0 / norm)
    return jax.tree.map(lambda g: 0.1 * factor * g, wide), norm


def clip_norm_arguments():
    return (
        mlp_params(450, 10, 20, 2),
        normal(451, 32, 10),
        normal(452, 32, 2, scale=900),
    )


def cosine_bf16_counter(w, x, y, start):
    """A cosine schedule resumed at step 240 with its counter in BF16."""

    def step(state, _):
        w, t = state
        rate = 0.05 * (1 + jnp.cos(jnp.pi * t.astype(jnp.float32) / 400)) / 2
        w = w - rate * jax.grad(lambda w: jnp.mean(jnp.square(x @ w - y)))(w)
        t = t + 1  # fault
        return (w, t), rate

    state = (w, start.astype(jnp.bfloat16))
    (w, _), rates = jax.lax.scan(step, state, None, length=120)
    return w, rates


def cosine_int_counter(w, x, y, start):
    def step(state, _):
        w, t = state
        rate = 0.05 * (1 + jnp.cos(jnp.pi * t.astype(jnp.float32) / 400)) / 2
        w = w - rate * jax.grad(lambda w: jnp.mean(jnp.square(x @ w - y)))(w)
        t = t + 1
        return (w, t), rate

    state = (w, start.astype(jnp.int32))
    (w, _), rates = jax.lax.scan(step, state, None, length=120)
    return w, rates


def cosine_arguments():
    return normal(460, 8, 2), normal(461, 32, 8), normal(462, 32, 2), np.float32(240)


def lars_ratio(params, x, y):
    """Layer-wise rates; a layer behind dead units gets no gradient at all."""

    def loss(params):
        h = jax.nn.relu(x @ params["in"] + params["shift"])
        return jnp.mean(jnp.square(h @ params["out"] + x @ params["skip"] - y))

    grads = jax.grad(loss)(params)

    def move(p, g):
        w_norm = jnp.sqrt(jnp.sum(jnp.square(p)))
        g_norm = jnp.sqrt(jnp.sum(jnp.square(g)))
        trust = w_norm / g_norm  # fault
        return p - 0.01 * trust * g

    return jax.tree.map(move, params, grads)


def lars_guarded(params, x, y):
    def loss(params):
        h = jax.nn.relu(x @ params["in"] + params["shift"])
        return jnp.mean(jnp.square(h @ params["out"] + x @ params["skip"] - y))

    grads = jax.grad(loss)(params)

    def move(p, g):
        w_norm = jnp.sqrt(jnp.sum(jnp.square(p)))
        g_norm = jnp.sqrt(jnp.sum(jnp.square(g)))
        trust = jnp.where(g_norm > 0, w_norm / jnp.maximum(g_norm, 1e-6), 1.0)
        return p - 0.01 * trust * g

    return jax.tree.map(move, params, grads)


def lars_arguments():
    params = {
        "in": normal(470, 8, 16, scale=0.2),
        "shift": np.full(16, -20, np.float32),
        "out": normal(471, 16, 2),
        "skip": normal(472, 8, 2),
    }
    return params, normal(473, 24, 8), normal(474, 24, 2)


FAULTS = (
    Fault(
        name="adam-second-moment-in-half",
        kinds=("underflow",),
        faulty=adam_half_second_moment,
        healthy=adam_fp32_second_moment,
        arguments=adam_moment_arguments,
        policy="fp32",
        source="FP16 optimizer states: squares of gradients vanish, steps explode",
    ),
    Fault(
        name="adam-epsilon-in-half",
        kinds=("underflow", "singular", "non-finite"),
        faulty=adam_half_epsilon,
        healthy=adam_wide_epsilon,
        arguments=adam_epsilon_arguments,
        policy="bf16",
        source=(
            "issues on pure FP16 training: Adam's 1e-8 is zero, unused rows turn NaN"
        ),
    ),
    Fault(
        name="adam-bias-correction-bf16-beta",
        kinds=("coarse", "cancellation", "singular", "absorption"),
        faulty=adam_bf16_beta,
        healthy=adam_fp32_beta,
        arguments=adam_beta_arguments,
        policy="bf16",
        source=(
            "reports that beta2 = 0.999 rounds to 1 when hyperparameters are cast "
            "to BF16"
        ),
    ),
    Fault(
        name="sgd-on-bf16-weights",
        kinds=("absorption", "stagnation"),
        faulty=sgd_bf16_weights,
        healthy=sgd_fp32_weights,
        arguments=sgd_arguments,
        policy="bf16",
        source="pure BF16 training: updates below half a spacing change nothing",
    ),
    Fault(
        name="weight-average-in-bf16",
        kinds=("absorption", "stagnation"),
        faulty=ema_bf16,
        healthy=ema_fp32,
        arguments=ema_arguments,
        policy="bf16",
        source="diffusion trainers: EMA weights stay at their start in half precision",
    ),
    Fault(
        name="global-norm-of-half-gradients",
        kinds=("overflow",),
        faulty=clip_norm_half,
        healthy=clip_norm_fp32,
        arguments=clip_norm_arguments,
        policy="bf16",
        source="gradient clipping issues: the FP16 norm is inf, all updates become 0",
    ),
    Fault(
        name="cosine-schedule-bf16-step",
        kinds=("absorption", "stagnation", "integer"),
        faulty=cosine_bf16_counter,
        healthy=cosine_int_counter,
        arguments=cosine_arguments,
        policy="bf16",
        source="schedules whose step counter was cast with the other states",
    ),
    Fault(
        name="layerwise-rate-of-dead-layer",
        kinds=("non-finite", "singular"),
        faulty=lars_ratio,
        healthy=lars_guarded,
        arguments=lars_arguments,
        policy="bf16",
        source="LARS and LAMB issues: trust ratio with a zero gradient",
    ),
)
