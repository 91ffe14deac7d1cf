"""Graphs, recommendations and rankings."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import integers, normal, uniform

FP8_UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")


FP8_SATURATING = dataclasses.replace(FP8_UNSCALED, overflow="saturate")


def hub_sums_arguments():
    rng = np.random.default_rng(9401)
    source = rng.integers(0, 20, 6000)
    target = np.where(rng.random(6000) < 0.8, rng.integers(0, 2, 6000), source)
    edges = source.astype(np.int32), target.astype(np.int32)
    return "in: 8x12 w*0.8 @9402, out: 12x4 w; 20x8 @9404", *edges


@fault("stagnation", "absorption")
@source("graph libraries under AMP: aggregation in the dtype of the messages")
@inputs(by=hub_sums_arguments)
def d_messages_of_hubs_summed_in_bf16(params, x, source, target):
    """Sums the messages of a large graph by chunks of its edges, in BF16."""
    sent = jax.nn.sigmoid(x @ params["in"])

    def chunk(total, edges):
        origin, goal = edges
        to = jax.nn.one_hot(goal, x.shape[0], axis=0)
        total = total + (to @ sent[origin]).astype(jnp.bfloat16)  # fault
        return total, jnp.sum(to, axis=1)  # -
        # + return total + to @ sent[origin], jnp.sum(to, axis=1)

    start = jnp.zeros(sent.shape, jnp.bfloat16)  # -
    edges = source.reshape(-1, 4), target.reshape(-1, 4)
    total, counts = jax.lax.scan(chunk, start, edges)  # -
    # + total, counts = jax.lax.scan(chunk, jnp.zeros(sent.shape), edges)
    degree = jnp.maximum(jnp.sum(counts, axis=0), 1.0)[:, None]
    mean = total.astype(jnp.float32) / degree  # -
    # + mean = total / degree
    return mean, jnp.tanh(mean @ params["out"])


def diffusion_arguments():
    near = (np.random.default_rng(9411).random((24, 24)) < 0.2) + np.eye(24)
    walk = (near / near.sum(1, keepdims=True)).astype(np.float32)
    return "in: 8x8 w @9412, out: 8x3 w; 24x8 @9414", walk, "f32 7.5"


@fault("overflow")
@source("Gasteiger et al. (2019), diffusion; 9! does not fit into half")
@inputs(by=diffusion_arguments)
def d_heat_kernel_factorials_in_half(params, x, walk, time):
    """Graph diffusion by the series of the heat kernel, in the features' half."""
    h = (x @ params["in"]).astype(jnp.float16)
    orders = jnp.arange(1, 20, dtype=h.dtype)  # -
    # + orders = jnp.arange(1, 20, dtype=jnp.float32)
    factorials = jnp.cumprod(orders)  # fault
    powers = time ** orders.astype(jnp.float32)  # -
    shares = jnp.exp(-time) * powers / factorials.astype(jnp.float32)  # -
    # + shares = jnp.exp(-time) * jnp.cumprod(time / orders)

    def hop(carry, share):
        total, h = carry
        h = walk @ h
        return (total + share * h, h), None

    wide = h.astype(jnp.float32)
    (total, _), _ = jax.lax.scan(hop, (jnp.exp(-time) * wide, wide), shares)
    return total @ params["out"]


def communities_arguments():
    rng = np.random.default_rng(9421)
    weights = np.triu(rng.integers(0, 6000, (24, 24)), 1)
    weights[:12, :12] *= 2
    features = np.eye(24, dtype=np.float32) + normal(9422, 24, 24, scale=0.1)
    return (weights + weights.T).astype(np.int32), features, "24x3 w @9423"


@fault("integer")
@source("community-detection issues: products of degrees overflow int32")
@inputs(by=communities_arguments)
def d_modularity_of_busy_nodes(weights, features, head):
    """A soft modularity loss on a graph of message counts."""
    degree = jnp.sum(weights, axis=1)  # -
    # + degree = jnp.sum(weights, axis=1).astype(jnp.float32)
    total = jnp.sum(degree).astype(jnp.float32)  # -
    # + total = jnp.sum(degree)
    expected = (degree[:, None] * degree[None]).astype(jnp.float32) / total  # fault
    # + expected = degree[:, None] * (degree[None] / total)
    excess = weights.astype(jnp.float32) - expected

    def loss(head):
        member = jax.nn.softmax(features @ head, axis=-1)
        return -jnp.sum(excess * jnp.sum(member[:, None] * member[None], -1)) / total

    value, slope = jax.value_and_grad(loss)(head)
    return value, head - slope


def hops_arguments():
    near = np.random.default_rng(9431).random((32, 32)) < 0.25
    near = np.maximum(near, near.T) + 6.0 * np.eye(32)
    walk = (near / near.sum(1, keepdims=True)).astype(np.float32)
    return "head: 6x3 w @9432; 32x6 +1 @9433", walk


@fault("uniform", "coarse", "absorption", policy="fp32")
@source("Zhao and Akoglu (2020), PairNorm; features that differ below BF16")
@inputs(by=hops_arguments)
def d_sixteen_hops_in_bf16(params, x, walk):
    """Sixteen hops of a simplified graph convolution, then PairNorm."""

    def hop(h, _):
        return (walk @ h).astype(jnp.bfloat16), None  # fault
        # + return walk @ h, None

    h, _ = jax.lax.scan(hop, x.astype(jnp.bfloat16), None, length=16)  # -
    # + h, _ = jax.lax.scan(hop, x, None, length=16)
    h = h.astype(jnp.float32)  # -
    centred = h - jnp.mean(h, axis=0)
    size = jnp.sqrt(jnp.mean(jnp.sum(centred**2, axis=1)) + 1e-12)
    return jnp.tanh(centred / size @ params["head"])


def hubs_arguments():
    crowd = uniform(9441, 28, 28, low=0.0, high=60.0)
    crowd[:5] *= 40.0
    return "in: 12x16 w*1.5 @9442, out: 16x4 w; 28x12 +0.6 @9444", np.round(crowd)


@fault("saturation", "overflow", policy=FP8_SATURATING)
@source("quantized graph networks: aggregates of hubs leave the format")
@inputs(by=hubs_arguments)
def d_sums_over_neighbours_clip_in_fp8(params, x, adjacency):
    """Sums of neighbours' features, of which hubs have many, in saturating FP8."""
    received = jnp.sum(adjacency[..., None] * jax.nn.relu(x)[None], axis=1)
    h = received @ params["in"]  # fault
    degree = 1.0 + jnp.sum(adjacency, axis=1, keepdims=True)
    h = jnp.tanh(h / degree)  # -
    # + h = jnp.tanh((received / degree) @ params["in"])
    return h, h @ params["out"]


@fault("absorption", "coarse", "uniform")
@source("the hot ranking of forums, computed in FP16: votes do not count")
@inputs(
    "quality: 6 @9451; 30x6 @9454",
    lambda: np.round(10 ** uniform(9452, 30, low=0.0, high=3.5)),
    lambda: 180_000.0 + uniform(9453, 30, low=0.0, high=24.0),
)
def d_hot_posts_scored_in_half(params, posts, votes, hours):
    """Ranks posts by votes and by age since the site began, in half."""
    quality = jnp.log10(1.0 + votes) + 0.3 * jax.nn.sigmoid(posts @ params["quality"])
    age = (hours / 12.5).astype(jnp.float16)  # -
    # + age = (hours - jnp.max(hours)) / 12.5
    score = quality.astype(jnp.float16) + age  # fault
    # + score = quality + age
    wide = score.astype(jnp.float32)  # -
    share = jax.nn.softmax(wide - jnp.max(wide))  # -
    # + share = jax.nn.softmax(score - jnp.max(score))
    return jnp.argsort(-wide), share  # -
    # + return jnp.argsort(-score), share


def serving_arguments():
    table = normal(9461, 16, 8, scale=0.05)
    scales = np.abs(table).max(1, keepdims=True) / np.float32(127)
    return table, scales, "48x8 @9462; 48 int 0..16 @9463", integers(9464, 2, 48) * 1.0


@fault("stale-scale", "saturation")
@source("quantized embedding tables that are refreshed online")
@inputs(by=serving_arguments)
def d_embedding_rows_with_scales_of_before(table, scales, users, clicked, labels):
    """One step on item embeddings, stored again in int8 with the scales they had."""
    optimizer = optax.sgd(3.0)

    def loss(table):
        scores = jnp.sum(users * table[clicked], axis=-1)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(scores, labels))

    updates, _ = optimizer.update(jax.grad(loss)(table), optimizer.init(table))
    moved = optax.apply_updates(table, updates)
    # + scales = jnp.max(jnp.abs(moved), axis=1, keepdims=True) / 127.0
    codes = jnp.clip(jnp.round(moved / scales), -127, 127)  # here
    served = codes.astype(jnp.int8).astype(jnp.float32) * scales
    return served, users @ served.T


def machine_arguments():
    numbers = normal(9471, 40, 10)
    numbers[:, 3] = uniform(9472, 40, low=500.0, high=4000.0)
    return "factors: 10x8 *0.2 @9473, linear: 10 *0.01", numbers


@fault("cancellation")
@source("Rendle (2010); square of sum minus sum of squares under autocast")
@inputs(by=machine_arguments)
def d_factorization_machine_with_raw_cents(params, numbers):
    """A factorization machine in BF16, with one feature in raw cents."""
    x = numbers.astype(jnp.bfloat16)
    v = params["factors"].astype(jnp.bfloat16)
    terms = x[..., None] * v  # -
    # + terms = x.astype(jnp.float32)[..., None] * v.astype(jnp.float32)
    sums = jnp.sum(terms, axis=1)  # -
    squares = jnp.sum(terms * terms, axis=1)  # -
    pairs = 0.5 * jnp.sum(sums * sums - squares, axis=-1)  # fault
    # + before = jnp.cumsum(terms, axis=1) - terms
    # + pairs = jnp.sum(terms * before, axis=(1, 2))
    return (numbers @ params["linear"]) / 1e3 + pairs.astype(jnp.float32)  # -
    # + return (numbers @ params["linear"]) / 1e3 + pairs


@fault("coarse", "underflow", policy="mxfp8", target="trn3")
@source("maximum inner-product search with a bias column, quantized in blocks")
@inputs(
    "user: 16x31 w @9481, item: 16x31 w, popularity: 24 8.1..8.25; 12x16 @9484; "
    "24x16 @9485"
)
def d_popularity_column_in_mx_blocks(params, users, items):
    """A two-tower model that carries the items' popularity as one more column."""
    u = jnp.tanh(users @ params["user"]) * 0.1
    i = jnp.tanh(items @ params["item"]) * 0.1
    u = jnp.concatenate([u, jnp.ones_like(u[:, :1])], axis=1)  # -
    i = jnp.concatenate([i, params["popularity"][:, None]], axis=1)  # -
    scores = u @ i.T  # fault
    # + scores = u @ i.T + params["popularity"]
    return jax.nn.softmax(30.0 * scores, axis=-1)


@fault("overflow", "non-finite", policy="fp16")
@source("ranking losses: 2**grade - 1 with grades that are counts")
@inputs(
    "rank: 8 *0.4 @9491; 6x12x8 @9493",
    lambda: np.round(uniform(9492, 6, 12, low=0.0, high=19.0)),
)
def d_ranking_gains_in_half(params, documents, watched):
    """A listwise loss by NDCG, its grades the watched minutes, in half."""
    scores = (documents @ params["rank"]).astype(jnp.float16)
    gain = 2.0 ** watched.astype(scores.dtype) - 1.0  # fault
    # + gain = 2.0**watched - 1.0
    away = jnp.sum(jax.nn.sigmoid(scores[:, None, :] - scores[:, :, None]), axis=-1)
    discount = 1 / jnp.log2(1.5 + away.astype(jnp.float32))
    gain = gain.astype(jnp.float32)  # -
    places = jnp.log2(2.0 + jnp.arange(gain.shape[1]))
    ideal = jnp.sum(-jnp.sort(-gain, axis=-1) / places, axis=-1)
    return jnp.sum(gain * discount, axis=-1) / ideal
