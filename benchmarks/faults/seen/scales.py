"""Faults of scales and ranges: stale, zero and clipped scales, overflow, underflow."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import integers, layer_norm, normal, uniform, weight
from benchmarks.faults.seen.serving import case


def history_faulty(params, x, amax):
    """An FP8 layer scaled by the largest of earlier steps; then the data grew."""
    h = layer_norm(x) * params["gain"]
    scale = 240.0 / jnp.max(amax)
    h8 = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # fault
    y = h8.astype(jnp.float32) @ params["w"] / scale
    history = jnp.roll(amax, 1).at[0].set(jnp.max(jnp.abs(h)))
    return jax.nn.relu(y), history


def history_healthy(params, x, amax):
    h = layer_norm(x) * params["gain"]
    top = jnp.max(jnp.abs(h))
    scale = 240.0 / top
    h8 = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)
    y = h8.astype(jnp.float32) @ params["w"] / scale
    return jax.nn.relu(y), jnp.roll(amax, 1).at[0].set(top)


def history_arguments():
    params = {"gain": np.float32(24.0), "w": weight(6401, 32, 16)}
    return params, normal(6402, 16, 32), np.full(16, 3.5, np.float32)


def shrunk_faulty(params, x, amax):
    """The same after the norm of the gradients has fallen a millionfold."""
    g = (x @ params["w"]) * 1e-5
    scale = 57344.0 / amax
    g8 = (g * scale).astype(jnp.float8_e5m2)  # fault
    return (g8.astype(jnp.float32) @ params["w"].T) / scale


def shrunk_healthy(params, x, amax):
    g = (x @ params["w"]) * 1e-5
    scale = 57344.0 / jnp.max(jnp.abs(g))
    g8 = (g * scale).astype(jnp.float8_e5m2)
    return (g8.astype(jnp.float32) @ params["w"].T) / scale


def calibrated_faulty(params, x, scale):
    """INT8 activations with the scale of a calibration on darker images."""
    h = jax.nn.relu(x @ params["in"])
    codes = jnp.round(h / scale)
    stored = jnp.clip(codes, -127, 127).astype(jnp.int8)  # fault
    wide = stored.astype(jnp.int32) @ params["w8"].astype(jnp.int32)
    return wide.astype(jnp.float32) * scale * params["step"]


def calibrated_healthy(params, x, scale):
    h = jax.nn.relu(x @ params["in"])
    scale = jnp.max(jnp.abs(h)) / 127.0
    stored = jnp.clip(jnp.round(h / scale), -127, 127).astype(jnp.int8)
    wide = stored.astype(jnp.int32) @ params["w8"].astype(jnp.int32)
    return wide.astype(jnp.float32) * scale * params["step"]


def calibrated_arguments():
    params = {
        "in": weight(6410, 16, 32),
        "w8": (integers(6411, 255, 32, 8) - 127).astype(np.int8),
        "step": np.float32(0.004),
    }
    return params, 6.0 * uniform(6412, 24, 16), np.float32(0.002)


def wrapped_faulty(params, x, scale):
    """The same without a bound: what is too large wraps or stays at the end."""
    h = jnp.tanh(x @ params["in"]) * 9.0
    codes = jnp.round(h / scale).astype(jnp.int8)  # fault
    return codes.astype(jnp.float32) * scale @ params["out"]


def wrapped_healthy(params, x, scale):
    h = jnp.tanh(x @ params["in"]) * 9.0
    scale = jnp.max(jnp.abs(h)) / 127.0
    codes = jnp.round(h / scale).astype(jnp.int8)
    return codes.astype(jnp.float32) * scale @ params["out"]


def cached_faulty(params, cache, x, scale):
    """Keys of a new prompt beside the cached ones, with the scale of those."""
    k = layer_norm(x) @ params["k"]
    new = (k / scale).astype(jnp.float8_e4m3)  # fault
    keys = jnp.concatenate([cache, new]).astype(jnp.float32) * scale
    q = layer_norm(x) @ params["q"]
    return jax.nn.softmax(q @ keys.T / 4.0) @ (keys @ params["v"])


def cached_healthy(params, cache, x, scale):
    k = layer_norm(x) @ params["k"]
    own = jnp.max(jnp.abs(k)) / 240.0
    new = (k / own).astype(jnp.float8_e4m3).astype(jnp.float32) * own
    keys = jnp.concatenate([cache.astype(jnp.float32) * scale, new])
    q = layer_norm(x) @ params["q"]
    return jax.nn.softmax(q @ keys.T / 4.0) @ (keys @ params["v"])


def cached_arguments():
    params = {n: weight(6420 + i, 16, 16) for i, n in enumerate("qkv")}
    cache = jnp.asarray(normal(6425, 12, 16, scale=60.0)).astype(jnp.float8_e4m3)
    return params, cache, normal(6426, 6, 16), np.float32(0.004)


def dead_faulty(params, x):
    """Scales per channel of a tensor with a dead channel."""
    h = jax.nn.relu(x @ params["in"] + params["bias"])
    scale = 127.0 / jnp.max(h, axis=0)  # fault
    codes = jnp.round(h * scale)
    return codes / scale @ params["out"]


def dead_healthy(params, x):
    h = jax.nn.relu(x @ params["in"] + params["bias"])
    scale = 127.0 / jnp.maximum(jnp.max(h, axis=0), 1e-6)
    codes = jnp.round(h * scale)
    return codes / scale @ params["out"]


def dead_arguments():
    bias = np.zeros(16, np.float32)
    bias[3] = -100.0
    params = {"in": weight(6430, 8, 16), "bias": bias, "out": weight(6431, 16, 4)}
    return params, normal(6432, 20, 8)


def kurtosis_faulty(params, x):
    """The kurtosis of activations, whose fourth powers are taken in half."""
    centred = (x - x.mean(0)).astype(jnp.float16)
    fourth = centred**4  # fault
    variance = jnp.mean(centred.astype(jnp.float32) ** 2, 0)
    kurtosis = jnp.mean(fourth.astype(jnp.float32), 0) / variance**2
    return kurtosis, kurtosis @ params


def kurtosis_healthy(params, x):
    centred = x - x.mean(0)
    variance = jnp.mean(centred**2, 0)
    kurtosis = jnp.mean((centred / jnp.sqrt(variance)) ** 4, 0)
    return kurtosis, kurtosis @ params


def cell_faulty(params, x):
    """An LSTM whose cell counts without a bound, in half and then squared."""

    def step(c, u):
        i, f = jnp.split(jax.nn.sigmoid(u @ params["gates"] + 4.0), 2, -1)
        c = f * c + i * 30.0
        return c, c

    _, cells = jax.lax.scan(step, jnp.zeros(8), x)
    energy = jnp.sum(cells.astype(jnp.float16) ** 2, -1)  # fault
    return energy.astype(jnp.float32) / 1e4


def cell_healthy(params, x):
    def step(c, u):
        i, f = jnp.split(jax.nn.sigmoid(u @ params["gates"] + 4.0), 2, -1)
        c = f * c + i * 30.0
        return c, c

    _, cells = jax.lax.scan(step, jnp.zeros(8), x)
    return jnp.sum((cells / 100.0) ** 2, -1)


def poisson_faulty(params, counts, x):
    """A Poisson likelihood with the rate by exp, in half."""

    def loss_of(p):
        rate = x @ p
        return jnp.mean(jnp.exp(rate.astype(jnp.float16)) - counts * rate)  # fault

    return jax.value_and_grad(loss_of)(params)


def poisson_healthy(params, counts, x):
    def loss_of(p):
        rate = x @ p
        return jnp.mean(jnp.exp(rate) - counts * rate)

    return jax.value_and_grad(loss_of)(params)


def poisson_arguments():
    x = np.concatenate([normal(6440, 24, 7), np.full((24, 1), 13.0)], 1)
    params = np.concatenate([weight(6441, 7, 1)[:, 0], [0.9]])
    counts = integers(6442, 90_000, 24).astype(np.float32)
    return params.astype(np.float32), counts, x.astype(np.float32)


def focal_faulty(params, x, y):
    """A focal loss whose power of a small miss is taken in half."""
    p = jax.nn.softmax(6.0 * x @ params)
    right = jnp.take_along_axis(p, y[:, None], -1)[:, 0]
    weightings = ((1.0 - right).astype(jnp.float16)) ** 3  # fault
    return weightings.astype(jnp.float32) * 1e6, -jnp.log(right)


def focal_healthy(params, x, y):
    scores = jax.nn.log_softmax(6.0 * x @ params)
    right = jnp.take_along_axis(scores, y[:, None], -1)[:, 0]
    return (-jnp.expm1(right)) ** 3 * 1e6, -right


def focal_arguments():
    y = integers(6450, 4, 24)
    x = np.eye(4, dtype=np.float32)[y] * uniform(6451, 24, 1, low=0.9, high=1.1)
    return np.eye(4, dtype=np.float32) * 1.1, x, y


def joint_faulty(params, x):
    """A mixture's joint densities, multiplied over forty features."""
    gap = (x[:, None] - params["mean"]) / params["scale"]
    each = jnp.exp(-0.5 * gap**2) / (params["scale"] * 2.5066)
    joint = jnp.prod(each, axis=-1)  # fault
    return joint / joint.sum(-1, keepdims=True)


def joint_healthy(params, x):
    gap = (x[:, None] - params["mean"]) / params["scale"]
    each = -0.5 * gap**2 - jnp.log(params["scale"] * 2.5066)
    return jax.nn.softmax(each.sum(-1))


def belief_faulty(state, params, x, y):
    """AdaBelief by the difference of two moments."""

    def loss_of(p):
        return jnp.mean((x @ p - y) ** 2)

    g = jax.grad(loss_of)(params)
    first = 0.9 * state["first"] + 0.1 * g
    second = 0.9 * state["second"] + 0.1 * g * g
    spread = second - first * first  # fault
    return params - 1e-6 * g * jax.lax.rsqrt(jnp.abs(spread) + 1e-12), first


def belief_healthy(state, params, x, y):
    def loss_of(p):
        return jnp.mean((x @ p - y) ** 2)

    g = jax.grad(loss_of)(params)
    first = 0.9 * state["first"] + 0.1 * g
    spread = 0.9 * state["spread"] + 0.09 * (g - state["first"]) ** 2
    return params - 1e-6 * g * jax.lax.rsqrt(spread + 1e-12), first


def belief_arguments():
    params, x = normal(6460, 8), normal(6461, 64, 8)
    y = x @ params + 900.0 * x[:, 0]
    gradient = 2.0 * x.T @ (x @ params - y) / 64.0
    first = gradient * (1 + 1e-4 * normal(6462, 8))
    state = {"first": first, "second": first**2, "spread": (1e-4 * gradient) ** 2}
    return jax.tree.map(np.float32, state), params, x, y


def trust_faulty(params, move, x):
    """PPO's ratio less one, of two policies that hardly differ."""
    log_ratio = (x @ move) * jax.nn.softmax(x @ params)
    gain = jnp.exp(log_ratio) - 1.0  # fault
    return gain * 1e5


def trust_healthy(params, move, x):
    log_ratio = (x @ move) * jax.nn.softmax(x @ params)
    return jnp.expm1(log_ratio) * 1e5


def angle_faulty(params, a, b):
    """Angles between embeddings that are nearly the same."""
    left, right = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (a, b))
    cosine = jnp.sum(left * right, -1)
    angle = jnp.arccos(jnp.clip(cosine, -1.0, 1.0))  # fault
    return angle, angle * 1e3 @ params


def angle_healthy(params, a, b):
    left, right = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (a, b))
    chord = jnp.sqrt(jnp.sum((left - right) ** 2, -1))
    angle = 2.0 * jnp.arcsin(chord / 2.0)
    return angle, angle * 1e3 @ params


def angle_arguments():
    a = normal(6480, 24, 8)
    return weight(6481, 24, 3), a, a + normal(6482, 24, 8, scale=4e-4)


def correlated_faulty(params, x):
    """The precision of a pair of features that move together."""
    rho = jnp.tanh(x @ params)
    precision = 1.0 / (1.0 - rho * rho)  # fault
    return precision, -0.5 * jnp.log(precision)


def correlated_healthy(params, x):
    z = x @ params
    precision = jnp.cosh(z) ** 2
    return precision, -0.5 * jnp.log(precision)


def gamma_faulty(image, params):
    """The gradient of a gamma curve at black pixels."""

    def loss_of(p):
        light = image * p["gain"]
        return jnp.mean((light ** p["gamma"] - 0.5) ** 2)  # fault

    return jax.grad(loss_of)(params)


def gamma_healthy(image, params):
    def loss_of(p):
        light = image * p["gain"]
        safe = jnp.where(light > 0, light, 1.0)
        return jnp.mean((jnp.where(light > 0, safe ** p["gamma"], 0.0) - 0.5) ** 2)

    return jax.grad(loss_of)(params)


FAULTS: tuple[Fault, ...] = (
    case(
        "amax-history-before-growth",
        ("stale-scale", "saturation", "overflow"),
        (history_faulty, history_healthy),
        history_arguments,
        "fp32",
        "Transformer Engine: delayed scaling when activations jump",
    ),
    case(
        "gradient-scale-before-decay",
        ("stale-scale", "underflow", "coarse"),
        (shrunk_faulty, shrunk_healthy),
        lambda: (
            {"w": weight(6500, 16, 8)},
            normal(6501, 24, 16),
            np.float32(90_000.0),
        ),
        "fp32",
        "delayed scaling of gradients after a warm-up",
    ),
    case(
        "calibrated-on-dark-images",
        ("stale-scale", "saturation"),
        (calibrated_faulty, calibrated_healthy),
        calibrated_arguments,
        "fp32",
        "static INT8 quantization outside its calibration set",
    ),
    case(
        "codes-beyond-int8",
        ("stale-scale", "saturation", "integer", "overflow"),
        (wrapped_faulty, wrapped_healthy),
        lambda: (
            {"in": weight(6505, 8, 16, 2.0), "out": weight(6506, 16, 4)},
            normal(6507, 20, 8),
            np.float32(0.02),
        ),
        "fp32",
        "a quantizer without a clip",
    ),
    case(
        "cache-scale-of-an-older-prompt",
        ("stale-scale", "overflow", "saturation"),
        (cached_faulty, cached_healthy),
        cached_arguments,
        "fp32",
        "vLLM: one FP8 scale of the whole KV cache",
    ),
    case(
        "scale-of-a-dead-channel",
        ("singular", "non-finite", "saturation"),
        (dead_faulty, dead_healthy),
        dead_arguments,
        "fp32",
        "per-channel quantization: 127 / 0",
    ),
    case(
        "fourth-powers-in-half",
        ("overflow",),
        (kurtosis_faulty, kurtosis_healthy),
        lambda: (weight(6510, 12, 4), normal(6511, 40, 12, scale=12.0)),
        "fp32",
        "activation statistics in the dtype of the activations",
    ),
    case(
        "energy-of-a-counting-cell",
        ("overflow",),
        (cell_faulty, cell_healthy),
        lambda: ({"gates": weight(6515, 8, 16)}, normal(6516, 40, 8)),
        "fp32",
        "LSTM cells have no bound",
    ),
    case(
        "poisson-rate-in-half",
        ("overflow",),
        (poisson_faulty, poisson_healthy),
        poisson_arguments,
        "fp32",
        "PoissonNLLLoss under autocast",
    ),
    case(
        "focal-power-of-small-miss",
        ("underflow",),
        (focal_faulty, focal_healthy),
        focal_arguments,
        "fp32",
        "focal loss in half",
    ),
    case(
        "mixture-by-product-of-features",
        ("underflow", "non-finite"),
        (joint_faulty, joint_healthy),
        lambda: (
            {"mean": normal(6520, 3, 40), "scale": np.float32(0.5)},
            normal(6521, 16, 40),
        ),
        "fp32",
        "Gaussian mixtures without logarithms",
    ),
    case(
        "belief-as-difference-of-moments",
        ("cancellation",),
        (belief_faulty, belief_healthy),
        belief_arguments,
        "fp32",
        "centred second moments: E[g^2] - E[g]^2",
    ),
    case(
        "ratio-less-one-of-near-policies",
        ("cancellation",),
        (trust_faulty, trust_healthy),
        lambda: (
            weight(6470, 8, 4),
            weight(6471, 8, 4, 1e-5),
            normal(6472, 16, 8),
        ),
        "fp32",
        "PPO and GRPO: the first inner step",
    ),
    case(
        "angle-of-near-embeddings",
        ("singular", "cancellation"),
        (angle_faulty, angle_healthy),
        angle_arguments,
        "fp32",
        "ArcFace margins: arccos near one",
    ),
    case(
        "precision-of-tied-features",
        ("singular", "cancellation", "non-finite"),
        (correlated_faulty, correlated_healthy),
        lambda: (weight(6530, 4, 1, 4.0), normal(6531, 24, 4)),
        "fp32",
        "copulas and bivariate Gaussians: 1 / (1 - rho^2)",
    ),
    case(
        "gamma-curve-at-black",
        ("singular", "non-finite"),
        (gamma_faulty, gamma_healthy),
        lambda: (
            jax.nn.relu(normal(6540, 12, 12)),
            {"gain": np.float32(1.2), "gamma": np.float32(0.45)},
        ),
        "fp32",
        "the gradient of x ** p at zero",
    ),
)
