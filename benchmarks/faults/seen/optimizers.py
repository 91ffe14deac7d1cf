"""Optimizers: updates, states and schedules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp, mlp_params
from benchmarks.faults.parts import (
    block,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


def second_moment_arguments():
    params = {"in": weight(120, 16, 32), "out": weight(121, 32, 4)}
    zeros = {name: np.zeros_like(w) for name, w in params.items()}
    half = {name: w.astype(np.float16) for name, w in zeros.items()}
    return params, (zeros, half), "64x16 @122; 64x4 @123"


@fault("underflow")
@source("FP16 Adam states: g * g of 1e-5 is below the smallest FP16 number")
@inputs(by=second_moment_arguments)
def adam_square_of_half_gradient(params, moments, x, y):
    """A step of Adam whose second moment lives in FP16."""
    mean, square = moments

    def loss_of(params):
        h = jnp.tanh(x @ params["in"])
        return 1e-3 * jnp.mean((h @ params["out"] - y) ** 2)

    value, grads = jax.value_and_grad(loss_of)(params)

    def update(p, m, v, g):
        m = 0.9 * m + 0.1 * g
        half = g.astype(jnp.float16)  # -
        v = v * 0.95 + 0.05 * (half * half)  # fault
        # + v = v.astype(jnp.float32) * 0.95 + 0.05 * (g * g)
        root = jnp.sqrt(v.astype(jnp.float32) / 0.05)  # -
        # + root = jnp.sqrt(v / 0.05)
        return p - 1e-3 * (m / 0.1) / (root + 1e-8)

    return jax.tree.map(update, params, mean, square, grads), value


@fault("underflow", "singular", "non-finite", policy="fp16")
@source("PyTorch forum: Adam with model.half() gives NaN, eps=1e-8 is 0 in FP16")
@inputs(
    "64x16 @124",
    (np.zeros((64, 16), np.float16), "64x16 =0"),
    "32 int 0..24 @125; f32 1e-08",
)
def adam_epsilon_rounds_to_zero(table, moments, tokens, epsilon):
    """Lazy Adam in FP16 for an embedding, of which a batch sees few rows."""
    m, v = moments

    def loss_of(table):
        h = table[tokens]
        return jnp.mean((h @ h.T - 1.0) ** 2)

    g = 32.0 * jax.grad(loss_of)(table)
    m = m * 0.9 + g.astype(jnp.float16) * 0.1
    v = v * 0.99 + (g * g) * 0.01
    root = jnp.sqrt(v).astype(jnp.float16)  # -
    # + root = jnp.sqrt(v)
    step = m / (root + epsilon.astype(jnp.float16))  # fault
    # + step = m.astype(jnp.float32) / (root + epsilon)
    return table - 1e-3 * step.astype(jnp.float32)  # -
    # + return table - 1e-3 * step


@fault("overflow", policy="fp16")
@source("apex and fairseq: the FP16 gradient norm is Inf though no gradient is")
@inputs("body: block 32 @130, head: 32x16 w @140; 24x32 @141; 24 int 0..16 @142")
def global_norm_of_scaled_half_gradients(params, x, labels):
    """Gradient clipping by the global norm of FP16 gradients (loss scale 1024)."""

    def loss_of(params):
        h = layer_norm(block(params["body"], x))
        return 1024.0 * cross_entropy(h @ params["head"], labels)

    grads = jax.grad(loss_of)(params)
    grads = jax.tree.map(lambda g: g.astype(jnp.float16), grads)
    squares = jax.tree.map(lambda g: jnp.sum(g * g), grads)  # fault
    # + squares = jax.tree.map(lambda g: jnp.sum(g.astype(jnp.float32) ** 2), grads)
    total = sum(s.astype(jnp.float32) for s in jax.tree.leaves(squares))  # -
    # + total = sum(jax.tree.leaves(squares))
    shrink = jnp.minimum(1.0, 1024.0 / jnp.sqrt(total)) / 1024.0
    return jax.tree.map(lambda p, g: p - 0.1 * shrink * g, params, grads)


def pure_bf16_arguments():
    x = normal(150, 100, 32, 16)
    y = np.tanh(x @ weight(151, 16, 4)) + 1.0
    return "in: 16x32 w @152, out: 32x4 +0.7", x, y


@fault("absorption", "stagnation")
@source("torchao and vLLM speculators: updates below half an ulp of a weight")
@inputs(by=pure_bf16_arguments)
def weights_of_bf16_do_not_move(params, x, y):
    """Fine-tuning with weights that are BF16 only."""

    def loss_of(params, x, y):
        h = jnp.tanh(x @ params["in"].astype(jnp.float32))
        return jnp.mean((h @ params["out"].astype(jnp.float32) - y) ** 2)

    def step(params, batch):
        grads = jax.grad(loss_of)(params, *batch)  # -
        # + half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        # + grads = jax.grad(loss_of)(half, *batch)
        moves = jax.tree.map(lambda g: (1e-3 * g).astype(jnp.bfloat16), grads)  # -
        # + moves = jax.tree.map(lambda g: 1e-3 * g.astype(jnp.float32), grads)
        params = jax.tree.map(lambda p, m: p - m, params, moves)  # fault
        return params, None  # -
        # + return jax.tree.map(lambda p, m: p - m, params, moves), None

    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)  # -
    # + params = jax.lax.scan(step, params, (x, y))[0]
    return jax.lax.scan(step, params, (x, y))[0]  # -
    # + return jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)


def ema_arguments():
    x = normal(154, 150, 16, 16)
    start = {"in": weight(157, 16, 16) + 1, "out": weight(158, 16, 2) + 1}
    return "in: 16x16 w @155, out: 16x2 w", start, x, np.tanh(x @ weight(159, 16, 2))


@fault("absorption", "stagnation")
@source("diffusers: the EMA of a BF16 model never leaves its first value")
@inputs(by=ema_arguments)
def ema_in_bf16(params, average, x, y):
    """Training with an exponential moving average for evaluation."""

    def loss_of(params, x, y):
        return jnp.mean((jax.nn.silu(x @ params["in"]) @ params["out"] - y) ** 2)

    def step(carry, batch):
        params, average = carry
        grads = jax.grad(loss_of)(params, *batch)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        new = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)  # -
        # + new = jax.tree.map(lambda p: p.astype(jnp.float32), params)
        gaps = jax.tree.map(lambda n, a: n - a, new, average)
        average = jax.tree.map(lambda a, d: a + d * 0.001, average, gaps)  # here
        return (params, average), None

    average = jax.tree.map(lambda a: a.astype(jnp.bfloat16), average)  # -
    (_, average), _ = jax.lax.scan(step, (params, average), (x, y))
    return jax.tree.map(lambda a: a.astype(jnp.float32), average)  # -
    # + return average


def accumulation_arguments():
    x = normal(160, 200, 8, 16, shift=1.0)
    x[:40] *= 8.0
    return "in: 16x16 w @161, out: 16x4 w", x, np.zeros((200, 8), np.int32)


@fault("stagnation", "absorption")
@source("DeepSpeed and Megatron: accumulate_allreduce_grads_in_fp32")
@inputs(by=accumulation_arguments)
def micro_batches_added_in_bf16(params, x, labels):
    """Gradients of 128 micro-batches, added up in the buffer's BF16."""

    def loss_of(params, x, labels):
        return cross_entropy(jax.nn.relu(x @ params["in"]) @ params["out"], labels)

    def step(buffer, batch):
        grads = jax.grad(loss_of)(params, *batch)
        halves = jax.tree.map(lambda g: g.astype(jnp.bfloat16), grads)
        buffer = jax.tree.map(lambda b, g: b + g, buffer, halves)  # fault
        # + buffer = jax.tree.map(lambda b, g: b + g.astype(b.dtype), buffer, halves)
        return buffer, None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bfloat16), params)  # -
    # + zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    buffer, _ = jax.lax.scan(step, zeros, (x, labels))
    return jax.tree.map(lambda b: b.astype(jnp.float32) / x.shape[0], buffer)  # -
    # + return jax.tree.map(lambda b: b / x.shape[0], buffer)


@fault("absorption", "coarse")
@source("OneTrainer issue: no weight decay with Adam in BF16")
@inputs("in: 16x32 w @163, out: 32x4 w; 150x8x16 @165; 150x8 int 0..4 @166; f32 0.01")
def weight_decay_factor_is_one(params, x, labels, rate):
    """AdamW's decoupled decay, with the factor in the dtype of the weights."""

    def loss_of(params, x, labels):
        return cross_entropy(jnp.tanh(x @ params["in"]) @ params["out"], labels)

    def step(params, batch):
        grads = jax.grad(loss_of)(params, *batch)
        scale = rate.astype(jnp.bfloat16) * 0.1
        keep = 1 - scale  # fault
        # + keep = 1 - scale.astype(jnp.float32)
        return jax.tree.map(
            lambda p, g: p * keep.astype(p.dtype) - 1e-3 * g, params, grads
        ), None  # -
        # + return jax.tree.map(lambda p, g: p * keep - 1e-3 * g, params, grads), None

    return jax.lax.scan(step, params, (x, labels))[0]


@fault("underflow", policy="fp16")
@source("FP16 schedules: the learning rate's first steps are zero or subnormal")
@inputs(
    "in: 16x32 w @167, out: 32x4 w, down: 32x8 w; 8x4 =0; 12x16x16 @170; 12x16x4 @175",
    np.arange(1, 13, dtype="f4"),
)
def warm_up_rate_in_half(params, adapter, x, y, steps):
    """LoRA's second matrix, from zero, in the first steps of a long warm-up."""

    def loss_of(adapter, x, y):
        h = jax.nn.gelu(x @ params["in"])
        guess = h @ params["out"] + (h @ params["down"]) @ adapter
        return jnp.mean((guess - y) ** 2)

    def step(adapter, batch):
        x, y, count = batch
        grad = jax.grad(loss_of)(adapter, x, y)
        rate = (2e-5 * count / 4000.0).astype(jnp.float16)  # fault
        # + rate = 2e-5 * count / 4000.0
        return adapter - rate.astype(jnp.float32) * grad, None  # -
        # + return adapter - rate * grad, None

    return jax.lax.scan(step, adapter, (x, y, steps))[0]


def schedule_arguments():
    x = normal(171, 200, 16, 8)
    y = x @ weight(172, 8, 2) + normal(173, 200, 16, 2, scale=0.5)
    return "8x2 w @174", x, y, "f32 200"


@fault("stagnation", "absorption", "integer")
@source("casting a whole train state to BF16, counters included")
@inputs(by=schedule_arguments)
def step_counter_stops_at_256(params, x, y, count):
    """SGD on a cosine schedule; `params.to(bf16)` has caught the step counter."""

    def step(carry, batch):
        params, count = carry
        x, y = batch
        error = x @ params - y
        progress = count.astype(jnp.float32) / 500.0  # -
        # + progress = count / 500.0
        rate = 0.05 * (1 + jnp.cos(jnp.pi * jnp.minimum(progress, 1.0)))
        params = params - rate * (x.T @ error) / x.shape[0]
        count = count + jnp.ones((), jnp.bfloat16)  # fault
        return (params, count), rate  # -
        # + return (params, count + 1.0), rate

    start = (params, count.astype(jnp.bfloat16))  # -
    (params, count), rates = jax.lax.scan(step, start, (x, y))  # -
    # + (params, count), rates = jax.lax.scan(step, (params, count), (x, y))
    return params, count.astype(jnp.float32), rates  # -
    # + return params, count, rates


def _mean_square(params, x, y):
    return jnp.mean(jnp.square(mlp(params, x) - y))


def adam_moment_arguments():
    params = mlp_params(400, 12, 24, 2)
    x = normal(401, 48, 12)
    y = np.tanh(x @ params[0]["w"] + params[0]["b"]) @ params[1]["w"] + params[1]["b"]
    y = y + 3e-3 * np.sign(normal(402, 48, 2)) * (1 + 0.3 * x[:, :2])
    return params, x, y.astype(np.float32)


@fault("underflow", policy="fp32")
@source("FP16 optimizer states: squares of gradients vanish, steps explode")
@inputs(by=adam_moment_arguments)
def adam_second_moment_in_half(params, x, y):
    """Ten steps of Adam that stores its second moment in FP16."""

    def step(state, t):
        params, m, v = state
        grads = jax.grad(_mean_square)(params, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(
            lambda v, g: 0.99 * v.astype(jnp.float32) + 0.01 * jnp.square(g), v, grads
        )  # -
        # + v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * jnp.square(g), v, grads)
        v = jax.tree.map(lambda v: v.astype(jnp.float16), v)  # fault
        c1, c2 = 1 - 0.9**t, 1 - 0.99**t

        def move(p, m, v):
            return p - 1e-3 * (m / c1) / (
                jnp.sqrt(v.astype(jnp.float32) / c2) + 1e-8
            )  # -
            # + return p - 1e-3 * (m / c1) / (jnp.sqrt(v / c2) + 1e-8)

        return (jax.tree.map(move, params, m, v), m, v), None

    m = jax.tree.map(jnp.zeros_like, params)
    v = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float16), params)  # -
    steps = jnp.arange(1, 11).astype(jnp.float32)
    (new, _, _), _ = jax.lax.scan(step, (params, m, v), steps)  # -
    # + (new, _, _), _ = jax.lax.scan(step, (params, m, m), steps)
    return jax.tree.map(lambda a, b: a - b, new, params), _mean_square(new, x, y)


def adam_epsilon_arguments():
    tokens, labels = integers(411, 20, 8, 6), integers(412, 5, 8)
    zeros = np.zeros((64, 16), np.float32)
    return "64x16 @410; 16x5 @413", tokens, labels, zeros, zeros


@fault("underflow", "singular", "non-finite")
@source("issues on pure FP16 training: Adam's 1e-8 is zero, unused rows turn NaN")
@inputs(by=adam_epsilon_arguments)
def adam_epsilon_in_half(table, head, tokens, labels, m, v):
    """One Adam step on an embedding table with FP16 states; most rows are unused."""

    def loss(table):
        logits = jnp.mean(table[tokens], axis=1) @ head
        scores = jax.nn.log_softmax(logits)
        return -jnp.sum(jnp.take_along_axis(scores, labels[:, None], axis=-1))

    grads = jax.grad(loss)(table).astype(jnp.float16)
    m = 0.9 * m.astype(jnp.float16) + 0.1 * grads
    wide = grads.astype(jnp.float32)
    root = jnp.sqrt(0.99 * v.astype(jnp.float32) + 0.01 * jnp.square(wide))
    root = root.astype(jnp.float16)  # -
    update = m / (root + 1e-8)  # fault
    # + update = m.astype(jnp.float32) / (root + 1e-8)
    return table - 1e-3 * update.astype(jnp.float32)  # -
    # + return table - 1e-3 * update


@fault("coarse", "cancellation", "singular", "absorption")
@source("reports that beta2 = 0.999 rounds to 1 when hyperparameters are cast to BF16")
@inputs("mlp 8x16x3 @420; 32x8 @421; 32x3 @422")
def adam_bias_correction_bf16_beta(params, x, y):
    """Bias correction with BF16 betas: 0.999 is not a BF16 number."""
    grads = jax.grad(_mean_square)(params, x, y)

    def step(state, t):
        params, m, v = state
        grads = jax.grad(_mean_square)(params, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * jnp.square(g), v, grads)
        c1 = 1 - 0.9**t
        c2 = 1 - jnp.asarray(0.999, jnp.bfloat16) ** t.astype(jnp.bfloat16)  # fault
        # + c2 = -jnp.expm1(t * -1.0005003e-3)
        c2 = c2.astype(jnp.float32)  # -

        def move(p, m, v):
            return p - 1e-3 * (m / c1) / (jnp.sqrt(v / c2) + 1e-8)

        return (jax.tree.map(move, params, m, v), m, v), None

    m = jax.tree.map(jnp.zeros_like, grads)
    steps = jnp.arange(1, 9).astype(jnp.float32)
    (new, _, _), _ = jax.lax.scan(step, (params, m, m), steps)
    return jax.tree.map(lambda a, b: a - b, new, params)


@fault("absorption", "stagnation")
@source("pure BF16 training: updates below half a spacing change nothing")
@inputs(
    lambda: np.sign(normal(430, 12, 6)) * uniform(431, 12, 6, low=0.5, high=1.0),
    "64x12 @432; 64 int 0..6 @433",
)
def sgd_on_bf16_weights(w, x, labels):
    """Sixty small steps of a classifier whose only weights are BF16."""

    def loss(w, batch):
        scores = jax.nn.log_softmax(x[batch] @ w)
        return -jnp.mean(jnp.take_along_axis(scores, labels[batch][:, None], axis=-1))

    def step(w, batch):
        grads = jax.grad(loss)(w.astype(jnp.float32), batch)  # -
        change = 2e-3 * grads  # -
        # + change = 2e-3 * jax.grad(loss)(w, batch)
        return w - change.astype(jnp.bfloat16), None  # fault
        # + return w - change, None

    batches = jnp.arange(60)[:, None] % 4 * 16 + jnp.arange(16)
    start = w.astype(jnp.bfloat16)  # -
    # + start = w.astype(jnp.bfloat16).astype(jnp.float32)
    end, _ = jax.lax.scan(step, start, batches)
    return end.astype(jnp.float32) - start.astype(jnp.float32)  # -
    # + return end - start


def average_arguments():
    params = mlp_params(440, 6, 12, 2)
    ema = [{k: 0.5 * v + 0.3 for k, v in layer.items()} for layer in params]
    return params, ema, "24x6 @441; 24x2 @442"


@fault("absorption", "stagnation")
@source("diffusion trainers: EMA weights stay at their start in half precision")
@inputs(by=average_arguments)
def weight_average_in_bf16(params, ema, x, y):
    """An average of weights with decay 0.9999, stored in BF16."""

    def step(state, t):
        params, ema = state
        grads = jax.grad(_mean_square)(params, x, y)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)

        def blend(e, p):  # -
            gap = p - e.astype(jnp.float32)
            return e + (1e-4 * gap).astype(jnp.bfloat16)  # fault

        return (params, jax.tree.map(blend, ema, params)), None  # -
        # + ema = jax.tree.map(lambda e, p: e + 1e-4 * (p - e), ema, params)
        # + return (params, ema), None

    start = jax.tree.map(lambda e: e.astype(jnp.bfloat16), ema)  # -
    # + start = jax.tree.map(lambda e: e.astype(jnp.bfloat16).astype(jnp.float32), ema)
    (_, ema), _ = jax.lax.scan(step, (params, start), jnp.arange(150))
    return jax.tree.map(
        lambda a, b: a.astype(jnp.float32) - b.astype(jnp.float32), ema, start
    )  # -
    # + return jax.tree.map(lambda a, b: a - b, ema, start)


@fault("overflow")
@source("gradient clipping issues: the FP16 norm is inf, all updates become 0")
@inputs("mlp 10x20x2 @450; 32x10 @451; 32x2 *900 @452")
def global_norm_of_half_gradients(params, x, y):
    """Clipping by the global norm of FP16 gradients after a bad batch."""
    grads = jax.grad(_mean_square)(params, x, y)
    grads = jax.tree.map(lambda g: g.astype(jnp.float16), grads)
    total = sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads))  # fault
    # + wide = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    # + total = sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(wide))
    norm = jnp.sqrt(total.astype(jnp.float32))  # -
    # + norm = jnp.sqrt(total)
    factor = jnp.minimum(1.0, 1.0 / norm)
    updates = jax.tree.map(lambda g: 0.1 * factor * g.astype(jnp.float32), grads)  # -
    return updates, norm  # -
    # + return jax.tree.map(lambda g: 0.1 * factor * g, wide), norm


@fault("absorption", "stagnation", "integer")
@source("schedules whose step counter was cast with the other states")
@inputs("8x2 @460; 32x8 @461; 32x2 @462; f32 240")
def cosine_schedule_bf16_step(w, x, y, start):
    """A cosine schedule resumed at step 240 with its counter in BF16."""

    def step(state, _):
        w, t = state
        rate = 0.05 * (1 + jnp.cos(jnp.pi * t.astype(jnp.float32) / 400)) / 2
        w = w - rate * jax.grad(lambda w: jnp.mean(jnp.square(x @ w - y)))(w)
        t = t + 1  # here
        return (w, t), rate

    state = (w, start.astype(jnp.bfloat16))  # -
    # + state = (w, start.astype(jnp.int32))
    (w, _), rates = jax.lax.scan(step, state, None, length=120)
    return w, rates


@fault("non-finite", "singular")
@source("LARS and LAMB issues: trust ratio with a zero gradient")
@inputs(
    "in: 8x16 *0.2 @470, shift: 16 =-20, out: 16x2, skip: 8x2; 24x8 @473; 24x2 @474"
)
def layerwise_rate_of_dead_layer(params, x, y):
    """Layer-wise rates; a layer behind dead units gets no gradient at all."""

    def loss(params):
        h = jax.nn.relu(x @ params["in"] + params["shift"])
        return jnp.mean(jnp.square(h @ params["out"] + x @ params["skip"] - y))

    grads = jax.grad(loss)(params)

    def move(p, g):
        w_norm = jnp.sqrt(jnp.sum(jnp.square(p)))
        g_norm = jnp.sqrt(jnp.sum(jnp.square(g)))
        trust = w_norm / g_norm  # fault
        # + trust = jnp.where(g_norm > 0, w_norm / jnp.maximum(g_norm, 1e-6), 1.0)
        return p - 0.01 * trust * g

    return jax.tree.map(move, params, grads)
