"""Steps of training and serving systems."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    convolution,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


@fault("singular", "non-finite")
@source("pydub and torchaudio: -inf decibels of silent blocks")
@inputs("8x3 w @4002; 8x64 int 0..2000 @4001 as f32 [...]-=1000 [6:]=0")
def decibels_of_silence(params, audio):
    """Loudness in decibels of blocks of samples; the last blocks are silent."""
    power = jnp.mean((audio / 32768.0) ** 2, axis=1)
    level = 10.0 * jnp.log10(power)  # fault
    # + level = 10.0 * jnp.log10(power + 1e-10)
    return level, jnp.tanh(level @ params)


@fault("cancellation", policy="fp32")
@source("Spark and tf.Transform: variances merged as E[x^2] - E[x]^2")
@inputs("6x3 w @4004; 4x50x6 *0.5 +1500 @4005")
def shard_variances_from_moments(params, shards):
    """Feature statistics of shards, merged from sums and sums of squares."""
    n = shards.shape[0] * shards.shape[1]
    total = jax.vmap(lambda s: s.sum(0))(shards).sum(0)  # -
    square = jax.vmap(lambda s: (s * s).sum(0))(shards).sum(0)  # -
    variance = square / n - (total / n) ** 2  # fault
    # + mean = jax.vmap(lambda s: s.sum(0))(shards).sum(0) / n
    # + variance = jax.vmap(lambda s: ((s - mean) ** 2).sum(0))(shards).sum(0) / n
    x = (shards[0] - total / n) * jax.lax.rsqrt(variance + 1e-5)  # -
    # + x = (shards[0] - mean) * jax.lax.rsqrt(variance + 1e-5)
    return variance, jax.nn.relu(x @ params)


@fault("integer")
@source("YouTube's counter of Gangnam Style")
@inputs("32x4 w @4007; 300 int 50000000..450000000 @4008; 300 int 0..32 @4009")
def view_counts_in_int32(params, views, ids):
    """Inverse frequencies of items from view counts of a large site."""
    counts = jnp.zeros(32, jnp.int32).at[ids].add(views)  # fault
    # + counts = jnp.zeros(32).at[ids].add(views.astype(jnp.float32))
    idf = jnp.log(1.0 + counts.astype(jnp.float32) / 1e6)  # -
    # + idf = jnp.log(1.0 + counts / 1e6)
    return idf, jax.nn.softmax(idf @ params)


@fault("absorption", "stagnation", policy="fp16")
@source("fairseq: beam scores of long outputs in FP16")
@inputs("60x5x7 @4020 [...,3]+=9", lambda: -1500.0 - np.arange(5, dtype=np.float32) * 8)
def beam_scores_in_half(logits, starts):
    """Beam search: the scores of long hypotheses are kept in half."""

    def extend(score, row):  # -
        best = jax.nn.log_softmax(row).max(-1)
        score = score + best.astype(jnp.float16)  # fault
        return score, None

    # + def extend(gain, row):
    # +     return gain + jax.nn.log_softmax(row).max(-1), None

    scores, _ = jax.lax.scan(extend, starts.astype(jnp.float16), logits)  # -
    gain = scores.astype(jnp.float32) - starts  # -
    # + gain, _ = jax.lax.scan(extend, jnp.zeros_like(starts), logits)
    return gain, jnp.argmax(gain)


def calibrate_arguments():
    spread = np.where(np.arange(8) < 6, 1e-3, 5.0).astype(np.float32)
    return weight(4030, 16, 8) * spread, "10x16 @4031", spread


@fault("saturation", "underflow", "coarse")
@source("torch.ao: per-tensor instead of per-channel observers")
@inputs(by=calibrate_arguments)
def int8_scale_of_the_wrong_axis(weights, x, maximum):
    """INT8 weights per channel; one scale was written for the other axis."""
    scale = jnp.max(jnp.abs(weights)) / 127.0  # -
    # + scale = jnp.max(jnp.abs(weights), axis=0) / 127.0
    q = jnp.round(weights / scale)  # here
    w8 = jnp.clip(q, -127, 127).astype(jnp.int8)
    return jax.nn.relu(x @ (w8.astype(jnp.float32) * scale)) / maximum


def retrieval_arguments():
    keys = normal(4040, 8, 16)
    return keys + 0.1 * normal(4041, 8, 16), keys, "f32 0.07"


@fault("overflow", policy="fp16")
@source("CLIP and SimCLR in autocast: exp(1 / 0.07) exceeds 65504")
@inputs(by=retrieval_arguments)
def contrastive_exponentials_in_half(queries, keys, temperature):
    """A contrastive score: cosines over a small temperature, exponentials in half."""

    def unit(x):
        return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True))

    logits = unit(queries) @ unit(keys).T / temperature
    e = jnp.exp(logits.astype(jnp.float16))  # fault
    p = e.astype(jnp.float32) / e.astype(jnp.float32).sum(-1, keepdims=True)  # -
    return -jnp.log(jnp.diagonal(p))  # -
    # + return -jnp.diagonal(jax.nn.log_softmax(logits))


@fault("coarse", "integer")
@source("feature stores that compress columns to 8 bits")
@inputs(
    "in: 6 @4054, out: 6x2 w",
    lambda: 1940.0 + integers(4056, 70, 20).astype(np.float32),
    "f32 2025",
)
def birth_years_in_e5m2(params, born, now):
    """Birth years as E5M2 features in a feature store; ages are computed from them."""
    stored = born.astype(jnp.float8_e5m2)  # fault
    age = now - stored.astype(jnp.float32)  # -
    # + age = now - born
    h = jnp.tanh(age[:, None] * params["in"] / 40.0)
    return age, h @ params["out"]


@fault("coarse", policy="fp16")
@source("detection heads: boxes as fractions in FP16 on large images")
@inputs("4000x8 @4057; 12 0.55..0.95 @4058; 16x3 w @4059")
def crop_row_from_half_fraction(image, corner, w):
    """Rows of a tall scan around a mark whose place is a fraction in half."""
    at = corner.astype(jnp.float16) * jnp.float16(4000)  # fault
    row = at.astype(jnp.int32)  # -
    # + row = (corner * 4000.0).astype(jnp.int32)
    lines = jax.vmap(lambda r: jax.lax.dynamic_slice(image, (r, 0 * r), (2, 8)))(row)
    return jnp.tanh(lines.reshape(row.shape[0], -1) @ w)


@fault("overflow", policy="fp16")
@source("SENet in half: sums of a pool before their division")
@inputs(
    {"kernel": lambda: np.abs(normal(4064, 3, 3, 1, 4)), "out": "4x2 w @4065"},
    "2x20x20x1 30..60 @4066",
)
def pool_sum_of_bright_image_in_half(params, image):
    """A global pool: the sum of many activations, in half, before the division."""
    h = jax.nn.relu(convolution(image, params["kernel"])).astype(jnp.float16)
    total = jnp.sum(h, axis=(1, 2))  # fault
    mean = total / jnp.float16(h.shape[1] * h.shape[2])  # -
    return mean.astype(jnp.float32) @ params["out"]  # -
    # + return h.astype(jnp.float32).mean((1, 2)) @ params["out"]


@fault("integer", "coarse")
@source("Patriot: time since start in a format without its digits")
@inputs(
    "16x4 w @4061",
    lambda: (1_700_000_000 + np.cumsum(integers(4060, 90, 17) + 20)).astype(np.int32),
    lambda: np.cumsum(uniform(4062, 17)).astype(np.float32),
)
def microsecond_ticks_through_fp32(params, ticks, values):
    """Rates of counters: differences of microseconds that went through FP32."""
    t = ticks.astype(jnp.float32)  # fault
    rate = jnp.diff(values) / (jnp.diff(t) + 1e-3)  # -
    # + rate = jnp.diff(values) / (jnp.diff(ticks).astype(jnp.float32) + 1e-3)
    return rate, jax.nn.gelu(rate @ params)


@fault("underflow")
@source("products of experts: naive normalization of tiny products")
@inputs("80x5x6 *3 @4070; 80 0.8..1.2 @4071")
def ensemble_product_of_probabilities(logits, weights):
    """An ensemble votes: products of many small class probabilities."""
    p = jax.nn.softmax(logits)  # -
    joint = jnp.prod(p ** weights[:, None, None], axis=0)  # fault
    # + joint = jnp.sum(jax.nn.log_softmax(logits) * weights[:, None, None], axis=0)
    return joint / joint.sum(-1, keepdims=True)  # -
    # + return jax.nn.softmax(joint)


@fault("stale-scale", "saturation", "overflow")
@source("vLLM: kv_cache_dtype=fp8 with scales of a short calibration")
@inputs("k: 8x8 w*40 @4080, q: 8x8 w; 6x8 @4082; 5x8 *2 @4083; f32 0.02")
def cache_scale_of_the_first_prompt(params, x, cache, scale):
    """A KV cache in E4M3; the scale is that of the first prompt of the day."""
    k = x @ params["k"]
    stored = (k / scale).astype(jnp.float8_e4m3)  # fault
    # + fresh = jnp.max(jnp.abs(k)) / 240.0
    # + stored = (k / fresh).astype(jnp.float8_e4m3)
    k = jnp.concatenate([cache, stored.astype(jnp.float32) * scale])  # -
    # + k = jnp.concatenate([cache, stored.astype(jnp.float32) * fresh])
    p = jax.nn.softmax(x @ params["q"] @ k.T / 60.0)
    return k, p @ k


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
        )  # fault
        # + scale = 200.0 / jnp.max(jnp.abs(h))
        h8 = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)
        y = h8.astype(jnp.float32) / scale @ params["out"]
        return (scale, n + 1), y  # -
        # + return carry, y

    _, y = jax.lax.scan(step, (jnp.float32(1.0), 0), batches)  # -
    # + _, y = jax.lax.scan(step, 0, batches)
    return y


@fault("saturation", "singular", "non-finite")
@source("dynamic quantization of experts: 448 / amax where no token arrives")
@inputs("4x8x5 @3241; 9x8 @3242; 4x9 int 0..2 @3240 as f32 [2]=0")
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
