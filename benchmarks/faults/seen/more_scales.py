"""Scales of 8-bit formats that clip, vanish, or belong to an earlier tensor."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault


def _normal(seed, *shape, scale=1.0, shift=0.0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return (shift + scale * values).astype(np.float32)


def block_exponents_to_nearest(params, x):
    """Weights in blocks of 32 with scales that are powers of two, rounded."""
    w = params["w"].reshape(-1, 32, params["w"].shape[1])
    top = jnp.max(jnp.abs(w), axis=1, keepdims=True)
    scale = jnp.exp2(jnp.round(jnp.log2(top / 240.0)))
    small = jnp.clip(w / scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # fault
    back = (small.astype(jnp.float32) * scale).reshape(params["w"].shape)
    h = jax.nn.gelu(x @ back + params["b"])
    return back, h @ params["out"]


def block_exponents_rounded_up(params, x):
    w = params["w"].reshape(-1, 32, params["w"].shape[1])
    top = jnp.max(jnp.abs(w), axis=1, keepdims=True)
    scale = jnp.exp2(jnp.ceil(jnp.log2(top / 240.0)))
    small = jnp.clip(w / scale, -240.0, 240.0).astype(jnp.float8_e4m3)
    back = (small.astype(jnp.float32) * scale).reshape(params["w"].shape)
    h = jax.nn.gelu(x @ back + params["b"])
    return back, h @ params["out"]


def block_arguments():
    rng = np.random.default_rng(700)
    w = rng.choice([-1, 1], (64, 24)) * rng.uniform(0.5, 1.0, (64, 24))
    w = w * 0.0009765625 * 1.41 * 240 * 2.0 ** rng.integers(-3, 0, 24)
    params = {"w": w, "b": _normal(701, 24, scale=0.1), "out": _normal(702, 24, 4)}
    params = jax.tree.map(lambda a: np.asarray(a, np.float32), params)
    return params, _normal(703, 16, 64)


def values_scaled_to_448(params, x):
    """Attention whose values are cached in E4M3 with the limit of another E4M3."""
    q, k, v = (x @ params[n] for n in "qkv")
    top = jnp.max(jnp.abs(v), axis=0)
    v8 = jnp.clip(v * (448.0 / top), -240, 240).astype(jnp.float8_e4m3)  # fault
    scores = (q @ k.T) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape, bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    read = (weights @ v8.astype(jnp.float32)) * (top / 448.0)
    return read @ params["o"]


def values_scaled_to_240(params, x):
    q, k, v = (x @ params[n] for n in "qkv")
    top = jnp.max(jnp.abs(v), axis=0)
    v8 = jnp.clip(v * (240.0 / top), -240, 240).astype(jnp.float8_e4m3)
    scores = (q @ k.T) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape, bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    read = (weights @ v8.astype(jnp.float32)) * (top / 240.0)
    return read @ params["o"]


def values_arguments():
    params = {n: _normal(710 + i, 16, 16, scale=0.25) for i, n in enumerate("qkvo")}
    return params, _normal(715, 20, 16)


def outliers_clipped_at_three_sigma(params, x):
    """INT8 activations of a large model; a few channels are forty times larger."""
    h = x * params["gain"]
    step = 3.0 * jnp.std(h, axis=-1, keepdims=True) / 127.0
    codes = jnp.clip(jnp.round(h / step), -127, 127).astype(jnp.int8)  # fault
    back = codes.astype(jnp.float32) * step
    up = jax.nn.silu(back @ params["gate"]) * (back @ params["up"])
    return back, up @ params["down"]


def outliers_within_scale(params, x):
    h = x * params["gain"]
    step = jnp.max(jnp.abs(h), axis=-1, keepdims=True) / 127.0
    codes = jnp.clip(jnp.round(h / step), -127, 127).astype(jnp.int8)
    back = codes.astype(jnp.float32) * step
    up = jax.nn.silu(back @ params["gate"]) * (back @ params["up"])
    return back, up @ params["down"]


def outliers_arguments():
    gain = np.ones(64, np.float32)
    gain[[7, 41]] = 40.0
    params = {
        "gain": gain,
        "gate": _normal(720, 64, 32, scale=0.05),
        "up": _normal(721, 64, 32, scale=0.05),
        "down": _normal(722, 32, 8, scale=0.2),
    }
    x = _normal(723, 12, 64)
    x[:, [7, 41]] = np.sign(x[:, [7, 41]]) * (1 + 0.2 * np.abs(x[:, [7, 41]]))
    return params, x


def smoothing_of_dead_channel(params, x):
    """SmoothQuant: activations are divided, weights multiplied, channel by channel."""
    h = jax.nn.relu(x @ params["in"] + params["b"])
    high, heavy = jnp.max(h, axis=0), jnp.max(jnp.abs(params["w"]), axis=1)
    factor = jnp.sqrt(high) / jnp.sqrt(heavy)
    smooth = h / factor  # fault
    step = jnp.max(jnp.abs(smooth)) / 127.0
    codes = jnp.round(smooth / step).astype(jnp.int8)
    w = params["w"] * factor[:, None]
    return (codes.astype(jnp.float32) * step) @ w


def smoothing_with_floor(params, x):
    h = jax.nn.relu(x @ params["in"] + params["b"])
    high, heavy = jnp.max(h, axis=0), jnp.max(jnp.abs(params["w"]), axis=1)
    factor = jnp.sqrt(jnp.maximum(high, 1e-5)) / jnp.sqrt(heavy)
    smooth = h / factor
    step = jnp.max(jnp.abs(smooth)) / 127.0
    codes = jnp.round(smooth / step).astype(jnp.int8)
    w = params["w"] * factor[:, None]
    return (codes.astype(jnp.float32) * step) @ w


def smoothing_arguments():
    bias = np.zeros(24, np.float32)
    bias[[5, 17]] = -40.0
    params = {
        "in": _normal(730, 12, 24, scale=0.3),
        "b": bias,
        "w": _normal(731, 24, 6, scale=0.2),
    }
    return params, _normal(732, 16, 12)


def kelvins_without_zero_point(params, fields):
    """Temperature fields in UINT8: the step is right, but there is no zero point."""
    low, high = jnp.min(fields), jnp.max(fields)
    step = (high - low) / 255.0
    codes = jnp.clip(jnp.round(fields / step), 0, 255).astype(jnp.uint8)  # fault
    back = codes.astype(jnp.float32) * step
    warm = (back - 285.0) / 10.0
    return back, jax.nn.relu(warm @ params["in"]) @ params["out"]


def kelvins_with_zero_point(params, fields):
    low, high = jnp.min(fields), jnp.max(fields)
    step = (high - low) / 255.0
    codes = jnp.clip(jnp.round((fields - low) / step), 0, 255).astype(jnp.uint8)
    back = codes.astype(jnp.float32) * step + low
    warm = (back - 285.0) / 10.0
    return back, jax.nn.relu(warm @ params["in"]) @ params["out"]


def kelvins_arguments():
    params = {"in": _normal(740, 16, 12, scale=0.3), "out": _normal(741, 12, 2)}
    return params, _normal(742, 20, 16, scale=6.0, shift=285.0)


def rollouts_with_scale_before_training(params, states, rewards):
    """Each round trains a policy and syncs it, in FP8, to the rollout engine."""

    def objective(w, x, r):
        return jnp.mean(r * jnp.tanh(x @ w))

    ready = 120.0 / jnp.max(jnp.abs(params["w"]))

    def sync(carry, batch):
        w, _ = carry
        w = w + 0.8 * jax.grad(objective)(w, *batch)
        w8 = jnp.clip(w * ready, -240, 240).astype(jnp.float8_e4m3)  # fault
        engine = w8.astype(jnp.float32) / ready
        return (w, engine), jnp.tanh(batch[0] @ engine)

    (w, engine), acts = jax.lax.scan(sync, (params["w"],) * 2, (states, rewards))
    return engine, acts, jnp.max(jnp.abs(w))


def rollouts_with_scale_of_the_round(params, states, rewards):
    def objective(w, x, r):
        return jnp.mean(r * jnp.tanh(x @ w))

    def sync(carry, batch):
        w, _ = carry
        w = w + 0.8 * jax.grad(objective)(w, *batch)
        ready = 120.0 / jnp.max(jnp.abs(w))
        w8 = jnp.clip(w * ready, -240, 240).astype(jnp.float8_e4m3)
        engine = w8.astype(jnp.float32) / ready
        return (w, engine), jnp.tanh(batch[0] @ engine)

    (w, engine), acts = jax.lax.scan(sync, (params["w"],) * 2, (states, rewards))
    return engine, acts, jnp.max(jnp.abs(w))


def rollouts_arguments():
    states = _normal(750, 12, 64, 8, scale=0.5)
    goal = _normal(751, 8, 3)
    rewards = np.tanh(states @ goal) + _normal(752, 12, 64, 3, scale=0.1)
    return {"w": _normal(753, 8, 3, scale=0.02)}, states, rewards.astype(np.float32)


def gradients_with_first_scale(start, inputs, targets):
    """Data-parallel gradients travel in INT8, scaled as the first ones needed it."""

    def loss(w, x, y):
        return 0.5 * jnp.mean(jnp.sum(jnp.square(x @ w - y), axis=-1))

    first = jax.grad(loss)(start, inputs[0], targets[0])
    scale = 127.0 / jnp.max(jnp.abs(first))

    def step(w, batch):
        g = jax.grad(loss)(w, *batch)
        sent = jnp.clip(jnp.round(g * scale), -127, 127).astype(jnp.int8)  # fault
        return w - 0.5 * sent.astype(jnp.float32) / scale, loss(w, *batch)

    w, losses = jax.lax.scan(step, start, (inputs, targets))
    return w, jnp.mean(losses)


def gradients_with_own_scale(start, inputs, targets):
    def loss(w, x, y):
        return 0.5 * jnp.mean(jnp.sum(jnp.square(x @ w - y), axis=-1))

    def step(w, batch):
        g = jax.grad(loss)(w, *batch)
        scale = 127.0 / jnp.maximum(jnp.max(jnp.abs(g)), 1e-30)
        sent = jnp.clip(jnp.round(g * scale), -127, 127).astype(jnp.int8)
        return w - 0.5 * sent.astype(jnp.float32) / scale, loss(w, *batch)

    w, losses = jax.lax.scan(step, start, (inputs, targets))
    return w, jnp.mean(losses)


def gradients_arguments():
    inputs = _normal(760, 60, 64, 8)
    goal = _normal(761, 8, 3, scale=0.05)
    start = goal + _normal(762, 8, 3, scale=3.0)
    return start, inputs, inputs @ goal


FAULTS = (
    Fault(
        name="b-block-exponents-to-nearest",
        kinds=("saturation", "overflow"),
        faulty=block_exponents_to_nearest,
        healthy=block_exponents_rounded_up,
        arguments=block_arguments,
        policy="bf16",
        source="MLX issue: MXFP8 scales rounded to nearest clip the blocks' largest",
    ),
    Fault(
        name="b-e4m3-values-scaled-to-448",
        kinds=("saturation", "overflow"),
        faulty=values_scaled_to_448,
        healthy=values_scaled_to_240,
        arguments=values_arguments,
        policy="bf16",
        source="vLLM on other chips: scales made for 448, values clamped at 240",
    ),
    Fault(
        name="b-outlier-channels-clipped",
        kinds=("saturation",),
        faulty=outliers_clipped_at_three_sigma,
        healthy=outliers_within_scale,
        arguments=outliers_arguments,
        policy="mxfp8",
        target="trn3",
        source="Dettmers et al., LLM.int8(): outlier features must not be clipped",
    ),
    Fault(
        name="b-smoothquant-of-dead-channel",
        kinds=("saturation", "non-finite"),
        faulty=smoothing_of_dead_channel,
        healthy=smoothing_with_floor,
        arguments=smoothing_arguments,
        policy="bf16",
        source="SmoothQuant issues: NaN where a channel of activations is all zero",
    ),
    Fault(
        name="b-kelvins-without-zero-point",
        kinds=("saturation",),
        faulty=kelvins_without_zero_point,
        healthy=kelvins_with_zero_point,
        arguments=kelvins_arguments,
        policy="bf16",
        source="uint8 observers: the range is max - min, the zero point is forgotten",
    ),
    Fault(
        name="b-rollout-weights-with-old-scale",
        kinds=("stale-scale", "saturation"),
        faulty=rollouts_with_scale_before_training,
        healthy=rollouts_with_scale_of_the_round,
        arguments=rollouts_arguments,
        policy="fp8",
        source="RL frameworks: weights are synced to FP8 engines, their scales are not",
    ),
    Fault(
        name="b-gradients-with-first-scale",
        kinds=("stale-scale", "underflow", "coarse"),
        faulty=gradients_with_first_scale,
        healthy=gradients_with_own_scale,
        arguments=gradients_arguments,
        policy="fp32",
        source="compressed all-reduce: gradients shrink, their scale has to follow",
    ),
)
