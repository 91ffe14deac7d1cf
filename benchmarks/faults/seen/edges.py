"""Functions at the edge of their domain: poles, 0 / 0, Inf - Inf, roots of less."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import integers, layer_norm, normal, uniform, weight


def graph_faulty(params, nodes, adjacency):
    """Two layers of a graph convolution, normalized by degrees on both sides."""
    degree = adjacency.sum(-1)
    root = degree**-0.5  # fault
    mixing = root[:, None] * adjacency * root[None, :]
    h = jax.nn.relu(mixing @ (nodes @ params["first"]) + nodes @ params["own"])
    return mixing @ (h @ params["second"]) + h @ params["out"]


def graph_healthy(params, nodes, adjacency):
    degree = adjacency.sum(-1)
    root = jnp.where(degree > 0, jnp.maximum(degree, 1.0) ** -0.5, 0.0)
    mixing = root[:, None] * adjacency * root[None, :]
    h = jax.nn.relu(mixing @ (nodes @ params["first"]) + nodes @ params["own"])
    return mixing @ (h @ params["second"]) + h @ params["out"]


def graph_arguments():
    edges = np.triu(uniform(601, 24, 24) < 0.15, 1).astype(np.float32)
    adjacency = edges + edges.T
    adjacency[[3, 17]] = 0.0
    adjacency[:, [3, 17]] = 0.0
    params = {
        "first": weight(602, 8, 16),
        "own": weight(603, 8, 16),
        "second": weight(604, 16, 4),
        "out": weight(605, 16, 4),
    }
    return params, normal(606, 24, 8), adjacency


def heading_faulty(params, scans, angles, valid):
    """A step that learns headings; padded scans are zero and do not count."""

    def loss_of(params):
        h = jax.nn.relu(scans @ params["in"])
        vector = h @ params["out"]
        heading = jnp.arctan2(vector[:, 1], vector[:, 0])  # fault
        miss = 1.0 - jnp.cos(heading - angles)
        return jnp.where(valid, miss, 0.0).sum() / valid.sum()

    value, grads = jax.value_and_grad(loss_of)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def heading_healthy(params, scans, angles, valid):
    def loss_of(params):
        h = jax.nn.relu(scans @ params["in"])
        vector = h @ params["out"]
        some = jnp.where(valid[:, None], vector, jnp.asarray([1.0, 0.0]))
        heading = jnp.arctan2(some[:, 1], some[:, 0])
        miss = 1.0 - jnp.cos(heading - angles)
        return jnp.where(valid, miss, 0.0).sum() / valid.sum()

    value, grads = jax.value_and_grad(loss_of)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def heading_arguments():
    params = {"in": weight(611, 20, 48), "out": weight(612, 48, 2)}
    valid = np.arange(32) % 9 != 4
    scans = normal(613, 32, 20) * valid[:, None]
    return params, scans, uniform(614, 32, low=-3.0, high=3.0), valid


def stouffer_faulty(p_values, weights):
    """Combines the evidence of studies: p-values become normal scores."""
    scores = jnp.sqrt(2.0) * jax.scipy.special.erfinv(1.0 - 2.0 * p_values)  # fault
    combined = (scores @ weights) / jnp.linalg.norm(weights)
    return scores, combined


def stouffer_healthy(p_values, weights):
    scores = -ndtri(p_values)
    combined = (scores @ weights) / jnp.linalg.norm(weights)
    return scores, combined


def stouffer_arguments():
    exponent = uniform(621, 16, 6, low=-9.5, high=-0.5)
    p_values = (10.0**exponent).astype(np.float32)
    return p_values, uniform(622, 6, low=0.5, high=2.0)


def filter_faulty(signal, cutoff, rate):
    """High-pass filters of first order by the bilinear transform, one a channel."""
    share = (cutoff / rate).astype(jnp.bfloat16)
    warped = jnp.tan(jnp.pi * share).astype(jnp.float32)  # fault
    passed = 1.0 / (1.0 + warped)
    pole = (1.0 - warped) / (1.0 + warped)

    def step(state, x):
        before, out = state
        out = passed * (x - before) + pole * out
        return (x, out), out

    start = (jnp.zeros_like(cutoff), jnp.zeros_like(cutoff))
    _, out = jax.lax.scan(step, start, signal)
    return out


def filter_healthy(signal, cutoff, rate):
    distance = (rate / 2 - cutoff) / rate
    warped = 1.0 / jnp.tan(jnp.pi * distance)
    passed = 1.0 / (1.0 + warped)
    pole = (1.0 - warped) / (1.0 + warped)

    def step(state, x):
        before, out = state
        out = passed * (x - before) + pole * out
        return (x, out), out

    start = (jnp.zeros_like(cutoff), jnp.zeros_like(cutoff))
    _, out = jax.lax.scan(step, start, signal)
    return out


def filter_arguments():
    cutoff = np.array([23500, 23700, 23850, 23900, 23950, 23970], np.float32)
    return normal(631, 64, 6), cutoff, np.float32(48000.0)


def hyperbolic_faulty(params, points):
    """A layer of a hyperbolic network: from the Poincaré ball and back to it."""
    length = jnp.linalg.norm(points, axis=-1, keepdims=True)
    radius = jnp.arctanh(length.astype(jnp.bfloat16)).astype(jnp.float32)  # fault
    tangent = points / length * radius
    moved = jnp.tanh(tangent @ params["in"]) @ params["out"]
    size = jnp.sqrt(jnp.sum(moved**2, axis=-1, keepdims=True) + 1e-12)
    return radius[:, 0], jnp.tanh(size) * moved / size


def hyperbolic_healthy(params, points):
    length = jnp.linalg.norm(points, axis=-1, keepdims=True)
    radius = jnp.arctanh(length)
    tangent = points / length * radius
    moved = jnp.tanh(tangent @ params["in"]) @ params["out"]
    size = jnp.sqrt(jnp.sum(moved**2, axis=-1, keepdims=True) + 1e-12)
    return radius[:, 0], jnp.tanh(size) * moved / size


def hyperbolic_arguments():
    direction = normal(641, 40, 8)
    direction = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    length = 1.0 - 10.0 ** uniform(642, 40, 1, low=-4.0, high=-1.5)
    params = {"in": weight(643, 8, 16), "out": weight(644, 16, 8, 0.5)}
    return params, (direction * length).astype(np.float32)


def loo_faulty(params, prompts, actions, rewards, kept):
    """RLOO: a sample's baseline is the mean reward of the others of its prompt."""

    def loss_of(params):
        logits = jnp.tanh(prompts @ params["in"]) @ params["out"]
        logp = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(logp, actions, axis=-1)
        counted = jnp.where(kept, rewards, 0.0)
        others = kept.sum(-1, keepdims=True) - 1
        baseline = (counted.sum(-1, keepdims=True) - counted) / others  # fault
        advantage = jnp.where(kept, rewards - baseline, 0.0)
        return -jnp.sum(advantage * chosen) / kept.sum()

    return jax.value_and_grad(loss_of)(params)


def loo_healthy(params, prompts, actions, rewards, kept):
    def loss_of(params):
        logits = jnp.tanh(prompts @ params["in"]) @ params["out"]
        logp = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(logp, actions, axis=-1)
        counted = jnp.where(kept, rewards, 0.0)
        others = jnp.maximum(kept.sum(-1, keepdims=True) - 1, 1)
        baseline = (counted.sum(-1, keepdims=True) - counted) / others
        advantage = jnp.where(kept, rewards - baseline, 0.0)
        return -jnp.sum(advantage * chosen) / kept.sum()

    return jax.value_and_grad(loss_of)(params)


def loo_arguments():
    kept = uniform(651, 12, 4) < 0.8
    kept[[2, 9]] = [False, True, False, False]
    params = {"in": weight(652, 10, 24), "out": weight(653, 24, 8)}
    return (
        params,
        normal(654, 12, 10),
        integers(655, 8, 12, 4),
        uniform(656, 12, 4),
        kept,
    )


def window_faulty(params, x):
    """Attention in a sliding window, block by block of keys, with a running maximum."""
    q, k, v = (x @ params[name] for name in "qkv")
    place = jnp.arange(len(x))

    def block(state, start):
        largest, total, sums = state
        inside = start + jnp.arange(8)
        near = jnp.abs(place[:, None] - inside) < 6
        scores = jnp.where(near, q @ k[inside].T / 4, -jnp.inf)
        new = jnp.maximum(largest, scores.max(-1))
        odds, fade = jnp.exp(scores - new[:, None]), jnp.exp(largest - new)  # fault
        total = total * fade + odds.sum(-1)
        return (new, total, sums * fade[:, None] + odds @ v[inside]), None

    n = len(x)
    start = (jnp.full(n, -jnp.inf), jnp.zeros(n), jnp.zeros_like(v))
    (_, total, sums), _ = jax.lax.scan(block, start, jnp.arange(0, n, 8))
    return sums / total[:, None] @ params["o"]


def window_healthy(params, x):
    q, k, v = (x @ params[name] for name in "qkv")
    place = jnp.arange(len(x))

    def block(state, start):
        largest, total, sums = state
        inside = start + jnp.arange(8)
        near = jnp.abs(place[:, None] - inside) < 6
        scores = jnp.where(near, q @ k[inside].T / 4, -jnp.inf)
        new = jnp.maximum(largest, scores.max(-1))
        level = jnp.where(jnp.isinf(new), 0.0, new)
        odds, fade = jnp.exp(scores - level[:, None]), jnp.exp(largest - level)
        total = total * fade + odds.sum(-1)
        return (new, total, sums * fade[:, None] + odds @ v[inside]), None

    n = len(x)
    start = (jnp.full(n, -jnp.inf), jnp.zeros(n), jnp.zeros_like(v))
    (_, total, sums), _ = jax.lax.scan(block, start, jnp.arange(0, n, 8))
    return sums / total[:, None] @ params["o"]


def window_arguments():
    params = {name: weight(661 + i, 16, 16) for i, name in enumerate("qkvo")}
    return params, normal(665, 32, 16)


def expiry_faulty(spot, strike, years, sigma):
    """Calls of a book and their deltas; some expire today."""

    def price(spot, strike, years):
        deviation = sigma * jnp.sqrt(years)
        d1 = jnp.log(spot / strike) / deviation + deviation / 2  # fault
        return spot * ndtr(d1) - strike * ndtr(d1 - deviation)

    calls = jax.vmap(price)(spot, strike, years)
    return calls, calls.sum()


def expiry_healthy(spot, strike, years, sigma):
    def price(spot, strike, years):
        deviation = jnp.maximum(sigma * jnp.sqrt(years), 1e-6)
        d1 = jnp.log(spot / strike) / deviation + deviation / 2
        return spot * ndtr(d1) - strike * ndtr(d1 - deviation)

    calls = jax.vmap(price)(spot, strike, years)
    return calls, calls.sum()


def expiry_arguments():
    spot = np.full(24, 100.0, np.float32)
    strike = np.tile(np.array([90, 95, 100, 105, 110, 120], np.float32), 4)
    years = np.repeat(np.array([0.0, 0.1, 0.5, 1.0], np.float32), 6)
    return spot, strike, years, np.float32(0.25)


def rays_faulty(params, near, mids, weights):
    """NeRF's second sampling: depths drawn from the coarse weights of every ray."""

    def draw(edges, weights):
        share = weights / weights.sum()
        cdf = jnp.concatenate([jnp.zeros(1), jnp.cumsum(share)])
        cdf = cdf / cdf[-1]
        u = jnp.linspace(0.0, 1.0, 12)
        above = jnp.searchsorted(cdf, u, side="right")
        below = jnp.maximum(above - 1, 0)
        above = jnp.minimum(above, cdf.size - 1)
        t = (u - cdf[below]) / (cdf[above] - cdf[below])  # fault
        return edges[below] + t * (edges[above] - edges[below])

    depth = jax.vmap(draw)(near + mids, weights)
    features = jnp.sin(depth[..., None] * params["bands"])
    return depth, layer_norm(jax.nn.relu(features @ params["in"])) @ params["out"]


def rays_healthy(params, near, mids, weights):
    def draw(edges, weights):
        share = weights / weights.sum()
        cdf = jnp.concatenate([jnp.zeros(1), jnp.cumsum(share)])
        cdf = cdf / cdf[-1]
        u = jnp.linspace(0.0, 1.0, 12)
        above = jnp.searchsorted(cdf, u, side="right")
        below = jnp.maximum(above - 1, 0)
        above = jnp.minimum(above, cdf.size - 1)
        width = cdf[above] - cdf[below]
        t = (u - cdf[below]) / jnp.where(width > 1e-5, width, 1.0)
        return edges[below] + t * (edges[above] - edges[below])

    depth = jax.vmap(draw)(near + mids, weights)
    features = jnp.sin(depth[..., None] * params["bands"])
    return depth, layer_norm(jax.nn.relu(features @ params["in"])) @ params["out"]


def rays_arguments():
    params = {
        "bands": np.array([0.5, 1.0, 2.0, 4.0], np.float32),
        "in": weight(671, 4, 24),
        "out": weight(672, 24, 3),
    }
    mids = np.linspace(0.0, 4.0, 17, dtype=np.float32)
    near = uniform(673, 10, 1, low=1.0, high=2.0)
    return params, near, mids, uniform(674, 10, 16, low=0.05, high=1.0)


def relief_faulty(params, texture, light):
    """A shader: normals from two bytes of a texture, the third from their length."""
    xy = texture.astype(jnp.float32) / 127.5 - 1.0
    z = jnp.sqrt(1.0 - jnp.sum(xy * xy, axis=-1, keepdims=True))  # fault
    normals = jnp.concatenate([xy, z], axis=-1)
    shade = jnp.maximum(normals @ light, 0.0)
    h = jax.nn.relu(convolve_rows(shade, params["rows"]))
    return shade, h @ params["out"]


def relief_healthy(params, texture, light):
    xy = texture.astype(jnp.float32) / 127.5 - 1.0
    rest = 1.0 - jnp.sum(xy * xy, axis=-1, keepdims=True)
    normals = jnp.concatenate([xy, jnp.sqrt(jnp.maximum(rest, 0.0))], axis=-1)
    shade = jnp.maximum(normals @ light, 0.0)
    h = jax.nn.relu(convolve_rows(shade, params["rows"]))
    return shade, h @ params["out"]


def convolve_rows(picture, rows):
    """Differences of neighbouring rows, weighed."""
    return jnp.einsum("hw,hk->kw", picture, rows).T


def relief_arguments():
    y, x = np.mgrid[-1:1:20j, -1:1:20j]
    length = np.maximum(np.hypot(x, y), 1.0)
    xy = np.stack([x, y], axis=-1) / length[..., None]
    texture = np.round((xy + 1.0) * 127.5).astype(np.uint8)
    params = {"rows": weight(681, 20, 6), "out": weight(682, 6, 2)}
    return params, texture, np.array([0.3, 0.4, 0.866], np.float32)


FAULTS = (
    Fault(
        name="isolated-node-degree-to-minus-half",
        kinds=("singular", "non-finite"),
        faulty=graph_faulty,
        healthy=graph_healthy,
        arguments=graph_arguments,
        policy="bf16",
        source="PyTorch Geometric and DGL issues: deg.pow(-0.5) of an isolated node",
    ),
    Fault(
        name="heading-gradient-of-zero-vector",
        kinds=("singular", "non-finite"),
        faulty=heading_faulty,
        healthy=heading_healthy,
        arguments=heading_arguments,
        policy="mxfp4",
        target="trn3",
        source="e3nn issue: the derivative of atan2 at (0, 0)",
    ),
    Fault(
        name="normal-score-of-tiny-p-value",
        kinds=("singular", "cancellation", "non-finite", "absorption"),
        faulty=stouffer_faulty,
        healthy=stouffer_healthy,
        arguments=stouffer_arguments,
        policy="fp32",
        source="statistics questions: erfinv(1 - 2p) is infinite for small p",
    ),
    Fault(
        name="bilinear-prewarp-near-nyquist",
        kinds=("singular", "coarse"),
        faulty=filter_faulty,
        healthy=filter_healthy,
        arguments=filter_arguments,
        policy="bf16",
        source="audio filter code: tan(π f / rate) next to its pole",
    ),
    Fault(
        name="poincare-radius-at-the-rim",
        kinds=("singular", "non-finite", "coarse"),
        faulty=hyperbolic_faulty,
        healthy=hyperbolic_healthy,
        arguments=hyperbolic_arguments,
        policy="bf16",
        source="hyperbolic network libraries: artanh of a norm that rounds to one",
    ),
    Fault(
        name="leave-one-out-of-single-sample",
        kinds=("non-finite",),
        faulty=loo_faulty,
        healthy=loo_healthy,
        arguments=loo_arguments,
        policy="bf16",
        source="RLHF trainers: RLOO divides by k - 1 after samples were filtered",
    ),
    Fault(
        name="window-attention-of-masked-first-block",
        kinds=("non-finite",),
        faulty=window_faulty,
        healthy=window_healthy,
        arguments=window_arguments,
        policy="bf16",
        source="flash attention issues: NaN where a row's first block is masked",
    ),
    Fault(
        name="call-at-the-money-on-its-last-day",
        kinds=("non-finite", "singular"),
        faulty=expiry_faulty,
        healthy=expiry_healthy,
        arguments=expiry_arguments,
        policy="fp32",
        source="option pricing libraries: d1 is 0 / 0 on the day of expiry",
    ),
    Fault(
        name="nerf-inverse-cdf-at-the-last-edge",
        kinds=("non-finite",),
        faulty=rays_faulty,
        healthy=rays_healthy,
        arguments=rays_arguments,
        policy="fp8",
        source="NeRF code: sample_pdf guards the width of a bin of the CDF",
    ),
    Fault(
        name="normal-map-z-of-quantized-rim",
        kinds=("non-finite",),
        faulty=relief_faulty,
        healthy=relief_healthy,
        arguments=relief_arguments,
        policy="fp32",
        source="graphics forums: two-channel normal maps, the root of a negative",
    ),
)
