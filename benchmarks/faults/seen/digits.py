"""Faults of formats without the digits: angles, places, shares, thresholds, sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    block,
    block_params,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)
from benchmarks.faults.seen.serving import case


def diffusion_faulty(params, x, t):
    """The embedding of a diffusion step, in the model's format."""
    scaled = (1000.0 * t).astype(jnp.bfloat16)  # fault
    rates = jnp.exp(-jnp.arange(8) * (jnp.log(10000.0) / 8))
    angle = scaled.astype(jnp.float32)[:, None] * rates
    place = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
    return layer_norm(x + place @ params["time"]) @ params["out"]


def diffusion_healthy(params, x, t):
    rates = jnp.exp(-jnp.arange(8) * (jnp.log(10000.0) / 8))
    angle = 1000.0 * t[:, None] * rates
    place = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
    return layer_norm(x + place @ params["time"]) @ params["out"]


def relative_faulty(params, x):
    """T5's buckets of distances, logarithms in BF16."""
    n = x.shape[0]
    distance = jnp.abs(jnp.arange(n)[:, None] - jnp.arange(n))
    far = jnp.log(jnp.maximum(distance, 1) / 8.0) / jnp.log(512 / 8.0)
    bucket = (8 + far.astype(jnp.bfloat16) * 300).astype(jnp.int32)  # fault
    bucket = jnp.where(distance < 8, distance, jnp.clip(bucket, 8, 299))
    scores = x @ x.T / 4.0 + params["bias"][bucket]
    return bucket, jax.nn.softmax(scores) @ (x @ params["v"])


def relative_healthy(params, x):
    n = x.shape[0]
    distance = jnp.abs(jnp.arange(n)[:, None] - jnp.arange(n))
    far = jnp.log(jnp.maximum(distance, 1) / 8.0) / jnp.log(512 / 8.0)
    bucket = (8.001 + far * 300).astype(jnp.int32)
    bucket = jnp.where(distance < 8, distance, jnp.clip(bucket, 8, 299))
    scores = x @ x.T / 4.0 + params["bias"][bucket]
    return bucket, jax.nn.softmax(scores) @ (x @ params["v"])


def cosine_faulty(w, g, step):
    """A cosine schedule late in a long run; its progress is kept in BF16."""
    progress = step.astype(jnp.bfloat16) / jnp.bfloat16(100_000)  # fault
    rate = 0.05 * (1.0 + jnp.cos(jnp.pi * progress.astype(jnp.float32)))
    return rate, w - rate * g


def cosine_healthy(w, g, step):
    progress = step.astype(jnp.float32) / 100_000.0
    rate = 0.05 * (1.0 + jnp.cos(jnp.pi * progress))
    return rate, w - rate * g


def sampler_faulty(image, grid):
    """A spatial transformer on a wide image; the grid is in half."""
    at = (grid.astype(jnp.float16) + 1) * jnp.float16(2047.5)  # fault
    at = at.astype(jnp.float32)
    low = jnp.floor(at)
    share = at - low
    left = image[jnp.clip(low, 0, 4095).astype(jnp.int32)]
    right = image[jnp.clip(low + 1, 0, 4095).astype(jnp.int32)]
    return left * (1 - share) + right * share


def sampler_healthy(image, grid):
    at = (grid + 1) * 2047.5
    low = jnp.floor(at)
    share = at - low
    left = image[jnp.clip(low, 0, 4095).astype(jnp.int32)]
    right = image[jnp.clip(low + 1, 0, 4095).astype(jnp.int32)]
    return left * (1 - share) + right * share


def stopping_faulty(losses):
    """Early stopping: the improvement of a slowly falling loss."""
    kept = losses.astype(jnp.bfloat16)  # fault
    gain = kept[:-1] - kept[1:]
    stalled = jnp.sum(gain < 1e-4)
    return gain.astype(jnp.float32), stalled


def stopping_healthy(losses):
    gain = losses[:-1] - losses[1:]
    stalled = jnp.sum(gain < 1e-4)
    return gain, stalled


def stopping_arguments():
    falling = 3.2 * np.exp(-np.arange(64) / 4000.0)
    return (falling.astype(np.float32),)


def depth_faulty(params, depth, colour):
    """Which of two surfaces is in front, from a depth buffer in half."""
    stored = (1.0 - 0.1 / depth).astype(jnp.float16)  # fault
    front = jnp.argmin(stored, axis=0)
    seen = jnp.take_along_axis(colour, front[None, :, None], axis=0)[0]
    return seen, jax.nn.relu(seen @ params)


def depth_healthy(params, depth, colour):
    front = jnp.argmin(depth, axis=0)
    seen = jnp.take_along_axis(colour, front[None, :, None], axis=0)[0]
    return seen, jax.nn.relu(seen @ params)


def depth_arguments():
    near = uniform(6200, 64, low=40.0, high=90.0)
    depth = np.stack([near + 0.3, near])
    return weight(6201, 3, 4), depth, uniform(6202, 2, 64, 3)


def haversine_faulty(params, here, there):
    """Distances within a town from degrees in half."""
    here, there = (p.astype(jnp.float16) for p in (here, there))  # fault
    gap = jnp.deg2rad((there - here).astype(jnp.float32))
    flat = gap * jnp.array([1.0, 0.66])
    distance = 6371.0 * jnp.sqrt((flat**2).sum(-1) + 1e-12)
    return distance, jax.nn.relu(distance[:, None] @ params)


def haversine_healthy(params, here, there):
    gap = jnp.deg2rad(there - here)
    flat = gap * jnp.array([1.0, 0.66])
    distance = 6371.0 * jnp.sqrt((flat**2).sum(-1) + 1e-12)
    return distance, jax.nn.relu(distance[:, None] @ params)


def haversine_arguments():
    here = np.array([48.85, 2.35], np.float32) + normal(6210, 40, 2, scale=0.02)
    return weight(6211, 1, 4), here, here + normal(6212, 40, 2, scale=0.01)


def chirp_faulty(params, x):
    """The phase of a carrier after many periods, summed in half."""
    step = jnp.float16(0.37)

    def advance(phase, _):
        phase = phase + step  # fault
        return phase, jnp.sin(phase.astype(jnp.float32))

    _, wave = jax.lax.scan(advance, jnp.float16(0), length=1500)
    return wave[-128:], (x * wave[-128:]) @ params


def chirp_healthy(params, x):
    step = jnp.float32(jnp.float16(0.37))
    wave = jnp.sin(step * jnp.arange(1.0, 1501.0))
    return wave[-128:], (x * wave[-128:]) @ params


def flat_faulty(params, x):
    """Attention whose small scores are kept in 8 bits."""
    q, k, v = (layer_norm(x) @ params[name] for name in "qkv")
    scores = (q @ k.T).astype(jnp.float8_e4m3)  # fault
    probs = jax.nn.softmax(300.0 * scores.astype(jnp.float32))
    return probs @ v


def flat_healthy(params, x):
    q, k, v = (layer_norm(x) @ params[name] for name in "qkv")
    probs = jax.nn.softmax(300.0 * (q @ k.T))
    return probs @ v


def flat_arguments():
    params = {"q": weight(6220, 16, 16, 0.01), "k": weight(6221, 16, 16, 0.04)}
    return params | {"v": weight(6222, 16, 16)}, normal(6223, 20, 16)


def sharpening_faulty(params, x):
    """DINO: teacher's logits in BF16 before a division by a small temperature."""
    logits = (x @ params["head"] + 30.0).astype(jnp.bfloat16)  # fault
    centred = logits.astype(jnp.float32) - 30.0
    return jax.nn.softmax(centred / 0.04)


def sharpening_healthy(params, x):
    logits = x @ params["head"]
    return jax.nn.softmax(logits / 0.04)


def histogram_faulty(values, params):
    """A histogram of a thousand bins, whose index is computed in BF16."""
    index = (values.astype(jnp.bfloat16) * 1000).astype(jnp.int32)  # fault
    counts = jnp.zeros(1001).at[index].add(1.0)
    return counts, jnp.cumsum(counts)[::100] @ params


def histogram_healthy(values, params):
    index = jnp.floor(values * 1000).astype(jnp.int32)
    counts = jnp.zeros(1001).at[index].add(1.0)
    return counts, jnp.cumsum(counts)[::100] @ params


def histogram_arguments():
    values = (integers(6230, 1000, 400) + 0.5) / 1000
    return values.astype(np.float32), weight(6231, 11, 3)


def rope_faulty(params, x, start):
    """Rotary angles late in a long context, kept in half."""
    place = (start + jnp.arange(x.shape[0])).astype(jnp.float32)
    rates = 10000.0 ** (-jnp.arange(8) / 8.0)
    angle = (place[:, None] * rates).astype(jnp.float16)  # fault
    even, odd = x[:, 0::2], x[:, 1::2]
    angle = angle.astype(jnp.float32)
    turned = even * jnp.cos(angle) - odd * jnp.sin(angle)
    return turned, turned @ params


def rope_healthy(params, x, start):
    place = (start + jnp.arange(x.shape[0])).astype(jnp.float32)
    angle = place[:, None] * 10000.0 ** (-jnp.arange(8) / 8.0)
    even, odd = x[:, 0::2], x[:, 1::2]
    turned = even * jnp.cos(angle) - odd * jnp.sin(angle)
    return turned, turned @ params


def langevin_faulty(w, g, noise):
    """A step of stochastic gradient Langevin dynamics on half weights."""
    moved = w - (1e-4 * g + 1e-4 * noise).astype(w.dtype)  # fault
    return moved


def langevin_healthy(w, g, noise):
    return w.astype(jnp.float32) - (1e-4 * g + 1e-4 * noise)


def swa_faulty(average, params, x, y):
    """The average of weights over a run, the five-thousandth of them."""

    def loss_of(p):
        return cross_entropy(jnp.tanh(x @ p["in"]) @ p["out"], y)

    grads = jax.grad(loss_of)(params)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    share = jnp.bfloat16(1 / 5000)
    mean = jax.tree.map(
        lambda a, p: a + share * (p.astype(a.dtype) - a),  # fault
        average,
        params,
    )
    return params, mean


def swa_healthy(average, params, x, y):
    def loss_of(p):
        return cross_entropy(jnp.tanh(x @ p["in"]) @ p["out"], y)

    grads = jax.grad(loss_of)(params)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    wide = jax.tree.map(lambda a: a.astype(jnp.float32), average)
    mean = jax.tree.map(lambda a, p: a + (p - a) / 5000, wide, params)
    return params, mean


def swa_arguments():
    params = {"in": weight(6240, 8, 16), "out": weight(6241, 16, 4)}
    average = {k: (1.1 * v).astype(jnp.bfloat16) for k, v in params.items()}
    return average, params, normal(6242, 24, 8), integers(6243, 4, 24)


def merged_faulty(params, x):
    """A low-rank update merged into half weights before it is used."""
    small = params["down"] @ params["up"] * 0.002
    w = params["w"].astype(jnp.bfloat16) + small.astype(jnp.bfloat16)  # fault
    change = x @ w.astype(jnp.float32) - x @ params["w"]
    return change


def merged_healthy(params, x):
    small = params["down"] @ params["up"] * 0.002
    return x @ small


def merged_arguments():
    exact = weight(6250, 32, 16).astype(jnp.bfloat16).astype(np.float32)
    params = {"w": exact, "down": weight(6251, 32, 4), "up": weight(6252, 4, 16)}
    return params, normal(6253, 12, 32)


def carry_faulty(params, x):
    """A leaky integrator of many small currents, its voltage in half."""

    def step(v, current):
        v = v + current.astype(jnp.float16)  # fault
        return v, None

    currents = jax.nn.relu(x @ params["in"]) * 2e-3
    v, _ = jax.lax.scan(step, jnp.full(8, 12.0, jnp.float16), currents)
    return v.astype(jnp.float32) - 12.0


def carry_healthy(params, x):
    currents = jax.nn.relu(x @ params["in"]) * 2e-3
    return currents.sum(0)


def block_faulty(params, x):
    """A residual stream in FP8 between two blocks."""
    x = block(params["first"], x)
    stream = x.astype(jnp.float8_e5m2).astype(jnp.float32)  # fault
    change = block(params["second"], stream) - stream
    return stream - x + 0.01 * change


def block_healthy(params, x):
    x = block(params["first"], x)
    return 0.01 * (block(params["second"], x) - x)


FAULTS: tuple[Fault, ...] = (
    case(
        "diffusion-time-in-bf16",
        ("coarse", "integer"),
        (diffusion_faulty, diffusion_healthy),
        lambda: (
            {"time": weight(6260, 16, 16), "out": weight(6261, 16, 8)},
            normal(6262, 24, 16),
            uniform(6263, 24, low=0.5),
        ),
        "bf16",
        "diffusers: timesteps cast to the dtype of the model",
    ),
    case(
        "relative-buckets-in-bf16",
        ("coarse", "integer"),
        (relative_faulty, relative_healthy),
        lambda: (
            {"bias": normal(6265, 300), "v": weight(6266, 16, 16)},
            normal(6267, 96, 16),
        ),
        "fp32",
        "T5: buckets of relative positions differ between formats",
    ),
    case(
        "progress-of-a-run-in-bf16",
        ("coarse", "integer"),
        (cosine_faulty, cosine_healthy),
        lambda: (normal(6270, 8, 8), normal(6271, 8, 8), np.int32(98_900)),
        "bf16",
        "schedules inside a step compiled in BF16",
    ),
    case(
        "sampling-grid-in-half",
        ("coarse",),
        (sampler_faulty, sampler_healthy),
        lambda: (normal(6275, 4096), uniform(6276, 64, low=0.1, high=0.99)),
        "fp32",
        "grid_sample under autocast: the grid has eleven bits",
    ),
    case(
        "losses-kept-in-bf16",
        ("coarse", "cancellation"),
        (stopping_faulty, stopping_healthy),
        stopping_arguments,
        "fp32",
        "early stopping on rounded losses",
    ),
    case(
        "depth-buffer-in-half",
        ("coarse",),
        (depth_faulty, depth_healthy),
        depth_arguments,
        "fp32",
        "z-fighting",
    ),
    case(
        "degrees-in-half",
        ("coarse", "cancellation"),
        (haversine_faulty, haversine_healthy),
        haversine_arguments,
        "fp32",
        "GPS tracks in float16 columns",
    ),
    case(
        "carrier-phase-in-half",
        ("coarse", "stagnation", "absorption"),
        (chirp_faulty, chirp_healthy),
        lambda: (weight(6280, 128, 4), normal(6281, 6, 128)),
        "fp32",
        "phase accumulators without wrapping",
    ),
    case(
        "small-scores-in-fp8",
        ("underflow", "uniform", "coarse"),
        (flat_faulty, flat_healthy),
        flat_arguments,
        "fp32",
        "FP8 attention: scores before their scale",
    ),
    case(
        "teacher-logits-with-an-offset",
        ("coarse", "cancellation"),
        (sharpening_faulty, sharpening_healthy),
        lambda: ({"head": weight(6285, 16, 24, 0.2)}, normal(6286, 12, 16)),
        "fp32",
        "DINO and MoCo: centring after the cast",
    ),
    case(
        "bins-by-bf16-index",
        ("coarse", "integer"),
        (histogram_faulty, histogram_healthy),
        histogram_arguments,
        "fp32",
        "histograms for calibration in the tensor's own dtype",
    ),
    case(
        "rotary-angles-in-half",
        ("coarse",),
        (rope_faulty, rope_healthy),
        lambda: (weight(6290, 8, 4), normal(6291, 32, 16), np.int32(1800)),
        "fp32",
        "RoPE in half precision beyond the first thousand tokens",
    ),
    case(
        "langevin-step-in-half",
        ("absorption",),
        (langevin_faulty, langevin_healthy),
        lambda: (
            normal(6295, 16, 16, shift=3.0).astype(np.float16),
            normal(6296, 16, 16),
            normal(6297, 16, 16),
        ),
        "fp32",
        "SGLD on half weights",
    ),
    case(
        "weight-average-of-5000-in-bf16",
        ("absorption",),
        (swa_faulty, swa_healthy),
        swa_arguments,
        "bf16",
        "stochastic weight averaging in the weights' dtype",
    ),
    case(
        "adapter-merged-in-bf16",
        ("absorption", "coarse"),
        (merged_faulty, merged_healthy),
        merged_arguments,
        "fp32",
        "PEFT: merge_and_unload on BF16 weights",
    ),
    case(
        "voltage-of-small-currents",
        ("stagnation", "absorption"),
        (carry_faulty, carry_healthy),
        lambda: ({"in": weight(6300, 16, 8)}, normal(6301, 400, 16)),
        "fp32",
        "spiking networks in half",
    ),
    case(
        "residual-stream-in-e5m2",
        ("coarse", "cancellation"),
        (block_faulty, block_healthy),
        lambda: (
            {"first": block_params(6310, 16), "second": block_params(6330, 16)},
            normal(6350, 12, 16),
        ),
        "fp32",
        "FP8 activations between layers",
    ),
)
