"""Formats without the digits that a position, a rank or a score needs."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import block, integers, layer_norm, normal, uniform, weight


@fault("coarse", "integer")
@source("diffusers: timesteps cast to the dtype of the model")
@inputs("time: 16x16 w @6260, out: 16x8 w; 24x16 @6262; 24 0.5..1 @6263")
def diffusion_time_in_bf16(params, x, t):
    """The embedding of a diffusion step, in the model's format."""
    scaled = (1000.0 * t).astype(jnp.bfloat16)  # fault
    rates = jnp.exp(-jnp.arange(8) * (jnp.log(10000.0) / 8))
    angle = scaled.astype(jnp.float32)[:, None] * rates  # -
    # + angle = 1000.0 * t[:, None] * rates
    place = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
    return layer_norm(x + place @ params["time"]) @ params["out"]


@fault("coarse", "integer", policy="fp32")
@source("T5: buckets of relative positions differ between formats")
@inputs("bias: 300 @6265, v: 16x16 w; 96x16 @6267")
def relative_buckets_in_bf16(params, x):
    """T5's buckets of distances, logarithms in BF16."""
    n = x.shape[0]
    distance = jnp.abs(jnp.arange(n)[:, None] - jnp.arange(n))
    far = jnp.log(jnp.maximum(distance, 1) / 8.0) / jnp.log(512 / 8.0)
    bucket = (8 + far.astype(jnp.bfloat16) * 300).astype(jnp.int32)  # fault
    # + bucket = (8.001 + far * 300).astype(jnp.int32)
    bucket = jnp.where(distance < 8, distance, jnp.clip(bucket, 8, 299))
    scores = x @ x.T / 4.0 + params["bias"][bucket]
    return bucket, jax.nn.softmax(scores) @ (x @ params["v"])


@fault("coarse", "integer")
@source("schedules inside a step compiled in BF16")
@inputs("8x8 @6270; 8x8 @6271; i32 98900")
def progress_of_a_run_in_bf16(w, g, step):
    """A cosine schedule late in a long run; its progress is kept in BF16."""
    progress = step.astype(jnp.bfloat16) / jnp.bfloat16(100_000)  # fault
    # + progress = step.astype(jnp.float32) / 100_000.0
    rate = 0.05 * (1.0 + jnp.cos(jnp.pi * progress.astype(jnp.float32)))  # -
    # + rate = 0.05 * (1.0 + jnp.cos(jnp.pi * progress))
    return rate, w - rate * g


@fault("coarse", policy="fp32")
@source("grid_sample under autocast: the grid has eleven bits")
@inputs("4096 @6275; 64 0.1..0.99 @6276")
def sampling_grid_in_half(image, grid):
    """A spatial transformer on a wide image; the grid is in half."""
    at = (grid.astype(jnp.float16) + 1) * jnp.float16(2047.5)  # fault
    # + at = (grid + 1) * 2047.5
    at = at.astype(jnp.float32)  # -
    low = jnp.floor(at)
    share = at - low
    left = image[jnp.clip(low, 0, 4095).astype(jnp.int32)]
    right = image[jnp.clip(low + 1, 0, 4095).astype(jnp.int32)]
    return left * (1 - share) + right * share


@fault("coarse", "cancellation", policy="fp32")
@source("early stopping on rounded losses")
@inputs(lambda: (3.2 * np.exp(-np.arange(64) / 4000.0)).astype(np.float32))
def losses_kept_in_bf16(losses):
    """Early stopping: the improvement of a slowly falling loss."""
    kept = losses.astype(jnp.bfloat16)  # fault
    gain = kept[:-1] - kept[1:]  # -
    # + gain = losses[:-1] - losses[1:]
    stalled = jnp.sum(gain < 1e-4)
    return gain.astype(jnp.float32), stalled  # -
    # + return gain, stalled


def depth_arguments():
    near = uniform(6200, 64, low=40.0, high=90.0)
    depth = np.stack([near + 0.3, near])
    return "3x4 w @6201", depth, "2x64x3 0..1 @6202"


@fault("coarse", policy="fp32")
@source("z-fighting")
@inputs(by=depth_arguments)
def depth_buffer_in_half(params, depth, colour):
    """Which of two surfaces is in front, from a depth buffer in half."""
    stored = (1.0 - 0.1 / depth).astype(jnp.float16)  # fault
    front = jnp.argmin(stored, axis=0)  # -
    # + front = jnp.argmin(depth, axis=0)
    seen = jnp.take_along_axis(colour, front[None, :, None], axis=0)[0]
    return seen, jax.nn.relu(seen @ params)


def haversine_arguments():
    here = np.array([48.85, 2.35], np.float32) + normal(6210, 40, 2, scale=0.02)
    return "1x4 w @6211", here, here + normal(6212, 40, 2, scale=0.01)


@fault("coarse", "cancellation", policy="fp32")
@source("GPS tracks in float16 columns")
@inputs(by=haversine_arguments)
def degrees_in_half(params, here, there):
    """Distances within a town from degrees in half."""
    here, there = (p.astype(jnp.float16) for p in (here, there))  # fault
    gap = jnp.deg2rad((there - here).astype(jnp.float32))  # -
    # + gap = jnp.deg2rad(there - here)
    flat = gap * jnp.array([1.0, 0.66])
    distance = 6371.0 * jnp.sqrt((flat**2).sum(-1) + 1e-12)
    return distance, jax.nn.relu(distance[:, None] @ params)


@fault("coarse", "stagnation", "absorption", policy="fp32")
@source("phase accumulators without wrapping")
@inputs("128x4 w @6280; 6x128 @6281")
def carrier_phase_in_half(params, x):
    """The phase of a carrier after many periods, summed in half."""
    step = jnp.float16(0.37)  # -
    # + step = jnp.float32(jnp.float16(0.37))

    def advance(phase, _):  # -
        phase = phase + step  # fault
        return phase, jnp.sin(phase.astype(jnp.float32))

    _, wave = jax.lax.scan(advance, jnp.float16(0), length=1500)  # -
    # + wave = jnp.sin(step * jnp.arange(1.0, 1501.0))
    return wave[-128:], (x * wave[-128:]) @ params


@fault("underflow", "uniform", "coarse", policy="fp32")
@source("FP8 attention: scores before their scale")
@inputs(
    lambda: (
        {"q": weight(6220, 16, 16, 0.01), "k": weight(6221, 16, 16, 0.04)}
        | {"v": weight(6222, 16, 16)}
    ),
    "20x16 @6223",
)
def small_scores_in_fp8(params, x):
    """Attention whose small scores are kept in 8 bits."""
    q, k, v = (layer_norm(x) @ params[name] for name in "qkv")
    scores = (q @ k.T).astype(jnp.float8_e4m3)  # fault
    probs = jax.nn.softmax(300.0 * scores.astype(jnp.float32))  # -
    # + probs = jax.nn.softmax(300.0 * (q @ k.T))
    return probs @ v


@fault("coarse", "cancellation", policy="fp32")
@source("DINO and MoCo: centring after the cast")
@inputs("head: 16x24 w*0.2 @6285; 12x16 @6286")
def teacher_logits_with_an_offset(params, x):
    """DINO: teacher's logits in BF16 before a division by a small temperature."""
    logits = (x @ params["head"] + 30.0).astype(jnp.bfloat16)  # fault
    # + logits = x @ params["head"]
    centred = logits.astype(jnp.float32) - 30.0  # -
    return jax.nn.softmax(centred / 0.04)  # -
    # + return jax.nn.softmax(logits / 0.04)


@fault("coarse", "integer", policy="fp32")
@source("histograms for calibration in the tensor's own dtype")
@inputs(
    lambda: ((integers(6230, 1000, 400) + 0.5) / 1000).astype(np.float32),
    "11x3 w @6231",
)
def bins_by_bf16_index(values, params):
    """A histogram of a thousand bins, whose index is computed in BF16."""
    index = (values.astype(jnp.bfloat16) * 1000).astype(jnp.int32)  # fault
    # + index = jnp.floor(values * 1000).astype(jnp.int32)
    counts = jnp.zeros(1001).at[index].add(1.0)
    return counts, jnp.cumsum(counts)[::100] @ params


@fault("absorption", policy="fp32")
@source("SGLD on half weights")
@inputs(
    lambda: normal(6295, 16, 16, shift=3.0).astype(np.float16),
    "16x16 @6296; 16x16 @6297",
)
def langevin_step_in_half(w, g, noise):
    """A step of stochastic gradient Langevin dynamics on half weights."""
    moved = w - (1e-4 * g + 1e-4 * noise).astype(w.dtype)  # fault
    return moved  # -
    # + return w.astype(jnp.float32) - (1e-4 * g + 1e-4 * noise)


@fault("absorption", "coarse", policy="fp32")
@source("PEFT: merge_and_unload on BF16 weights")
@inputs(
    {
        "w": lambda: weight(6250, 32, 16).astype(jnp.bfloat16).astype(np.float32),
        "down": "32x4 w @6251",
        "up": "4x16 w @6252",
    },
    "12x32 @6253",
)
def adapter_merged_in_bf16(params, x):
    """A low-rank update merged into half weights before it is used."""
    small = params["down"] @ params["up"] * 0.002
    w = params["w"].astype(jnp.bfloat16) + small.astype(jnp.bfloat16)  # fault
    change = x @ w.astype(jnp.float32) - x @ params["w"]  # -
    return change  # -
    # + return x @ small


@fault("stagnation", "absorption", policy="fp32")
@source("spiking networks in half")
@inputs("in: 16x8 w @6300; 400x16 @6301")
def voltage_of_small_currents(params, x):
    """A leaky integrator of many small currents, its voltage in half."""

    def step(v, current):  # -
        v = v + current.astype(jnp.float16)  # fault
        return v, None

    currents = jax.nn.relu(x @ params["in"]) * 2e-3
    v, _ = jax.lax.scan(step, jnp.full(8, 12.0, jnp.float16), currents)  # -
    return v.astype(jnp.float32) - 12.0  # -
    # + return currents.sum(0)


@fault("coarse", "cancellation", policy="fp32")
@source("FP8 activations between layers")
@inputs("first: block 16 @6310, second: block 16 @6330; 12x16 @6350")
def residual_stream_in_e5m2(params, x):
    """A residual stream in FP8 between two blocks."""
    x = block(params["first"], x)
    stream = x.astype(jnp.float8_e5m2).astype(jnp.float32)  # fault
    change = block(params["second"], stream) - stream  # -
    return stream - x + 0.01 * change  # -
    # + return 0.01 * (block(params["second"], x) - x)


class _Houses(nnx.Module):
    """A perceptron on standardized columns."""

    def __init__(self):
        rngs = nnx.Rngs(650)
        self.hidden = nnx.Linear(3, 16, rngs=rngs)
        self.out = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.hidden(x)))


_GRAPH, _STATE = nnx.split(_Houses())


def houses_arguments():
    rng = np.random.default_rng(651)
    years = rng.integers(2009, 2024, 48)
    table = np.stack([years, rng.uniform(60, 220, 48), rng.uniform(1490, 1560, 48)], 1)
    state = jax.tree.map(jnp.asarray, _STATE)
    return state, table.astype(np.float32), "48 @652"


@fault("coarse", "cancellation")
@source("tabular pipelines: .bfloat16() on raw columns such as years")
@inputs(by=houses_arguments)
def years_cast_before_standardizing(state, table, prices):
    """The year, the area and the altitude of sold houses; a gradient step."""
    columns = table.astype(jnp.bfloat16)  # fault
    columns = columns.astype(jnp.float32)  # -
    centred = columns - jnp.mean(columns, axis=0)  # -
    # + centred = table - jnp.mean(table, axis=0)
    spread = jnp.sqrt(jnp.mean(jnp.square(centred), axis=0)) + 1e-3
    inputs = centred / spread  # -
    # + inputs = (centred / spread).astype(jnp.bfloat16).astype(jnp.float32)

    def loss(s):
        model = nnx.merge(_GRAPH, s)
        return jnp.mean(jnp.square(model(inputs)[:, 0] - prices))

    grads = jax.grad(loss)(state)
    return inputs, jax.tree.map(lambda p, g: p - 0.05 * g, state, grads)


def scan_arguments():
    rng = np.random.default_rng(660)
    wall = np.stack(
        [rng.uniform(-8, 8, 64), np.full(64, 6.0), rng.uniform(0, 3, 64)], 1
    )
    wall += 0.02 * rng.standard_normal((64, 3))
    c, s, shift = np.cos(0.3), np.sin(0.3), np.float32([0.4, -0.2, 0.05])
    points = (wall - shift) @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    return points.astype(np.float32), "f32 0.3", shift, "f32 0 1 0 -6"


@fault("coarse", policy="fp8")
@source("JAX and PyTorch3D issues: default matmul precision moves geometry")
@inputs(by=scan_arguments)
def point_cloud_turned_by_fp8_matmul(points, angle, shift, plane):
    """Two laser scans of a wall are put together by a rotation; the residuals."""
    c, s = jnp.cos(angle), jnp.sin(angle)
    zero, one = jnp.zeros_like(c), jnp.ones_like(c)  # -
    turn = jnp.array([[c, -s, zero], [s, c, zero], [zero, zero, one]])  # -
    turned = points @ turn.T  # fault
    # + x, y, z = points[:, 0], points[:, 1], points[:, 2]
    # + turned = jnp.stack([c * x - s * y, s * x + c * y, z], axis=-1)
    moved = turned + shift
    gap = jnp.sum(moved * plane[:3], axis=-1) + plane[3]
    weights = 1.0 / (1.0 + jnp.square(gap / 0.05))
    return moved, gap, weights


def returns_arguments():
    rng = np.random.default_rng(670)
    place = (
        np.arange(64) - rng.uniform(36, 40, (12, 1, 1)) - 0.1 * rng.random((12, 33, 1))
    )
    shape = np.exp(-0.5 * (place / 2.0) ** 2)
    probabilities = shape / shape.sum(-1, keepdims=True)
    rewards = rng.uniform(0, 2, (12, 32))
    return probabilities.astype(np.float32), rewards.astype(np.float32)


@fault("coarse", policy="mxfp8", target="trn3")
@source("DreamerV3 ports: the expectation over value bins runs as a cast matmul")
@inputs(by=returns_arguments)
def critic_bins_by_mx_matmul(probabilities, rewards):
    """Lambda returns of a critic that predicts a distribution over 64 bins."""
    bins = jnp.linspace(0.0, 1000.0, 64)
    values = probabilities @ bins  # fault
    # + values = jnp.sum(probabilities * bins, axis=-1)
    nudge = rewards + 0.997 * values[:, 1:] - values[:, :-1]

    def back(ahead, now):
        total = now + 0.997 * 0.95 * ahead
        return total, total

    end = jnp.zeros(rewards.shape[0])
    _, advantages = jax.lax.scan(back, end, nudge.T, reverse=True)
    return values, advantages
