"""Faults inside of loops, branches, custom gradients, and of scales and schedules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    block,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


@fault("coarse", "integer")
@source("MPT and Bloom: alibi built in the model's dtype beyond 256 tokens")
@inputs(
    lambda: {n: weight(3200 + i, 8, 8, 0.3) for i, n in enumerate("qko")}, "420x8 @3205"
)
def alibi_distances_in_bf16(params, x):
    """Attention with linear biases; distances are made in the model's format."""
    place = jnp.arange(x.shape[0]).astype(jnp.bfloat16)  # fault
    # + place = jnp.arange(x.shape[0])
    distance = (place[:, None] - place[None, :]).astype(jnp.float32)
    scores = (x @ params["q"]) @ (x @ params["k"]).T - 0.7 * jnp.abs(distance)
    weights = jax.nn.softmax(scores[-8:])
    return weights[:, -16:], weights @ x @ params["o"]


@fault("coarse", "cancellation")
@source("batch.to(bfloat16) that also casts time stamps")
@inputs(
    "span: f32 12, out: 5x3 w @3211",
    lambda: (np.cumsum(uniform(3210, 24, low=0.5, high=3.0)) + 9_000).astype(
        np.float32
    ),
    "24x5 @3212",
)
def reading_ages_from_bf16_stamps(params, stamps, values):
    """Attends to readings by their age; stamps went through the batch's dtype."""
    stamps = stamps.astype(jnp.bfloat16)  # fault
    age = (stamps[-1] - stamps).astype(jnp.float32)  # -
    # + age = stamps[-1] - stamps
    decay = jax.nn.softmax(-age / params["span"])
    return age, decay, jnp.tanh(decay @ values @ params["out"])


@fault("coarse", policy="fp32")
@source("RAFT and grid_sample in autocast: steps of a pixel beyond 1024")
@inputs("6x2048 @3220; 30 0.1..0.9 @3221; 6x3 w @3222")
def flow_warp_of_half_coordinates(image, flow, w):
    """Warps a wide frame by optical flow: bilinear weights of pixel coordinates."""
    image = jnp.asarray(image)

    def sample(column, shift):
        at = (column + shift).astype(jnp.float16)  # fault
        # + at = column + shift
        left = jnp.floor(at)
        part = (at - left).astype(jnp.float32)  # -
        # + part = at - left
        n = left.astype(jnp.int32)
        return (1 - part) * image[:, n] + part * image[:, n + 1], part

    columns = jnp.arange(1500.0, 1980.0, 16.0)
    rows, parts = jax.vmap(sample)(columns, flow)
    return parts, jnp.tanh(rows @ w)


@fault("stagnation", "absorption")
@source("top-p sampling in half: probabilities do not add up to one")
@inputs("6x700 @3224; 6x10 0..1 @3225")
def sampling_from_bf16_cumulative(logits, draws):
    """Samples tokens by inverting a cumulative distribution, kept in BF16."""
    p = jax.nn.softmax(logits)

    def add(total, p):
        total = total + p.astype(jnp.bfloat16)  # fault
        # + total = total + p
        return total, total

    start = jnp.zeros(logits.shape[0], jnp.bfloat16)  # -
    _, steps = jax.lax.scan(add, start, p.T)  # -
    edges = steps.T.astype(jnp.float32)  # -
    # + _, edges = jax.lax.scan(add, jnp.zeros(logits.shape[0]), p.T)
    # + edges = edges.T
    return edges[:, -1], jnp.sum(edges[:, None] < draws[..., None], axis=-1)


@fault("stale-scale", "saturation")
@source("TransformerEngine: amax history with an interval, growing activations")
@inputs(
    "in: 10x16 w @3230, out: 16x4 w",
    lambda: (
        normal(3232, 8, 12, 10) * (4.0 ** np.arange(8, dtype=np.float32)[:, None, None])
    ),
)
def scale_updated_every_fourth_step(params, batches):
    """A layer with delayed scaling in a loop; the history is updated every fourth."""

    def step(carry, x):
        scale, n = carry  # -
        h = jnp.tanh(x @ params["in"]) * jnp.max(jnp.abs(x))
        scale = jax.lax.cond(
            n % 4 == 0, lambda: 200.0 / jnp.max(jnp.abs(h)), lambda: scale
        )  # -
        # + scale = 200.0 / jnp.max(jnp.abs(h))
        h8 = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # here
        y = h8.astype(jnp.float32) / scale @ params["out"]
        return (scale, n + 1), y  # -
        # + return carry, y

    _, y = jax.lax.scan(step, (jnp.float32(1.0), 0), batches)  # -
    # + _, y = jax.lax.scan(step, 0, batches)
    return y


def dead_expert_arguments():
    gates = integers(3240, 2, 4, 9).astype(np.float32)
    gates[2] = 0.0
    return "4x8x5 @3241; 9x8 @3242", gates


@fault("saturation", "singular", "non-finite")
@source("dynamic quantization of experts: 448 / amax where no token arrives")
@inputs(by=dead_expert_arguments)
def fp8_scale_of_idle_expert(params, x, gates):
    """Experts quantize what they are sent by its largest number; one gets nothing."""

    def expert(w, gate):
        sent = x * gate[:, None]
        scale = 240.0 / jnp.max(jnp.abs(sent))  # fault
        # + scale = 240.0 / jnp.maximum(jnp.max(jnp.abs(sent)), 1e-12)
        q = (sent * scale).astype(jnp.float8_e4m3)
        return q.astype(jnp.float32) @ w / scale

    return jax.vmap(expert)(params, gates).sum(0)


@fault("overflow", policy="fp16")
@source("Micikevicius: a loss scale needs a backoff; apex issues")
@inputs("6x2 w*3 @3250; 8x10x6 @3251", lambda: 2 * normal(3252, 8, 10, 2), "f32 2048")
def loss_scale_only_doubles(w, x, y, scale):
    """Dynamic loss scaling that only ever doubles: the scaled loss leaves FP16."""

    def step(carry, batch):
        w, scale = carry
        x, y = batch

        def loss_of(w):
            error = jnp.tanh(x @ w) - y
            loss = jnp.mean(error * error).astype(jnp.float16)  # -
            return loss * scale.astype(jnp.float16)  # fault
            # + return jnp.mean(error * error) * scale

        grad = jax.grad(loss_of)(w) / scale
        ok = jnp.all(jnp.isfinite(grad))
        w = jax.lax.cond(ok, lambda: w - 0.1 * grad, lambda: w)
        return (w, scale * 2.0), loss_of(w).astype(jnp.float32) / scale  # -
        # + return (w, scale * 2.0), loss_of(w) / scale

    (w, _), losses = jax.lax.scan(step, (w, scale), (x, y))
    return w, losses


@fault("underflow", policy="fp16")
@source("GradScaler.unscale_ on FP16 gradients: what was saved is lost again")
@inputs("8x4 w @3254; 16x8 @3255; 16x4 @3256")
def gradient_unscaled_in_half(w, x, y):
    """Gradients of a scaled loss are unscaled before they leave FP16."""
    scale = 2.0**15

    def loss_of(w):
        h = (x @ w.astype(jnp.float16)).astype(jnp.float32)
        return 3e-7 * jnp.mean((h - y) ** 2) * scale

    grad = jax.grad(loss_of)(w).astype(jnp.float16)
    grad = grad / jnp.float16(scale / 2)  # fault
    moment = grad.astype(jnp.float32) / 2  # -
    # + moment = grad.astype(jnp.float32) / scale
    return moment, w - 1e4 * moment


@fault("overflow", "non-finite")
@source("custom_vjp written from the formula: exp(x) / (1 + exp(x)) is NaN")
@inputs("in: 10x16 w @3260, out: 16x2 w; 12x10 @3262; 12x2 @3263")
def own_gradient_of_softplus(params, x, y):
    """A gate with a gradient of its own, written as exp(x) / (1 + exp(x))."""

    @jax.custom_vjp
    def gate(h):
        return jax.nn.softplus(h)

    def backward(h, g):  # -
        e = jnp.exp(h)
        return (g * (e / (1.0 + e)),)  # fault

    gate.defvjp(lambda h: (jax.nn.softplus(h), h), backward)  # -
    # + gate.defvjp(
    # +     lambda h: (jax.nn.softplus(h), h), lambda h, g: (g * jax.nn.sigmoid(h),)
    # + )

    def loss_of(params):
        h = gate(layer_norm(x) @ params["in"] * 60.0)
        return jnp.mean((h @ params["out"] - y) ** 2)

    return jax.grad(loss_of)(params)


@fault("overflow", policy="fp16")
@source("softmax without max under torch.utils.checkpoint and autocast")
@inputs(
    lambda: {n: weight(3270 + i, 12, 12, 2.0) for i, n in enumerate("qkvo")},
    "14x12 @3275; 14 int 0..12 @3276",
)
def checkpointed_exp_in_half(params, x, labels):
    """A checkpointed block whose attention forgets to subtract the maximum."""

    def attend(body, x):
        q, k = x @ body["q"], x @ body["k"]
        p = jnp.exp((q @ k.T).astype(jnp.float16))  # fault
        # + p = jax.nn.softmax(q @ k.T)
        return (p / p.sum(-1, keepdims=True)).astype(jnp.float32) @ x @ body["v"]  # -
        # + return p @ x @ body["v"]

    def loss_of(params):
        h = x + jax.checkpoint(attend)(params, layer_norm(x))
        return cross_entropy(layer_norm(h) @ params["o"], labels)

    return jax.value_and_grad(loss_of)(params)


@fault("overflow", "non-finite", policy="fp16")
@source("Muon: the iteration diverges unless the spectral norm is below one")
@inputs("8x12 w @3280; 8x12 *300 @3281")
def newton_schulz_without_norm(w, momentum):
    """Muon: five Newton-Schulz steps on a momentum that nobody normalized."""
    g = momentum.astype(jnp.float16)  # -
    # + g = momentum / jnp.sqrt(jnp.sum(momentum * momentum))

    def step(x, _):
        a = (x @ x.T).astype(jnp.float16)  # fault
        # + a = x @ x.T
        b = -4.775 * a + 2.0315 * (a @ a)
        return (3.4445 * x + b.astype(jnp.float16) @ x).astype(jnp.float16), None  # -
        # + return 3.4445 * x + b @ x, None

    g, _ = jax.lax.scan(step, g, None, length=5)
    return w - 0.02 * g.astype(jnp.float32)  # -
    # + return w - 0.02 * g


@fault("underflow", policy="fp16")
@source("instant-ngp: depth and opacity losses from a product in half")
@inputs("40x6 0..1.5 @3284; 40x6x3 0..1 @3285; 3x2 w @3286")
def transmittance_multiplied_in_half(densities, colours, w):
    """Volume rendering: what a ray lets through, multiplied up in FP16."""

    def sample(passed, pair):  # -
        density, colour = pair
        alpha = 1.0 - jnp.exp(-density)
        weight = passed * alpha
        passed = passed * (1.0 - alpha).astype(jnp.float16)  # fault
        return passed, (weight[:, None] * colour, jnp.log(passed.astype(jnp.float32)))

    # + def sample(total, pair):
    # +     density, colour = pair
    # +     weight = jnp.exp(-total) * -jnp.expm1(-density)
    # +     total = total + density
    # +     return total, (weight[:, None] * colour, total)

    start = jnp.ones(densities.shape[1], jnp.float16)  # -
    # + start = jnp.zeros(densities.shape[1])
    _, (parts, depth) = jax.lax.scan(sample, start, (densities, colours))
    return jnp.tanh(parts.sum(0) @ w), -depth[-1]  # -
    # + return jnp.tanh(parts.sum(0) @ w), depth[-1]


@fault("coarse", "stagnation", policy="fp32")
@source("t-SNE perplexity search and conformal calibration in half")
@inputs("6x12 *2 @3290; 6 1..2 @3291")
def bisection_stops_at_bf16_neighbours(logits, targets):
    """Finds the temperature of a wanted entropy by bisection between BF16 bounds."""

    def entropy(t):
        p = jax.nn.softmax(logits / t[:, None])
        return -jnp.sum(p * jnp.log(p + 1e-30), axis=-1)

    def halve(carry):
        low, high, n = carry
        middle = (low + high) / 2  # here
        more = entropy(middle.astype(jnp.float32)) < targets  # -
        # + more = entropy(middle) < targets
        low, high = jnp.where(more, middle, low), jnp.where(more, high, middle)
        return low, high, n + 1

    rows = logits.shape[0]
    start = (
        jnp.full(rows, 0.1, jnp.bfloat16),
        jnp.full(rows, 20, jnp.bfloat16),
        0,
    )  # -
    # + start = (jnp.full(rows, 0.1), jnp.full(rows, 20.0), 0)
    low, _, _ = jax.lax.while_loop(lambda c: c[2] < 24, halve, start)
    return 100.0 * (entropy(low.astype(jnp.float32)) - targets + 1e-3)  # -
    # + return 100.0 * (entropy(low) - targets + 1e-3)


@fault("coarse")
@source("schedules from a state cast to BF16: the rate sticks near its end")
@inputs("block 12 @3294; 10x12 @3298; 10 int 0..12 @3299; f32 19931")
def cosine_progress_in_bf16(params, x, labels, step):
    """Fine-tuning with a cosine schedule whose progress is a BF16 fraction."""
    progress = (step / 20_000.0).astype(jnp.bfloat16)  # fault
    left = 1.0 - progress.astype(jnp.float32)  # -
    # + left = 1.0 - step / 20_000.0
    rate = 0.5 * (1.0 - jnp.cos(jnp.pi * left))  # -
    # + rate = jnp.sin(0.5 * jnp.pi * left) ** 2

    def loss_of(params):
        return cross_entropy(block(params, x), labels)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return loss, rate, jax.tree.map(lambda g: -rate * g, grads)
