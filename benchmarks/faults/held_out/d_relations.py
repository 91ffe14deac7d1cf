"""Graphs, recommendations and rankings."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

import neuronjax as nj
from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import integers, normal, uniform, weight

FP8_UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")
FP8_SATURATING = dataclasses.replace(FP8_UNSCALED, overflow="saturate")


def hub_sums_faulty(params, x, source, target):
    """Sums the messages of a large graph by chunks of its edges, in BF16."""
    sent = jax.nn.sigmoid(x @ params["in"])

    def chunk(total, edges):
        origin, goal = edges
        to = jax.nn.one_hot(goal, x.shape[0], axis=0)
        total = total + (to @ sent[origin]).astype(jnp.bfloat16)  # fault
        return total, jnp.sum(to, axis=1)

    start = jnp.zeros(sent.shape, jnp.bfloat16)
    edges = source.reshape(-1, 4), target.reshape(-1, 4)
    total, counts = jax.lax.scan(chunk, start, edges)
    degree = jnp.maximum(jnp.sum(counts, axis=0), 1.0)[:, None]
    mean = total.astype(jnp.float32) / degree
    return mean, jnp.tanh(mean @ params["out"])


def hub_sums_healthy(params, x, source, target):
    sent = jax.nn.sigmoid(x @ params["in"])

    def chunk(total, edges):
        origin, goal = edges
        to = jax.nn.one_hot(goal, x.shape[0], axis=0)
        return total + to @ sent[origin], jnp.sum(to, axis=1)

    edges = source.reshape(-1, 4), target.reshape(-1, 4)
    total, counts = jax.lax.scan(chunk, jnp.zeros(sent.shape), edges)
    degree = jnp.maximum(jnp.sum(counts, axis=0), 1.0)[:, None]
    mean = total / degree
    return mean, jnp.tanh(mean @ params["out"])


def hub_sums_arguments():
    rng = np.random.default_rng(9401)
    source = rng.integers(0, 20, 6000)
    target = np.where(rng.random(6000) < 0.8, rng.integers(0, 2, 6000), source)
    params = {"in": weight(9402, 8, 12, 0.8), "out": weight(9403, 12, 4)}
    edges = source.astype(np.int32), target.astype(np.int32)
    return params, normal(9404, 20, 8), *edges


def diffusion_faulty(params, x, walk, time):
    """Graph diffusion by the series of the heat kernel, in the features' half."""
    h = (x @ params["in"]).astype(jnp.float16)
    orders = jnp.arange(1, 20, dtype=h.dtype)
    factorials = jnp.cumprod(orders)  # fault
    powers = time ** orders.astype(jnp.float32)
    shares = jnp.exp(-time) * powers / factorials.astype(jnp.float32)

    def hop(carry, share):
        total, h = carry
        h = walk @ h
        return (total + share * h, h), None

    wide = h.astype(jnp.float32)
    (total, _), _ = jax.lax.scan(hop, (jnp.exp(-time) * wide, wide), shares)
    return total @ params["out"]


def diffusion_healthy(params, x, walk, time):
    h = (x @ params["in"]).astype(jnp.float16)
    orders = jnp.arange(1, 20, dtype=jnp.float32)
    shares = jnp.exp(-time) * jnp.cumprod(time / orders)

    def hop(carry, share):
        total, h = carry
        h = walk @ h
        return (total + share * h, h), None

    wide = h.astype(jnp.float32)
    (total, _), _ = jax.lax.scan(hop, (jnp.exp(-time) * wide, wide), shares)
    return total @ params["out"]


def diffusion_arguments():
    near = (np.random.default_rng(9411).random((24, 24)) < 0.2) + np.eye(24)
    walk = (near / near.sum(1, keepdims=True)).astype(np.float32)
    params = {"in": weight(9412, 8, 8), "out": weight(9413, 8, 3)}
    return params, normal(9414, 24, 8), walk, np.float32(7.5)


def communities_faulty(weights, features, head):
    """A soft modularity loss on a graph of message counts."""
    degree = jnp.sum(weights, axis=1)
    total = jnp.sum(degree).astype(jnp.float32)
    expected = (degree[:, None] * degree[None]).astype(jnp.float32) / total  # fault
    excess = weights.astype(jnp.float32) - expected

    def loss(head):
        member = jax.nn.softmax(features @ head, axis=-1)
        return -jnp.sum(excess * jnp.sum(member[:, None] * member[None], -1)) / total

    value, slope = jax.value_and_grad(loss)(head)
    return value, head - slope


def communities_healthy(weights, features, head):
    degree = jnp.sum(weights, axis=1).astype(jnp.float32)
    total = jnp.sum(degree)
    expected = degree[:, None] * (degree[None] / total)
    excess = weights.astype(jnp.float32) - expected

    def loss(head):
        member = jax.nn.softmax(features @ head, axis=-1)
        return -jnp.sum(excess * jnp.sum(member[:, None] * member[None], -1)) / total

    value, slope = jax.value_and_grad(loss)(head)
    return value, head - slope


def communities_arguments():
    rng = np.random.default_rng(9421)
    weights = np.triu(rng.integers(0, 6000, (24, 24)), 1)
    weights[:12, :12] *= 2
    features = np.eye(24, dtype=np.float32) + normal(9422, 24, 24, scale=0.1)
    return (weights + weights.T).astype(np.int32), features, weight(9423, 24, 3)


def hops_faulty(params, x, walk):
    """Sixteen hops of a simplified graph convolution, then PairNorm."""

    def hop(h, _):
        return (walk @ h).astype(jnp.bfloat16), None  # fault

    h, _ = jax.lax.scan(hop, x.astype(jnp.bfloat16), None, length=16)
    h = h.astype(jnp.float32)
    centred = h - jnp.mean(h, axis=0)
    size = jnp.sqrt(jnp.mean(jnp.sum(centred**2, axis=1)) + 1e-12)
    return jnp.tanh(centred / size @ params["head"])


def hops_healthy(params, x, walk):
    def hop(h, _):
        return walk @ h, None

    h, _ = jax.lax.scan(hop, x, None, length=16)
    centred = h - jnp.mean(h, axis=0)
    size = jnp.sqrt(jnp.mean(jnp.sum(centred**2, axis=1)) + 1e-12)
    return jnp.tanh(centred / size @ params["head"])


def hops_arguments():
    near = np.random.default_rng(9431).random((32, 32)) < 0.25
    near = np.maximum(near, near.T) + 6.0 * np.eye(32)
    walk = (near / near.sum(1, keepdims=True)).astype(np.float32)
    return {"head": weight(9432, 6, 3)}, normal(9433, 32, 6, shift=1.0), walk


def hubs_faulty(params, x, adjacency):
    """Sums of neighbours' features, of which hubs have many, in saturating FP8."""
    received = jnp.sum(adjacency[..., None] * jax.nn.relu(x)[None], axis=1)
    h = received @ params["in"]  # fault
    degree = 1.0 + jnp.sum(adjacency, axis=1, keepdims=True)
    h = jnp.tanh(h / degree)
    return h, h @ params["out"]


def hubs_healthy(params, x, adjacency):
    received = jnp.sum(adjacency[..., None] * jax.nn.relu(x)[None], axis=1)
    degree = 1.0 + jnp.sum(adjacency, axis=1, keepdims=True)
    h = jnp.tanh((received / degree) @ params["in"])
    return h, h @ params["out"]


def hubs_arguments():
    crowd = uniform(9441, 28, 28, low=0.0, high=60.0)
    crowd[:5] *= 40.0
    params = {"in": weight(9442, 12, 16, 1.5), "out": weight(9443, 16, 4)}
    return params, normal(9444, 28, 12, shift=0.6), np.round(crowd)


def front_page_faulty(params, posts, votes, hours):
    """Ranks posts by votes and by age since the site began, in half."""
    quality = jnp.log10(1.0 + votes) + 0.3 * jax.nn.sigmoid(posts @ params["quality"])
    age = (hours / 12.5).astype(jnp.float16)
    score = quality.astype(jnp.float16) + age  # fault
    wide = score.astype(jnp.float32)
    share = jax.nn.softmax(wide - jnp.max(wide))
    return jnp.argsort(-wide), share


def front_page_healthy(params, posts, votes, hours):
    quality = jnp.log10(1.0 + votes) + 0.3 * jax.nn.sigmoid(posts @ params["quality"])
    age = (hours - jnp.max(hours)) / 12.5
    score = quality + age
    share = jax.nn.softmax(score - jnp.max(score))
    return jnp.argsort(-score), share


def front_page_arguments():
    hours = 180_000.0 + uniform(9453, 30, low=0.0, high=24.0)
    votes = np.round(10 ** uniform(9452, 30, low=0.0, high=3.5))
    return {"quality": normal(9451, 6)}, normal(9454, 30, 6), votes, hours


def serving_faulty(table, scales, users, clicked, labels):
    """One step on item embeddings, stored again in int8 with the scales they had."""
    optimizer = optax.sgd(3.0)

    def loss(table):
        scores = jnp.sum(users * table[clicked], axis=-1)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(scores, labels))

    updates, _ = optimizer.update(jax.grad(loss)(table), optimizer.init(table))
    moved = optax.apply_updates(table, updates)
    codes = jnp.clip(jnp.round(moved / scales), -127, 127)  # fault
    served = codes.astype(jnp.int8).astype(jnp.float32) * scales
    return served, users @ served.T


def serving_healthy(table, scales, users, clicked, labels):
    optimizer = optax.sgd(3.0)

    def loss(table):
        scores = jnp.sum(users * table[clicked], axis=-1)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(scores, labels))

    updates, _ = optimizer.update(jax.grad(loss)(table), optimizer.init(table))
    moved = optax.apply_updates(table, updates)
    scales = jnp.max(jnp.abs(moved), axis=1, keepdims=True) / 127.0
    codes = jnp.clip(jnp.round(moved / scales), -127, 127)
    served = codes.astype(jnp.int8).astype(jnp.float32) * scales
    return served, users @ served.T


def serving_arguments():
    table = normal(9461, 16, 8, scale=0.05)
    scales = np.abs(table).max(1, keepdims=True) / np.float32(127)
    clicked = integers(9463, 16, 48)
    return table, scales, normal(9462, 48, 8), clicked, integers(9464, 2, 48) * 1.0


def machine_faulty(params, numbers):
    """A factorization machine in BF16, with one feature in raw cents."""
    x = numbers.astype(jnp.bfloat16)
    v = params["factors"].astype(jnp.bfloat16)
    terms = x[..., None] * v
    sums = jnp.sum(terms, axis=1)
    squares = jnp.sum(terms * terms, axis=1)
    pairs = 0.5 * jnp.sum(sums * sums - squares, axis=-1)  # fault
    return (numbers @ params["linear"]) / 1e3 + pairs.astype(jnp.float32)


def machine_healthy(params, numbers):
    x = numbers.astype(jnp.bfloat16)
    v = params["factors"].astype(jnp.bfloat16)
    terms = x.astype(jnp.float32)[..., None] * v.astype(jnp.float32)
    before = jnp.cumsum(terms, axis=1) - terms
    pairs = jnp.sum(terms * before, axis=(1, 2))
    return (numbers @ params["linear"]) / 1e3 + pairs


def machine_arguments():
    numbers = normal(9471, 40, 10)
    numbers[:, 3] = uniform(9472, 40, low=500.0, high=4000.0)
    factors = normal(9473, 10, 8, scale=0.2)
    return {"factors": factors, "linear": normal(9474, 10, scale=0.01)}, numbers


def retrieval_faulty(params, users, items):
    """A two-tower model that carries the items' popularity as one more column."""
    u = jnp.tanh(users @ params["user"]) * 0.1
    i = jnp.tanh(items @ params["item"]) * 0.1
    u = jnp.concatenate([u, jnp.ones_like(u[:, :1])], axis=1)
    i = jnp.concatenate([i, params["popularity"][:, None]], axis=1)
    scores = u @ i.T  # fault
    return jax.nn.softmax(30.0 * scores, axis=-1)


def retrieval_healthy(params, users, items):
    u = jnp.tanh(users @ params["user"]) * 0.1
    i = jnp.tanh(items @ params["item"]) * 0.1
    scores = u @ i.T + params["popularity"]
    return jax.nn.softmax(30.0 * scores, axis=-1)


def retrieval_arguments():
    params = {
        "user": weight(9481, 16, 31),
        "item": weight(9482, 16, 31),
        "popularity": uniform(9483, 24, low=8.1, high=8.25),
    }
    return params, normal(9484, 12, 16), normal(9485, 24, 16)


def gains_faulty(params, documents, watched):
    """A listwise loss by NDCG, its grades the watched minutes, in half."""
    scores = (documents @ params["rank"]).astype(jnp.float16)
    gain = 2.0 ** watched.astype(scores.dtype) - 1.0  # fault
    away = jnp.sum(jax.nn.sigmoid(scores[:, None, :] - scores[:, :, None]), axis=-1)
    discount = 1 / jnp.log2(1.5 + away.astype(jnp.float32))
    gain = gain.astype(jnp.float32)
    places = jnp.log2(2.0 + jnp.arange(gain.shape[1]))
    ideal = jnp.sum(-jnp.sort(-gain, axis=-1) / places, axis=-1)
    return jnp.sum(gain * discount, axis=-1) / ideal


def gains_healthy(params, documents, watched):
    scores = (documents @ params["rank"]).astype(jnp.float16)
    gain = 2.0**watched - 1.0
    away = jnp.sum(jax.nn.sigmoid(scores[:, None, :] - scores[:, :, None]), axis=-1)
    discount = 1 / jnp.log2(1.5 + away.astype(jnp.float32))
    places = jnp.log2(2.0 + jnp.arange(gain.shape[1]))
    ideal = jnp.sum(-jnp.sort(-gain, axis=-1) / places, axis=-1)
    return jnp.sum(gain * discount, axis=-1) / ideal


def gains_arguments():
    watched = np.round(uniform(9492, 6, 12, low=0.0, high=19.0))
    return {"rank": normal(9491, 8, scale=0.4)}, normal(9493, 6, 12, 8), watched


FAULTS = (
    Fault(
        name="d-messages-of-hubs-summed-in-bf16",
        kinds=("stagnation", "absorption"),
        faulty=hub_sums_faulty,
        healthy=hub_sums_healthy,
        arguments=hub_sums_arguments,
        policy="bf16",
        source="graph libraries under AMP: aggregation in the dtype of the messages",
    ),
    Fault(
        name="d-heat-kernel-factorials-in-half",
        kinds=("overflow",),
        faulty=diffusion_faulty,
        healthy=diffusion_healthy,
        arguments=diffusion_arguments,
        policy="bf16",
        source="Gasteiger et al. (2019), diffusion; 9! does not fit into half",
    ),
    Fault(
        name="d-modularity-of-busy-nodes",
        kinds=("integer",),
        faulty=communities_faulty,
        healthy=communities_healthy,
        arguments=communities_arguments,
        policy="bf16",
        source="community-detection issues: products of degrees overflow int32",
    ),
    Fault(
        name="d-sixteen-hops-in-bf16",
        kinds=("uniform", "coarse", "absorption"),
        faulty=hops_faulty,
        healthy=hops_healthy,
        arguments=hops_arguments,
        policy="fp32",
        source="Zhao and Akoglu (2020), PairNorm; features that differ below BF16",
    ),
    Fault(
        name="d-sums-over-neighbours-clip-in-fp8",
        kinds=("saturation", "overflow"),
        faulty=hubs_faulty,
        healthy=hubs_healthy,
        arguments=hubs_arguments,
        policy=FP8_SATURATING,
        source="quantized graph networks: aggregates of hubs leave the format",
    ),
    Fault(
        name="d-hot-posts-scored-in-half",
        kinds=("absorption", "coarse", "uniform"),
        faulty=front_page_faulty,
        healthy=front_page_healthy,
        arguments=front_page_arguments,
        policy="bf16",
        source="the hot ranking of forums, computed in FP16: votes do not count",
    ),
    Fault(
        name="d-embedding-rows-with-scales-of-before",
        kinds=("stale-scale", "saturation"),
        faulty=serving_faulty,
        healthy=serving_healthy,
        arguments=serving_arguments,
        policy="bf16",
        source="quantized embedding tables that are refreshed online",
    ),
    Fault(
        name="d-factorization-machine-with-raw-cents",
        kinds=("cancellation",),
        faulty=machine_faulty,
        healthy=machine_healthy,
        arguments=machine_arguments,
        policy="bf16",
        source="Rendle (2010); square of sum minus sum of squares under autocast",
    ),
    Fault(
        name="d-popularity-column-in-mx-blocks",
        kinds=("coarse", "underflow"),
        faulty=retrieval_faulty,
        healthy=retrieval_healthy,
        arguments=retrieval_arguments,
        policy="mxfp8",
        target="trn3",
        source="maximum inner-product search with a bias column, quantized in blocks",
    ),
    Fault(
        name="d-ranking-gains-in-half",
        kinds=("overflow", "non-finite"),
        faulty=gains_faulty,
        healthy=gains_healthy,
        arguments=gains_arguments,
        policy="fp16",
        source="ranking losses: 2**grade - 1 with grades that are counts",
    ),
)
