"""Integers: wrapped products and sums, indices, hashes, ids in floats."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    block,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    weight,
)


@fault("integer")
@source("graph libraries: source * n + target in int32; JAX's sparse reshape")
@inputs(
    "64x16 @594; w: 16x16 w @595, out: 16x3 w; 48 int 0..90000 @597; "
    "48 int 0..90000 @598; i32 90000"
)
def edge_keys_wrap_around(features, params, sources, targets, nodes):
    """Sorts the edges of a graph by one key and reads the sources back."""
    key = sources * nodes + targets  # fault
    order = jnp.argsort(key)  # -
    # + order = jnp.lexsort((targets, sources))
    ordered = key[order]  # -
    first = ordered // nodes  # -
    second = ordered - first * nodes  # -
    # + first, second = sources[order], targets[order]
    h = jnp.tanh(features @ params["w"])
    message = h[first % 64] - h[second % 64]
    return first, second, message @ params["out"]


@fault("integer", "coarse")
@source("JAX issue on bfloat16(1329); batches cast as a whole, ids included")
@inputs("embed: 600x16 @560, body: block 16, head: 16x8 w @571; 24 int 300..600 @572")
def token_ids_through_bf16(params, tokens):
    """A model cast to BF16 with all its inputs, token ids too."""
    ids = tokens.astype(jnp.bfloat16)  # fault
    x = params["embed"][ids.astype(jnp.int32)]  # -
    # + x = params["embed"][tokens].astype(jnp.bfloat16).astype(jnp.float32)
    x = block(params["body"], x)
    return layer_norm(x) @ params["head"]


def motion_arguments():
    before = integers(573, 220, 32, 32) + 18
    now = before + integers(574, 30, 32, 32) - 15
    return before.astype(np.uint8), now.astype(np.uint8), "w: 64x4 w @575, b: 4"


@fault("integer")
@source("OpenCV and NumPy questions: a - b of uint8 images wraps around")
@inputs(by=motion_arguments)
def frame_difference_in_uint8(before, now, params):
    """Motion between two frames of a camera."""
    change = now - before  # fault
    # + change = now.astype(jnp.int32) - before.astype(jnp.int32)
    moved = change.astype(jnp.float32) / 255.0
    energy = (moved * moved).reshape(8, 4, 8, 4).mean((1, 3)).reshape(-1)
    return energy, jax.nn.sigmoid(energy @ params["w"] + params["b"])


def product_arguments():
    w = weight(577, 32, 24)
    scale = np.abs(w).max(0) / 127.0
    codes = np.round(w / scale).astype(np.int8)
    return {"codes": codes, "scale": scale, "out": weight(578, 24, 4)}, "16x32 @579"


@fault("integer")
@source("quantized inference by hand: int8 * int8 stays int8 in NumPy and JAX")
@inputs(by=product_arguments)
def int8_products_in_int8(params, x):
    """An int8 layer whose products are added up by hand."""
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127.0
    codes = jnp.round(x / scale).astype(jnp.int8)
    terms = codes[:, :, None] * params["codes"]  # fault
    # + terms = codes[:, :, None].astype(jnp.int32) * params["codes"].astype(jnp.int32)
    total = jnp.sum(terms.astype(jnp.int32), axis=1)  # -
    # + total = jnp.sum(terms, axis=1)
    y = total.astype(jnp.float32) * scale * params["scale"]
    return jax.nn.relu(y) @ params["out"]


@fault("integer")
@source("audio meters: sums of squares of int16 samples overflow int32")
@inputs(
    lambda: np.clip(
        normal(580, 8192) * np.repeat(np.linspace(500, 9000, 16), 512), -32768, 32767
    ).astype(np.int16),
    "4x3 w @581",
)
def audio_power_in_int32(samples, params):
    """The loudness of 16-bit audio in windows."""
    x = samples.astype(jnp.int32).reshape(16, 512)  # -
    # + x = samples.astype(jnp.float32).reshape(16, 512) / 32768.0
    power = jnp.sum(x * x, axis=-1)  # fault
    level = power.astype(jnp.float32) / (512 * 32768.0**2)  # -
    # + level = jnp.sum(x * x, axis=-1) / 512
    decibels = 10 * jnp.log10(jnp.maximum(level, 1e-9))
    return decibels, jax.nn.softmax((decibels / 10).reshape(4, 4) @ params)


@fault("integer")
@source("Bloch, Nearly All Binary Searches and Mergesorts are Broken")
@inputs(
    "start: i32 1600000000, stop: i32 1800000000, out: 8x2 w @587; 8 *0.01 @589",
    lambda: (integers(588, 190_000_000, 16) + np.int32(1_601_000_000)).astype(np.int32),
)
def midpoint_of_large_bounds(params, stamps, wanted):
    """Binary search for many moments in a table of times, then interpolation."""

    def find(moment):
        def halve(bounds, _):
            low, high = bounds
            middle = (low + high) // 2  # fault
            # + middle = low + (high - low) // 2
            right = middle <= moment
            low, high = jnp.where(right, middle, low), jnp.where(right, high, middle)
            return (low, high), None

        bounds = (params["start"], params["stop"])
        (low, _), _ = jax.lax.scan(halve, bounds, None, length=32)
        return low

    found = jax.vmap(find)(wanted)
    age = (found - params["start"]).astype(jnp.float32) / 1e6
    return found, jnp.sin(age[:, None] * stamps) @ params["out"]


@fault("integer")
@source("Park and Miller, Random Number Generators: Good Ones Are Hard to Find")
@inputs(
    "x: 16x24 @590, w: 24x32 w, out: 32x4 w",
    lambda: integers(593, 10**6, 16) + np.int32(10**6),
)
def park_miller_without_schrage(params, seeds):
    """Dropout masks from Park and Miller's generator, one stream per row."""
    modulus = 2147483647  # -
    # + modulus, a = 2147483647, 48271
    # + quotient, rest = modulus // a, modulus % a

    def draw(state, _):
        state = (state * 48271) % modulus  # fault
        # + high, low = state // quotient, state % quotient
        # + state = a * low - rest * high
        # + state = jnp.where(state < 0, state + modulus, state)
        return state, state

    _, states = jax.lax.scan(draw, seeds, None, length=32)
    u = states.T.astype(jnp.float32) / modulus
    h = jnp.tanh(params["x"] @ params["w"])
    kept = jnp.where(u < 0.8, h / 0.8, 0.0)
    return states[-1], kept @ params["out"]


@fault("integer")
@source("image pyramids: (a + b) / 2 of uint8 arrays in NumPy, PIL questions")
@inputs(
    "in: 16x24 w @2002, out: 24x5 w",
    lambda: (integers(2001, 140, 32, 32) + 100).astype(np.uint8),
)
def mipmap_average_in_uint8(params, image):
    """Two levels of a mip-map of 8-bit grey values, then a small classifier."""

    def halve(level):
        rows = level[0::2] // 2 + level[1::2] // 2
        total = rows[:, 0::2] + rows[:, 1::2]  # fault
        # + total = rows[:, 0::2].astype(jnp.uint16) + rows[:, 1::2].astype(jnp.uint16)
        return total // 2  # -
        # + return (total // 2).astype(jnp.uint8)

    small = halve(halve(image))
    x = small.astype(jnp.float32).reshape(-1, 16) / 255.0
    h = jax.nn.relu(x @ params["in"])
    return small, jax.nn.softmax(h @ params["out"])


@fault("integer")
@source("rolling hashes: h * base + c overflows before the modulus is taken")
@inputs("table: 64x12 @2004, out: 12x3 w; 12x40 int 0..128 @2006")
def rabin_fingerprint_in_int32(params, text):
    """Rabin's fingerprints of documents modulo a prime, as rows of an embedding."""
    base, prime = 65599, 999983

    def push(state, letters):
        state = (state * base + letters) % prime  # fault
        # + high, low = state // 1024, state % 1024
        # + shifted = (base * high) % prime * 1024
        # + state = (shifted + base * low + letters) % prime
        return state, state % 64

    start = jnp.zeros(text.shape[0], jnp.int32)
    last, rows = jax.lax.scan(push, start, text.T)
    bag = params["table"][rows].mean(0)
    return last, jnp.tanh(bag @ params["out"])


def voxels_arguments():
    corners = integers(2010, 39, 24, 3)
    corners[:12, 0] = 39 - corners[:12, 0] // 5
    return "in: 8x16 w @2011, out: 16x3 w; 40x40x40 0..1 @2013", corners.astype(
        np.int16
    )


@fault("integer")
@source("ravel_multi_index by hand: sparse convolutions with short coordinates")
@inputs(by=voxels_arguments)
def voxel_index_in_int16(params, grid, corners):
    """Looks up the eight corners around points of a volume of 40^3 voxels."""
    n = 40
    offsets = jnp.array([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    at = jnp.minimum(corners[:, None] + offsets.astype(jnp.int16), n - 1)
    flat = (at[..., 0] * n + at[..., 1]) * n + at[..., 2]  # fault
    # + wide = at.astype(jnp.int32)
    # + flat = (wide[..., 0] * n + wide[..., 1]) * n + wide[..., 2]
    density = grid.reshape(-1)[flat.astype(jnp.int32)]  # -
    # + density = grid.reshape(-1)[flat]
    h = jax.nn.relu(density @ params["in"])
    return density, h @ params["out"]


def tokens_arguments():
    x = normal(2014, 60, 16, 8)
    y = np.tanh(x @ weight(2015, 8, 2))
    lengths = integers(2016, 7, 60) * 2 + np.int32(1)
    return "8x2 w @2017; i32 268435456", x, y, lengths.astype(np.int32)


@fault("integer", "absorption", "stagnation")
@source("training logs: counts of tokens in float metrics beyond 2**24")
@inputs(by=tokens_arguments)
def tokens_seen_counter_in_fp32(w, total, x, y, lengths):
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
        return (w, total), None  # -
        # + return (w, total + length), None

    start = (w, total.astype(jnp.float32))  # -
    (w, after), _ = jax.lax.scan(step, start, (x, y, lengths))  # -
    # + (w, after), _ = jax.lax.scan(step, (w, total), (x, y, lengths))
    return w, after.astype(jnp.int32), after.astype(jnp.int32) - total  # -
    # + return w, after, after - total


def join_arguments():
    users = np.arange(987_654_001, 987_654_033, dtype=np.int32)
    purchases = users[integers(2020, 32, 80)]
    return "w: 2x3 w @2021, b: 3", users, purchases, "80 1..60 @2023"


@fault("integer", "coarse")
@source("pandas and Spark: id columns with missing values turn into floats")
@inputs(by=join_arguments)
def user_ids_join_as_fp32(params, users, purchases, amounts):
    """Spending per user: a join of two tables whose id columns became floats."""
    left, right = (ids.astype(jnp.float32) for ids in (users, purchases))  # fault
    match = left[:, None] == right[None, :]  # -
    # + match = users[:, None] == purchases[None, :]
    spent = jnp.sum(jnp.where(match, amounts, 0.0), axis=1)
    count = match.sum(1)
    x = jnp.stack([jnp.log1p(spent), spent / jnp.maximum(count, 1)], axis=-1)
    return spent, count, jax.nn.sigmoid(x @ params["w"] + params["b"])


@fault("integer", "coarse", "stagnation")
@source("transformers: attention_mask.cumsum(-1) - 1 with a mask in the model's dtype")
@inputs(
    "places: 448x8 @2030, query: 8 *0.3, out: 8x4 w; 448x8 *0.3 @2033",
    lambda: np.arange(448) >= 13,
)
def position_ids_from_bf16_mask(params, x, mask):
    """Position ids of a left-padded prompt from its attention mask, cast too early."""
    seen = mask.astype(jnp.bfloat16)  # -
    places = jnp.cumsum(seen) - 1  # fault
    # + places = jnp.cumsum(mask.astype(jnp.int32)) - 1
    ids = jnp.maximum(places, 0).astype(jnp.int32)  # -
    # + ids = jnp.maximum(places, 0)
    x = x + params["places"][ids]
    scores = jnp.where(mask, x @ params["query"], -jnp.inf)
    return ids, jax.nn.softmax(scores) @ layer_norm(x) @ params["out"]


@fault("integer")
@source("JAX without x64: int64 nanoseconds become int32; Ariane 501")
@inputs("in: 4x16 w @2034, out: 16x2 w; 40 0..64 @2036; 40x3 @2037")
def nanoseconds_cast_to_int32(params, seconds, marks):
    """Event times in seconds become integer nanoseconds for a joint sort."""
    nanos = jnp.round(seconds * 1e9).astype(jnp.int32)  # fault
    order = jnp.argsort(nanos)  # -
    # + whole = jnp.floor(seconds)
    # + part = jnp.round((seconds - whole) * 1e9).astype(jnp.int32)
    # + order = jnp.lexsort((part, whole.astype(jnp.int32)))
    gaps = jnp.diff(nanos[order]).astype(jnp.float32) / 1e9  # -
    # + late, early = order[1:], order[:-1]
    # + gaps = (whole[late] - whole[early]) + (part[late] - part[early]) / 1e9
    x = jnp.concatenate([gaps[:, None], marks[order][1:]], axis=1)
    return gaps, jax.nn.gelu(x @ params["in"]) @ params["out"]


@fault("integer")
@source("NumPy questions: np.add.at on a uint8 histogram wraps at 256")
@inputs(
    "w: 128x4 w @2041",
    lambda: np.clip(normal(2040, 1024, scale=11.0, shift=120.0), 0, 255).astype(
        np.uint8
    ),
)
def histogram_counts_in_uint8(params, image):
    """Equalizes an image by a histogram whose bins are bytes, like the pixels."""
    bins = jnp.zeros(32, jnp.uint8)  # -
    # + bins = jnp.zeros(32, jnp.int32)
    counts = bins.at[image // 8].add(jnp.uint8(1))  # fault
    # + counts = bins.at[image // 8].add(1)
    share = counts.astype(jnp.float32) / image.size
    level = jnp.cumsum(share)
    equal = level[image // 8].reshape(8, -1)
    return counts.astype(jnp.int32), jnp.tanh(equal @ params["w"])  # -
    # + return counts, jnp.tanh(equal @ params["w"])


def accuracy_arguments():
    params = {"in": weight(2050, 12, 32, 2.0), "out": weight(2051, 32, 3, 2.0)}
    x = normal(2052, 240, 12)
    logits = np.maximum(x @ params["in"], 0) @ params["out"]
    labels = np.argmax(logits + normal(2053, 240, 3, scale=0.3), -1)
    return params, x, labels.astype(np.int32)


@fault("integer")
@source("ByteTensor.sum() of old PyTorch: accuracies above one half go wrong")
@inputs(by=accuracy_arguments)
def correct_answers_summed_in_int8(params, x, labels):
    """A step on a classifier that also reports accuracy and recall of a class."""

    def loss_of(params):
        logits = jax.nn.relu(x @ params["in"]) @ params["out"]
        return cross_entropy(logits, labels), logits

    (loss, logits), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    right = (jnp.argmax(logits, -1) == labels).astype(jnp.int8)
    hits = jnp.sum(right, dtype=jnp.int8)  # fault
    # + hits = jnp.sum(right, dtype=jnp.int32)
    accuracy = hits.astype(jnp.float32) / labels.size
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params, loss, accuracy


def spread_arguments():
    rng = np.random.default_rng(2060)
    rates = rng.gamma(2.0, np.linspace(100, 1600, 32), (64, 32))
    return "8x3 w @2061", rng.poisson(rates).astype(np.int32)


@fault("integer")
@source("n * sum(x**2) - sum(x)**2 in integers: NumPy on Windows, CUDA kernels")
@inputs(by=spread_arguments)
def fano_factor_by_int32_sums(params, counts):
    """Dispersion of photon counts per pixel, with exact integer sums."""
    n = counts.shape[0]
    first = jnp.sum(counts, axis=0)  # -
    second = jnp.sum(counts * counts, axis=0)  # -
    numerator = n * second - first * first  # fault
    variance = numerator.astype(jnp.float32) / (n * (n - 1))  # -
    # + x = counts.astype(jnp.float32)
    # + mean = x.mean(0)
    # + variance = jnp.sum((x - mean) ** 2, axis=0) / (n - 1)
    fano = variance / (first.astype(jnp.float32) / n)  # -
    # + fano = variance / mean
    return fano, jax.nn.softmax(jnp.log(fano).reshape(4, 8) @ params)


@fault("integer")
@source("textbook exercise: 13! exceeds int32; np.math.factorial by cumprod")
@inputs(np.arange(3, 18, dtype=np.int32), "8 0.2..0.8 @2062")
def binomial_by_int32_factorials(wins, p):
    """Likelihoods of wins in twenty games, with factorials from a product."""
    n = 20
    table = jnp.concatenate([jnp.ones(1, jnp.int32), jnp.arange(1, n + 1)])  # -
    factorial = jnp.cumprod(table)  # fault
    ways = factorial[n] // (factorial[wins] * factorial[n - wins])  # -
    # + steps = jnp.arange(1, n + 1)
    # + ratios = (n + 1 - steps).astype(jnp.float32) / steps
    # + ways = jnp.concatenate([jnp.ones(1), jnp.cumprod(ratios)])[wins]
    chance = p[:, None] ** wins * (1 - p[:, None]) ** (n - wins)
    likelihood = ways.astype(jnp.float32) * chance  # -
    # + likelihood = jnp.round(ways) * chance
    return likelihood, jnp.log(jnp.maximum(likelihood, 1e-30)).sum(1)


@fault("integer", "absorption", "coarse")
@source("mixtures of experts: stable sort by a key packed into a float")
@inputs("router: 8x16 w*3 @2070, w: 16x8x8; 48x8 @2072")
def expert_and_token_in_one_fp32_key(params, x):
    """Groups tokens by expert: one float key holds expert and token, then is split."""
    logits = x @ params["router"]
    expert = jnp.argmax(logits, -1)
    token = jnp.arange(x.shape[0])
    key = expert.astype(jnp.float32) * 4194304.0 + token  # fault
    ordered = jnp.sort(key)  # -
    group = jnp.floor(ordered / 4194304.0)  # -
    source = (ordered - group * 4194304.0).astype(jnp.int32)  # -
    # + source = jnp.lexsort((token, expert))
    # + group = expert[source]
    gate = jnp.take_along_axis(jax.nn.softmax(logits), expert[:, None], 1)[source]
    rows = jnp.einsum(
        "td,tdf->tf", x[source], params["w"][group.astype(jnp.int32)]
    )  # -
    # + rows = jnp.einsum("td,tdf->tf", x[source], params["w"][group])
    return source, jnp.zeros(rows.shape).at[source].add(gate * jax.nn.silu(rows))
