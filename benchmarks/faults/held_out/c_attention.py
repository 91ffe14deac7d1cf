"""Attention variants and what a server does with their caches and logits."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import layer_norm, normal, uniform, weight


@fault("overflow")
@source("report that focused linear attention is NaN under mixed precision")
@inputs("q: 32x32 w @9100, k: 32x32 w*16, v o: 32x32 w; 96x32 @9110")
def focused_linear_attention_cubes_in_half(params, x):
    """Focused linear attention: ReLU features to the third power, norm kept."""
    h = layer_norm(x)
    q, k, v = (h @ params[name] for name in "qkv")

    def focus(t):
        t = jax.nn.relu(t.astype(jnp.float16)) + 1e-4  # -
        # + t = jax.nn.relu(t) + 1e-4
        cubed = t * t * t  # fault
        # + cubed = (t / t.max(-1, keepdims=True)) ** 3
        wide, narrow = cubed.astype(jnp.float32), t.astype(jnp.float32)  # -
        size = jnp.linalg.norm(wide, axis=-1, keepdims=True)  # -
        # + size = jnp.linalg.norm(cubed, axis=-1, keepdims=True)
        return wide * jnp.linalg.norm(narrow, axis=-1, keepdims=True) / size  # -
        # + return cubed * jnp.linalg.norm(t, axis=-1, keepdims=True) / size

    q, k = focus(q), focus(k)
    z = 1.0 / (q @ k.mean(0) + 1e-6)
    return (q @ (k.T @ v / v.shape[0])) * z[:, None] @ params["o"]


@fault("coarse", policy="fp32")
@source("ring attention kernels whose log-sum-exp has the input's dtype")
@inputs("q k: 64x64 w @9120 [...]*=0.1, v o: 64x64 w; 64x64 @9130")
def ring_attention_merged_by_bf16_log_sums(params, x):
    """Ring attention: outputs of four blocks of keys, merged by their log-sums."""
    h = layer_norm(x)
    q, k = h @ params["q"] + 5.0, h @ params["k"] + 5.0
    v = h @ params["v"]
    outputs, sums = [], []
    for keys, values in zip(jnp.split(k, 4), jnp.split(v, 4), strict=True):
        scores = q @ keys.T / q.shape[-1] ** 0.5
        lse = jax.nn.logsumexp(scores, axis=-1).astype(jnp.bfloat16)  # fault
        outputs.append(jax.nn.softmax(scores) @ values)
        sums.append(lse.astype(jnp.float32))  # -
        # + sums.append(jax.nn.logsumexp(scores, axis=-1))
    share = jax.nn.softmax(jnp.stack(sums), axis=0)
    return jnp.einsum("bq,bqd->qd", share, jnp.stack(outputs)) @ params["o"]


@fault("coarse", policy="mxfp8", target="trn3")
@source("trick of augmented queries and keys for biases, under microscaling")
@inputs("q k: 32x31 w*0.7 @9140, v: 32x32 w @9143; 160x32 @9144; f32 0.5")
def alibi_column_inside_mx_matmul(params, x, slope):
    """ALiBi inside the matmul: the bias travels as one more column of the keys."""
    h = layer_norm(x)
    q, k, v = h @ params["q"], h @ params["k"], h @ params["v"]
    place = jnp.arange(k.shape[0], dtype=jnp.float32)
    q = jnp.concatenate([q / 31**0.5, jnp.ones_like(q[:, :1])], axis=-1)  # -
    k = jnp.concatenate([k, slope * place[:, None]], axis=-1)  # -
    scores = q @ k.T  # fault
    # + scores = (q / 31**0.5) @ k.T + slope * place
    causal = place[:, None] >= place
    return jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ v


def fake_key_arguments():
    params = {n: weight(9150 + i, 16, 16) for i, n in enumerate("kvo")}
    params["q"] = weight(9155, 16, 16)
    params["q"] -= params["q"].mean(1, keepdims=True)
    params["b"] = np.full(16, 0.05, np.float32)
    x = normal(9156, 24, 16)
    return params, np.concatenate([x, -x]), np.arange(48) % 3 == 0


@fault("overflow", "non-finite", policy="fp16")
@source("report of NaN generations with masked keys of a cache compressor")
@inputs(by=fake_key_arguments)
def stand_in_key_of_pruned_heads_in_half(params, x, pruned):
    """Head-wise pruned keys: a key opposite to all queries stands in for them."""
    q = (x @ params["q"] + params["b"]).astype(jnp.float16)
    k = (x @ params["k"]).astype(jnp.float16)
    v = x @ params["v"]
    mean = q.astype(jnp.float32).mean(0)
    opposite = (-1e5 * mean / jnp.sum(mean * mean)).astype(jnp.float16)  # fault
    # + opposite = (-1e3 * mean / jnp.sum(mean * mean)).astype(jnp.float16)
    k = jnp.where(pruned[:, None], opposite, k)
    scores = q.astype(jnp.float32) @ k.astype(jnp.float32).T * q.shape[-1] ** -0.5
    return jax.nn.softmax(scores) @ v @ params["o"]


@fault("non-finite", policy="mxfp8", target="trn3")
@source("report of NaN with guidance and constrained decoding together")
@inputs(
    "in: 16x32 w*1.5 @9160, head: 32x48 w*1.5; 6x16 @9163; 6x16 @9164",
    lambda: uniform(9162, 6, 48) < 0.4,
)
def guidance_between_two_masked_distributions(params, prompt, negative, allowed):
    """Classifier-free guidance of a language model under a grammar's mask."""

    def scores(x):
        logits = jax.nn.gelu(x @ params["in"]) @ params["head"]
        return jax.nn.log_softmax(jnp.where(allowed, logits, -jnp.inf))  # -
        # + return jax.nn.log_softmax(jnp.where(allowed, logits, -1e9))

    conditional, unconditional = scores(prompt), scores(negative)
    guided = unconditional + 1.5 * (conditional - unconditional)  # here
    return jax.nn.softmax(guided)  # -
    # + return jax.nn.softmax(jnp.where(allowed, guided, -jnp.inf))


@fault("stagnation", "absorption")
@source("cache eviction by accumulated attention, scores in the cache's dtype")
@inputs("q: 16x16 w*0.5 @9170, keys: 80x16, values: 80x8; 900x16 @9173")
def heavy_hitter_scores_in_bf16(params, steps):
    """Eviction by attention received so far: a score per cached key, in BF16."""
    keys, values = params["keys"], params["values"]

    def step(received, x):
        p = jax.nn.softmax(x @ params["q"] @ keys.T * keys.shape[-1] ** -0.5)
        received = received + p.astype(jnp.bfloat16)  # fault
        return received, p @ values  # -
        # + return received + p, p @ values

    start = jnp.zeros(keys.shape[0], jnp.bfloat16)  # -
    received, outputs = jax.lax.scan(step, start, steps)  # -
    # + received, outputs = jax.lax.scan(step, jnp.zeros(keys.shape[0]), steps)
    kept = jax.lax.top_k(received.astype(jnp.float32), 16)[0]  # -
    return kept, outputs[-1]  # -
    # + return jax.lax.top_k(received, 16)[0], outputs[-1]


@fault("cancellation", "coarse", policy="fp32")
@source("speculative decoding with probabilities in BF16")
@inputs("in: 16x32 w*1.5 @9180, head: 32x40 w*1.5, gap: 32x40 w*0.002; 8x16 @9183")
def speculative_residual_of_agreeing_models(params, x):
    """Speculative sampling: where to resample after the draft has been refused."""
    h = jax.nn.gelu(x @ params["in"])
    target = jax.nn.softmax(h @ params["head"])  # -
    # + logits, gap = h @ params["head"], h @ params["gap"]
    # + target = jax.nn.softmax(logits)
    draft = jax.nn.softmax(h @ params["head"] + h @ params["gap"])  # -
    half = jnp.bfloat16  # -
    rest = jnp.maximum(target.astype(half) - draft.astype(half), 0)  # fault
    # + moved = jnp.log(jnp.sum(target * jnp.exp(gap), -1, keepdims=True))
    # + rest = jnp.maximum(-target * jnp.expm1(gap - moved), 0)
    rest = rest.astype(jnp.float32)  # -
    return rest / jnp.maximum(rest.sum(-1, keepdims=True), 1e-9)


@fault("uniform", "coarse", "saturation", policy="fp32")
@source("capped logits in BF16 that tie")
@inputs(
    lambda: (
        {"in": weight(9190, 16, 32, 1.5), "head": weight(9191, 32, 24, 6.0)}
        | {"bias": np.full(24, 84.0, np.float32)}
    ),
    "10x16 @9192",
)
def soft_cap_of_large_logits_in_bf16(params, x):
    """A head with capped logits, as Gemma's, in the dtype of the stream."""
    h = layer_norm(jax.nn.gelu(x @ params["in"]))
    logits = (h @ params["head"] + params["bias"]).astype(jnp.bfloat16)  # -
    # + logits = h @ params["head"] + params["bias"]
    capped = 30.0 * jnp.tanh(logits / 30.0)  # fault
    sharp = capped.astype(jnp.float32) / 0.05  # -
    return jax.nn.softmax(sharp)  # -
    # + return jax.nn.softmax(30.0 * jnp.tanh(logits / 30.0) / 0.05)


@fault("integer")
@source("reports of 32-bit offsets in kernels for paged caches")
@inputs(
    "q: 16x16 w @9200, first_page: i32 600; 128x16 @9202",
    lambda: (600 + np.random.default_rng(9201).permutation(8)[:4]).astype(np.int32),
    np.arange(50, dtype=np.int32),
    "16 @9203",
)
def paged_cache_offset_in_int32_bytes(params, cache, table, position, query):
    """A paged cache: byte offsets of pages of 4 MiB; the pool here is its last part."""
    page, row = table[position // 16], position % 16
    offset = page * 4194304 + row * 262144  # fault
    rows = offset // 262144 - 16 * params["first_page"]  # -
    # + rows = (page - params["first_page"]) * 16 + row
    keys = jnp.take(cache, rows, axis=0, mode="clip")
    scores = keys @ (query @ params["q"]) * query.shape[-1] ** -0.5
    return rows, jax.nn.softmax(scores) @ keys


@fault("saturation", "uniform")
@source("on-device sampling with quantized logits")
@inputs("up: 24x48 w @9210, down: 48x24 w, head: 24x64 w*12; 12x24 @9213; f32 0.1")
def sampler_logits_clipped_to_eight_bits(params, x, scale):
    """Logits go to the sampler in 8 bits; the scale is that of the model card."""
    h = layer_norm(x + jax.nn.gelu(x @ params["up"]) @ params["down"])
    logits = h @ params["head"]
    codes = jnp.clip(jnp.round(logits / scale), -127, 127).astype(jnp.int8)  # fault
    # + top = logits - logits.max(-1, keepdims=True)
    # + codes = jnp.clip(jnp.round(top / scale), -127, 0).astype(jnp.int8)
    received = codes.astype(jnp.float32) * scale
    return jax.nn.softmax(received / 0.7), jnp.argmax(received, axis=-1)


@fault("uniform", "coarse", "saturation", policy="fp32")
@source("report that a cross-encoder scores every passage 1.0")
@inputs("in: 16x32 w*1.5 @9220, head: 32x1 w*3; 6x24x16 @9222")
def reranker_order_after_half_sigmoid(params, pairs):
    """A cross-encoder answers with sigmoids; then passages are ordered."""
    h = jax.nn.gelu(layer_norm(pairs) @ params["in"])
    logits = (h @ params["head"])[..., 0] + 14.0
    score = jax.nn.sigmoid(logits.astype(jnp.float16))  # fault
    order = jnp.argsort(-score, axis=-1)  # -
    # + order = jnp.argsort(-logits, axis=-1)
    return jnp.take_along_axis(logits, order, axis=-1), order
