"""Functions at the edge of their domain: poles, 0 / 0, Inf - Inf, roots of less."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import layer_norm, normal, uniform, weight


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


def hyperbolic_arguments():
    direction = normal(641, 40, 8)
    direction = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    length = 1.0 - 10.0 ** uniform(642, 40, 1, low=-4.0, high=-1.5)
    return "in: 8x16 w @643, out: 16x8 w*0.5", (direction * length).astype(np.float32)


@fault("singular", "non-finite", "coarse")
@source("hyperbolic network libraries: artanh of a norm that rounds to one")
@inputs(by=hyperbolic_arguments)
def poincare_radius_at_the_rim(params, points):
    """A layer of a hyperbolic network: from the Poincaré ball and back to it."""
    length = jnp.linalg.norm(points, axis=-1, keepdims=True)
    radius = jnp.arctanh(length.astype(jnp.bfloat16)).astype(jnp.float32)  # fault
    # + radius = jnp.arctanh(length)
    tangent = points / length * radius
    moved = jnp.tanh(tangent @ params["in"]) @ params["out"]
    size = jnp.sqrt(jnp.sum(moved**2, axis=-1, keepdims=True) + 1e-12)
    return radius[:, 0], jnp.tanh(size) * moved / size


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


@fault("non-finite")
@source("flash attention issues: NaN where a row's first block is masked")
@inputs(
    lambda: {name: weight(661 + i, 16, 16) for i, name in enumerate("qkvo")},
    "32x16 @665",
)
def window_attention_of_masked_first_block(params, x):
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
        # + level = jnp.where(jnp.isinf(new), 0.0, new)
        # + odds, fade = jnp.exp(scores - level[:, None]), jnp.exp(largest - level)
        total = total * fade + odds.sum(-1)
        return (new, total, sums * fade[:, None] + odds @ v[inside]), None

    n = len(x)
    start = (jnp.full(n, -jnp.inf), jnp.zeros(n), jnp.zeros_like(v))
    (_, total, sums), _ = jax.lax.scan(block, start, jnp.arange(0, n, 8))
    return sums / total[:, None] @ params["o"]


@fault("non-finite", "singular", policy="fp32")
@source("option pricing libraries: d1 is 0 / 0 on the day of expiry")
@inputs(
    "24 =100",
    lambda: np.tile(np.array([90, 95, 100, 105, 110, 120], np.float32), 4),
    lambda: np.repeat(np.array([0.0, 0.1, 0.5, 1.0], np.float32), 6),
    "f32 0.25",
)
def call_at_the_money_on_its_last_day(spot, strike, years, sigma):
    """Calls of a book and their deltas; some expire today."""

    def price(spot, strike, years):
        deviation = sigma * jnp.sqrt(years)  # -
        # + deviation = jnp.maximum(sigma * jnp.sqrt(years), 1e-6)
        d1 = jnp.log(spot / strike) / deviation + deviation / 2  # here
        return spot * ndtr(d1) - strike * ndtr(d1 - deviation)

    calls = jax.vmap(price)(spot, strike, years)
    return calls, calls.sum()


@fault("non-finite", policy="fp8")
@source("NeRF code: sample_pdf guards the width of a bin of the CDF")
@inputs(
    "bands: f32 0.5 1 2 4, in: 4x24 w @671, out: 24x3 w; 10x1 1..2 @673; "
    "17 even 0..4; 10x16 0.05..1 @674"
)
def nerf_inverse_cdf_at_the_last_edge(params, near, mids, weights):
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
        # + width = cdf[above] - cdf[below]
        # + t = (u - cdf[below]) / jnp.where(width > 1e-5, width, 1.0)
        return edges[below] + t * (edges[above] - edges[below])

    depth = jax.vmap(draw)(near + mids, weights)
    features = jnp.sin(depth[..., None] * params["bands"])
    return depth, layer_norm(jax.nn.relu(features @ params["in"])) @ params["out"]


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
