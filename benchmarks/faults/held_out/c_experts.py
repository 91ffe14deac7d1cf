"""Routers, retrieval, memories and embeddings of language models."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    block_params,
    cross_entropy,
    feed_forward,
    layer_norm,
    normal,
    uniform,
    weight,
)


@fault("overflow", policy="fp16")
@source("mixture-of-experts training whose router loss is Inf in FP16")
@inputs(
    "in: 16x32 w @9300, router: 32x8 w*300, experts: 8x32, head: 32x10 w; "
    "24x16 @9304; 24 int 0..10 @9305"
)
def router_z_loss_squares_in_half(params, x, labels):
    """The router's z-loss of ST-MoE, on logits as the stream has them: FP16."""

    def loss_of(params):
        h = jax.nn.gelu(x @ params["in"])
        logits = (h @ params["router"]).astype(jnp.float16)  # -
        # + logits = h @ params["router"]
        gates = jax.nn.softmax(logits.astype(jnp.float32))  # -
        # + gates = jax.nn.softmax(logits)
        mixed = jnp.einsum("te,ed->td", gates, params["experts"]) * h
        lse = jax.nn.logsumexp(logits, axis=-1)
        z = jnp.mean((lse * lse).astype(jnp.float32))  # fault
        return cross_entropy(mixed @ params["head"], labels) + 1e-3 * z  # -
        # + return cross_entropy(mixed @ params["head"], labels) + 1e-3 * jnp.mean(
        # +     lse * lse
        # + )

    return jax.value_and_grad(loss_of)(params)


@fault("underflow", "coarse")
@source("auxiliary losses of very many small experts in half precision")
@inputs("router: 24x16384 w*0.5 @9310; 128x24 @9311")
def load_balance_of_16384_experts_in_half(params, x):
    """The load balance of 16384 experts of one neuron each, as shares times chances."""
    logits = layer_norm(x) @ params["router"]
    probability = jax.nn.softmax(logits).mean(0).astype(jnp.float16)  # -
    # + probability = jax.nn.softmax(logits).mean(0)
    chosen = jax.lax.top_k(logits, 64)[1]
    counts = jnp.zeros(logits.shape[-1]).at[chosen.reshape(-1)].add(1.0)
    share = (counts / chosen.size).astype(jnp.float16)  # -
    # + share = counts / chosen.size
    each = share * probability  # fault
    return jnp.sum(each.astype(jnp.float32)) * logits.shape[-1]  # -
    # + return jnp.sum(share * (probability * logits.shape[-1]))


@fault("overflow", "saturation")
@source("expert-parallel combine in FP8")
@inputs("router: 16x8 w*0.3 @9330, experts: 8x16x16 *40 +40 [:,:,::2]-=40; 12x16 @9332")
def expert_outputs_added_in_e4m3(params, x):
    """Outputs of eight experts come back in FP8 and are added as they arrive."""
    h = layer_norm(x)
    gates = jax.nn.softmax(h @ params["router"])
    outputs = jnp.einsum("td,edf->etf", jax.nn.relu(h), params["experts"])
    sent = (outputs * gates.T[:, :, None]).astype(jnp.float8_e4m3)

    def arrive(total, part):
        total = (total + part.astype(jnp.float32)).astype(jnp.float8_e4m3)  # fault
        return total.astype(jnp.float32), None  # -
        # + return total + part.astype(jnp.float32), None

    total = jax.lax.scan(arrive, jnp.zeros(sent.shape[1:]), sent)[0]
    return layer_norm(x + total)


def recency_arguments():
    """Copies of one article, which only their dates tell apart."""
    params = {"q": weight(9340, 24, 32, 3.0)}
    passages = np.tile(normal(9341, 1, 32, scale=0.1), (40, 1))
    query = normal(9342, 24)
    passages += 2.0 * np.sign(np.tanh(query @ params["q"]))
    age = np.random.default_rng(9343).permutation(40).astype(np.float32)
    return params, query, passages.astype(np.float32), age


@fault("absorption", "coarse")
@source("hybrid search whose freshness weight has no effect")
@inputs(by=recency_arguments)
def recency_boost_under_bf16_relevance(params, query, passages, age):
    """Hybrid search: inner products in BF16, and a boost for what is new."""
    q = jnp.tanh(query @ params["q"])
    relevance = (passages @ q).astype(jnp.bfloat16)  # -
    # + relevance = (passages @ q).astype(jnp.bfloat16).astype(jnp.float32)
    boost = (0.2 * jnp.exp(-age / 30.0)).astype(jnp.bfloat16)  # -
    # + boost = 0.2 * jnp.exp(-age / 30.0)
    score = relevance + boost  # fault
    share = jax.nn.softmax(score.astype(jnp.float32) / 0.02)  # -
    # + share = jax.nn.softmax((relevance + boost) / 0.02)
    return jax.lax.top_k(share, 8)


def neighbours_arguments():
    """The second context is padding, and so is an entry of the store."""
    store, context = np.tanh(normal(9352, 40, 16)), normal(9353, 4, 12)
    store[7], context[1] = 0.0, 0.0
    return "in: 12x16 w @9350, head: 16x20 w", context, store, "40 int 0..20 @9354"


@fault("singular", "non-finite")
@source("inverse distance weighting with an exact match")
@inputs(by=neighbours_arguments)
def inverse_distance_to_stored_context(params, context, store, tokens):
    """kNN-LM with inverse distances; one context is stored word for word."""
    h = jnp.tanh(context @ params["in"])
    gap = h[:, None] - store[None]
    near = 1.0 / jnp.sum(gap * gap, axis=-1)  # fault
    # + square = jnp.sum(gap * gap, axis=-1)
    # + least = square.min(-1, keepdims=True)
    # + near = jnp.where(
    # +     square > least, least / jnp.where(square > 0, square, 1.0), 1.0
    # + )
    share = near / near.sum(-1, keepdims=True)
    found = share @ jax.nn.one_hot(tokens, 20)
    return 0.25 * found + 0.75 * jax.nn.softmax(h @ params["head"])


def positions_arguments():
    """A sentence of one word, normalized over the sentence."""
    params = block_params(9360, 32) | {
        "words": normal(9370, 50, 32),
        "places": normal(9371, 24, 32, scale=0.02),
        "in": weight(9372, 32, 32),
    }
    return params, np.full(24, 17, np.int32)


@fault("absorption", "coarse", policy="fp32")
@source("embedding scale of transformers in BF16")
@inputs(by=positions_arguments)
def learned_positions_under_scaled_embeddings(params, tokens):
    """Embeddings times the root of the width, then learned positions, all in BF16."""
    words = params["words"][tokens] * 64.0
    places = params["places"].astype(jnp.bfloat16)  # -
    h = words.astype(jnp.bfloat16) + places  # fault
    # + h = words @ params["in"] + params["places"] @ params["in"]
    h = h.astype(jnp.float32) @ params["in"]  # -
    h = (h - h.mean(0)) / (h.std(0) + 1e-3)
    return h + feed_forward(params, layer_norm(h))


def griffin_arguments():
    params = {"r": weight(9380, 16, 16), "i": weight(9381, 16, 16)}
    params["lambda"] = np.full(16, -19.0, np.float32)
    params["out"] = np.full(16, 1000.0, np.float32)
    return params, normal(9382, 20, 16) + uniform(9383, 1, 16)


@fault("cancellation", "singular")
@source("the bounded root of RecurrentGemma's RG-LRU")
@inputs(by=griffin_arguments)
def recurrence_gain_by_one_minus_square(params, x):
    """A gated linear recurrence (RG-LRU) whose gates close for some channels."""

    def run(params, x):
        r, i = jax.nn.sigmoid(x @ params["r"]), jax.nn.sigmoid(x @ params["i"])
        log_a = -8.0 * r * jax.nn.softplus(params["lambda"])
        a = jnp.exp(log_a)  # -
        gain = jnp.sqrt(1.0 - a * a)  # fault
        # + gain = jnp.sqrt(-jnp.expm1(2.0 * log_a))

        def step(h, inputs):
            a, u = inputs
            h = a * h + u
            return h, h

        return jax.lax.scan(step, jnp.zeros(x.shape[-1]), (a, gain * i * x))[1]  # -
        # + xs = (jnp.exp(log_a), gain * i * x)
        # + return jax.lax.scan(step, jnp.zeros(x.shape[-1]), xs)[1]

    return run(params, x)[-1] * params["out"]
