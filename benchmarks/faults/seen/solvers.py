"""Faults of linear algebra, of loops that count in floats, of quantizers' scales."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import integers, layer_norm, normal


@fault("non-finite", "singular", "cancellation", policy="fp32")
@source("GPyTorch and GPJax: Cholesky fails in single precision")
@inputs("40 even 0..3; 40x1 @8050; f32 0.5 1.5")
def gaussian_process_without_jitter(x, y, new):
    """A Gaussian process on near points without a jitter."""
    gap = x[:, None] - x[None]
    kernel = jnp.exp(-0.5 * gap**2)  # -
    # + kernel = jnp.exp(-0.5 * gap**2) + 0.1 * jnp.eye(x.size)
    factor = jnp.linalg.cholesky(kernel)  # here
    half = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
    weights = jax.scipy.linalg.solve_triangular(factor.T, half)
    return jnp.exp(-0.5 * (new[:, None] - x) ** 2) @ weights


@fault("coarse", "absorption", "stagnation", policy="fp32")
@source("t += dt; while t < 1")
@inputs("8 @8060; f32 3")
def time_until_one_in_bf16(x, rate):
    """Steps of a tenth until one, whose time is counted in BF16."""

    def wants(state):  # -
        return state[0] < 1.0

    def step(state):  # -
        t, y, n = state
        t = (t + 0.01).astype(jnp.bfloat16)  # fault
        return t, y - 0.01 * rate * y, n + 1

    # + def step(n, y):
    # +     return y - 0.01 * rate * y

    start = (jnp.bfloat16(0), x, 0)  # -
    _, y, n = jax.lax.while_loop(wants, step, start)  # -
    return y, n  # -
    # + return jax.lax.fori_loop(0, 100, step, x), jnp.int32(100)


@fault("integer", "coarse")
@source("a batch that is cast as a whole, its lengths too")
@inputs("4x4 w @8065; 8x700x4 @8066; 8 int 300..690 @8067")
def lengths_in_bf16(params, x, lengths):
    """Masks of long sequences from lengths in BF16."""
    ends = lengths.astype(jnp.bfloat16)  # fault
    keep = jnp.arange(x.shape[1]).astype(jnp.float32) < ends[:, None]  # -
    # + keep = jnp.arange(x.shape[1]) < lengths[:, None]
    total = (x * keep[..., None]).sum(1)
    return keep.sum(1), layer_norm(total) @ params


@fault("integer")
@source("GPTQ kernels: (q - zero) in unsigned bytes")
@inputs(
    "scale: f32 0.01, x: 6x16 @8070",
    lambda: integers(8071, 256, 16, 8).astype(np.uint8),
    np.uint8(128),
)
def zero_point_taken_off_bytes(params, codes, zero):
    """Dequantizing bytes: the zero point is taken off before the conversion."""
    shifted = codes - zero  # fault
    w = shifted.astype(jnp.float32) * params["scale"]  # -
    # + w = (codes.astype(jnp.float32) - zero.astype(jnp.float32)) * params["scale"]
    return params["x"] @ w


@fault("integer", policy="fp32")
@source("TFLite: the product needs 64 bits")
@inputs(
    lambda: (integers(8010, 1_000_000, 16, 8) - 500_000).astype(np.int32),
    "i32 20000; 8x4 w @8011",
)
def fixed_point_requantization(accumulator, multiplier, params):
    """An accumulator scaled by a fixed-point factor of fifteen bits."""
    scaled = (accumulator * multiplier) >> 15  # fault
    # + factor = multiplier.astype(jnp.float32) / 32768.0
    # + scaled = jnp.floor(accumulator.astype(jnp.float32) * factor)
    codes = jnp.clip(scaled, -128, 127)  # -
    # + codes = jnp.clip(scaled, -128, 127).astype(jnp.int32)
    return codes, codes.astype(jnp.float32) @ params


@fault("stale-scale", "coarse", "underflow", policy="fp32")
@source("static quantization after the graph was changed")
@inputs("in: 16x32 w*40 @8080, out: 32x8 w; 24x16 @8082; f32 150")
def codes_by_a_scale_before_the_norm(params, x, amax):
    """INT8 codes by a scale that was taken before the norm was added."""
    h = layer_norm(x @ params["in"])
    # + amax = jnp.max(jnp.abs(h))
    codes = jnp.clip(jnp.round(h * (127.0 / amax)), -127, 127)  # here
    stored = codes.astype(jnp.int8)
    return (stored.astype(jnp.float32) * (amax / 127.0)) @ params["out"]


@fault("integer", policy="fp32")
@source("box filters on unsigned sums")
@inputs(lambda: integers(8090, 256, 64, 64).astype(np.uint8), "4x3 w @8091")
def window_sums_in_16_bits(image, params):
    """Means of large windows of bytes, added up in 16 bits."""
    tall = image.astype(jnp.uint16).reshape(2, 32, 2, 32)  # -
    # + tall = image.astype(jnp.int32).reshape(2, 32, 2, 32)
    total = jnp.sum(tall, axis=(1, 3), dtype=jnp.uint16)  # fault
    # + total = jnp.sum(tall, axis=(1, 3))
    return (total // 1024).astype(jnp.float32).reshape(-1) @ params


@fault("integer")
@source("n-gram tables")
@inputs("997 0..1 @8095; 30 int 0..50000 @8096; 30 int 0..50000 @8097")
def bigram_keys_in_int32(counts, left, right):
    """Frequencies of pairs of tokens by a key of both."""
    key = left * 50_000 + right  # fault
    # + key = (left % 997) * (50_000 % 997) + right % 997
    return counts[jnp.abs(key) % 997] / counts.sum()  # -
    # + return counts[key % 997] / counts.sum()


@fault("underflow", "overflow", policy="fp32")
@source("spectrograms in half")
@inputs(
    lambda: (
        3.0 * np.sin(2 * np.pi * 8 * (np.arange(256) / 256)) + 1e-6 * normal(8030, 256)
    ).astype(np.float32),
    "129x4 w @8031",
)
def power_spectrum_in_half(signal, params):
    """Power in decibels of a quiet band beside a loud one, kept in half."""
    power = jnp.abs(jnp.fft.rfft(signal)) ** 2
    kept = power.astype(jnp.float16)  # fault
    level = jnp.log10(kept.astype(jnp.float32) + 1e-9)  # -
    # + level = jnp.log10(power + 1e-9)
    return level, level @ params


@fault("absorption", "coarse", "cancellation", policy="fp32")
@source("recurrent gates near one")
@inputs("gate: 8x8 w @8100; 300x8 @8101")
def long_memory_in_half(params, x):
    """A cell that remembers for long: one less a small gate, in half."""

    def step(c, u):
        gate = jax.nn.sigmoid(u @ params["gate"] - 9.0)
        keep = (1.0 - gate).astype(jnp.float16)  # fault
        return keep.astype(jnp.float32) * c + gate * 3.0, None  # -
        # + return c + gate * (3.0 - c), None

    c, _ = jax.lax.scan(step, jnp.ones(8), x)
    return c


@fault("underflow", policy="fp32")
@source("VAEs: exp before the root")
@inputs("in: 8x16 w @8105, spread: 16x8 w*2; 20x8 @8107; 20x8 @8108")
def deviation_by_exp_in_half(params, x, noise):
    """A VAE whose standard deviation is the square root of exp, in half."""
    h = jnp.tanh(x @ params["in"])
    log_variance = h @ params["spread"] - 18.0
    deviation = jnp.sqrt(jnp.exp(log_variance.astype(jnp.float16)))  # fault
    z = deviation.astype(jnp.float32) * noise  # -
    # + z = jnp.exp(0.5 * log_variance) * noise
    return z * 1e4, -0.5 * jnp.mean(log_variance)


@fault("non-finite", "singular", policy="fp32")
@source("clipping at the first step of an adapter that starts at zero")
@inputs("a: 4x4 =0, b: 4 =0; f32 1")
def norm_of_zero_gradients(grads, bound):
    """Clipping by the global norm, of gradients that are still zero."""
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
    share = jnp.minimum(1.0, bound / norm) * norm / norm  # fault
    # + share = jnp.minimum(1.0, bound / jnp.maximum(norm, 1e-12))
    return {k: g * share for k, g in grads.items()}
