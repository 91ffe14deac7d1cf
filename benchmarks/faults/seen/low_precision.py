"""Statistics, finance and models in few digits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import integers, normal, uniform


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


def bayes_arguments():
    rng = np.random.default_rng(2510)
    counts = rng.poisson(rng.gamma(0.5, 8.0, (2, 200))).astype(np.float32)
    words = integers(2511, 200, 20, 40)
    lengths = integers(2512, 30, 20) + 10
    words = np.where(np.arange(40) < lengths[:, None], words, -1)
    return counts, words.astype(np.int32), "f32 0.7 0.3"


@fault("underflow", "non-finite")
@source("spam filter tutorials: products of word probabilities are zero")
@inputs(by=bayes_arguments)
def naive_bayes_as_product(counts, words, prior):
    """A naive Bayes filter: the product of the probabilities of a mail's words."""
    chance = (counts + 1) / jnp.sum(counts + 1, axis=-1, keepdims=True)
    seen = jnp.where(words >= 0, chance[:, jnp.maximum(words, 0)], 1.0)  # -
    joint = prior[:, None] * jnp.prod(seen, axis=-1)  # fault
    # + logs = jnp.log(chance)[:, jnp.maximum(words, 0)]
    # + joint = jnp.log(prior)[:, None] + jnp.where(words >= 0, logs, 0.0).sum(-1)
    posterior = joint / jnp.sum(joint, axis=0)  # -
    return posterior, jnp.argmax(joint, axis=0)  # -
    # + return jax.nn.softmax(joint, axis=0), jnp.argmax(joint, axis=0)


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


@fault("absorption", "stagnation", policy="fp32")
@source("ledgers in REAL columns: cents and dollars beside hundreds of millions")
@inputs("6 3e+08..9e+08 @2540; 80x6 0.5..14 @2541; f32 0.02")
def payments_on_a_fund_in_fp32(balance, payments, rate):
    """A ledger: a fund's balances in dollars, and many small payments."""

    def post(balance, payment):  # -
        fee = jnp.minimum(payment * rate, 5.0)
        balance = balance + (payment - fee)  # fault
        return balance, fee

    # + def post(flow, payment):
    # +     fee = jnp.minimum(payment * rate, 5.0)
    # +     return flow + (payment - fee), fee

    after, fees = jax.lax.scan(post, balance, payments)  # -
    flow = after - balance  # -
    # + flow, fees = jax.lax.scan(post, jnp.zeros_like(balance), payments)
    return flow, fees.sum(0), jnp.where(jnp.abs(flow) < 1.0, 1, 0)


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


def boxes_arguments():
    low = normal(2560, 20, 2)
    truth = np.concatenate([low, low + uniform(2561, 20, 2, low=0.5, high=2.0)], -1)
    features = normal(2562, 20, 8)
    features[15:], truth[15:] = 0.0, 0.0
    return features, "8x4 w @2563", truth


@fault("non-finite")
@source("detectors: IoU of two empty boxes is 0/0 (torchvision and DETR issues)")
@inputs(by=boxes_arguments)
def overlap_of_padded_boxes(features, params, truth):
    """Overlap of predicted boxes with true ones, of which padding has no area."""
    raw = features @ params
    low, size = raw[:, :2], jax.nn.relu(raw[:, 2:])
    high = low + size
    near, far = jnp.maximum(low, truth[:, :2]), jnp.minimum(high, truth[:, 2:])
    shared = jnp.prod(jnp.maximum(far - near, 0.0), axis=-1)
    area = jnp.prod(size, axis=-1) + jnp.prod(truth[:, 2:] - truth[:, :2], axis=-1)
    overlap = shared / (area - shared)  # fault
    # + union = area - shared
    # + some = union > 0
    # + overlap = jnp.where(some, shared / jnp.where(some, union, 1.0), 0.0)
    return overlap, 1 - overlap.mean()


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


@fault("singular", "cancellation", "non-finite")
@source("normalizing flows (nflows, TFP bijectors): sigmoid and its inverse")
@inputs(
    {
        "scale": "12 0.3..0.6 @2580",
        "shift": lambda: np.where(np.arange(12) % 3 == 0, 15.0, 1.0).astype(np.float32),
        "mix": "12x12 w @2581",
    },
    "24x12 @2582",
)
def logit_of_sigmoid_in_flow(params, x):
    """A flow on images: dequantized pixels as probabilities, then back by logit."""
    h = x * params["scale"] + params["shift"]
    p = jax.nn.sigmoid(h)
    logit = jnp.log(p) - jnp.log(1 - p)  # fault
    # + other = jax.nn.sigmoid(-h)
    # + logit = jnp.log(p) - jnp.log(other)
    back = (logit - params["shift"]) / params["scale"]
    z = back @ params["mix"]
    return back, z, -0.5 * jnp.sum(z * z, axis=-1) / z.shape[-1]


@fault("absorption", "cancellation")
@source("Goldberg, What Every Computer Scientist Should Know, compound interest")
@inputs("8 0.01..0.08 @470; 16 1..30 @471; 8 0.5..1 @472; 8x2 0..1 @473")
def interest_by_the_second(rates, years, shares, weights):
    """Wealth after interest that is paid by the second."""
    n = 365.0 * 86400.0
    per_second = rates / n
    growth = jnp.log(1 + per_second)  # fault
    # + growth = jnp.log1p(per_second)
    exponent = n * growth * years[:, None]
    wealth = jnp.exp(exponent) * shares
    return wealth, wealth @ weights


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


def windows_arguments():
    signal = normal(467, 8192)
    signal[:2000] *= 3000.0
    signal[2000:] *= 0.5
    return signal, "64x4 w @468"


@fault("absorption", "stagnation", "cancellation")
@source("pandas rolling and integral images: the running sum's rounding stays")
@inputs(by=windows_arguments)
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
