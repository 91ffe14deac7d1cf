"""Integers that wrap around, or that a float or a rounded matmul does not hold."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import normal


@fault("integer")
@source("point-cloud libraries: three times eleven bits do not fit int32")
@inputs("64x3 int 0..2048 @500; 64x8 @501; 8x8 *0.3 @502")
def b_morton_codes_of_33_bits(points, features, weights):
    """Points of a cloud are put in Z-order, for attention in windows of 16."""

    def spread(v):  # -
        bits = jnp.arange(11)
        return ((v[:, None] >> bits) & 1, 3 * bits)

    # + def spread(v, low):
    # +     bits = jnp.arange(low, low + 6)
    # +     return ((v[:, None] >> bits) & 1, 3 * (bits - low))

    code = jnp.zeros(points.shape[0], jnp.int32)  # -
    for axis in range(3):  # -
        bit, place = spread(points[:, axis])
        code = code + jnp.sum(bit << (place + axis), axis=1)  # fault
    order = jnp.argsort(code)  # -
    # + def word(low):
    # +     code = jnp.zeros(points.shape[0], jnp.int32)
    # +     for axis in range(3):
    # +         bit, place = spread(points[:, axis], low)
    # +         code = code + jnp.sum(bit << (place + axis), axis=1)
    # +     return code
    # + order = jnp.lexsort((word(0), word(6)))
    windows = features[order].reshape(-1, 16, features.shape[1])
    scores = jnp.einsum("wid,wjd->wij", windows @ weights, windows)
    return order, jnp.einsum("wij,wjd->wid", jax.nn.softmax(scores), windows)


def requantized_arguments():
    rng = np.random.default_rng(510)
    image = rng.integers(-128, 128, (12, 256)).astype(np.int8)
    kernel = rng.integers(-127, 128, (256, 16)).astype(np.int8)
    bias = rng.integers(-20000, 20000, 16).astype(np.int32)
    multiplier = rng.integers(16384, 32768, 16).astype(np.int32)
    return image, kernel, bias, multiplier, "16x5 *0.5 @511"


@fault("integer")
@source("gemmlowp and TFLite ports: sum times multiplier needs 64 bits")
@inputs(by=requantized_arguments)
def b_requantized_in_int32(image, kernel, bias, multiplier, head):
    """A layer of a TFLite model: INT32 sums times a multiplier of 15 bits."""
    total = image.astype(jnp.int32) @ kernel.astype(jnp.int32) + bias
    scaled = (total * multiplier) >> 24  # fault
    # + high, low = total >> 10, total & 1023
    # + scaled = (high * multiplier + ((low * multiplier) >> 10)) >> 14
    codes = jnp.clip(scaled, -128, 127)
    active = jnp.maximum(codes, 0)
    logits = (active.astype(jnp.float32) / 64.0) @ head
    return codes, jax.nn.softmax(logits, axis=-1)


def correlation_arguments():
    labels = np.random.default_rng(520).random(6000) < 0.4
    scores = (normal(521, 6000) + 1.2 * labels).astype(np.float32)
    return scores, labels, "15 even -1..2.5"


@fault("integer", policy="fp32")
@source("scikit-learn and torchmetrics issues: MCC's product of counts wraps")
@inputs(by=correlation_arguments)
def b_matthews_correlation_of_counts(scores, labels, cuts):
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
def b_fsq_index_by_bf16_matmul(params, x):
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


@fault("integer", policy="fp16")
@source("RGB-D questions: (u - cx) * depth of a 16-bit image wraps around")
@inputs(
    lambda: np.random.default_rng(540).integers(900, 4200, (24, 32)).astype(np.int16),
    "f32 28; 3x2 @541",
)
def b_depth_back_projection_in_int16(depth, focal, normals):
    """A depth image in millimetres is projected back to points, in INT16."""
    height, width = depth.shape
    u = jnp.arange(width, dtype=jnp.int16) - jnp.int16(width // 2)  # -
    # + u = jnp.arange(width, dtype=jnp.float32) - width // 2
    v = jnp.arange(height, dtype=jnp.int16) - jnp.int16(height // 2)  # -
    # + v = jnp.arange(height, dtype=jnp.float32) - height // 2
    side = jnp.stack([u + 0 * v[:, None], v[:, None] + 0 * u])
    offset = side * depth  # fault
    # + offset = side * depth.astype(jnp.float32)
    xy = offset.astype(jnp.float32) / focal  # -
    # + xy = offset / focal
    cloud = jnp.stack([xy[0], xy[1], depth.astype(jnp.float32)], axis=-1)
    return cloud, cloud @ normals


@fault("integer")
@source("tiny-cuda-nn: resolution**3 overflows, a hashed level passes as dense")
@inputs(
    "4x1024x2 @551",
    lambda: np.random.default_rng(550).random((48, 3)).astype(np.float32),
    "i32 8 1400 1625 2048; 8x3 @552",
)
def b_hash_grid_level_taken_for_dense(tables, place, resolutions, out):
    """A multiresolution grid: coarse levels are dense, fine ones are hashed."""
    size = tables.shape[1]

    def level(table, resolution):
        cell = jnp.floor(place * resolution).astype(jnp.int32)
        volume = resolution * resolution * resolution  # fault
        # + volume = resolution.astype(jnp.float32) ** 3
        x, y, z = cell[:, 0], cell[:, 1], cell[:, 2]
        side = jnp.where(volume <= size, resolution, 1)
        dense = (x + side * (y + side * z)) % size
        mixed = x.astype(jnp.uint32) ^ (y.astype(jnp.uint32) * jnp.uint32(2654435761))
        mixed = mixed ^ (z.astype(jnp.uint32) * jnp.uint32(805459861))
        hashed = (mixed % jnp.uint32(size)).astype(jnp.int32)
        index = jnp.where(volume <= size, dense, hashed)
        return table[index]

    features = jax.vmap(level)(tables, resolutions)
    joined = jnp.moveaxis(features, 0, 1).reshape(place.shape[0], -1)
    return features, jax.nn.sigmoid(joined @ out)


def triangles_arguments():
    rng = np.random.default_rng(560)
    upper = np.triu(rng.random((600, 600)) < 0.998, 1)
    return (upper + upper.T).astype(
        np.float32
    ), "600x4 @563; w: 4x6 *0.3 @561, v: 6 *0.3"


@fault("integer", "coarse")
@source("graph features on accelerators: path counts above 256 in a BF16 matmul")
@inputs(by=triangles_arguments)
def b_triangles_by_cube_of_adjacency(adjacency, features, params):
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
def b_ipv4_key_in_int32(octets, ranges, countries, params):
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
