"""More faults of training: optimizers, losses, policies, states, embeddings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    block,
    block_params,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


def dropout(x, seed, rate=0.1):
    """Inverted dropout from a hash of the place; uint32 wraps on purpose."""
    place = jnp.arange(x.size, dtype=jnp.uint32) + seed.astype(jnp.uint32)
    h = place * jnp.uint32(2654435761)
    h = (h ^ (h >> 15)) * jnp.uint32(2246822519)
    u = ((h ^ (h >> 13)) >> 8).astype(jnp.float32) / 2.0**24
    return jnp.where(u.reshape(x.shape) < rate, 0.0, x / (1 - rate))


@fault("cancellation", "non-finite", policy="fp32")
@source("PyTorch and TensorFlow issues: RMSprop(centered=True) gives NaN")
@inputs("in: 8x16 w @2100, out: 16x3 w, b: 3; 60x20x8 @2103; 60x20x3 +-300 @2104")
def centred_rmsprop_variance_below_zero(params, x, y):
    """Centred RMSProp on absolute errors: far away, gradients stand still."""

    def loss_of(params, x, y):
        h = jax.nn.relu(x @ params["in"])
        return jnp.mean(jnp.abs(h @ params["out"] + params["b"] - y))

    def step(carry, batch):
        params, mean, square = carry  # -
        # + params, mean, spread = carry
        grads = jax.grad(loss_of)(params, *batch)
        # + spread = jax.tree.map(
        # +     lambda s, m, g: 0.6 * s + 0.24 * (g - m) ** 2, spread, mean, grads
        # + )
        mean = jax.tree.map(lambda m, g: 0.6 * m + 0.4 * g, mean, grads)
        square = jax.tree.map(lambda v, g: 0.6 * v + 0.4 * g * g, square, grads)  # -
        spread = jax.tree.map(lambda v, m: v - m * m, square, mean)  # fault
        params = jax.tree.map(
            lambda p, g, s: p - 1e-4 * g / (jnp.sqrt(s) + 1e-2), params, grads, spread
        )
        return (params, mean, square), None  # -
        # + return (params, mean, spread), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    (params, _, _), _ = jax.lax.scan(step, (params, zeros, zeros), (x, y))
    return params


@fault("absorption", "coarse", policy="fp32")
@source("MeZO and evolution strategies: perturbations of 1e-3 in half weights")
@inputs(
    {
        "w": lambda: (
            np.round(normal(2110, 12, 6, shift=2.0, scale=0.3) * 64) / 64
        ).astype(np.float32)
    },
    "24x12 @2111; 24 int 0..6 @2112; 12x12x6 @2113",
)
def mezo_noise_on_bf16_weights(params, x, labels, noise):
    """Gradients of an adapter by pairs of forward passes (MeZO), weights in BF16."""
    half = params["w"].astype(jnp.bfloat16)  # -

    def loss_of(w):
        h = layer_norm(x) @ w.astype(jnp.float32)  # -
        return cross_entropy(h, labels)  # -
        # + return cross_entropy(layer_norm(x) @ w, labels)

    def probe(z):
        move = (1e-3 * z).astype(jnp.bfloat16)  # -
        up, down = half + move, half - move  # fault
        slope = (loss_of(up) - loss_of(down)) / 2e-3  # -
        # + _, slope = jax.jvp(loss_of, (params["w"],), (z,))
        return slope, slope * z

    slopes, grads = jax.lax.map(probe, noise)
    return slopes, grads.mean(0)


@fault("absorption", "stagnation", policy="fp8")
@source("transformers: residual_in_fp32 of Mamba; Gemma's scaled embeddings")
@inputs(
    {
        "bodies": lambda: jax.tree.map(
            lambda *w: np.stack(w), *[block_params(2120 + 10 * i, 16) for i in range(4)]
        ),
        "scale": "f32 256",
        "gain": "f32 0.25",
        "head": "16x5 w @2180",
    },
    lambda: (
        np.round(
            (np.sign(normal(2181, 20, 16)) * uniform(2182, 20, 16, low=1.0, high=1.9))
            * 64
        )
        / 64
    ).astype(np.float32),
)
def residual_stream_in_bf16_loses_blocks(params, x):
    """Blocks of a transformer whose embeddings are scaled up, as Gemma's."""
    stream = (x * params["scale"]).astype(jnp.bfloat16)  # -
    # + stream = x * params["scale"]

    def layer(stream, body):
        h = layer_norm(stream)
        h = h + block(body, h)
        branch = (layer_norm(h) * params["gain"]).astype(jnp.bfloat16)
        return stream + branch, None  # fault
        # + return stream + branch.astype(jnp.float32), None

    stream, _ = jax.lax.scan(layer, stream, params["bodies"])
    moved = stream.astype(jnp.float32) - x * params["scale"]  # -
    # + moved = stream - x * params["scale"]
    return moved, layer_norm(moved) @ params["head"]


def perplexity_arguments():
    params = {
        "w": weight(2190, 12, 12, 0.7),
        "embed": normal(2191, 8, 12),
        "head": weight(2192, 12, 8, 0.5),
        "bias": np.where(np.arange(8) == 2, 4.0, 0.0).astype(np.float32),
    }
    tokens = np.full(97, 2, np.int32)
    tokens[[11, 40, 77]] = 5, 1, 2
    return params, "f32 96", tokens


@fault("stagnation", "absorption")
@source("evaluation harnesses: total loss of a document kept as the logits are")
@inputs(by=perplexity_arguments)
def document_loss_summed_in_bf16(params, prompt, tokens):
    """The perplexity of a document: hard first tokens, then many easy ones."""

    def token(carry, pair):
        total, h = carry
        now, following = pair
        h = jnp.tanh(h @ params["w"] + params["embed"][now])
        scores = jax.nn.log_softmax(h @ params["head"] + params["bias"])
        total = total - scores[following].astype(jnp.bfloat16)  # fault
        return (total, h), None  # -
        # + return (total - scores[following], h), None

    start = (prompt.astype(jnp.bfloat16), jnp.zeros(12))  # -
    (total, h), _ = jax.lax.scan(token, start, (tokens[:-1], tokens[1:]))  # -
    # + (total, h), _ = jax.lax.scan(
    # +     token, (prompt, jnp.zeros(12)), (tokens[:-1], tokens[1:])
    # + )
    rest = total.astype(jnp.float32) - prompt  # -
    # + rest = total - prompt
    return jnp.exp(rest / (tokens.size - 1)), rest, h


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


def focal_arguments():
    first = normal(2210, 16, 32, scale=0.05)
    first[0] = np.where(np.arange(32) % 2 == 0, 1.0, -1.0)
    out = np.where(np.arange(32) % 2 == 0, 0.3, -0.3)[:, None].astype(np.float32)
    labels = integers(2211, 2, 96)
    x = normal(2212, 96, 16)
    x[:, 0] = np.where(labels == 1, 1.0, -1.0) * (1.4 + 0.1 * x[:, 0])
    return {"in": first, "out": out}, x, labels


@fault("underflow", policy="fp32")
@source("detection with AMP: (1 - p)**gamma of easy examples vanishes in FP16")
@inputs(by=focal_arguments)
def focal_weight_in_half(params, x, labels):
    """A step of a detector on the focal loss (gamma 4), whose weights are FP16."""

    def loss_of(params):
        logits = jax.nn.relu(x @ params["in"]) @ params["out"]
        scores = jnp.where(labels == 1, logits[:, 0], -logits[:, 0])
        wrong = jax.nn.sigmoid(-scores).astype(jnp.float16)  # -
        # + wrong = jax.nn.sigmoid(-scores)
        factor = wrong**4  # fault
        # + factor = jax.lax.stop_gradient(wrong**4)
        factor = jax.lax.stop_gradient(factor.astype(jnp.float32))  # -
        return 1e4 * jnp.mean(factor * jax.nn.softplus(-scores))

    loss, grads = jax.value_and_grad(loss_of)(params)
    grads = jax.tree.map(lambda g: jnp.clip(g, -1.0, 1.0), grads)
    return loss, grads


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


def log_cosh_arguments():
    y = normal(2230, 48, 1)
    y[[7, 31], 0] = 140.0, -95.0
    return "in: 12x24 w @2231, out: 24x1 w; 48x12 @2233", y


@fault("overflow", "non-finite", policy="fp8")
@source("Keras and LightGBM issues: log_cosh of outliers is Inf")
@inputs(by=log_cosh_arguments)
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


def cache_arguments():
    params = {name: weight(2240 + i, 16, 16, 0.8) for i, name in enumerate("qkvo")}
    x = normal(2245, 40, 16)
    x[:8] *= 0.15
    return params | {"seed": np.int32(7)}, x


@fault("stale-scale", "saturation")
@source("int8 caches of keys: scales calibrated on prefill clip in decoding")
@inputs(by=cache_arguments)
def key_cache_scale_of_the_prompt(params, x):
    """Decoding with an int8 key cache: one scale, from the prompt's keys."""
    q, k, v = (x @ params[name] for name in "qkv")
    scale = jnp.max(jnp.abs(k[:8])) / 127.0  # -
    # + scale = jnp.max(jnp.abs(k), axis=-1, keepdims=True) / 127.0
    codes = jnp.clip(jnp.round(k / scale), -127, 127).astype(jnp.int8)  # here
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


@fault("coarse", "integer")
@source("diffusers: timesteps.to(dtype) before the sinusoidal embedding")
@inputs(
    "time: 16x24 w*2 @2260, in: 12x24 w, out: 24x12 w; 16x12 @2263",
    np.arange(981, 0, -62, dtype=np.int32),
)
def diffusion_timesteps_in_bf16(params, latents, steps):
    """The noise prediction of a denoiser; the pipeline casts timesteps to BF16."""
    t = steps.astype(jnp.bfloat16)  # fault
    # + t = steps.astype(jnp.float32)
    frequencies = jnp.exp(-jnp.arange(8) * (jnp.log(10000.0) / 8))
    angles = t.astype(jnp.float32)[:, None] * frequencies  # -
    # + angles = t[:, None] * frequencies
    code = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    h = jax.nn.silu(code @ params["time"])
    h = layer_norm(latents @ params["in"]) * (1 + h)
    return code, jax.nn.silu(h) @ params["out"]
