"""Faults of linear algebra, of loops that count in floats, of quantizers' scales."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import integers, layer_norm, normal, uniform, weight
from benchmarks.faults.seen.serving import case


def gaussian_faulty(x, y, new):
    """A Gaussian process on near points without a jitter."""
    gap = x[:, None] - x[None]
    kernel = jnp.exp(-0.5 * gap**2)
    factor = jnp.linalg.cholesky(kernel)  # fault
    half = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
    weights = jax.scipy.linalg.solve_triangular(factor.T, half)
    return jnp.exp(-0.5 * (new[:, None] - x) ** 2) @ weights


def gaussian_healthy(x, y, new):
    gap = x[:, None] - x[None]
    kernel = jnp.exp(-0.5 * gap**2) + 0.1 * jnp.eye(x.size)
    factor = jnp.linalg.cholesky(kernel)
    half = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
    weights = jax.scipy.linalg.solve_triangular(factor.T, half)
    return jnp.exp(-0.5 * (new[:, None] - x) ** 2) @ weights


def inverse_faulty(points, offset):
    """Barycentric coordinates by a determinant, far from the origin."""
    a, b, c = points[:, 0], points[:, 1], points[:, 2]
    cross = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
    area = cross + b[:, 0] * c[:, 1] - b[:, 1] * c[:, 0]
    area = area + c[:, 0] * a[:, 1] - c[:, 1] * a[:, 0]  # fault
    return area / offset


def inverse_healthy(points, offset):
    a, b, c = points[:, 0], points[:, 1], points[:, 2]
    u, v = b - a, c - a
    return (u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]) / offset


def inverse_arguments():
    corner = np.array([3000.0, 7000.0], np.float32)
    steps = np.round(normal(8001, 20, 3, 2, scale=4.0) * 8) / 8
    return corner + steps.astype(np.float32), np.float32(2.0)


def euler_faulty(x, rate):
    """Steps of a tenth until one, whose time is counted in BF16."""

    def wants(state):
        return state[0] < 1.0

    def step(state):
        t, y, n = state
        t = (t + 0.01).astype(jnp.bfloat16)  # fault
        return t, y - 0.01 * rate * y, n + 1

    start = (jnp.bfloat16(0), x, 0)
    _, y, n = jax.lax.while_loop(wants, step, start)
    return y, n


def euler_healthy(x, rate):
    def step(n, y):
        return y - 0.01 * rate * y

    return jax.lax.fori_loop(0, 100, step, x), jnp.int32(100)


def lengths_faulty(params, x, lengths):
    """Masks of long sequences from lengths in BF16."""
    ends = lengths.astype(jnp.bfloat16)  # fault
    keep = jnp.arange(x.shape[1]).astype(jnp.float32) < ends[:, None]
    total = (x * keep[..., None]).sum(1)
    return keep.sum(1), layer_norm(total) @ params


def lengths_healthy(params, x, lengths):
    keep = jnp.arange(x.shape[1]) < lengths[:, None]
    total = (x * keep[..., None]).sum(1)
    return keep.sum(1), layer_norm(total) @ params


def zero_faulty(params, codes, zero):
    """Dequantizing bytes: the zero point is taken off before the conversion."""
    shifted = codes - zero  # fault
    w = shifted.astype(jnp.float32) * params["scale"]
    return params["x"] @ w


def zero_healthy(params, codes, zero):
    w = (codes.astype(jnp.float32) - zero.astype(jnp.float32)) * params["scale"]
    return params["x"] @ w


def requantized_faulty(accumulator, multiplier, params):
    """An accumulator scaled by a fixed-point factor of fifteen bits."""
    scaled = (accumulator * multiplier) >> 15  # fault
    codes = jnp.clip(scaled, -128, 127)
    return codes, codes.astype(jnp.float32) @ params


def requantized_healthy(accumulator, multiplier, params):
    factor = multiplier.astype(jnp.float32) / 32768.0
    scaled = jnp.floor(accumulator.astype(jnp.float32) * factor)
    codes = jnp.clip(scaled, -128, 127).astype(jnp.int32)
    return codes, codes.astype(jnp.float32) @ params


def wide_scale_faulty(params, x, amax):
    """INT8 codes by a scale that was taken before the norm was added."""
    h = layer_norm(x @ params["in"])
    codes = jnp.clip(jnp.round(h * (127.0 / amax)), -127, 127)  # fault
    stored = codes.astype(jnp.int8)
    return (stored.astype(jnp.float32) * (amax / 127.0)) @ params["out"]


def wide_scale_healthy(params, x, amax):
    h = layer_norm(x @ params["in"])
    amax = jnp.max(jnp.abs(h))
    codes = jnp.clip(jnp.round(h * (127.0 / amax)), -127, 127)
    stored = codes.astype(jnp.int8)
    return (stored.astype(jnp.float32) * (amax / 127.0)) @ params["out"]


def weights_scale_faulty(state, x, y):
    """The scale of FP8 weights is kept over the first large step."""

    def loss_of(w):
        return jnp.mean((x @ w - y) ** 2)

    w = state["w"] - 2.0 * jax.grad(loss_of)(state["w"])
    scale = state["scale"]
    w8 = jnp.clip(w * scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # fault
    return w, x @ (w8.astype(jnp.float32) / scale)


def weights_scale_healthy(state, x, y):
    def loss_of(w):
        return jnp.mean((x @ w - y) ** 2)

    w = state["w"] - 2.0 * jax.grad(loss_of)(state["w"])
    scale = 240.0 / jnp.max(jnp.abs(w))
    w8 = jnp.clip(w * scale, -240.0, 240.0).astype(jnp.float8_e4m3)
    return w, x @ (w8.astype(jnp.float32) / scale)


def weights_scale_arguments():
    w, x = 0.1 * weight(8020, 16, 8), normal(8021, 64, 16)
    state = {"w": w, "scale": np.float32(240.0 / np.abs(w).max())}
    return state, x, x @ weight(8022, 16, 8, 4.0)


def pooled_faulty(image, params):
    """Means of large windows of bytes, added up in 16 bits."""
    tall = image.astype(jnp.uint16).reshape(2, 32, 2, 32)
    total = jnp.sum(tall, axis=(1, 3), dtype=jnp.uint16)  # fault
    return (total // 1024).astype(jnp.float32).reshape(-1) @ params


def pooled_healthy(image, params):
    tall = image.astype(jnp.int32).reshape(2, 32, 2, 32)
    total = jnp.sum(tall, axis=(1, 3))
    return (total // 1024).astype(jnp.float32).reshape(-1) @ params


def bigram_faulty(counts, left, right):
    """Frequencies of pairs of tokens by a key of both."""
    key = left * 50_000 + right  # fault
    return counts[jnp.abs(key) % 997] / counts.sum()


def bigram_healthy(counts, left, right):
    key = (left % 997) * (50_000 % 997) + right % 997
    return counts[key % 997] / counts.sum()


def spectrum_faulty(signal, params):
    """Power in decibels of a quiet band beside a loud one, kept in half."""
    power = jnp.abs(jnp.fft.rfft(signal)) ** 2
    kept = power.astype(jnp.float16)  # fault
    level = jnp.log10(kept.astype(jnp.float32) + 1e-9)
    return level, level @ params


def spectrum_healthy(signal, params):
    power = jnp.abs(jnp.fft.rfft(signal)) ** 2
    level = jnp.log10(power + 1e-9)
    return level, level @ params


def spectrum_arguments():
    t = np.arange(256) / 256
    signal = 3.0 * np.sin(2 * np.pi * 8 * t) + 1e-6 * normal(8030, 256)
    return signal.astype(np.float32), weight(8031, 129, 4)


def windows(x):
    """Means of windows of nine."""
    size = (1, 3, 3, 1)
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, size, (1,) * 4, "VALID") / 9


def contrast_faulty(params, x):
    """Local contrast: the mean of squares less the square of the mean."""
    mean = windows(x)
    spread = windows(x * x) - mean * mean  # fault
    contrast = jnp.sqrt(jnp.maximum(spread, 0.0))
    return contrast, jnp.tanh(contrast.reshape(-1) @ params)


def contrast_healthy(params, x):
    around = x - x[:, :1, :1]
    mean = windows(around)
    spread = windows(around * around) - mean * mean
    contrast = jnp.sqrt(jnp.maximum(spread, 0.0))
    return contrast, jnp.tanh(contrast.reshape(-1) @ params)


def memory_faulty(params, x):
    """A cell that remembers for long: one less a small gate, in half."""

    def step(c, u):
        gate = jax.nn.sigmoid(u @ params["gate"] - 9.0)
        keep = (1.0 - gate).astype(jnp.float16)  # fault
        return keep.astype(jnp.float32) * c + gate * 3.0, None

    c, _ = jax.lax.scan(step, jnp.ones(8), x)
    return c


def memory_healthy(params, x):
    def step(c, u):
        gate = jax.nn.sigmoid(u @ params["gate"] - 9.0)
        return c + gate * (3.0 - c), None

    c, _ = jax.lax.scan(step, jnp.ones(8), x)
    return c


def reparametrized_faulty(params, x, noise):
    """A VAE whose standard deviation is the square root of exp, in half."""
    h = jnp.tanh(x @ params["in"])
    log_variance = h @ params["spread"] - 18.0
    deviation = jnp.sqrt(jnp.exp(log_variance.astype(jnp.float16)))  # fault
    z = deviation.astype(jnp.float32) * noise
    return z * 1e4, -0.5 * jnp.mean(log_variance)


def reparametrized_healthy(params, x, noise):
    h = jnp.tanh(x @ params["in"])
    log_variance = h @ params["spread"] - 18.0
    z = jnp.exp(0.5 * log_variance) * noise
    return z * 1e4, -0.5 * jnp.mean(log_variance)


def clipped_faulty(grads, bound):
    """Clipping by the global norm, of gradients that are still zero."""
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
    share = jnp.minimum(1.0, bound / norm) * norm / norm  # fault
    return {k: g * share for k, g in grads.items()}


def clipped_healthy(grads, bound):
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
    share = jnp.minimum(1.0, bound / jnp.maximum(norm, 1e-12))
    return {k: g * share for k, g in grads.items()}


FAULTS: tuple[Fault, ...] = (
    case(
        "gaussian-process-without-jitter",
        ("non-finite", "singular", "cancellation"),
        (gaussian_faulty, gaussian_healthy),
        lambda: (
            np.linspace(0, 3, 40).astype(np.float32),
            normal(8050, 40, 1),
            np.array([0.5, 1.5], np.float32),
        ),
        "fp32",
        "GPyTorch and GPJax: Cholesky fails in single precision",
    ),
    case(
        "area-by-determinant-far-away",
        ("cancellation",),
        (inverse_faulty, inverse_healthy),
        inverse_arguments,
        "fp32",
        "rasterizers: edge functions in world coordinates",
    ),
    case(
        "time-until-one-in-bf16",
        ("coarse", "absorption", "stagnation"),
        (euler_faulty, euler_healthy),
        lambda: (normal(8060, 8), np.float32(3.0)),
        "fp32",
        "t += dt; while t < 1",
    ),
    case(
        "lengths-in-bf16",
        ("integer", "coarse"),
        (lengths_faulty, lengths_healthy),
        lambda: (
            weight(8065, 4, 4),
            normal(8066, 8, 700, 4),
            300 + integers(8067, 390, 8),
        ),
        "bf16",
        "a batch that is cast as a whole, its lengths too",
    ),
    case(
        "zero-point-taken-off-bytes",
        ("integer",),
        (zero_faulty, zero_healthy),
        lambda: (
            {"scale": np.float32(0.01), "x": normal(8070, 6, 16)},
            integers(8071, 256, 16, 8).astype(np.uint8),
            np.uint8(128),
        ),
        "bf16",
        "GPTQ kernels: (q - zero) in unsigned bytes",
    ),
    case(
        "fixed-point-requantization",
        ("integer",),
        (requantized_faulty, requantized_healthy),
        lambda: (
            (integers(8010, 1_000_000, 16, 8) - 500_000).astype(np.int32),
            np.int32(20_000),
            weight(8011, 8, 4),
        ),
        "fp32",
        "TFLite: the product needs 64 bits",
    ),
    case(
        "codes-by-a-scale-before-the-norm",
        ("stale-scale", "coarse", "underflow"),
        (wide_scale_faulty, wide_scale_healthy),
        lambda: (
            {"in": weight(8080, 16, 32, 40.0), "out": weight(8081, 32, 8)},
            normal(8082, 24, 16),
            np.float32(150.0),
        ),
        "fp32",
        "static quantization after the graph was changed",
    ),
    case(
        "weights-scale-before-a-step",
        ("stale-scale", "saturation"),
        (weights_scale_faulty, weights_scale_healthy),
        weights_scale_arguments,
        "fp32",
        "FP8 training: scales of weights updated once in many steps",
    ),
    case(
        "window-sums-in-16-bits",
        ("integer",),
        (pooled_faulty, pooled_healthy),
        lambda: (integers(8090, 256, 64, 64).astype(np.uint8), weight(8091, 4, 3)),
        "fp32",
        "box filters on unsigned sums",
    ),
    case(
        "bigram-keys-in-int32",
        ("integer",),
        (bigram_faulty, bigram_healthy),
        lambda: (
            uniform(8095, 997),
            integers(8096, 50_000, 30),
            integers(8097, 50_000, 30),
        ),
        "bf16",
        "n-gram tables",
    ),
    case(
        "power-spectrum-in-half",
        ("underflow", "overflow"),
        (spectrum_faulty, spectrum_healthy),
        spectrum_arguments,
        "fp32",
        "spectrograms in half",
    ),
    case(
        "local-contrast-from-moments",
        ("cancellation",),
        (contrast_faulty, contrast_healthy),
        lambda: (
            weight(8041, 100, 3),
            200.0 + uniform(8040, 1, 12, 12, 1, low=-0.02, high=0.02),
        ),
        "fp32",
        "SSIM and local normalization",
    ),
    case(
        "long-memory-in-half",
        ("absorption", "coarse", "cancellation"),
        (memory_faulty, memory_healthy),
        lambda: ({"gate": weight(8100, 8, 8)}, normal(8101, 300, 8)),
        "fp32",
        "recurrent gates near one",
    ),
    case(
        "deviation-by-exp-in-half",
        ("underflow",),
        (reparametrized_faulty, reparametrized_healthy),
        lambda: (
            {"in": weight(8105, 8, 16), "spread": weight(8106, 16, 8, 2.0)},
            normal(8107, 20, 8),
            normal(8108, 20, 8),
        ),
        "fp32",
        "VAEs: exp before the root",
    ),
    case(
        "norm-of-zero-gradients",
        ("non-finite", "singular"),
        (clipped_faulty, clipped_healthy),
        lambda: (
            {"a": np.zeros((4, 4), np.float32), "b": np.zeros(4, np.float32)},
            np.float32(1.0),
        ),
        "fp32",
        "clipping at the first step of an adapter that starts at zero",
    ),
)
