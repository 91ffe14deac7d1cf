"""Scales and ranges: stale, zero and clipped scales, overflow, underflow."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import integers, layer_norm, normal, uniform


@fault("stale-scale", "saturation", "overflow", policy="fp32")
@source("Transformer Engine: delayed scaling when activations jump")
@inputs("gain: f32 24, w: 32x16 w @6401; 16x32 @6402; 16 =3.5")
def amax_history_before_growth(params, x, amax):
    """An FP8 layer scaled by the largest of earlier steps; then the data grew."""
    h = layer_norm(x) * params["gain"]
    scale = 240.0 / jnp.max(amax)  # -
    # + top = jnp.max(jnp.abs(h))
    # + scale = 240.0 / top
    h8 = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # here
    y = h8.astype(jnp.float32) @ params["w"] / scale
    history = jnp.roll(amax, 1).at[0].set(jnp.max(jnp.abs(h)))  # -
    return jax.nn.relu(y), history  # -
    # + return jax.nn.relu(y), jnp.roll(amax, 1).at[0].set(top)


@fault("stale-scale", "underflow", "coarse", policy="fp32")
@source("delayed scaling of gradients after a warm-up")
@inputs("w: 16x8 w @6500; 24x16 @6501; f32 90000")
def gradient_scale_before_decay(params, x, amax):
    """The same after the norm of the gradients has fallen a millionfold."""
    g = (x @ params["w"]) * 1e-5
    scale = 57344.0 / amax  # -
    # + scale = 57344.0 / jnp.max(jnp.abs(g))
    g8 = (g * scale).astype(jnp.float8_e5m2)  # here
    return (g8.astype(jnp.float32) @ params["w"].T) / scale


@fault("stale-scale", "saturation", "integer", "overflow", policy="fp32")
@source("a quantizer without a clip")
@inputs("in: 8x16 w*2 @6505, out: 16x4 w; 20x8 @6507; f32 0.02")
def codes_beyond_int8(params, x, scale):
    """The same without a bound: what is too large wraps or stays at the end."""
    h = jnp.tanh(x @ params["in"]) * 9.0
    # + scale = jnp.max(jnp.abs(h)) / 127.0
    codes = jnp.round(h / scale).astype(jnp.int8)  # here
    return codes.astype(jnp.float32) * scale @ params["out"]


@fault("singular", "non-finite", "saturation", policy="fp32")
@source("per-channel quantization: 127 / 0")
@inputs("in: 8x16 w @6430, bias: 16 =0 [3]=-100, out: 16x4 w; 20x8 @6432")
def scale_of_a_dead_channel(params, x):
    """Scales per channel of a tensor with a dead channel."""
    h = jax.nn.relu(x @ params["in"] + params["bias"])
    scale = 127.0 / jnp.max(h, axis=0)  # fault
    # + scale = 127.0 / jnp.maximum(jnp.max(h, axis=0), 1e-6)
    codes = jnp.round(h * scale)
    return codes / scale @ params["out"]


@fault("overflow", policy="fp32")
@source("LSTM cells have no bound")
@inputs("gates: 8x16 w @6515; 40x8 @6516")
def energy_of_a_counting_cell(params, x):
    """An LSTM whose cell counts without a bound, in half and then squared."""

    def step(c, u):
        i, f = jnp.split(jax.nn.sigmoid(u @ params["gates"] + 4.0), 2, -1)
        c = f * c + i * 30.0
        return c, c

    _, cells = jax.lax.scan(step, jnp.zeros(8), x)
    energy = jnp.sum(cells.astype(jnp.float16) ** 2, -1)  # fault
    return energy.astype(jnp.float32) / 1e4  # -
    # + return jnp.sum((cells / 100.0) ** 2, -1)


def focal_arguments():
    y = integers(6450, 4, 24)
    x = np.eye(4, dtype=np.float32)[y] * uniform(6451, 24, 1, low=0.9, high=1.1)
    return np.eye(4, dtype=np.float32) * 1.1, x, y


@fault("underflow", policy="fp32")
@source("focal loss in half")
@inputs(by=focal_arguments)
def focal_power_of_small_miss(params, x, y):
    """A focal loss whose power of a small miss is taken in half."""
    p = jax.nn.softmax(6.0 * x @ params)  # -
    right = jnp.take_along_axis(p, y[:, None], -1)[:, 0]  # -
    # + scores = jax.nn.log_softmax(6.0 * x @ params)
    # + right = jnp.take_along_axis(scores, y[:, None], -1)[:, 0]
    weightings = ((1.0 - right).astype(jnp.float16)) ** 3  # fault
    return weightings.astype(jnp.float32) * 1e6, -jnp.log(right)  # -
    # + return (-jnp.expm1(right)) ** 3 * 1e6, -right


@fault("underflow", "non-finite", policy="fp32")
@source("Gaussian mixtures without logarithms")
@inputs("mean: 3x40 @6520, scale: f32 0.5; 16x40 @6521")
def mixture_by_product_of_features(params, x):
    """A mixture's joint densities, multiplied over forty features."""
    gap = (x[:, None] - params["mean"]) / params["scale"]
    each = jnp.exp(-0.5 * gap**2) / (params["scale"] * 2.5066)  # -
    # + each = -0.5 * gap**2 - jnp.log(params["scale"] * 2.5066)
    joint = jnp.prod(each, axis=-1)  # fault
    return joint / joint.sum(-1, keepdims=True)  # -
    # + return jax.nn.softmax(each.sum(-1))


def belief_arguments():
    params, x = normal(6460, 8), normal(6461, 64, 8)
    y = x @ params + 900.0 * x[:, 0]
    gradient = 2.0 * x.T @ (x @ params - y) / 64.0
    first = gradient * (1 + 1e-4 * normal(6462, 8))
    state = {"first": first, "second": first**2, "spread": (1e-4 * gradient) ** 2}
    return jax.tree.map(np.float32, state), params, x, y


@fault("cancellation", policy="fp32")
@source("centred second moments: E[g^2] - E[g]^2")
@inputs(by=belief_arguments)
def belief_as_difference_of_moments(state, params, x, y):
    """AdaBelief by the difference of two moments."""

    def loss_of(p):
        return jnp.mean((x @ p - y) ** 2)

    g = jax.grad(loss_of)(params)
    first = 0.9 * state["first"] + 0.1 * g
    second = 0.9 * state["second"] + 0.1 * g * g  # -
    spread = second - first * first  # fault
    # + spread = 0.9 * state["spread"] + 0.09 * (g - state["first"]) ** 2
    return params - 1e-6 * g * jax.lax.rsqrt(jnp.abs(spread) + 1e-12), first  # -
    # + return params - 1e-6 * g * jax.lax.rsqrt(spread + 1e-12), first


@fault("cancellation", policy="fp32")
@source("PPO and GRPO: the first inner step")
@inputs("8x4 w @6470; 8x4 w*1e-05 @6471; 16x8 @6472")
def ratio_less_one_of_near_policies(params, move, x):
    """PPO's ratio less one, of two policies that hardly differ."""
    log_ratio = (x @ move) * jax.nn.softmax(x @ params)
    gain = jnp.exp(log_ratio) - 1.0  # fault
    return gain * 1e5  # -
    # + return jnp.expm1(log_ratio) * 1e5


def angle_arguments():
    a = normal(6480, 24, 8)
    return "24x3 w @6481", a, a + normal(6482, 24, 8, scale=4e-4)


@fault("singular", "cancellation", policy="fp32")
@source("ArcFace margins: arccos near one")
@inputs(by=angle_arguments)
def angle_of_near_embeddings(params, a, b):
    """Angles between embeddings that are nearly the same."""
    left, right = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (a, b))
    cosine = jnp.sum(left * right, -1)  # -
    angle = jnp.arccos(jnp.clip(cosine, -1.0, 1.0))  # fault
    # + chord = jnp.sqrt(jnp.sum((left - right) ** 2, -1))
    # + angle = 2.0 * jnp.arcsin(chord / 2.0)
    return angle, angle * 1e3 @ params


@fault("singular", "cancellation", "non-finite", policy="fp32")
@source("copulas and bivariate Gaussians: 1 / (1 - rho^2)")
@inputs("4x1 w*4 @6530; 24x4 @6531")
def precision_of_tied_features(params, x):
    """The precision of a pair of features that move together."""
    rho = jnp.tanh(x @ params)  # -
    precision = 1.0 / (1.0 - rho * rho)  # fault
    # + z = x @ params
    # + precision = jnp.cosh(z) ** 2
    return precision, -0.5 * jnp.log(precision)


@fault("singular", "non-finite", policy="fp32")
@source("the gradient of x ** p at zero")
@inputs(lambda: jax.nn.relu(normal(6540, 12, 12)), "gain: f32 1.2, gamma: f32 0.45")
def gamma_curve_at_black(image, params):
    """The gradient of a gamma curve at black pixels."""

    def loss_of(p):
        light = image * p["gain"]
        return jnp.mean((light ** p["gamma"] - 0.5) ** 2)  # fault
        # + safe = jnp.where(light > 0, light, 1.0)
        # + return jnp.mean((jnp.where(light > 0, safe ** p["gamma"], 0.0) - 0.5) ** 2)

    return jax.grad(loss_of)(params)


def block_arguments():
    rng = np.random.default_rng(700)
    w = rng.choice([-1, 1], (64, 24)) * rng.uniform(0.5, 1.0, (64, 24))
    w = w * 0.0009765625 * 1.41 * 240 * 2.0 ** rng.integers(-3, 0, 24)
    params = {"w": w, "b": normal(701, 24, scale=0.1), "out": normal(702, 24, 4)}
    params = jax.tree.map(lambda a: np.asarray(a, np.float32), params)
    return params, normal(703, 16, 64)


@fault("saturation", "overflow")
@source("MLX issue: MXFP8 scales rounded to nearest clip the blocks' largest")
@inputs(by=block_arguments)
def block_exponents_to_nearest(params, x):
    """Weights in blocks of 32 with scales that are powers of two, rounded."""
    w = params["w"].reshape(-1, 32, params["w"].shape[1])
    top = jnp.max(jnp.abs(w), axis=1, keepdims=True)
    scale = jnp.exp2(jnp.round(jnp.log2(top / 240.0)))  # fault
    # + scale = jnp.exp2(jnp.ceil(jnp.log2(top / 240.0)))
    small = jnp.clip(w / scale, -240.0, 240.0).astype(jnp.float8_e4m3)
    back = (small.astype(jnp.float32) * scale).reshape(params["w"].shape)
    h = jax.nn.gelu(x @ back + params["b"])
    return back, h @ params["out"]


def outliers_arguments():
    gain = np.ones(64, np.float32)
    gain[[7, 41]] = 40.0
    params = {
        "gain": gain,
        "gate": normal(720, 64, 32, scale=0.05),
        "up": normal(721, 64, 32, scale=0.05),
        "down": normal(722, 32, 8, scale=0.2),
    }
    x = normal(723, 12, 64)
    x[:, [7, 41]] = np.sign(x[:, [7, 41]]) * (1 + 0.2 * np.abs(x[:, [7, 41]]))
    return params, x


@fault("saturation", policy="mxfp8", target="trn3")
@source("Dettmers et al., LLM.int8(): outlier features must not be clipped")
@inputs(by=outliers_arguments)
def outlier_channels_clipped(params, x):
    """INT8 activations of a large model; a few channels are forty times larger."""
    h = x * params["gain"]
    step = 3.0 * jnp.std(h, axis=-1, keepdims=True) / 127.0  # fault
    # + step = jnp.max(jnp.abs(h), axis=-1, keepdims=True) / 127.0
    codes = jnp.clip(jnp.round(h / step), -127, 127).astype(jnp.int8)
    back = codes.astype(jnp.float32) * step
    up = jax.nn.silu(back @ params["gate"]) * (back @ params["up"])
    return back, up @ params["down"]


@fault("saturation", "non-finite")
@source("SmoothQuant issues: NaN where a channel of activations is all zero")
@inputs("in: 12x24 *0.3 @730, b: 24 =0 [[5,17]]=-40, w: 24x6 *0.2; 16x12 @732")
def smoothquant_of_dead_channel(params, x):
    """SmoothQuant: activations are divided, weights multiplied, channel by channel."""
    h = jax.nn.relu(x @ params["in"] + params["b"])
    high, heavy = jnp.max(h, axis=0), jnp.max(jnp.abs(params["w"]), axis=1)
    factor = jnp.sqrt(high) / jnp.sqrt(heavy)  # -
    # + factor = jnp.sqrt(jnp.maximum(high, 1e-5)) / jnp.sqrt(heavy)
    smooth = h / factor  # here
    step = jnp.max(jnp.abs(smooth)) / 127.0
    codes = jnp.round(smooth / step).astype(jnp.int8)
    w = params["w"] * factor[:, None]
    return (codes.astype(jnp.float32) * step) @ w


@fault("saturation")
@source("uint8 observers: the range is max - min, the zero point is forgotten")
@inputs("in: 16x12 *0.3 @740, out: 12x2; 20x16 *6 +285 @742")
def kelvins_without_zero_point(params, fields):
    """Temperature fields in UINT8: the step is right, but there is no zero point."""
    low, high = jnp.min(fields), jnp.max(fields)
    step = (high - low) / 255.0
    codes = jnp.clip(jnp.round(fields / step), 0, 255).astype(jnp.uint8)  # fault
    # + codes = jnp.clip(jnp.round((fields - low) / step), 0, 255).astype(jnp.uint8)
    back = codes.astype(jnp.float32) * step  # -
    # + back = codes.astype(jnp.float32) * step + low
    warm = (back - 285.0) / 10.0
    return back, jax.nn.relu(warm @ params["in"]) @ params["out"]


def rollouts_arguments():
    states = normal(750, 12, 64, 8, scale=0.5)
    goal = normal(751, 8, 3)
    rewards = np.tanh(states @ goal) + normal(752, 12, 64, 3, scale=0.1)
    return "w: 8x3 *0.02 @753", states, rewards.astype(np.float32)


@fault("stale-scale", "saturation", policy="fp8")
@source("RL frameworks: weights are synced to FP8 engines, their scales are not")
@inputs(by=rollouts_arguments)
def rollout_weights_with_old_scale(params, states, rewards):
    """Each round trains a policy and syncs it, in FP8, to the rollout engine."""

    def objective(w, x, r):
        return jnp.mean(r * jnp.tanh(x @ w))

    ready = 120.0 / jnp.max(jnp.abs(params["w"]))  # -

    def sync(carry, batch):
        w, _ = carry
        w = w + 0.8 * jax.grad(objective)(w, *batch)
        # + ready = 120.0 / jnp.max(jnp.abs(w))
        w8 = jnp.clip(w * ready, -240, 240).astype(jnp.float8_e4m3)  # here
        engine = w8.astype(jnp.float32) / ready
        return (w, engine), jnp.tanh(batch[0] @ engine)

    (w, engine), acts = jax.lax.scan(sync, (params["w"],) * 2, (states, rewards))
    return engine, acts, jnp.max(jnp.abs(w))
