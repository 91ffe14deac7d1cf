"""Functions beside their singularities, and ends of a range."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    attention,
    cross_entropy,
    layer_norm,
    normal,
    uniform,
)


def graph_arguments():
    edges = np.triu(uniform(601, 24, 24) < 0.15, 1).astype(np.float32)
    adjacency = edges + edges.T
    adjacency[[3, 17]] = 0.0
    adjacency[:, [3, 17]] = 0.0
    return (
        "first: 8x16 w @602, own: 8x16 w, second: 16x4 w, out: 16x4 w; 24x8 @606",
        adjacency,
    )


@fault("singular", "non-finite")
@source("PyTorch Geometric and DGL issues: deg.pow(-0.5) of an isolated node")
@inputs(by=graph_arguments)
def isolated_node_degree_to_minus_half(params, nodes, adjacency):
    """Two layers of a graph convolution, normalized by degrees on both sides."""
    degree = adjacency.sum(-1)
    root = degree**-0.5  # fault
    # + root = jnp.where(degree > 0, jnp.maximum(degree, 1.0) ** -0.5, 0.0)
    mixing = root[:, None] * adjacency * root[None, :]
    h = jax.nn.relu(mixing @ (nodes @ params["first"]) + nodes @ params["own"])
    return mixing @ (h @ params["second"]) + h @ params["out"]


def heading_arguments():
    valid = np.arange(32) % 9 != 4
    scans = normal(613, 32, 20) * valid[:, None]
    return "in: 20x48 w @611, out: 48x2 w", scans, "32 -3..3 @614", valid


@fault("singular", "non-finite", policy="mxfp4", target="trn3")
@source("e3nn issue: the derivative of atan2 at (0, 0)")
@inputs(by=heading_arguments)
def heading_gradient_of_zero_vector(params, scans, angles, valid):
    """A step that learns headings; padded scans are zero and do not count."""

    def loss_of(params):
        h = jax.nn.relu(scans @ params["in"])
        vector = h @ params["out"]
        heading = jnp.arctan2(vector[:, 1], vector[:, 0])  # fault
        # + some = jnp.where(valid[:, None], vector, jnp.asarray([1.0, 0.0]))
        # + heading = jnp.arctan2(some[:, 1], some[:, 0])
        miss = 1.0 - jnp.cos(heading - angles)
        return jnp.where(valid, miss, 0.0).sum() / valid.sum()

    value, grads = jax.value_and_grad(loss_of)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@fault("singular", "cancellation", "non-finite", "absorption", policy="fp32")
@source("statistics questions: erfinv(1 - 2p) is infinite for small p")
@inputs(
    lambda: (10.0 ** uniform(621, 16, 6, low=-9.5, high=-0.5)).astype(np.float32),
    "6 0.5..2 @622",
)
def normal_score_of_tiny_p_value(p_values, weights):
    """Combines the evidence of studies: p-values become normal scores."""
    scores = jnp.sqrt(2.0) * jax.scipy.special.erfinv(1.0 - 2.0 * p_values)  # fault
    # + scores = -jax.scipy.special.ndtri(p_values)
    combined = (scores @ weights) / jnp.linalg.norm(weights)
    return scores, combined


@fault("singular", "coarse")
@source("audio filter code: tan(π f / rate) next to its pole")
@inputs("64x6 @631; f32 23500 23700 23850 23900 23950 23970; f32 48000")
def bilinear_prewarp_near_nyquist(signal, cutoff, rate):
    """High-pass filters of first order by the bilinear transform, one a channel."""
    share = (cutoff / rate).astype(jnp.bfloat16)  # -
    warped = jnp.tan(jnp.pi * share).astype(jnp.float32)  # fault
    # + distance = (rate / 2 - cutoff) / rate
    # + warped = 1.0 / jnp.tan(jnp.pi * distance)
    passed = 1.0 / (1.0 + warped)
    pole = (1.0 - warped) / (1.0 + warped)

    def step(state, x):
        before, out = state
        out = passed * (x - before) + pole * out
        return (x, out), out

    start = (jnp.zeros_like(cutoff), jnp.zeros_like(cutoff))
    _, out = jax.lax.scan(step, start, signal)
    return out


def loo_arguments():
    kept = uniform(651, 12, 4) < 0.8
    kept[[2, 9]] = [False, True, False, False]
    return (
        "in: 10x24 w @652, out: 24x8 w; 12x10 @654; 12x4 int 0..8 @655; 12x4 0..1 @656",
        kept,
    )


@fault("non-finite")
@source("RLHF trainers: RLOO divides by k - 1 after samples were filtered")
@inputs(by=loo_arguments)
def leave_one_out_of_single_sample(params, prompts, actions, rewards, kept):
    """RLOO: a sample's baseline is the mean reward of the others of its prompt."""

    def loss_of(params):
        logits = jnp.tanh(prompts @ params["in"]) @ params["out"]
        logp = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(logp, actions, axis=-1)
        counted = jnp.where(kept, rewards, 0.0)
        others = kept.sum(-1, keepdims=True) - 1  # -
        # + others = jnp.maximum(kept.sum(-1, keepdims=True) - 1, 1)
        baseline = (counted.sum(-1, keepdims=True) - counted) / others  # here
        advantage = jnp.where(kept, rewards - baseline, 0.0)
        return -jnp.sum(advantage * chosen) / kept.sum()

    return jax.value_and_grad(loss_of)(params)


def relief_arguments():
    y, x = np.mgrid[-1:1:20j, -1:1:20j]
    length = np.maximum(np.hypot(x, y), 1.0)
    xy = np.stack([x, y], axis=-1) / length[..., None]
    texture = np.round((xy + 1.0) * 127.5).astype(np.uint8)
    return "rows: 20x6 w @681, out: 6x2 w", texture, "f32 0.3 0.4 0.866"


@fault("non-finite", policy="fp32")
@source("graphics forums: two-channel normal maps, the root of a negative")
@inputs(by=relief_arguments)
def normal_map_z_of_quantized_rim(params, texture, light):
    """A shader: normals from two bytes of a texture, the third from their length."""
    xy = texture.astype(jnp.float32) / 127.5 - 1.0
    z = jnp.sqrt(1.0 - jnp.sum(xy * xy, axis=-1, keepdims=True))  # fault
    normals = jnp.concatenate([xy, z], axis=-1)  # -
    # + rest = 1.0 - jnp.sum(xy * xy, axis=-1, keepdims=True)
    # + normals = jnp.concatenate([xy, jnp.sqrt(jnp.maximum(rest, 0.0))], axis=-1)
    shade = jnp.maximum(normals @ light, 0.0)
    h = jax.nn.relu(convolve_rows(shade, params["rows"]))
    return shade, h @ params["out"]


def convolve_rows(picture, rows):
    """Differences of neighbouring rows, weighed."""
    return jnp.einsum("hw,hk->kw", picture, rows).T


FP8_UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")


@fault("overflow", "non-finite", policy="mxfp8", target="trn3")
@source("JAX FAQ: gradients contain NaN where using where; hand-written ELUs")
@inputs(
    {
        "in": "kernel: 20x48 w @101, bias: 48 =0",
        "middle": "kernel: 48x48 w @102, bias: 48 =0",
        "out": "kernel: 48x6 w*0.02 @103, bias: 6 =0",
    },
    "32x20 *55 @104; 32 int 0..6 @105",
)
def elu_exponential_behind_where(params, x, labels):
    """A network of Flax with an ELU of its own; the features are not normalized."""

    def elu(x, slope=1.0):
        below = slope * (jnp.exp(x) - 1.0)  # fault
        # + below = slope * (jnp.exp(jnp.minimum(x, 0.0)) - 1.0)
        return jnp.where(x > 0, x, below)

    def loss_of(params):
        h = elu(nn.Dense(48).apply({"params": params["in"]}, x))
        h = elu(nn.Dense(48).apply({"params": params["middle"]}, h))
        logits = nn.Dense(6).apply({"params": params["out"]}, h)
        return cross_entropy(logits, labels)

    return jax.value_and_grad(loss_of)(params)


@fault("overflow", policy="fp8")
@source("forum questions: the perplexity of a long text is infinite")
@inputs("embed: 60x24 *0.2 @111, body: block 24; 65 int 0..60 @122")
def perplexity_exp_of_the_sum(params, tokens):
    """The perplexity of one document under a small causal model."""
    x = params["embed"][tokens[:-1]]
    x = x + attention(params["body"], layer_norm(x))
    logits = layer_norm(x) @ params["embed"].T
    scores = jax.nn.log_softmax(logits)
    picked = jnp.take_along_axis(scores, tokens[1:, None], axis=-1)[:, 0]
    inverse = jnp.exp(-picked.sum())  # fault
    return inverse ** (1.0 / picked.size)  # -
    # + return jnp.exp(-picked.mean())


@fault("overflow", "saturation")
@source("vLLM and DeepEP pull requests on E4M3 formats with a maximum of 240")
@inputs("q: 32x32 w @151, o: 32x32 w; 40x32 @153; 40x32 @154; 12x32 @155")
def cache_scale_for_448_on_format_of_240(params, keys, values, queries):
    """Attention on a cache in E4M3, quantized as on the GPU the code comes from."""
    largest = 448.0  # -
    # + largest = 240.0
    scale = jnp.abs(keys).max() / largest  # here
    cached = (keys / scale).astype(jnp.float8_e4m3)
    q = layer_norm(queries) @ params["q"]
    k = cached.astype(jnp.bfloat16).astype(jnp.float32) * scale
    probs = jax.nn.softmax(q @ k.T / q.shape[-1] ** 0.5)
    return probs @ values @ params["o"]


@fault("overflow", "saturation", policy=FP8_UNSCALED)
@source("FP8 training guides: gradients in E5M2 need a scale or a mean loss")
@inputs("in: 16x32 w @161, out: 32x4 w; 48x16 @163; 48x4 *3000 +9000 @164")
def fp8_cotangent_of_summed_loss(params, x, sales):
    """A forecast of sales in cents; the squared error is summed, as in old code."""

    # + scale = 2.0**-20
    def loss_of(params):
        h = jax.nn.relu(x @ params["in"])
        forecast = 1e3 * (h @ params["out"])  # here
        return jnp.sum((forecast - sales) ** 2)  # -
        # + return jnp.sum((forecast - sales) ** 2 * scale)

    grads = jax.grad(loss_of)(params)  # -
    # + grads = jax.tree.map(lambda g: g / scale, jax.grad(loss_of)(params))
    rate = 1e-12
    return grads, jax.tree.map(lambda p, g: p - rate * g, params, grads)


@fault("coarse")
@source("forecasting libraries: quantile 0.999 of a module in bfloat16 is 1")
@inputs(
    "in: 8x16 w @2500, out: 16x3 w*0.1, b: f32 9 10 11; 64x8 @2502; 64x1 @2503; "
    "f32 0.9985 0.999 0.9995"
)
def pinball_levels_in_bf16(params, x, y, levels):
    """A step on the pinball loss for extreme quantiles; the levels are cast too."""
    tau = levels.astype(jnp.bfloat16)  # fault
    tau = tau.astype(jnp.float32)  # -

    def loss_of(params):
        h = jnp.tanh(x @ params["in"])
        error = y - (h @ params["out"] + params["b"])
        pinball = jnp.maximum(tau * error, (tau - 1) * error)  # -
        # + pinball = jnp.maximum(levels * error, (levels - 1) * error)
        return jnp.mean(pinball, axis=0).sum() * 100.0

    loss, grads = jax.value_and_grad(loss_of)(params)
    return loss, grads["b"], jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@fault("underflow", "non-finite")
@source("statsmodels and GPyTorch questions: all weights of a query are zero")
@inputs("24x6 @2530; 24x2 @2531; 16x6 *1.5 @2532; f32 0.15")
def kernel_regression_off_the_data(known, targets, x, width):
    """Kernel regression (Nadaraya and Watson) on queries off the training points."""
    gap = jnp.sum((x[:, None] - known[None]) ** 2, axis=-1)
    kernel = jnp.exp(-gap / (2 * width**2))  # fault
    total = jnp.sum(kernel, axis=-1, keepdims=True)  # -
    share = kernel / total  # -
    # + share = jax.nn.softmax(-gap / (2 * width**2), axis=-1)
    return share @ targets, jnp.max(share, axis=-1)


def welford_arguments():
    mean = normal(2520, 6, scale=3.0, shift=8.0)
    batch = normal(2521, 100, 6, scale=2.0) + mean + 3.0
    return mean, "6 =4e+08; i32 100000000", batch


@fault("absorption", "stagnation", policy="fp32")
@source("running normalizers of observations in RL: they stop to adapt")
@inputs(by=welford_arguments)
def welford_after_many_samples(mean, spread, count, batch):
    """Running statistics of features, already seen a hundred million times."""

    def see(carry, x):  # -
        mean, spread, count = carry
        count = count + 1
        gap = x - mean
        mean = mean + gap / count.astype(jnp.float32)  # fault
        spread = spread + gap * (x - mean)
        return (mean, spread, count), None

    (new, spread, count), _ = jax.lax.scan(see, (mean, spread, count), batch)  # -
    z = (batch[:8] - new) / jnp.sqrt(spread / count.astype(jnp.float32))  # -
    # + size = batch.shape[0]
    # + share = size / (count + size).astype(jnp.float32)
    # + gap = batch.mean(0) - mean
    # + move = gap * share
    # + within = jnp.sum((batch - batch.mean(0)) ** 2, axis=0)
    # + total = spread + within + gap**2 * share * count.astype(jnp.float32)
    # + new = mean + move
    # + z = (batch[:8] - new) / jnp.sqrt(total / (count + size).astype(jnp.float32))
    return (new - mean) * 1e6, z  # -
    # + return move * 1e6, z


@fault("cancellation", policy="fp32")
@source("Forsythe, How Do You Solve a Quadratic Equation; ray tracers' spheres")
@inputs("16 0.05..0.4 @2542; 16 400..900 @2543; f32 9.81; in: 2x8 w @2544, out: 8x2 w")
def root_by_schoolbook_formula(height, speed, gravity, params):
    """When a ball hits the ground: the schoolbook root, for strong throws down."""
    a, b, c = -0.5 * gravity, -speed, height
    root = jnp.sqrt(b * b - 4 * a * c)
    time = (-b - root) / (2 * a)  # fault
    # + time = 2 * c / (-b + root)
    drop = speed * time + 0.5 * gravity * time**2
    code = jnp.stack([time * speed, drop / height], axis=-1)
    return time * speed, drop / height, jax.nn.relu(code @ params["in"]) @ params["out"]


@fault("cancellation", "coarse", policy="fp32")
@source("gradient checks in FP32 with the step of FP64; SciPy minimize issues")
@inputs("3 @2546; 32 @2547; 32 @2548; f32 2e-06")
def gradient_by_forward_differences(params, x, y, step):
    """Fits a black-box simulator: its gradient by forward differences."""

    def loss_of(p):
        state = jnp.tanh(x * p[0] + p[1]) + 0.1 * p[2] * x**2
        return 4.0 + jnp.mean((state - y) ** 2)

    base = loss_of(params)  # -
    ahead = jax.vmap(lambda unit: loss_of(params + step * unit))(jnp.eye(3))  # -
    grad = (ahead - base) / step  # fault
    # + base, grad = jax.value_and_grad(loss_of)(params)
    return base, grad, params - 0.1 * grad


def below(z):
    """The normal distribution function."""
    return 0.5 * jax.lax.erfc(-z * 0.70710678)


@fault("cancellation", policy="fp32")
@source("option libraries on GPUs: negative put prices, implied vol fails")
@inputs("16 98..104 @2549; 16 56..62 @2550; 16 0.3..0.5 @2551", ("f32 0.03", "f32 0.2"))
def puts_by_parity_out_of_the_money(spot, strike, years, market):
    """Put prices by parity from call prices, far out of the money."""
    rate, vol = market
    root = vol * jnp.sqrt(years)
    up = (jnp.log(spot / strike) + (rate + 0.5 * vol**2) * years) / root
    bond = strike * jnp.exp(-rate * years)
    call = spot * below(up) - bond * below(up - root)  # -
    put = call - spot + bond  # fault
    # + put = bond * below(root - up) - spot * below(-up)
    return put, jnp.log(jnp.maximum(put, 1e-12)), put * market[0]


@fault("overflow")
@source("scipy.stats.gmean: overflows when it is written as prod ** (1 / n)")
@inputs("13x60 2..30 @2552; 60 1..2 @2553; 6x2 w*4 @2554")
def price_index_as_root_of_product(prices, base, params):
    """A price index: the geometric mean of sixty relative prices per month."""
    relative = prices / base
    product = jnp.prod(relative, axis=-1)  # fault
    index = product ** (1.0 / prices.shape[-1])  # -
    # + index = jnp.exp(jnp.log(relative).mean(-1))
    change = jnp.diff(jnp.log(index))
    return index, jnp.tanh(change.reshape(-1, 6) @ params)


def unit(x):
    """Rows without their means, of length one."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.sum(centred * centred, axis=-1, keepdims=True))


def fisher_arguments():
    reference = normal(2570, 1, 40)
    spread = np.geomspace(7e-4, 3e-3, 16).astype(np.float32)[:, None]
    return reference, reference + spread * normal(2571, 16, 40), "4x3 w @2572"


@fault("singular", "cancellation", policy="fp32")
@source("np.corrcoef and arctanh: z values of r = 0.999999 are noise")
@inputs(by=fisher_arguments)
def fisher_z_of_near_equal_gauges(reference, probes, params):
    """Fisher's z of the agreement between a reference and almost equal gauges."""
    r = jnp.sum(unit(reference) * unit(probes), axis=-1)  # -
    z = jnp.arctanh(jnp.clip(r, -0.9999999, 0.9999999))  # fault
    # + apart = jnp.sum((unit(reference) - unit(probes)) ** 2, axis=-1) / 2
    # + z = 0.5 * (jnp.log(2 - apart) - jnp.log(jnp.maximum(apart, 1e-7)))
    score = jnp.tanh((z.reshape(-1, 4) - 7.0) @ params)
    return z, jnp.exp(2 * z) / 1e6, score


@fault("cancellation")
@source("statistics packages: 1 - cdf(x) instead of the survival function")
@inputs(
    "128x4 +1 @465", lambda: (uniform(466, 16, 128) < 0.25).astype(np.float32), "f32 0"
)
def p_value_as_one_minus_cdf(x, groups, threshold):
    """p-values of the means of groups, combined by Fisher's method."""
    mean = groups @ x / groups.sum(1, keepdims=True)
    z = (mean - threshold) * jnp.sqrt(groups.sum(1, keepdims=True))
    p = 0.5 * (1 - jax.lax.erf(z * 0.70710678))  # fault
    # + p = 0.5 * jax.lax.erfc(z * 0.70710678)
    return p, -2 * jnp.log(p).sum(0)


@fault("absorption", "stagnation", "cancellation")
@source("pandas rolling and integral images: the running sum's rounding stays")
@inputs("8192 @467 [:2000]*=3000 [2000:]*=0.5; 64x4 w @468")
def moving_power_from_prefix_sums(signal, kernel):
    """Moving power of a sensor in windows of 16 samples, from prefix sums."""
    power = signal * signal
    ends = jnp.cumsum(power)  # fault
    starts = jnp.concatenate([jnp.zeros(16), ends[:-16]])  # -
    window = ends - starts  # -
    # + padded = jnp.concatenate([jnp.zeros(15), power])
    # + window = sum(padded[i : i + power.shape[0]] for i in range(16))
    level = jnp.log1p(jnp.maximum(window, 0.0))  # -
    # + level = jnp.log1p(window)
    return window, level.reshape(-1, 64) @ kernel
