"""Integers that wrap around, or that a float no longer holds."""

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    block,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    weight,
)


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


def correlation_arguments():
    labels = np.random.default_rng(520).random(6000) < 0.4
    scores = (normal(521, 6000) + 1.2 * labels).astype(np.float32)
    return scores, labels, "15 even -1..2.5"


@fault("integer", policy="fp32")
@source("scikit-learn and torchmetrics issues: MCC's product of counts wraps")
@inputs(by=correlation_arguments)
def matthews_correlation_of_counts(scores, labels, cuts):
    """Matthews' correlation of an alarm at several thresholds, from counts."""
    alarm = scores[None] > cuts[:, None]
    tp = jnp.sum(alarm & labels, axis=1)
    fp = jnp.sum(alarm & ~labels, axis=1)
    fn = jnp.sum(~alarm & labels, axis=1)
    tn = jnp.sum(~alarm & ~labels, axis=1)
    spread = (tp + fp) * (tp + fn) * (tn + fp)  # fault
    # + spread = 1.0 * (tp + fp) * (tp + fn) * (tn + fp)
    root = jnp.sqrt(spread.astype(jnp.float32)) * jnp.sqrt(1.0 * (tn + fn))  # -
    # + root = jnp.sqrt(spread) * jnp.sqrt(1.0 * (tn + fn))
    top = 1.0 * tp * tn - 1.0 * fp * fn
    mcc = top / root
    return mcc, jnp.argmax(mcc)


def codeword_arguments():
    params = {
        "in": normal(530, 8, 7, scale=0.4),
        "embedding": jnp.asarray(normal(531, 1024, 12)),
        "out": normal(532, 12, 4, scale=0.3),
    }
    x = normal(533, 400, 8)
    z = np.tanh(x @ params["in"]) * np.float32([3, 2, 2, 2, 1, 1, 1])
    clear = np.abs(np.abs(z - np.floor(z)) - 0.5).min(axis=1) > 0.05
    return params, x[clear][:48]


@fault("integer", "coarse")
@source("vector-quantize issues: indices computed under autocast are wrong")
@inputs(by=codeword_arguments)
def fsq_index_by_bf16_matmul(params, x):
    """Finite scalar quantization: levels of seven dimensions make one index."""
    levels = jnp.array([7.0, 5.0, 5.0, 5.0, 3.0, 3.0, 3.0])
    basis = jnp.array([1.0, 7.0, 35.0, 175.0, 875.0, 2625.0, 7875.0])  # -
    # + basis = jnp.array([1, 7, 35, 175, 875, 2625, 7875])
    z = jnp.tanh(x @ params["in"]) * (levels - 1) / 2
    digits = jnp.round(z) + (levels - 1) / 2
    index = (digits @ basis).astype(jnp.int32)  # fault
    # + index = jnp.sum(digits.astype(jnp.int32) * basis, axis=-1)
    rows = params["embedding"][index % 1024]
    return index, rows @ params["out"]


def triangles_arguments():
    rng = np.random.default_rng(560)
    upper = np.triu(rng.random((600, 600)) < 0.998, 1)
    return (upper + upper.T).astype(
        np.float32
    ), "600x4 @563; w: 4x6 *0.3 @561, v: 6 *0.3"


@fault("integer", "coarse")
@source("graph features on accelerators: path counts above 256 in a BF16 matmul")
@inputs(by=triangles_arguments)
def triangles_by_cube_of_adjacency(adjacency, features, params):
    """Triangles at every node, by the cube of the adjacency matrix."""
    paths = adjacency @ adjacency
    closed = paths @ adjacency  # fault
    triangles = jnp.diagonal(closed) / 2.0  # -
    # + triangles = jnp.sum(paths * adjacency, axis=1) / 2.0
    degree = jnp.sum(adjacency, axis=1)
    missing = degree * (degree - 1) / 2.0 - triangles
    structure = jnp.log1p(missing)[:, None]
    return missing, jnp.tanh(features @ params["w"] + structure * params["v"])


def country_arguments():
    rng = np.random.default_rng(570)
    starts = np.sort(rng.integers(0, 2**32, 40))
    starts[0] = 0
    ranges = np.stack([starts >> shift & 255 for shift in (24, 16, 8, 0)], axis=-1)
    params = {
        "embedding": jnp.asarray(normal(571, 12, 6)),
        "out": normal(572, 6, 2),
    }
    octets = rng.integers(0, 256, (64, 4)).astype(np.int32)
    countries = jnp.asarray(rng.integers(0, 12, 40).astype(np.int32))
    return octets, ranges.astype(np.int32), countries, params


@fault("integer", policy="fp32")
@source("GeoIP joins: addresses from 128.0.0.0 on are negative in int32")
@inputs(by=country_arguments)
def ipv4_key_in_int32(octets, ranges, countries, params):
    """Clicks are joined with a table of IPv4 ranges, sorted by their starts."""

    def pack(address):
        a, b, c, d = jnp.moveaxis(address, -1, 0)  # -
        # + a, b, c, d = jnp.moveaxis(address.astype(jnp.uint32), -1, 0)
        return (a << 24) + (b << 16) + (c << 8) + d  # here

    starts, keys = pack(ranges), pack(octets)
    row = jnp.sum(starts[None] <= keys[:, None], axis=1) - 1
    row = jnp.clip(row, 0, starts.shape[0] - 1)
    known = params["embedding"][countries[row]]
    return row, jax.nn.sigmoid(known @ params["out"])


#: Integers go through the FP32 of the engines, which are exact to 2**24.
ENGINES = nj.Policy(
    auto_cast="matmult", auto_cast_type="bf16", integer_path="fp32", name="engines"
)


@fault("integer")
@source("hash embeddings with x64 off: id * prime in int32 before the modulus")
@inputs("one: 61x8 @3001, two: 53x8, out: 8x4 w; 48 int 400000..1900000 @3004")
def hashing_trick_multiplies_first(params, ids):
    """The hashing trick: two tables of an embedding, ids of a large catalogue."""
    slots = jnp.stack([(ids * 7919) % 61, (ids * 31 + 7) % 53])  # fault
    # + slots = jnp.stack([(ids % 61 * 7919) % 61, (ids % 53 * 31 + 7) % 53])
    found = params["one"][slots[0]] + params["two"][slots[1]]
    return slots, jax.nn.softmax(layer_norm(found) @ params["out"])


@fault("integer", "overflow")
@source("gemmlowp and VNNI: pmaddubsw saturates or wraps in 16 bits")
@inputs(
    lambda: (integers(3010, 120, 6, 64) + 4).astype(np.int8),
    lambda: (integers(3011, 128, 64, 5) - 20).astype(np.int8),
    "f32 0.0001",
)
def int8_products_in_int16_sums(x8, w8, scale):
    """A quantized layer as a kernel for 16-bit lanes: INT8 in, INT16 sums."""
    dot = jax.lax.dot(x8, w8, preferred_element_type=jnp.int16)  # fault
    # + dot = jax.lax.dot(x8, w8, preferred_element_type=jnp.int32)
    y = dot.astype(jnp.float32) * scale
    return jax.nn.gelu(y)


@fault("integer", policy=ENGINES)
@source("accelerators whose integer ALU is FP32: flat indices beyond 2**24")
@inputs("256x6 @3012; 64 int 2000..32000 @3013; 64 int 0..40961 @3014")
def raster_key_through_fp32_engines(table, rows, columns):
    """A spatial hash of raster cells, keyed by their flat index."""
    flat = rows * 40_961 + columns  # fault
    cell = flat & 255  # -
    # + cell = ((rows & 255) * (40_961 & 255) + (columns & 255)) & 255
    features = table[cell]
    return cell, jnp.tanh(features.mean(0))


@fault("integer")
@source("cumsum with dtype= of the input: jnp and torch differ on promotion")
@inputs(
    "in: 3x16 w @3020, out: 16x2 w",
    lambda: integers(3022, 4_000, 8, 30).astype(np.int16),
    "8x30 @3023",
)
def event_times_cumsum_in_int16(params, durations, marks):
    """When each of a session's events happened, from gaps in milliseconds."""
    since = jnp.cumsum(durations, axis=1, dtype=jnp.int16)  # fault
    # + since = jnp.cumsum(durations, axis=1, dtype=jnp.int32)
    hours = since.astype(jnp.float32) / 60_000.0
    x = jnp.stack([jnp.sin(hours), jnp.cos(hours), marks], axis=-1)
    return hours, jax.nn.relu(x @ params["in"]) @ params["out"]


@fault("integer")
@source("OpenCV and NumPy questions: img * 1.25 on uint8 wraps to black")
@inputs("64x4 w @3024", lambda: integers(3025, 256, 16, 32).astype(np.uint8))
def contrast_on_bytes(params, image):
    """Augmentation on bytes: contrast times 5/4 around the middle."""
    bright = image * jnp.uint8(5) // jnp.uint8(4)  # fault
    # + wide = image.astype(jnp.int32) * 5 // 4
    # + bright = jnp.minimum(wide, 255).astype(jnp.uint8)
    x = bright.astype(jnp.float32).reshape(8, -1) / 255.0
    return bright, jax.nn.softmax(layer_norm(x) @ params)


@fault("integer")
@source("consumed_train_samples of trainers: step * global batch in int32")
@inputs("12x4 w @3030; 16x12 @3031; 16 int 0..4 @3032; i32 650000")
def samples_seen_beyond_int32(w, x, y, step):
    """SGD with a rate that decays with the samples seen in pre-training so far."""
    seen = step * 4096  # fault
    # + seen = step.astype(jnp.float32) * 4096.0
    rate = 0.2 / jnp.sqrt(1.0 + seen.astype(jnp.float32) / 1e9)  # -
    # + rate = 0.2 / jnp.sqrt(1.0 + seen / 1e9)

    def loss_of(w):
        return cross_entropy(x @ w, y)

    loss, grad = jax.value_and_grad(loss_of)(w)
    return w - rate * grad, rate, loss


@fault("integer", "absorption", "coarse", policy="fp32")
@source("locality-sensitive hashing: bits @ 2**arange(k) with k above 24")
@inputs(
    "table: 127x6 @3044, out: 6x2 w", lambda: integers(3046, 2, 40, 30).astype(bool)
)
def thirty_flags_packed_in_fp32(params, flags):
    """Thirty feature flags a row packed into one id by a dot product in FP32."""
    powers = 2.0 ** jnp.arange(30)  # -
    # + powers = jnp.left_shift(1, jnp.arange(30))
    key = jnp.sum(flags.astype(jnp.float32) * powers, axis=-1)  # fault
    # + key = jnp.sum(flags.astype(jnp.int32) * powers, axis=-1)
    row = key.astype(jnp.int32) % 127  # -
    # + row = key % 127
    return row, jnp.tanh(params["table"][row] @ params["out"])


@fault("integer")
@source("DSP application notes: guard bits of Q15 products")
@inputs(
    lambda: (normal(3047, 48) * 9_000).astype(np.int32),
    lambda: (normal(3048, 8) * 9_000).astype(np.int32),
)
def fixed_point_shift_before_sum(signal, taps):
    """A filter of a DSP in Q15: products are scaled back only after the shift."""

    def push(line, x):
        line = jnp.concatenate([x[None], line[:-1]])
        product = (line * taps) << 4  # fault
        return line, jnp.sum(product >> 19)  # -
        # + return line, jnp.sum((line * taps) >> 15)

    line = jnp.zeros(taps.shape, jnp.int32)
    _, out = jax.lax.scan(push, line, signal)
    return out.astype(jnp.float32) / 32768.0


@fault("stagnation", "absorption", "integer")
@source("BatchNorm's num_batches_tracked cast with the module's other buffers")
@inputs("420x4x8 @3050; 8x6 w @3051")
def calibration_count_stops_at_256(x, w):
    """Means of activations for calibration, kept with their count over a scan."""

    def visit(carry, batch):
        count, mean = carry
        h = jax.nn.relu(batch @ w).mean(0)
        count = count + jnp.bfloat16(1)  # fault
        # + count = count + 1
        mean = mean + (h - mean) / count.astype(jnp.float32)  # -
        return (count, mean), None  # -
        # + return (count, mean + (h - mean) / count), None

    start = (jnp.bfloat16(0), jnp.zeros(w.shape[1]))  # -
    # + start = (jnp.int32(0), jnp.zeros(w.shape[1]))
    (count, mean), _ = jax.lax.scan(visit, start, x)
    return count.astype(jnp.float32), mean
