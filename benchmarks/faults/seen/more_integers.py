"""More faults of integers: indices, hashes, counts, averages, casts, packed keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


def mipmap_faulty(params, image):
    """Two levels of a mip-map of 8-bit grey values, then a small classifier."""

    def halve(level):
        rows = level[0::2] // 2 + level[1::2] // 2
        total = rows[:, 0::2] + rows[:, 1::2]  # fault
        return total // 2

    small = halve(halve(image))
    x = small.astype(jnp.float32).reshape(-1, 16) / 255.0
    h = jax.nn.relu(x @ params["in"])
    return small, jax.nn.softmax(h @ params["out"])


def mipmap_healthy(params, image):
    def halve(level):
        rows = level[0::2] // 2 + level[1::2] // 2
        total = rows[:, 0::2].astype(jnp.uint16) + rows[:, 1::2].astype(jnp.uint16)
        return (total // 2).astype(jnp.uint8)

    small = halve(halve(image))
    x = small.astype(jnp.float32).reshape(-1, 16) / 255.0
    h = jax.nn.relu(x @ params["in"])
    return small, jax.nn.softmax(h @ params["out"])


def mipmap_arguments():
    image = (integers(2001, 140, 32, 32) + 100).astype(np.uint8)
    return {"in": weight(2002, 16, 24), "out": weight(2003, 24, 5)}, image


def shingles_faulty(params, text):
    """Rabin's fingerprints of documents modulo a prime, as rows of an embedding."""
    base, prime = 65599, 999983

    def push(state, letters):
        state = (state * base + letters) % prime  # fault
        return state, state % 64

    start = jnp.zeros(text.shape[0], jnp.int32)
    last, rows = jax.lax.scan(push, start, text.T)
    bag = params["table"][rows].mean(0)
    return last, jnp.tanh(bag @ params["out"])


def shingles_healthy(params, text):
    base, prime = 65599, 999983

    def push(state, letters):
        high, low = state // 1024, state % 1024
        shifted = (base * high) % prime * 1024
        state = (shifted + base * low + letters) % prime
        return state, state % 64

    start = jnp.zeros(text.shape[0], jnp.int32)
    last, rows = jax.lax.scan(push, start, text.T)
    bag = params["table"][rows].mean(0)
    return last, jnp.tanh(bag @ params["out"])


def voxels_faulty(params, grid, corners):
    """Looks up the eight corners around points of a volume of 40^3 voxels."""
    n = 40
    offsets = jnp.array([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    at = jnp.minimum(corners[:, None] + offsets.astype(jnp.int16), n - 1)
    flat = (at[..., 0] * n + at[..., 1]) * n + at[..., 2]  # fault
    density = grid.reshape(-1)[flat.astype(jnp.int32)]
    h = jax.nn.relu(density @ params["in"])
    return density, h @ params["out"]


def voxels_healthy(params, grid, corners):
    n = 40
    offsets = jnp.array([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    at = jnp.minimum(corners[:, None] + offsets.astype(jnp.int16), n - 1)
    wide = at.astype(jnp.int32)
    flat = (wide[..., 0] * n + wide[..., 1]) * n + wide[..., 2]
    density = grid.reshape(-1)[flat]
    h = jax.nn.relu(density @ params["in"])
    return density, h @ params["out"]


def voxels_arguments():
    corners = integers(2010, 39, 24, 3)
    corners[:12, 0] = 39 - corners[:12, 0] // 5
    params = {"in": weight(2011, 8, 16), "out": weight(2012, 16, 3)}
    return params, uniform(2013, 40, 40, 40), corners.astype(np.int16)


def tokens_faulty(w, total, x, y, lengths):
    """SGD that counts the tokens it has seen, next to its loss, in FP32."""

    def step(carry, batch):
        w, total = carry
        x, y, length = batch
        seen = (jnp.arange(16) < length)[:, None]

        def loss_of(w):
            error = jnp.where(seen, jnp.tanh(x @ w) - y, 0.0)
            return jnp.sum(error * error) / jnp.maximum(length, 1)

        w = w - 0.1 * jax.grad(loss_of)(w)
        total = total + length.astype(jnp.float32)  # fault
        return (w, total), None

    start = (w, total.astype(jnp.float32))
    (w, after), _ = jax.lax.scan(step, start, (x, y, lengths))
    return w, after.astype(jnp.int32), after.astype(jnp.int32) - total


def tokens_healthy(w, total, x, y, lengths):
    def step(carry, batch):
        w, total = carry
        x, y, length = batch
        seen = (jnp.arange(16) < length)[:, None]

        def loss_of(w):
            error = jnp.where(seen, jnp.tanh(x @ w) - y, 0.0)
            return jnp.sum(error * error) / jnp.maximum(length, 1)

        w = w - 0.1 * jax.grad(loss_of)(w)
        return (w, total + length), None

    (w, after), _ = jax.lax.scan(step, (w, total), (x, y, lengths))
    return w, after, after - total


def tokens_arguments():
    x = normal(2014, 60, 16, 8)
    y = np.tanh(x @ weight(2015, 8, 2))
    lengths = integers(2016, 7, 60) * 2 + np.int32(1)
    return weight(2017, 8, 2), np.int32(268_435_456), x, y, lengths.astype(np.int32)


def join_faulty(params, users, purchases, amounts):
    """Spending per user: a join of two tables whose id columns became floats."""
    left, right = (ids.astype(jnp.float32) for ids in (users, purchases))  # fault
    match = left[:, None] == right[None, :]
    spent = jnp.sum(jnp.where(match, amounts, 0.0), axis=1)
    count = match.sum(1)
    x = jnp.stack([jnp.log1p(spent), spent / jnp.maximum(count, 1)], axis=-1)
    return spent, count, jax.nn.sigmoid(x @ params["w"] + params["b"])


def join_healthy(params, users, purchases, amounts):
    match = users[:, None] == purchases[None, :]
    spent = jnp.sum(jnp.where(match, amounts, 0.0), axis=1)
    count = match.sum(1)
    x = jnp.stack([jnp.log1p(spent), spent / jnp.maximum(count, 1)], axis=-1)
    return spent, count, jax.nn.sigmoid(x @ params["w"] + params["b"])


def join_arguments():
    users = np.arange(987_654_001, 987_654_033, dtype=np.int32)
    purchases = users[integers(2020, 32, 80)]
    params = {"w": weight(2021, 2, 3), "b": normal(2022, 3)}
    return params, users, purchases, uniform(2023, 80, low=1.0, high=60.0)


def packing_faulty(params, x, mask):
    """Position ids of a left-padded prompt from its attention mask, cast too early."""
    seen = mask.astype(jnp.bfloat16)
    places = jnp.cumsum(seen) - 1  # fault
    ids = jnp.maximum(places, 0).astype(jnp.int32)
    x = x + params["places"][ids]
    scores = jnp.where(mask, x @ params["query"], -jnp.inf)
    return ids, jax.nn.softmax(scores) @ layer_norm(x) @ params["out"]


def packing_healthy(params, x, mask):
    places = jnp.cumsum(mask.astype(jnp.int32)) - 1
    ids = jnp.maximum(places, 0)
    x = x + params["places"][ids]
    scores = jnp.where(mask, x @ params["query"], -jnp.inf)
    return ids, jax.nn.softmax(scores) @ layer_norm(x) @ params["out"]


def packing_arguments():
    params = {
        "places": normal(2030, 448, 8),
        "query": normal(2031, 8, scale=0.3),
        "out": weight(2032, 8, 4),
    }
    return params, normal(2033, 448, 8, scale=0.3), np.arange(448) >= 13


def stamps_faulty(params, seconds, marks):
    """Event times in seconds become integer nanoseconds for a joint sort."""
    nanos = jnp.round(seconds * 1e9).astype(jnp.int32)  # fault
    order = jnp.argsort(nanos)
    gaps = jnp.diff(nanos[order]).astype(jnp.float32) / 1e9
    x = jnp.concatenate([gaps[:, None], marks[order][1:]], axis=1)
    return gaps, jax.nn.gelu(x @ params["in"]) @ params["out"]


def stamps_healthy(params, seconds, marks):
    whole = jnp.floor(seconds)
    part = jnp.round((seconds - whole) * 1e9).astype(jnp.int32)
    order = jnp.lexsort((part, whole.astype(jnp.int32)))
    late, early = order[1:], order[:-1]
    gaps = (whole[late] - whole[early]) + (part[late] - part[early]) / 1e9
    x = jnp.concatenate([gaps[:, None], marks[order][1:]], axis=1)
    return gaps, jax.nn.gelu(x @ params["in"]) @ params["out"]


def histogram_faulty(params, image):
    """Equalizes an image by a histogram whose bins are bytes, like the pixels."""
    bins = jnp.zeros(32, jnp.uint8)
    counts = bins.at[image // 8].add(jnp.uint8(1))  # fault
    share = counts.astype(jnp.float32) / image.size
    level = jnp.cumsum(share)
    equal = level[image // 8].reshape(8, -1)
    return counts.astype(jnp.int32), jnp.tanh(equal @ params["w"])


def histogram_healthy(params, image):
    bins = jnp.zeros(32, jnp.int32)
    counts = bins.at[image // 8].add(1)
    share = counts.astype(jnp.float32) / image.size
    level = jnp.cumsum(share)
    equal = level[image // 8].reshape(8, -1)
    return counts, jnp.tanh(equal @ params["w"])


def histogram_arguments():
    pixels = np.clip(normal(2040, 1024, scale=11.0, shift=120.0), 0, 255)
    return {"w": weight(2041, 128, 4)}, pixels.astype(np.uint8)


def accuracy_faulty(params, x, labels):
    """A step on a classifier that also reports accuracy and recall of a class."""

    def loss_of(params):
        logits = jax.nn.relu(x @ params["in"]) @ params["out"]
        return cross_entropy(logits, labels), logits

    (loss, logits), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    right = (jnp.argmax(logits, -1) == labels).astype(jnp.int8)
    hits = jnp.sum(right, dtype=jnp.int8)  # fault
    accuracy = hits.astype(jnp.float32) / labels.size
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params, loss, accuracy


def accuracy_healthy(params, x, labels):
    def loss_of(params):
        logits = jax.nn.relu(x @ params["in"]) @ params["out"]
        return cross_entropy(logits, labels), logits

    (loss, logits), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    right = (jnp.argmax(logits, -1) == labels).astype(jnp.int8)
    hits = jnp.sum(right, dtype=jnp.int32)
    accuracy = hits.astype(jnp.float32) / labels.size
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params, loss, accuracy


def accuracy_arguments():
    params = {"in": weight(2050, 12, 32, 2.0), "out": weight(2051, 32, 3, 2.0)}
    x = normal(2052, 240, 12)
    logits = np.maximum(x @ params["in"], 0) @ params["out"]
    labels = np.argmax(logits + normal(2053, 240, 3, scale=0.3), -1)
    return params, x, labels.astype(np.int32)


def spread_faulty(params, counts):
    """Dispersion of photon counts per pixel, with exact integer sums."""
    n = counts.shape[0]
    first = jnp.sum(counts, axis=0)
    second = jnp.sum(counts * counts, axis=0)
    numerator = n * second - first * first  # fault
    variance = numerator.astype(jnp.float32) / (n * (n - 1))
    fano = variance / (first.astype(jnp.float32) / n)
    return fano, jax.nn.softmax(jnp.log(fano).reshape(4, 8) @ params)


def spread_healthy(params, counts):
    n = counts.shape[0]
    x = counts.astype(jnp.float32)
    mean = x.mean(0)
    variance = jnp.sum((x - mean) ** 2, axis=0) / (n - 1)
    fano = variance / mean
    return fano, jax.nn.softmax(jnp.log(fano).reshape(4, 8) @ params)


def spread_arguments():
    rng = np.random.default_rng(2060)
    rates = rng.gamma(2.0, np.linspace(100, 1600, 32), (64, 32))
    return weight(2061, 8, 3), rng.poisson(rates).astype(np.int32)


def binomial_faulty(wins, p):
    """Likelihoods of wins in twenty games, with factorials from a product."""
    n = 20
    table = jnp.concatenate([jnp.ones(1, jnp.int32), jnp.arange(1, n + 1)])
    factorial = jnp.cumprod(table)  # fault
    ways = factorial[n] // (factorial[wins] * factorial[n - wins])
    chance = p[:, None] ** wins * (1 - p[:, None]) ** (n - wins)
    likelihood = ways.astype(jnp.float32) * chance
    return likelihood, jnp.log(jnp.maximum(likelihood, 1e-30)).sum(1)


def binomial_healthy(wins, p):
    n = 20
    steps = jnp.arange(1, n + 1)
    ratios = (n + 1 - steps).astype(jnp.float32) / steps
    ways = jnp.concatenate([jnp.ones(1), jnp.cumprod(ratios)])[wins]
    chance = p[:, None] ** wins * (1 - p[:, None]) ** (n - wins)
    likelihood = jnp.round(ways) * chance
    return likelihood, jnp.log(jnp.maximum(likelihood, 1e-30)).sum(1)


def dispatch_faulty(params, x):
    """Groups tokens by expert: one float key holds expert and token, then is split."""
    logits = x @ params["router"]
    expert = jnp.argmax(logits, -1)
    token = jnp.arange(x.shape[0])
    key = expert.astype(jnp.float32) * 4194304.0 + token  # fault
    ordered = jnp.sort(key)
    group = jnp.floor(ordered / 4194304.0)
    source = (ordered - group * 4194304.0).astype(jnp.int32)
    gate = jnp.take_along_axis(jax.nn.softmax(logits), expert[:, None], 1)[source]
    rows = jnp.einsum("td,tdf->tf", x[source], params["w"][group.astype(jnp.int32)])
    return source, jnp.zeros(rows.shape).at[source].add(gate * jax.nn.silu(rows))


def dispatch_healthy(params, x):
    logits = x @ params["router"]
    expert = jnp.argmax(logits, -1)
    token = jnp.arange(x.shape[0])
    source = jnp.lexsort((token, expert))
    group = expert[source]
    gate = jnp.take_along_axis(jax.nn.softmax(logits), expert[:, None], 1)[source]
    rows = jnp.einsum("td,tdf->tf", x[source], params["w"][group])
    return source, jnp.zeros(rows.shape).at[source].add(gate * jax.nn.silu(rows))


def dispatch_arguments():
    params = {"router": weight(2070, 8, 16, 3.0), "w": normal(2071, 16, 8, 8)}
    return params, normal(2072, 48, 8)


FAULTS = (
    Fault(
        name="mipmap-average-in-uint8",
        kinds=("integer",),
        faulty=mipmap_faulty,
        healthy=mipmap_healthy,
        arguments=mipmap_arguments,
        policy="bf16",
        source="image pyramids: (a + b) / 2 of uint8 arrays in NumPy, PIL questions",
    ),
    Fault(
        name="rabin-fingerprint-in-int32",
        kinds=("integer",),
        faulty=shingles_faulty,
        healthy=shingles_healthy,
        arguments=lambda: (
            {"table": normal(2004, 64, 12), "out": weight(2005, 12, 3)},
            integers(2006, 128, 12, 40),
        ),
        policy="bf16",
        source="rolling hashes: h * base + c overflows before the modulus is taken",
    ),
    Fault(
        name="voxel-index-in-int16",
        kinds=("integer",),
        faulty=voxels_faulty,
        healthy=voxels_healthy,
        arguments=voxels_arguments,
        policy="bf16",
        source="ravel_multi_index by hand: sparse convolutions with short coordinates",
    ),
    Fault(
        name="tokens-seen-counter-in-fp32",
        kinds=("integer", "absorption", "stagnation"),
        faulty=tokens_faulty,
        healthy=tokens_healthy,
        arguments=tokens_arguments,
        policy="bf16",
        source="training logs: counts of tokens in float metrics beyond 2**24",
    ),
    Fault(
        name="user-ids-join-as-fp32",
        kinds=("integer", "coarse"),
        faulty=join_faulty,
        healthy=join_healthy,
        arguments=join_arguments,
        policy="bf16",
        source="pandas and Spark: id columns with missing values turn into floats",
    ),
    Fault(
        name="position-ids-from-bf16-mask",
        kinds=("integer", "coarse", "stagnation"),
        faulty=packing_faulty,
        healthy=packing_healthy,
        arguments=packing_arguments,
        policy="bf16",
        source="transformers: attention_mask.cumsum(-1) - 1 with a mask in the "
        "model's dtype",
    ),
    Fault(
        name="nanoseconds-cast-to-int32",
        kinds=("integer",),
        faulty=stamps_faulty,
        healthy=stamps_healthy,
        arguments=lambda: (
            {"in": weight(2034, 4, 16), "out": weight(2035, 16, 2)},
            uniform(2036, 40, low=0.0, high=64.0),
            normal(2037, 40, 3),
        ),
        policy="bf16",
        source="JAX without x64: int64 nanoseconds become int32; Ariane 501",
    ),
    Fault(
        name="histogram-counts-in-uint8",
        kinds=("integer",),
        faulty=histogram_faulty,
        healthy=histogram_healthy,
        arguments=histogram_arguments,
        policy="bf16",
        source="NumPy questions: np.add.at on a uint8 histogram wraps at 256",
    ),
    Fault(
        name="correct-answers-summed-in-int8",
        kinds=("integer",),
        faulty=accuracy_faulty,
        healthy=accuracy_healthy,
        arguments=accuracy_arguments,
        policy="bf16",
        source="ByteTensor.sum() of old PyTorch: accuracies above one half go wrong",
    ),
    Fault(
        name="fano-factor-by-int32-sums",
        kinds=("integer",),
        faulty=spread_faulty,
        healthy=spread_healthy,
        arguments=spread_arguments,
        policy="bf16",
        source="n * sum(x**2) - sum(x)**2 in integers: NumPy on Windows, CUDA kernels",
    ),
    Fault(
        name="binomial-by-int32-factorials",
        kinds=("integer",),
        faulty=binomial_faulty,
        healthy=binomial_healthy,
        arguments=lambda: (
            np.arange(3, 18, dtype=np.int32),
            uniform(2062, 8, low=0.2, high=0.8),
        ),
        policy="bf16",
        source="textbook exercise: 13! exceeds int32; np.math.factorial by cumprod",
    ),
    Fault(
        name="expert-and-token-in-one-fp32-key",
        kinds=("integer", "absorption", "coarse"),
        faulty=dispatch_faulty,
        healthy=dispatch_healthy,
        arguments=dispatch_arguments,
        policy="bf16",
        source="mixtures of experts: stable sort by a key packed into a float",
    ),
)
