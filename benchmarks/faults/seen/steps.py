"""Faults inside of loops, branches, custom gradients, and of scales and schedules."""

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
    uniform,
    weight,
)


def alibi_faulty(params, x):
    """Attention with linear biases; distances are made in the model's format."""
    place = jnp.arange(x.shape[0]).astype(jnp.bfloat16)  # fault
    distance = (place[:, None] - place[None, :]).astype(jnp.float32)
    scores = (x @ params["q"]) @ (x @ params["k"]).T - 0.7 * jnp.abs(distance)
    weights = jax.nn.softmax(scores[-8:])
    return weights[:, -16:], weights @ x @ params["o"]


def alibi_healthy(params, x):
    place = jnp.arange(x.shape[0])
    distance = (place[:, None] - place[None, :]).astype(jnp.float32)
    scores = (x @ params["q"]) @ (x @ params["k"]).T - 0.7 * jnp.abs(distance)
    weights = jax.nn.softmax(scores[-8:])
    return weights[:, -16:], weights @ x @ params["o"]


def alibi_arguments():
    params = {n: weight(3200 + i, 8, 8, 0.3) for i, n in enumerate("qko")}
    return params, normal(3205, 420, 8)


def recency_faulty(params, stamps, values):
    """Attends to readings by their age; stamps went through the batch's dtype."""
    stamps = stamps.astype(jnp.bfloat16)  # fault
    age = (stamps[-1] - stamps).astype(jnp.float32)
    decay = jax.nn.softmax(-age / params["span"])
    return age, decay, jnp.tanh(decay @ values @ params["out"])


def recency_healthy(params, stamps, values):
    age = stamps[-1] - stamps
    decay = jax.nn.softmax(-age / params["span"])
    return age, decay, jnp.tanh(decay @ values @ params["out"])


def recency_arguments():
    stamps = np.cumsum(uniform(3210, 24, low=0.5, high=3.0)) + 9_000
    params = {"span": np.float32(12.0), "out": weight(3211, 5, 3)}
    return params, stamps.astype(np.float32), normal(3212, 24, 5)


def warp_faulty(image, flow, w):
    """Warps a wide frame by optical flow: bilinear weights of pixel coordinates."""
    image = jnp.asarray(image)

    def sample(column, shift):
        at = (column + shift).astype(jnp.float16)  # fault
        left = jnp.floor(at)
        part = (at - left).astype(jnp.float32)
        n = left.astype(jnp.int32)
        return (1 - part) * image[:, n] + part * image[:, n + 1], part

    columns = jnp.arange(1500.0, 1980.0, 16.0)
    rows, parts = jax.vmap(sample)(columns, flow)
    return parts, jnp.tanh(rows @ w)


def warp_healthy(image, flow, w):
    image = jnp.asarray(image)

    def sample(column, shift):
        at = column + shift
        left = jnp.floor(at)
        part = at - left
        n = left.astype(jnp.int32)
        return (1 - part) * image[:, n] + part * image[:, n + 1], part

    columns = jnp.arange(1500.0, 1980.0, 16.0)
    rows, parts = jax.vmap(sample)(columns, flow)
    return parts, jnp.tanh(rows @ w)


def nucleus_faulty(logits, draws):
    """Samples tokens by inverting a cumulative distribution, kept in BF16."""
    p = jax.nn.softmax(logits)

    def add(total, p):
        total = total + p.astype(jnp.bfloat16)  # fault
        return total, total

    start = jnp.zeros(logits.shape[0], jnp.bfloat16)
    _, steps = jax.lax.scan(add, start, p.T)
    edges = steps.T.astype(jnp.float32)
    return edges[:, -1], jnp.sum(edges[:, None] < draws[..., None], axis=-1)


def nucleus_healthy(logits, draws):
    p = jax.nn.softmax(logits)

    def add(total, p):
        total = total + p
        return total, total

    _, edges = jax.lax.scan(add, jnp.zeros(logits.shape[0]), p.T)
    edges = edges.T
    return edges[:, -1], jnp.sum(edges[:, None] < draws[..., None], axis=-1)


def growing_faulty(params, batches):
    """A layer with delayed scaling in a loop; the history is updated every fourth."""

    def step(carry, x):
        scale, n = carry
        h = jnp.tanh(x @ params["in"]) * jnp.max(jnp.abs(x))
        scale = jax.lax.cond(
            n % 4 == 0, lambda: 200.0 / jnp.max(jnp.abs(h)), lambda: scale
        )
        h8 = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # fault
        y = h8.astype(jnp.float32) / scale @ params["out"]
        return (scale, n + 1), y

    _, y = jax.lax.scan(step, (jnp.float32(1.0), 0), batches)
    return y


def growing_healthy(params, batches):
    def step(carry, x):
        h = jnp.tanh(x @ params["in"]) * jnp.max(jnp.abs(x))
        scale = 200.0 / jnp.max(jnp.abs(h))
        h8 = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)
        y = h8.astype(jnp.float32) / scale @ params["out"]
        return carry, y

    _, y = jax.lax.scan(step, 0, batches)
    return y


def growing_arguments():
    params = {"in": weight(3230, 10, 16), "out": weight(3231, 16, 4)}
    growth = 4.0 ** np.arange(8, dtype=np.float32)[:, None, None]
    return params, normal(3232, 8, 12, 10) * growth


def dead_expert_faulty(params, x, gates):
    """Experts quantize what they are sent by its largest number; one gets nothing."""

    def expert(w, gate):
        sent = x * gate[:, None]
        scale = 240.0 / jnp.max(jnp.abs(sent))  # fault
        q = (sent * scale).astype(jnp.float8_e4m3)
        return q.astype(jnp.float32) @ w / scale

    return jax.vmap(expert)(params, gates).sum(0)


def dead_expert_healthy(params, x, gates):
    def expert(w, gate):
        sent = x * gate[:, None]
        scale = 240.0 / jnp.maximum(jnp.max(jnp.abs(sent)), 1e-12)
        q = (sent * scale).astype(jnp.float8_e4m3)
        return q.astype(jnp.float32) @ w / scale

    return jax.vmap(expert)(params, gates).sum(0)


def dead_expert_arguments():
    gates = integers(3240, 2, 4, 9).astype(np.float32)
    gates[2] = 0.0
    return normal(3241, 4, 8, 5), normal(3242, 9, 8), gates


def doubled_faulty(w, x, y, scale):
    """Dynamic loss scaling that only ever doubles: the scaled loss leaves FP16."""

    def step(carry, batch):
        w, scale = carry
        x, y = batch

        def loss_of(w):
            error = jnp.tanh(x @ w) - y
            loss = jnp.mean(error * error).astype(jnp.float16)
            return loss * scale.astype(jnp.float16)  # fault

        grad = jax.grad(loss_of)(w) / scale
        ok = jnp.all(jnp.isfinite(grad))
        w = jax.lax.cond(ok, lambda: w - 0.1 * grad, lambda: w)
        return (w, scale * 2.0), loss_of(w).astype(jnp.float32) / scale

    (w, _), losses = jax.lax.scan(step, (w, scale), (x, y))
    return w, losses


def doubled_healthy(w, x, y, scale):
    def step(carry, batch):
        w, scale = carry
        x, y = batch

        def loss_of(w):
            error = jnp.tanh(x @ w) - y
            return jnp.mean(error * error) * scale

        grad = jax.grad(loss_of)(w) / scale
        ok = jnp.all(jnp.isfinite(grad))
        w = jax.lax.cond(ok, lambda: w - 0.1 * grad, lambda: w)
        return (w, scale * 2.0), loss_of(w) / scale

    (w, _), losses = jax.lax.scan(step, (w, scale), (x, y))
    return w, losses


def unscale_faulty(w, x, y):
    """Gradients of a scaled loss are unscaled before they leave FP16."""
    scale = 2.0**15

    def loss_of(w):
        h = (x @ w.astype(jnp.float16)).astype(jnp.float32)
        return 3e-7 * jnp.mean((h - y) ** 2) * scale

    grad = jax.grad(loss_of)(w).astype(jnp.float16)
    grad = grad / jnp.float16(scale / 2)  # fault
    moment = grad.astype(jnp.float32) / 2
    return moment, w - 1e4 * moment


def unscale_healthy(w, x, y):
    scale = 2.0**15

    def loss_of(w):
        h = (x @ w.astype(jnp.float16)).astype(jnp.float32)
        return 3e-7 * jnp.mean((h - y) ** 2) * scale

    grad = jax.grad(loss_of)(w).astype(jnp.float16)
    moment = grad.astype(jnp.float32) / scale
    return moment, w - 1e4 * moment


def custom_faulty(params, x, y):
    """A gate with a gradient of its own, written as exp(x) / (1 + exp(x))."""

    @jax.custom_vjp
    def gate(h):
        return jax.nn.softplus(h)

    def backward(h, g):
        e = jnp.exp(h)
        return (g * (e / (1.0 + e)),)  # fault

    gate.defvjp(lambda h: (jax.nn.softplus(h), h), backward)

    def loss_of(params):
        h = gate(layer_norm(x) @ params["in"] * 60.0)
        return jnp.mean((h @ params["out"] - y) ** 2)

    return jax.grad(loss_of)(params)


def custom_healthy(params, x, y):
    @jax.custom_vjp
    def gate(h):
        return jax.nn.softplus(h)

    gate.defvjp(
        lambda h: (jax.nn.softplus(h), h), lambda h, g: (g * jax.nn.sigmoid(h),)
    )

    def loss_of(params):
        h = gate(layer_norm(x) @ params["in"] * 60.0)
        return jnp.mean((h @ params["out"] - y) ** 2)

    return jax.grad(loss_of)(params)


def remat_faulty(params, x, labels):
    """A checkpointed block whose attention forgets to subtract the maximum."""

    def attend(body, x):
        q, k = x @ body["q"], x @ body["k"]
        p = jnp.exp((q @ k.T).astype(jnp.float16))  # fault
        return (p / p.sum(-1, keepdims=True)).astype(jnp.float32) @ x @ body["v"]

    def loss_of(params):
        h = x + jax.checkpoint(attend)(params, layer_norm(x))
        return cross_entropy(layer_norm(h) @ params["o"], labels)

    return jax.value_and_grad(loss_of)(params)


def remat_healthy(params, x, labels):
    def attend(body, x):
        q, k = x @ body["q"], x @ body["k"]
        p = jax.nn.softmax(q @ k.T)
        return p @ x @ body["v"]

    def loss_of(params):
        h = x + jax.checkpoint(attend)(params, layer_norm(x))
        return cross_entropy(layer_norm(h) @ params["o"], labels)

    return jax.value_and_grad(loss_of)(params)


def orthogonal_faulty(w, momentum):
    """Muon: five Newton-Schulz steps on a momentum that nobody normalized."""
    g = momentum.astype(jnp.float16)

    def step(x, _):
        a = (x @ x.T).astype(jnp.float16)  # fault
        b = -4.775 * a + 2.0315 * (a @ a)
        return (3.4445 * x + b.astype(jnp.float16) @ x).astype(jnp.float16), None

    g, _ = jax.lax.scan(step, g, None, length=5)
    return w - 0.02 * g.astype(jnp.float32)


def orthogonal_healthy(w, momentum):
    g = momentum / jnp.sqrt(jnp.sum(momentum * momentum))

    def step(x, _):
        a = x @ x.T
        b = -4.775 * a + 2.0315 * (a @ a)
        return 3.4445 * x + b @ x, None

    g, _ = jax.lax.scan(step, g, None, length=5)
    return w - 0.02 * g


def render_faulty(densities, colours, w):
    """Volume rendering: what a ray lets through, multiplied up in FP16."""

    def sample(passed, pair):
        density, colour = pair
        alpha = 1.0 - jnp.exp(-density)
        weight = passed * alpha
        passed = passed * (1.0 - alpha).astype(jnp.float16)  # fault
        return passed, (weight[:, None] * colour, jnp.log(passed.astype(jnp.float32)))

    start = jnp.ones(densities.shape[1], jnp.float16)
    _, (parts, depth) = jax.lax.scan(sample, start, (densities, colours))
    return jnp.tanh(parts.sum(0) @ w), -depth[-1]


def render_healthy(densities, colours, w):
    def sample(total, pair):
        density, colour = pair
        weight = jnp.exp(-total) * -jnp.expm1(-density)
        total = total + density
        return total, (weight[:, None] * colour, total)

    start = jnp.zeros(densities.shape[1])
    _, (parts, depth) = jax.lax.scan(sample, start, (densities, colours))
    return jnp.tanh(parts.sum(0) @ w), depth[-1]


def bisection_faulty(logits, targets):
    """Finds the temperature of a wanted entropy by bisection between BF16 bounds."""

    def entropy(t):
        p = jax.nn.softmax(logits / t[:, None])
        return -jnp.sum(p * jnp.log(p + 1e-30), axis=-1)

    def halve(carry):
        low, high, n = carry
        middle = (low + high) / 2  # fault
        more = entropy(middle.astype(jnp.float32)) < targets
        low, high = jnp.where(more, middle, low), jnp.where(more, high, middle)
        return low, high, n + 1

    rows = logits.shape[0]
    start = (jnp.full(rows, 0.1, jnp.bfloat16), jnp.full(rows, 20, jnp.bfloat16), 0)
    low, _, _ = jax.lax.while_loop(lambda c: c[2] < 24, halve, start)
    return 100.0 * (entropy(low.astype(jnp.float32)) - targets + 1e-3)


def bisection_healthy(logits, targets):
    def entropy(t):
        p = jax.nn.softmax(logits / t[:, None])
        return -jnp.sum(p * jnp.log(p + 1e-30), axis=-1)

    def halve(carry):
        low, high, n = carry
        middle = (low + high) / 2
        more = entropy(middle) < targets
        low, high = jnp.where(more, middle, low), jnp.where(more, high, middle)
        return low, high, n + 1

    rows = logits.shape[0]
    start = (jnp.full(rows, 0.1), jnp.full(rows, 20.0), 0)
    low, _, _ = jax.lax.while_loop(lambda c: c[2] < 24, halve, start)
    return 100.0 * (entropy(low) - targets + 1e-3)


def cosine_faulty(params, x, labels, step):
    """Fine-tuning with a cosine schedule whose progress is a BF16 fraction."""
    progress = (step / 20_000.0).astype(jnp.bfloat16)  # fault
    left = 1.0 - progress.astype(jnp.float32)
    rate = 0.5 * (1.0 - jnp.cos(jnp.pi * left))

    def loss_of(params):
        return cross_entropy(block(params, x), labels)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return loss, rate, jax.tree.map(lambda g: -rate * g, grads)


def cosine_healthy(params, x, labels, step):
    left = 1.0 - step / 20_000.0
    rate = jnp.sin(0.5 * jnp.pi * left) ** 2

    def loss_of(params):
        return cross_entropy(block(params, x), labels)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return loss, rate, jax.tree.map(lambda g: -rate * g, grads)


FAULTS = (
    Fault(
        name="alibi-distances-in-bf16",
        kinds=("coarse", "integer"),
        faulty=alibi_faulty,
        healthy=alibi_healthy,
        arguments=alibi_arguments,
        policy="bf16",
        source="MPT and Bloom: alibi built in the model's dtype beyond 256 tokens",
    ),
    Fault(
        name="reading-ages-from-bf16-stamps",
        kinds=("coarse", "cancellation"),
        faulty=recency_faulty,
        healthy=recency_healthy,
        arguments=recency_arguments,
        policy="bf16",
        source="batch.to(bfloat16) that also casts time stamps",
    ),
    Fault(
        name="flow-warp-of-half-coordinates",
        kinds=("coarse",),
        faulty=warp_faulty,
        healthy=warp_healthy,
        arguments=lambda: (
            normal(3220, 6, 2048),
            uniform(3221, 30, low=0.1, high=0.9),
            weight(3222, 6, 3),
        ),
        policy="fp32",
        source="RAFT and grid_sample in autocast: steps of a pixel beyond 1024",
    ),
    Fault(
        name="sampling-from-bf16-cumulative",
        kinds=("stagnation", "absorption"),
        faulty=nucleus_faulty,
        healthy=nucleus_healthy,
        arguments=lambda: (normal(3224, 6, 700), uniform(3225, 6, 10)),
        policy="bf16",
        source="top-p sampling in half: probabilities do not add up to one",
    ),
    Fault(
        name="scale-updated-every-fourth-step",
        kinds=("stale-scale", "saturation"),
        faulty=growing_faulty,
        healthy=growing_healthy,
        arguments=growing_arguments,
        policy="bf16",
        source="TransformerEngine: amax history with an interval, growing activations",
    ),
    Fault(
        name="fp8-scale-of-idle-expert",
        kinds=("saturation", "singular", "non-finite"),
        faulty=dead_expert_faulty,
        healthy=dead_expert_healthy,
        arguments=dead_expert_arguments,
        policy="bf16",
        source="dynamic quantization of experts: 448 / amax where no token arrives",
    ),
    Fault(
        name="loss-scale-only-doubles",
        kinds=("overflow",),
        faulty=doubled_faulty,
        healthy=doubled_healthy,
        arguments=lambda: (
            weight(3250, 6, 2, 3.0),
            normal(3251, 8, 10, 6),
            2 * normal(3252, 8, 10, 2),
            np.float32(2.0**11),
        ),
        policy="fp16",
        source="Micikevicius: a loss scale needs a backoff; apex issues",
    ),
    Fault(
        name="gradient-unscaled-in-half",
        kinds=("underflow",),
        faulty=unscale_faulty,
        healthy=unscale_healthy,
        arguments=lambda: (
            weight(3254, 8, 4),
            normal(3255, 16, 8),
            normal(3256, 16, 4),
        ),
        policy="fp16",
        source="GradScaler.unscale_ on FP16 gradients: what was saved is lost again",
    ),
    Fault(
        name="own-gradient-of-softplus",
        kinds=("overflow", "non-finite"),
        faulty=custom_faulty,
        healthy=custom_healthy,
        arguments=lambda: (
            {"in": weight(3260, 10, 16), "out": weight(3261, 16, 2)},
            normal(3262, 12, 10),
            normal(3263, 12, 2),
        ),
        policy="bf16",
        source="custom_vjp written from the formula: exp(x) / (1 + exp(x)) is NaN",
    ),
    Fault(
        name="checkpointed-exp-in-half",
        kinds=("overflow",),
        faulty=remat_faulty,
        healthy=remat_healthy,
        arguments=lambda: (
            {n: weight(3270 + i, 12, 12, 2.0) for i, n in enumerate("qkvo")},
            normal(3275, 14, 12),
            integers(3276, 12, 14),
        ),
        policy="fp16",
        source="softmax without max under torch.utils.checkpoint and autocast",
    ),
    Fault(
        name="newton-schulz-without-norm",
        kinds=("overflow", "non-finite"),
        faulty=orthogonal_faulty,
        healthy=orthogonal_healthy,
        arguments=lambda: (weight(3280, 8, 12), normal(3281, 8, 12, scale=300.0)),
        policy="fp16",
        source="Muon: the iteration diverges unless the spectral norm is below one",
    ),
    Fault(
        name="transmittance-multiplied-in-half",
        kinds=("underflow",),
        faulty=render_faulty,
        healthy=render_healthy,
        arguments=lambda: (
            uniform(3284, 40, 6, high=1.5),
            uniform(3285, 40, 6, 3),
            weight(3286, 3, 2),
        ),
        policy="fp16",
        source="instant-ngp: depth and opacity losses from a product in half",
    ),
    Fault(
        name="bisection-stops-at-bf16-neighbours",
        kinds=("coarse", "stagnation"),
        faulty=bisection_faulty,
        healthy=bisection_healthy,
        arguments=lambda: (
            normal(3290, 6, 12, scale=2.0),
            uniform(3291, 6, low=1.0, high=2.0),
        ),
        policy="fp32",
        source="t-SNE perplexity search and conformal calibration in half",
    ),
    Fault(
        name="cosine-progress-in-bf16",
        kinds=("coarse",),
        faulty=cosine_faulty,
        healthy=cosine_healthy,
        arguments=lambda: (
            block_params(3294, 12),
            normal(3298, 10, 12),
            integers(3299, 12, 10),
            np.float32(19_931.0),
        ),
        policy="bf16",
        source="schedules from a state cast to BF16: the rate sticks near its end",
    ),
)
