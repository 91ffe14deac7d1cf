"""Attention variants and what a server does with their caches and logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import layer_norm, normal, uniform, weight


def focused_faulty(params, x):
    """Focused linear attention: ReLU features to the third power, norm kept."""
    h = layer_norm(x)
    q, k, v = (h @ params[name] for name in "qkv")

    def focus(t):
        t = jax.nn.relu(t.astype(jnp.float16)) + 1e-4
        cubed = t * t * t  # fault
        wide, narrow = cubed.astype(jnp.float32), t.astype(jnp.float32)
        size = jnp.linalg.norm(wide, axis=-1, keepdims=True)
        return wide * jnp.linalg.norm(narrow, axis=-1, keepdims=True) / size

    q, k = focus(q), focus(k)
    z = 1.0 / (q @ k.mean(0) + 1e-6)
    return (q @ (k.T @ v / v.shape[0])) * z[:, None] @ params["o"]


def focused_healthy(params, x):
    h = layer_norm(x)
    q, k, v = (h @ params[name] for name in "qkv")

    def focus(t):
        t = jax.nn.relu(t) + 1e-4
        cubed = (t / t.max(-1, keepdims=True)) ** 3
        size = jnp.linalg.norm(cubed, axis=-1, keepdims=True)
        return cubed * jnp.linalg.norm(t, axis=-1, keepdims=True) / size

    q, k = focus(q), focus(k)
    z = 1.0 / (q @ k.mean(0) + 1e-6)
    return (q @ (k.T @ v / v.shape[0])) * z[:, None] @ params["o"]


def focused_arguments():
    params = {n: weight(9100 + i, 32, 32) for i, n in enumerate("qkvo")}
    params["k"] = params["k"] * 16.0
    return params, normal(9110, 96, 32)


def ring_faulty(params, x):
    """Ring attention: outputs of four blocks of keys, merged by their log-sums."""
    h = layer_norm(x)
    q, k = h @ params["q"] + 5.0, h @ params["k"] + 5.0
    v = h @ params["v"]
    outputs, sums = [], []
    for keys, values in zip(jnp.split(k, 4), jnp.split(v, 4), strict=True):
        scores = q @ keys.T / q.shape[-1] ** 0.5
        lse = jax.nn.logsumexp(scores, axis=-1).astype(jnp.bfloat16)  # fault
        outputs.append(jax.nn.softmax(scores) @ values)
        sums.append(lse.astype(jnp.float32))
    share = jax.nn.softmax(jnp.stack(sums), axis=0)
    return jnp.einsum("bq,bqd->qd", share, jnp.stack(outputs)) @ params["o"]


def ring_healthy(params, x):
    h = layer_norm(x)
    q, k = h @ params["q"] + 5.0, h @ params["k"] + 5.0
    v = h @ params["v"]
    outputs, sums = [], []
    for keys, values in zip(jnp.split(k, 4), jnp.split(v, 4), strict=True):
        scores = q @ keys.T / q.shape[-1] ** 0.5
        outputs.append(jax.nn.softmax(scores) @ values)
        sums.append(jax.nn.logsumexp(scores, axis=-1))
    share = jax.nn.softmax(jnp.stack(sums), axis=0)
    return jnp.einsum("bq,bqd->qd", share, jnp.stack(outputs)) @ params["o"]


def ring_arguments():
    params = {n: weight(9120 + i, 64, 64) for i, n in enumerate("qkvo")}
    params["q"], params["k"] = params["q"] * 0.1, params["k"] * 0.1
    return params, normal(9130, 64, 64)


def alibi_faulty(params, x, slope):
    """ALiBi inside the matmul: the bias travels as one more column of the keys."""
    h = layer_norm(x)
    q, k, v = h @ params["q"], h @ params["k"], h @ params["v"]
    place = jnp.arange(k.shape[0], dtype=jnp.float32)
    q = jnp.concatenate([q / 31**0.5, jnp.ones_like(q[:, :1])], axis=-1)
    k = jnp.concatenate([k, slope * place[:, None]], axis=-1)
    scores = q @ k.T  # fault
    causal = place[:, None] >= place
    return jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ v


def alibi_healthy(params, x, slope):
    h = layer_norm(x)
    q, k, v = h @ params["q"], h @ params["k"], h @ params["v"]
    place = jnp.arange(k.shape[0], dtype=jnp.float32)
    scores = (q / 31**0.5) @ k.T + slope * place
    causal = place[:, None] >= place
    return jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ v


def alibi_arguments():
    params = {n: weight(9140 + i, 32, 31, 0.7) for i, n in enumerate("qk")}
    params["v"] = weight(9143, 32, 32)
    return params, normal(9144, 160, 32), np.float32(0.5)


def fake_key_faulty(params, x, pruned):
    """Head-wise pruned keys: a key opposite to all queries stands in for them."""
    q = (x @ params["q"] + params["b"]).astype(jnp.float16)
    k = (x @ params["k"]).astype(jnp.float16)
    v = x @ params["v"]
    mean = q.astype(jnp.float32).mean(0)
    opposite = (-1e5 * mean / jnp.sum(mean * mean)).astype(jnp.float16)  # fault
    k = jnp.where(pruned[:, None], opposite, k)
    scores = q.astype(jnp.float32) @ k.astype(jnp.float32).T * q.shape[-1] ** -0.5
    return jax.nn.softmax(scores) @ v @ params["o"]


def fake_key_healthy(params, x, pruned):
    q = (x @ params["q"] + params["b"]).astype(jnp.float16)
    k = (x @ params["k"]).astype(jnp.float16)
    v = x @ params["v"]
    mean = q.astype(jnp.float32).mean(0)
    opposite = (-1e3 * mean / jnp.sum(mean * mean)).astype(jnp.float16)
    k = jnp.where(pruned[:, None], opposite, k)
    scores = q.astype(jnp.float32) @ k.astype(jnp.float32).T * q.shape[-1] ** -0.5
    return jax.nn.softmax(scores) @ v @ params["o"]


def fake_key_arguments():
    params = {n: weight(9150 + i, 16, 16) for i, n in enumerate("kvo")}
    params["q"] = weight(9155, 16, 16)
    params["q"] -= params["q"].mean(1, keepdims=True)
    params["b"] = np.full(16, 0.05, np.float32)
    x = normal(9156, 24, 16)
    return params, np.concatenate([x, -x]), np.arange(48) % 3 == 0


def guidance_faulty(params, prompt, negative, allowed):
    """Classifier-free guidance of a language model under a grammar's mask."""

    def scores(x):
        logits = jax.nn.gelu(x @ params["in"]) @ params["head"]
        return jax.nn.log_softmax(jnp.where(allowed, logits, -jnp.inf))

    conditional, unconditional = scores(prompt), scores(negative)
    guided = unconditional + 1.5 * (conditional - unconditional)  # fault
    return jax.nn.softmax(guided)


def guidance_healthy(params, prompt, negative, allowed):
    def scores(x):
        logits = jax.nn.gelu(x @ params["in"]) @ params["head"]
        return jax.nn.log_softmax(jnp.where(allowed, logits, -1e9))

    conditional, unconditional = scores(prompt), scores(negative)
    guided = unconditional + 1.5 * (conditional - unconditional)
    return jax.nn.softmax(jnp.where(allowed, guided, -jnp.inf))


def guidance_arguments():
    params = {"in": weight(9160, 16, 32, 1.5), "head": weight(9161, 32, 48, 1.5)}
    allowed = uniform(9162, 6, 48) < 0.4
    return params, normal(9163, 6, 16), normal(9164, 6, 16), allowed


def hitters_faulty(params, steps):
    """Eviction by attention received so far: a score per cached key, in BF16."""
    keys, values = params["keys"], params["values"]

    def step(received, x):
        p = jax.nn.softmax(x @ params["q"] @ keys.T * keys.shape[-1] ** -0.5)
        received = received + p.astype(jnp.bfloat16)  # fault
        return received, p @ values

    start = jnp.zeros(keys.shape[0], jnp.bfloat16)
    received, outputs = jax.lax.scan(step, start, steps)
    kept = jax.lax.top_k(received.astype(jnp.float32), 16)[0]
    return kept, outputs[-1]


def hitters_healthy(params, steps):
    keys, values = params["keys"], params["values"]

    def step(received, x):
        p = jax.nn.softmax(x @ params["q"] @ keys.T * keys.shape[-1] ** -0.5)
        return received + p, p @ values

    received, outputs = jax.lax.scan(step, jnp.zeros(keys.shape[0]), steps)
    return jax.lax.top_k(received, 16)[0], outputs[-1]


def hitters_arguments():
    params = {
        "q": weight(9170, 16, 16, 0.5),
        "keys": normal(9171, 80, 16),
        "values": normal(9172, 80, 8),
    }
    return params, normal(9173, 900, 16)


def residual_faulty(params, x):
    """Speculative sampling: where to resample after the draft has been refused."""
    h = jax.nn.gelu(x @ params["in"])
    target = jax.nn.softmax(h @ params["head"])
    draft = jax.nn.softmax(h @ params["head"] + h @ params["gap"])
    half = jnp.bfloat16
    rest = jnp.maximum(target.astype(half) - draft.astype(half), 0)  # fault
    rest = rest.astype(jnp.float32)
    return rest / jnp.maximum(rest.sum(-1, keepdims=True), 1e-9)


def residual_healthy(params, x):
    h = jax.nn.gelu(x @ params["in"])
    logits, gap = h @ params["head"], h @ params["gap"]
    target = jax.nn.softmax(logits)
    moved = jnp.log(jnp.sum(target * jnp.exp(gap), -1, keepdims=True))
    rest = jnp.maximum(-target * jnp.expm1(gap - moved), 0)
    return rest / jnp.maximum(rest.sum(-1, keepdims=True), 1e-9)


def residual_arguments():
    params = {
        "in": weight(9180, 16, 32, 1.5),
        "head": weight(9181, 32, 40, 1.5),
        "gap": weight(9182, 32, 40, 0.002),
    }
    return params, normal(9183, 8, 16)


def capped_faulty(params, x):
    """A head with capped logits, as Gemma's, in the dtype of the stream."""
    h = layer_norm(jax.nn.gelu(x @ params["in"]))
    logits = (h @ params["head"] + params["bias"]).astype(jnp.bfloat16)
    capped = 30.0 * jnp.tanh(logits / 30.0)  # fault
    sharp = capped.astype(jnp.float32) / 0.05
    return jax.nn.softmax(sharp)


def capped_healthy(params, x):
    h = layer_norm(jax.nn.gelu(x @ params["in"]))
    logits = h @ params["head"] + params["bias"]
    return jax.nn.softmax(30.0 * jnp.tanh(logits / 30.0) / 0.05)


def capped_arguments():
    params = {"in": weight(9190, 16, 32, 1.5), "head": weight(9191, 32, 24, 6.0)}
    return params | {"bias": np.full(24, 84.0, np.float32)}, normal(9192, 10, 16)


def pages_faulty(params, cache, table, position, query):
    """A paged cache: byte offsets of pages of 4 MiB; the pool here is its last part."""
    page, row = table[position // 16], position % 16
    offset = page * 4194304 + row * 262144  # fault
    rows = offset // 262144 - 16 * params["first_page"]
    keys = jnp.take(cache, rows, axis=0, mode="clip")
    scores = keys @ (query @ params["q"]) * query.shape[-1] ** -0.5
    return rows, jax.nn.softmax(scores) @ keys


def pages_healthy(params, cache, table, position, query):
    page, row = table[position // 16], position % 16
    rows = (page - params["first_page"]) * 16 + row
    keys = jnp.take(cache, rows, axis=0, mode="clip")
    scores = keys @ (query @ params["q"]) * query.shape[-1] ** -0.5
    return rows, jax.nn.softmax(scores) @ keys


def pages_arguments():
    params = {"q": weight(9200, 16, 16), "first_page": np.int32(600)}
    table = (600 + np.random.default_rng(9201).permutation(8)[:4]).astype(np.int32)
    cache = normal(9202, 128, 16)
    return params, cache, table, np.arange(50, dtype=np.int32), normal(9203, 16)


def clipped_logits_faulty(params, x, scale):
    """Logits go to the sampler in 8 bits; the scale is that of the model card."""
    h = layer_norm(x + jax.nn.gelu(x @ params["up"]) @ params["down"])
    logits = h @ params["head"]
    codes = jnp.clip(jnp.round(logits / scale), -127, 127).astype(jnp.int8)  # fault
    received = codes.astype(jnp.float32) * scale
    return jax.nn.softmax(received / 0.7), jnp.argmax(received, axis=-1)


def clipped_logits_healthy(params, x, scale):
    h = layer_norm(x + jax.nn.gelu(x @ params["up"]) @ params["down"])
    logits = h @ params["head"]
    top = logits - logits.max(-1, keepdims=True)
    codes = jnp.clip(jnp.round(top / scale), -127, 0).astype(jnp.int8)
    received = codes.astype(jnp.float32) * scale
    return jax.nn.softmax(received / 0.7), jnp.argmax(received, axis=-1)


def clipped_logits_arguments():
    params = {
        "up": weight(9210, 24, 48),
        "down": weight(9211, 48, 24),
        "head": weight(9212, 24, 64, 12.0),
    }
    return params, normal(9213, 12, 24), np.float32(0.1)


def reranked_faulty(params, pairs):
    """A cross-encoder answers with sigmoids; then passages are ordered."""
    h = jax.nn.gelu(layer_norm(pairs) @ params["in"])
    logits = (h @ params["head"])[..., 0] + 14.0
    score = jax.nn.sigmoid(logits.astype(jnp.float16))  # fault
    order = jnp.argsort(-score, axis=-1)
    return jnp.take_along_axis(logits, order, axis=-1), order


def reranked_healthy(params, pairs):
    h = jax.nn.gelu(layer_norm(pairs) @ params["in"])
    logits = (h @ params["head"])[..., 0] + 14.0
    order = jnp.argsort(-logits, axis=-1)
    return jnp.take_along_axis(logits, order, axis=-1), order


def reranked_arguments():
    params = {"in": weight(9220, 16, 32, 1.5), "head": weight(9221, 32, 1, 3.0)}
    return params, normal(9222, 6, 24, 16)


FAULTS = (
    Fault(
        name="focused-linear-attention-cubes-in-half",
        kinds=("overflow",),
        faulty=focused_faulty,
        healthy=focused_healthy,
        arguments=focused_arguments,
        policy="bf16",
        source="report that focused linear attention is NaN under mixed precision",
    ),
    Fault(
        name="ring-attention-merged-by-bf16-log-sums",
        kinds=("coarse",),
        faulty=ring_faulty,
        healthy=ring_healthy,
        arguments=ring_arguments,
        policy="fp32",
        source="ring attention kernels whose log-sum-exp has the input's dtype",
    ),
    Fault(
        name="alibi-column-inside-mx-matmul",
        kinds=("coarse",),
        faulty=alibi_faulty,
        healthy=alibi_healthy,
        arguments=alibi_arguments,
        policy="mxfp8",
        target="trn3",
        source="trick of augmented queries and keys for biases, under microscaling",
    ),
    Fault(
        name="stand-in-key-of-pruned-heads-in-half",
        kinds=("overflow", "non-finite"),
        faulty=fake_key_faulty,
        healthy=fake_key_healthy,
        arguments=fake_key_arguments,
        policy="fp16",
        source="report of NaN generations with masked keys of a cache compressor",
    ),
    Fault(
        name="guidance-between-two-masked-distributions",
        kinds=("non-finite",),
        faulty=guidance_faulty,
        healthy=guidance_healthy,
        arguments=guidance_arguments,
        policy="mxfp8",
        target="trn3",
        source="report of NaN with guidance and constrained decoding together",
    ),
    Fault(
        name="heavy-hitter-scores-in-bf16",
        kinds=("stagnation", "absorption"),
        faulty=hitters_faulty,
        healthy=hitters_healthy,
        arguments=hitters_arguments,
        policy="bf16",
        source="cache eviction by accumulated attention, scores in the cache's dtype",
    ),
    Fault(
        name="speculative-residual-of-agreeing-models",
        kinds=("cancellation", "coarse"),
        faulty=residual_faulty,
        healthy=residual_healthy,
        arguments=residual_arguments,
        policy="fp32",
        source="speculative decoding with probabilities in BF16",
    ),
    Fault(
        name="soft-cap-of-large-logits-in-bf16",
        kinds=("uniform", "coarse", "saturation"),
        faulty=capped_faulty,
        healthy=capped_healthy,
        arguments=capped_arguments,
        policy="fp32",
        source="capped logits in BF16 that tie",
    ),
    Fault(
        name="paged-cache-offset-in-int32-bytes",
        kinds=("integer",),
        faulty=pages_faulty,
        healthy=pages_healthy,
        arguments=pages_arguments,
        policy="bf16",
        source="reports of 32-bit offsets in kernels for paged caches",
    ),
    Fault(
        name="sampler-logits-clipped-to-eight-bits",
        kinds=("saturation", "uniform"),
        faulty=clipped_logits_faulty,
        healthy=clipped_logits_healthy,
        arguments=clipped_logits_arguments,
        policy="bf16",
        source="on-device sampling with quantized logits",
    ),
    Fault(
        name="reranker-order-after-half-sigmoid",
        kinds=("uniform", "coarse", "saturation"),
        faulty=reranked_faulty,
        healthy=reranked_healthy,
        arguments=reranked_arguments,
        policy="fp32",
        source="report that a cross-encoder scores every passage 1.0",
    ),
)
