"""Optimizers, schedules and gradients of training steps."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp
from benchmarks.faults.parts import (
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


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


@fault("stagnation", "absorption")
@source("DeepSpeed and Megatron: accumulate_allreduce_grads_in_fp32")
@inputs(
    "in: 16x16 w @161, out: 16x4 w; 200x8x16 +1 @160 [:40]*=8",
    lambda: np.zeros((200, 8), np.int32),
)
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


def _mean_square(params, x, y):
    return jnp.mean(jnp.square(mlp(params, x) - y))


@fault("underflow", "singular", "non-finite")
@source("issues on pure FP16 training: Adam's 1e-8 is zero, unused rows turn NaN")
@inputs(
    "64x16 @410; 16x5 @413; 8x6 int 0..20 @411; 8 int 0..5 @412; 64x16 =0; 64x16 =0"
)
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


def dropout(x, seed, rate=0.1):
    """Inverted dropout from a hash of the place; uint32 wraps on purpose."""
    place = jnp.arange(x.size, dtype=jnp.uint32) + seed.astype(jnp.uint32)
    h = place * jnp.uint32(2654435761)
    h = (h ^ (h >> 15)) * jnp.uint32(2246822519)
    u = ((h ^ (h >> 13)) >> 8).astype(jnp.float32) / 2.0**24
    return jnp.where(u.reshape(x.shape) < rate, 0.0, x / (1 - rate))


def linear_arguments():
    params = {name: weight(2200 + i, 16, 16, 0.5) for i, name in enumerate("qkvo")}
    norm = np.round(uniform(2206, 16, low=129.0, high=140.0)) * np.float32(4.0)
    state = norm[:, None] * np.sign(normal(2207, 1, 16))
    shift = normal(2208, 16, scale=0.1, shift=1.3)
    return params | {"shift": shift}, {"state": state, "norm": norm}, "100x16 @2205"


@fault("stagnation", "absorption")
@source("flash-linear-attention and Mamba: recurrent states must be FP32")
@inputs(by=linear_arguments)
def linear_attention_state_in_bf16(params, prompt, x):
    """Causal linear attention that goes on from a long prompt's state, in BF16."""
    q, k, v = (x @ params[name] for name in "qkv")
    q, k, v = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1, v + params["shift"]

    def step(carry, token):
        state, norm = carry
        q, k, v = token
        norm = norm + k
        state = state + jnp.outer(k, v).astype(jnp.bfloat16)  # fault
        # + state = state + jnp.outer(k, v)
        out = q @ state.astype(jnp.float32) / (q @ norm + 1e-6)  # -
        # + out = q @ state / (q @ norm + 1e-6)
        return (state, norm), out

    start = (prompt["state"].astype(jnp.bfloat16), prompt["norm"])  # -
    # + start = (prompt["state"], prompt["norm"])
    (state, _), out = jax.lax.scan(step, start, (q, k, v))
    learned = state.astype(jnp.float32) - prompt["state"]  # -
    return learned, jax.nn.gelu(out @ params["o"])  # -
    # + return state - prompt["state"], jax.nn.gelu(out @ params["o"])


def ratio_arguments():
    params = {"embed": normal(2220, 24, 12), "head": weight(2221, 12, 24, 0.7)}
    tokens = integers(2222, 24, 10, 49)
    e = params["embed"][tokens[:, :-1]]
    e = (e - e.mean(-1, keepdims=True)) / e.std(-1, keepdims=True)
    scores = e @ params["head"]
    scores = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    old = np.take_along_axis(scores, tokens[:, 1:, None], -1)[..., 0].sum(1)
    return params, tokens, old + normal(2223, 10, scale=0.3), "10 @2224"


@fault("cancellation", "coarse")
@source("TRL, verl: sequence log-probabilities in BF16, ratios of 1.6 and 0.6")
@inputs(by=ratio_arguments)
def policy_ratio_of_bf16_log_probabilities(params, tokens, old, advantages):
    """A sequence-level policy update: ratios of log-probabilities kept in BF16."""

    def loss_of(params):
        h = layer_norm(params["embed"][tokens[:, :-1]])
        scores = jax.nn.log_softmax(h @ params["head"])
        picked = jnp.take_along_axis(scores, tokens[:, 1:, None], -1)[..., 0]
        now = picked.sum(1)  # -
        gap = now.astype(jnp.bfloat16) - old.astype(jnp.bfloat16)  # fault
        ratio = jnp.exp(gap.astype(jnp.float32))  # -
        # + ratio = jnp.exp(picked.sum(1) - old)
        clipped = jnp.clip(ratio, 0.8, 1.2)
        gain = jnp.minimum(ratio * advantages, clipped * advantages)
        return -gain.mean(), ratio

    (loss, ratio), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
    return loss, ratio, params


@fault("overflow", "non-finite", policy="fp8")
@source("Keras and LightGBM issues: log_cosh of outliers is Inf")
@inputs("in: 12x24 w @2231, out: 24x1 w; 48x12 @2233; 48x1 @2230 [7]=140 [31]=-95")
def log_cosh_loss_written_out(params, x, y):
    """Robust regression by log(cosh(error)) as the paper prints it."""

    def loss_of(params):
        h = jax.nn.gelu(x @ params["in"])
        error = h @ params["out"] - y  # -
        return jnp.mean(jnp.log(jnp.cosh(error)))  # fault
        # + size = h @ params["out"] - y
        # + return jnp.mean(size + jax.nn.softplus(-2 * size) - jnp.log(2.0))

    loss, grads = jax.value_and_grad(loss_of)(params)
    return loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@fault("underflow", "non-finite", policy="mxfp8", target="trn3")
@source("vectorized discounted sums in NumPy answers and RL code bases")
@inputs("in: 6x12 w @2250, out: 12x1 w; 3x100x6 @2252; 3x100 0..1 @2253; f32 0.35")
def returns_divided_by_discount_powers(params, states, rewards, gamma):
    """Discounted returns without a loop: a reversed cumsum over powers of gamma."""
    powers = gamma ** jnp.arange(rewards.shape[1])  # fault
    later = jnp.cumsum((rewards * powers)[:, ::-1], axis=1)[:, ::-1]  # -
    returns = later / powers  # -
    # + def back(total, reward):
    # +     total = reward + gamma * total
    # +     return total, total
    # + start = jnp.zeros(rewards.shape[0])
    # + _, returns = jax.lax.scan(back, start, rewards.T, reverse=True)
    # + returns = returns.T

    def loss_of(params):
        value = jnp.tanh(states @ params["in"]) @ params["out"]
        return jnp.mean((value[..., 0] - returns) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return returns, loss, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@fault("stale-scale", "saturation")
@source("int8 caches of keys: scales calibrated on prefill clip in decoding")
@inputs("q k v o: 16x16 w*0.8 @2240, seed: i32 7; 40x16 @2245 [:8]*=0.15")
def key_cache_scale_of_the_prompt(params, x):
    """Decoding with an int8 key cache: one scale, from the prompt's keys."""
    q, k, v = (x @ params[name] for name in "qkv")
    scale = jnp.max(jnp.abs(k[:8])) / 127.0  # fault
    # + scale = jnp.max(jnp.abs(k), axis=-1, keepdims=True) / 127.0
    codes = jnp.clip(jnp.round(k / scale), -127, 127).astype(jnp.int8)
    keys = codes.astype(jnp.float32) * scale
    scores = q @ keys.T / x.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones(scores.shape, bool))
    mixed = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf)) @ v
    return mixed, layer_norm(dropout(mixed, params["seed"])) @ params["o"]


@fault("uniform", "coarse", "absorption")
@source("rerankers in BF16: all documents of a query get the same score")
@inputs("q: 12x16 w*2 @2254, d: 12x16 w*2, prior: f32 2600; 8x12 @2256; 20x12 @2257")
def ranking_scores_flat_in_bf16(params, queries, documents):
    """A listwise ranker: relevance on top of a large prior, scores kept in BF16."""
    q = jnp.tanh(queries @ params["q"])
    d = jnp.tanh(documents @ params["d"])
    scores = (q @ d.T + params["prior"]).astype(jnp.bfloat16)  # fault
    # + scores = q @ d.T + params["prior"]
    chance = jax.nn.softmax(scores.astype(jnp.float32))  # -
    # + chance = jax.nn.softmax(scores)
    best, _ = jax.lax.top_k(chance, 3)
    return chance, best


def smoothing_arguments():
    """The head is fitted to the labels, so that the smoothing is most of the loss."""
    x, inner = normal(411, 6, 16), weight(412, 16, 32)
    labels = integers(413, 50257, 6)
    h = np.asarray(jax.nn.gelu(x @ inner))
    head = normal(414, 32, 50257, scale=0.02)
    head[:, labels] += 22.0 * np.linalg.pinv(h)
    return {"in": inner, "head": head}, x, labels, "f16 0.001"


@fault("underflow", policy="fp16")
@source("AMP questions: smoothing / vocabulary as an FP16 tensor")
@inputs(by=smoothing_arguments)
def label_smoothing_share_in_half(params, x, labels, smoothing):
    """Label smoothing over a large vocabulary; targets are FP16, as the logits were."""
    h = jax.nn.gelu(x @ params["in"])
    logp = jax.nn.log_softmax(h @ params["head"])
    rest = smoothing / jnp.asarray(logp.shape[-1], jnp.float16)  # fault
    # + rest = smoothing.astype(jnp.float32)
    picked = jnp.take_along_axis(logp, labels[:, None], axis=-1)[:, 0]
    spread = rest.astype(jnp.float32) * logp.sum(-1)  # -
    # + spread = rest * logp.mean(-1)
    return -(1.0 - smoothing.astype(jnp.float32)) * picked - spread  # -
    # + return -(1.0 - rest) * picked - spread


def weighted_arguments():
    """Words of heavy rows are not those of light ones."""
    bags = np.zeros((128, 40), np.float32)
    light = (uniform(451, 128, 32) < 0.15).astype(np.float32)
    heavy = np.arange(128) % 16 == 5
    bags[:, :32] = light * ~heavy[:, None]
    bags[heavy, 32:] = 1.0
    importance = np.where(heavy, 4e6, 1.0).astype(np.float32)
    counts = np.random.default_rng(453).poisson(1.0, (128, 6)).astype(np.float32)
    return "40x6 *0.3 @452", bags, counts, importance


@fault("underflow", policy="mxfp8", target="trn3")
@source("MX formats' papers: small elements of a block with an outlier vanish")
@inputs(by=weighted_arguments)
def mx_gradient_blocks_with_heavy_rows(slopes, bags, counts, importance):
    """A Poisson regression's step by coordinates; few rows stand for very many."""
    rate = jnp.exp(jnp.clip(bags @ slopes, -4.0, 4.0))
    error = importance[:, None] * (rate - counts)  # -
    gradient = bags.T @ error  # fault
    # + weighed = bags * importance[:, None]
    # + gradient = weighed.T @ (rate - counts)
    curvature = (bags * bags * importance[:, None]).T @ rate  # -
    # + curvature = (bags * weighed).T @ rate
    return gradient / (curvature + 1e-3)
