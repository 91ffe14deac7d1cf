"""More faults of statistics, finance and models in few digits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import integers, normal, uniform, weight


def quantiles_faulty(params, x, y, levels):
    """A step on the pinball loss for extreme quantiles; the levels are cast too."""
    tau = levels.astype(jnp.bfloat16)  # fault
    tau = tau.astype(jnp.float32)

    def loss_of(params):
        h = jnp.tanh(x @ params["in"])
        error = y - (h @ params["out"] + params["b"])
        pinball = jnp.maximum(tau * error, (tau - 1) * error)
        return jnp.mean(pinball, axis=0).sum() * 100.0

    loss, grads = jax.value_and_grad(loss_of)(params)
    return loss, grads["b"], jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def quantiles_healthy(params, x, y, levels):
    def loss_of(params):
        h = jnp.tanh(x @ params["in"])
        error = y - (h @ params["out"] + params["b"])
        pinball = jnp.maximum(levels * error, (levels - 1) * error)
        return jnp.mean(pinball, axis=0).sum() * 100.0

    loss, grads = jax.value_and_grad(loss_of)(params)
    return loss, grads["b"], jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def quantiles_arguments():
    params = {
        "in": weight(2500, 8, 16),
        "out": weight(2501, 16, 3, 0.1),
        "b": np.array([9.0, 10.0, 11.0], np.float32),
    }
    levels = np.array([0.9985, 0.999, 0.9995], np.float32)
    return params, normal(2502, 64, 8), normal(2503, 64, 1), levels


def bayes_faulty(counts, words, prior):
    """A naive Bayes filter: the product of the probabilities of a mail's words."""
    chance = (counts + 1) / jnp.sum(counts + 1, axis=-1, keepdims=True)
    seen = jnp.where(words >= 0, chance[:, jnp.maximum(words, 0)], 1.0)
    joint = prior[:, None] * jnp.prod(seen, axis=-1)  # fault
    posterior = joint / jnp.sum(joint, axis=0)
    return posterior, jnp.argmax(joint, axis=0)


def bayes_healthy(counts, words, prior):
    chance = (counts + 1) / jnp.sum(counts + 1, axis=-1, keepdims=True)
    logs = jnp.log(chance)[:, jnp.maximum(words, 0)]
    joint = jnp.log(prior)[:, None] + jnp.where(words >= 0, logs, 0.0).sum(-1)
    return jax.nn.softmax(joint, axis=0), jnp.argmax(joint, axis=0)


def bayes_arguments():
    rng = np.random.default_rng(2510)
    counts = rng.poisson(rng.gamma(0.5, 8.0, (2, 200))).astype(np.float32)
    words = integers(2511, 200, 20, 40)
    lengths = integers(2512, 30, 20) + 10
    words = np.where(np.arange(40) < lengths[:, None], words, -1)
    return counts, words.astype(np.int32), np.array([0.7, 0.3], np.float32)


def kernel_faulty(known, targets, x, width):
    """Kernel regression (Nadaraya and Watson) on queries off the training points."""
    gap = jnp.sum((x[:, None] - known[None]) ** 2, axis=-1)
    kernel = jnp.exp(-gap / (2 * width**2))  # fault
    total = jnp.sum(kernel, axis=-1, keepdims=True)
    share = kernel / total
    return share @ targets, jnp.max(share, axis=-1)


def kernel_healthy(known, targets, x, width):
    gap = jnp.sum((x[:, None] - known[None]) ** 2, axis=-1)
    share = jax.nn.softmax(-gap / (2 * width**2), axis=-1)
    return share @ targets, jnp.max(share, axis=-1)


def welford_faulty(mean, spread, count, batch):
    """Running statistics of features, already seen a hundred million times."""

    def see(carry, x):
        mean, spread, count = carry
        count = count + 1
        gap = x - mean
        mean = mean + gap / count.astype(jnp.float32)  # fault
        spread = spread + gap * (x - mean)
        return (mean, spread, count), None

    (new, spread, count), _ = jax.lax.scan(see, (mean, spread, count), batch)
    z = (batch[:8] - new) / jnp.sqrt(spread / count.astype(jnp.float32))
    return (new - mean) * 1e6, z


def welford_healthy(mean, spread, count, batch):
    size = batch.shape[0]
    share = size / (count + size).astype(jnp.float32)
    gap = batch.mean(0) - mean
    move = gap * share
    within = jnp.sum((batch - batch.mean(0)) ** 2, axis=0)
    total = spread + within + gap**2 * share * count.astype(jnp.float32)
    new = mean + move
    z = (batch[:8] - new) / jnp.sqrt(total / (count + size).astype(jnp.float32))
    return move * 1e6, z


def welford_arguments():
    mean = normal(2520, 6, scale=3.0, shift=8.0)
    batch = normal(2521, 100, 6, scale=2.0) + mean + 3.0
    return mean, np.full(6, 4e8, np.float32), np.int32(100_000_000), batch


def account_faulty(balance, payments, rate):
    """A ledger: a fund's balances in dollars, and many small payments."""

    def post(balance, payment):
        fee = jnp.minimum(payment * rate, 5.0)
        balance = balance + (payment - fee)  # fault
        return balance, fee

    after, fees = jax.lax.scan(post, balance, payments)
    flow = after - balance
    return flow, fees.sum(0), jnp.where(jnp.abs(flow) < 1.0, 1, 0)


def account_healthy(balance, payments, rate):
    def post(flow, payment):
        fee = jnp.minimum(payment * rate, 5.0)
        return flow + (payment - fee), fee

    flow, fees = jax.lax.scan(post, jnp.zeros_like(balance), payments)
    return flow, fees.sum(0), jnp.where(jnp.abs(flow) < 1.0, 1, 0)


def impact_faulty(height, speed, gravity, params):
    """When a ball hits the ground: the schoolbook root, for strong throws down."""
    a, b, c = -0.5 * gravity, -speed, height
    root = jnp.sqrt(b * b - 4 * a * c)
    time = (-b - root) / (2 * a)  # fault
    drop = speed * time + 0.5 * gravity * time**2
    code = jnp.stack([time * speed, drop / height], axis=-1)
    return time * speed, drop / height, jax.nn.relu(code @ params["in"]) @ params["out"]


def impact_healthy(height, speed, gravity, params):
    a, b, c = -0.5 * gravity, -speed, height
    root = jnp.sqrt(b * b - 4 * a * c)
    time = 2 * c / (-b + root)
    drop = speed * time + 0.5 * gravity * time**2
    code = jnp.stack([time * speed, drop / height], axis=-1)
    return time * speed, drop / height, jax.nn.relu(code @ params["in"]) @ params["out"]


def difference_faulty(params, x, y, step):
    """Fits a black-box simulator: its gradient by forward differences."""

    def loss_of(p):
        state = jnp.tanh(x * p[0] + p[1]) + 0.1 * p[2] * x**2
        return 4.0 + jnp.mean((state - y) ** 2)

    base = loss_of(params)
    ahead = jax.vmap(lambda unit: loss_of(params + step * unit))(jnp.eye(3))
    grad = (ahead - base) / step  # fault
    return base, grad, params - 0.1 * grad


def difference_healthy(params, x, y, step):
    def loss_of(p):
        state = jnp.tanh(x * p[0] + p[1]) + 0.1 * p[2] * x**2
        return 4.0 + jnp.mean((state - y) ** 2)

    base, grad = jax.value_and_grad(loss_of)(params)
    return base, grad, params - 0.1 * grad


def below(z):
    """The normal distribution function."""
    return 0.5 * jax.lax.erfc(-z * 0.70710678)


def puts_faulty(spot, strike, years, market):
    """Put prices by parity from call prices, far out of the money."""
    rate, vol = market
    root = vol * jnp.sqrt(years)
    up = (jnp.log(spot / strike) + (rate + 0.5 * vol**2) * years) / root
    bond = strike * jnp.exp(-rate * years)
    call = spot * below(up) - bond * below(up - root)
    put = call - spot + bond  # fault
    return put, jnp.log(jnp.maximum(put, 1e-12)), put * market[0]


def puts_healthy(spot, strike, years, market):
    rate, vol = market
    root = vol * jnp.sqrt(years)
    up = (jnp.log(spot / strike) + (rate + 0.5 * vol**2) * years) / root
    bond = strike * jnp.exp(-rate * years)
    put = bond * below(root - up) - spot * below(-up)
    return put, jnp.log(jnp.maximum(put, 1e-12)), put * market[0]


def index_faulty(prices, base, params):
    """A price index: the geometric mean of sixty relative prices per month."""
    relative = prices / base
    product = jnp.prod(relative, axis=-1)  # fault
    index = product ** (1.0 / prices.shape[-1])
    change = jnp.diff(jnp.log(index))
    return index, jnp.tanh(change.reshape(-1, 6) @ params)


def index_healthy(prices, base, params):
    relative = prices / base
    index = jnp.exp(jnp.log(relative).mean(-1))
    change = jnp.diff(jnp.log(index))
    return index, jnp.tanh(change.reshape(-1, 6) @ params)


def boxes_faulty(features, params, truth):
    """Overlap of predicted boxes with true ones, of which padding has no area."""
    raw = features @ params
    low, size = raw[:, :2], jax.nn.relu(raw[:, 2:])
    high = low + size
    near, far = jnp.maximum(low, truth[:, :2]), jnp.minimum(high, truth[:, 2:])
    shared = jnp.prod(jnp.maximum(far - near, 0.0), axis=-1)
    area = jnp.prod(size, axis=-1) + jnp.prod(truth[:, 2:] - truth[:, :2], axis=-1)
    overlap = shared / (area - shared)  # fault
    return overlap, 1 - overlap.mean()


def boxes_healthy(features, params, truth):
    raw = features @ params
    low, size = raw[:, :2], jax.nn.relu(raw[:, 2:])
    high = low + size
    near, far = jnp.maximum(low, truth[:, :2]), jnp.minimum(high, truth[:, 2:])
    shared = jnp.prod(jnp.maximum(far - near, 0.0), axis=-1)
    area = jnp.prod(size, axis=-1) + jnp.prod(truth[:, 2:] - truth[:, :2], axis=-1)
    union = area - shared
    some = union > 0
    overlap = jnp.where(some, shared / jnp.where(some, union, 1.0), 0.0)
    return overlap, 1 - overlap.mean()


def boxes_arguments():
    low = normal(2560, 20, 2)
    truth = np.concatenate([low, low + uniform(2561, 20, 2, low=0.5, high=2.0)], -1)
    features = normal(2562, 20, 8)
    features[15:], truth[15:] = 0.0, 0.0
    return features, weight(2563, 8, 4), truth


def unit(x):
    """Rows without their means, of length one."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.sum(centred * centred, axis=-1, keepdims=True))


def fisher_faulty(reference, probes, params):
    """Fisher's z of the agreement between a reference and almost equal gauges."""
    r = jnp.sum(unit(reference) * unit(probes), axis=-1)
    z = jnp.arctanh(jnp.clip(r, -0.9999999, 0.9999999))  # fault
    score = jnp.tanh((z.reshape(-1, 4) - 7.0) @ params)
    return z, jnp.exp(2 * z) / 1e6, score


def fisher_healthy(reference, probes, params):
    apart = jnp.sum((unit(reference) - unit(probes)) ** 2, axis=-1) / 2
    z = 0.5 * (jnp.log(2 - apart) - jnp.log(jnp.maximum(apart, 1e-7)))
    score = jnp.tanh((z.reshape(-1, 4) - 7.0) @ params)
    return z, jnp.exp(2 * z) / 1e6, score


def fisher_arguments():
    reference = normal(2570, 1, 40)
    spread = np.geomspace(7e-4, 3e-3, 16).astype(np.float32)[:, None]
    return reference, reference + spread * normal(2571, 16, 40), weight(2572, 4, 3)


def flow_faulty(params, x):
    """A flow on images: dequantized pixels as probabilities, then back by logit."""
    h = x * params["scale"] + params["shift"]
    p = jax.nn.sigmoid(h)
    logit = jnp.log(p) - jnp.log(1 - p)  # fault
    back = (logit - params["shift"]) / params["scale"]
    z = back @ params["mix"]
    return back, z, -0.5 * jnp.sum(z * z, axis=-1) / z.shape[-1]


def flow_healthy(params, x):
    h = x * params["scale"] + params["shift"]
    p = jax.nn.sigmoid(h)
    other = jax.nn.sigmoid(-h)
    logit = jnp.log(p) - jnp.log(other)
    back = (logit - params["shift"]) / params["scale"]
    z = back @ params["mix"]
    return back, z, -0.5 * jnp.sum(z * z, axis=-1) / z.shape[-1]


def flow_arguments():
    params = {
        "scale": uniform(2580, 12, low=0.3, high=0.6),
        "shift": np.where(np.arange(12) % 3 == 0, 15.0, 1.0).astype(np.float32),
        "mix": weight(2581, 12, 12),
    }
    return params, normal(2582, 24, 12)


FAULTS = (
    Fault(
        name="pinball-levels-in-bf16",
        kinds=("coarse",),
        faulty=quantiles_faulty,
        healthy=quantiles_healthy,
        arguments=quantiles_arguments,
        policy="bf16",
        source="forecasting libraries: quantile 0.999 of a module in bfloat16 is 1",
    ),
    Fault(
        name="naive-bayes-as-product",
        kinds=("underflow", "non-finite"),
        faulty=bayes_faulty,
        healthy=bayes_healthy,
        arguments=bayes_arguments,
        policy="bf16",
        source="spam filter tutorials: products of word probabilities are zero",
    ),
    Fault(
        name="kernel-regression-off-the-data",
        kinds=("underflow", "non-finite"),
        faulty=kernel_faulty,
        healthy=kernel_healthy,
        arguments=lambda: (
            normal(2530, 24, 6),
            normal(2531, 24, 2),
            normal(2532, 16, 6, scale=1.5),
            np.float32(0.15),
        ),
        policy="bf16",
        source="statsmodels and GPyTorch questions: all weights of a query are zero",
    ),
    Fault(
        name="welford-after-many-samples",
        kinds=("absorption", "stagnation"),
        faulty=welford_faulty,
        healthy=welford_healthy,
        arguments=welford_arguments,
        policy="fp32",
        source="running normalizers of observations in RL: they stop to adapt",
    ),
    Fault(
        name="payments-on-a-fund-in-fp32",
        kinds=("absorption", "stagnation"),
        faulty=account_faulty,
        healthy=account_healthy,
        arguments=lambda: (
            uniform(2540, 6, low=3e8, high=9e8),
            uniform(2541, 80, 6, low=0.5, high=14.0),
            np.float32(0.02),
        ),
        policy="fp32",
        source="ledgers in REAL columns: cents and dollars beside hundreds of millions",
    ),
    Fault(
        name="root-by-schoolbook-formula",
        kinds=("cancellation",),
        faulty=impact_faulty,
        healthy=impact_healthy,
        arguments=lambda: (
            uniform(2542, 16, low=0.05, high=0.4),
            uniform(2543, 16, low=400.0, high=900.0),
            np.float32(9.81),
            {"in": weight(2544, 2, 8), "out": weight(2545, 8, 2)},
        ),
        policy="fp32",
        source="Forsythe, How Do You Solve a Quadratic Equation; ray tracers' spheres",
    ),
    Fault(
        name="gradient-by-forward-differences",
        kinds=("cancellation", "coarse"),
        faulty=difference_faulty,
        healthy=difference_healthy,
        arguments=lambda: (
            normal(2546, 3),
            normal(2547, 32),
            normal(2548, 32),
            np.float32(2e-6),
        ),
        policy="fp32",
        source="gradient checks in FP32 with the step of FP64; SciPy minimize issues",
    ),
    Fault(
        name="puts-by-parity-out-of-the-money",
        kinds=("cancellation",),
        faulty=puts_faulty,
        healthy=puts_healthy,
        arguments=lambda: (
            uniform(2549, 16, low=98.0, high=104.0),
            uniform(2550, 16, low=56.0, high=62.0),
            uniform(2551, 16, low=0.3, high=0.5),
            (np.float32(0.03), np.float32(0.2)),
        ),
        policy="fp32",
        source="option libraries on GPUs: negative put prices, implied vol fails",
    ),
    Fault(
        name="price-index-as-root-of-product",
        kinds=("overflow",),
        faulty=index_faulty,
        healthy=index_healthy,
        arguments=lambda: (
            uniform(2552, 13, 60, low=2.0, high=30.0),
            uniform(2553, 60, low=1.0, high=2.0),
            weight(2554, 6, 2, 4.0),
        ),
        policy="bf16",
        source="scipy.stats.gmean: overflows when it is written as prod ** (1 / n)",
    ),
    Fault(
        name="overlap-of-padded-boxes",
        kinds=("non-finite",),
        faulty=boxes_faulty,
        healthy=boxes_healthy,
        arguments=boxes_arguments,
        policy="bf16",
        source="detectors: IoU of two empty boxes is 0/0 (torchvision and DETR issues)",
    ),
    Fault(
        name="fisher-z-of-near-equal-gauges",
        kinds=("singular", "cancellation"),
        faulty=fisher_faulty,
        healthy=fisher_healthy,
        arguments=fisher_arguments,
        policy="fp32",
        source="np.corrcoef and arctanh: z values of r = 0.999999 are noise",
    ),
    Fault(
        name="logit-of-sigmoid-in-flow",
        kinds=("singular", "cancellation", "non-finite"),
        faulty=flow_faulty,
        healthy=flow_healthy,
        arguments=flow_arguments,
        policy="bf16",
        source="normalizing flows (nflows, TFP bijectors): sigmoid and its inverse",
    ),
)
