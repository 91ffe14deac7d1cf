"""Formats without the digits that a position, a rank or a score needs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.faults.case import Fault


def _normal(seed, *shape, scale=1.0, shift=0.0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return (shift + scale * values).astype(np.float32)


def field_with_cast_phases(params, points, colours):
    """A step of a coordinate network on Fourier features of ten octaves."""

    def loss(p):
        octaves = jnp.pi * 2.0 ** jnp.arange(10)
        bands = (octaves[:, None, None] * params["axes"]).reshape(-1, 3).T
        phases = points @ bands  # fault
        features = jnp.concatenate([jnp.sin(phases), jnp.cos(phases)], axis=-1)
        out = jax.nn.relu(features @ p["in"]) @ p["out"]
        return jnp.mean(jnp.square(out - colours)), features

    weights = {"in": params["in"], "out": params["out"]}
    grads, features = jax.grad(loss, has_aux=True)(weights)
    return features, jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


def field_with_exact_phases(params, points, colours):
    def loss(p):
        octaves = jnp.pi * 2.0 ** jnp.arange(10)
        bands = (octaves[:, None, None] * params["axes"]).reshape(-1, 3).T
        phases = jnp.sum(points[:, :, None] * bands, axis=1)
        features = jnp.concatenate([jnp.sin(phases), jnp.cos(phases)], axis=-1)
        out = jax.nn.relu(features @ p["in"]) @ p["out"]
        return jnp.mean(jnp.square(out - colours)), features

    weights = {"in": params["in"], "out": params["out"]}
    grads, features = jax.grad(loss, has_aux=True)(weights)
    return features, jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


def field_arguments():
    params = {
        "axes": np.eye(3, dtype=np.float32),
        "in": _normal(610, 60, 24, scale=0.15),
        "out": _normal(611, 24, 3, scale=0.2),
    }
    points = np.random.default_rng(612).uniform(-1, 1, (24, 3)).astype(np.float32)
    return params, points, _normal(613, 24, 3)


def ranks_in_bf16(gains, factors):
    """Rank correlation of 700 shares' returns with factors, day by day."""

    def rank(x):
        place = jnp.argsort(jnp.argsort(x))
        return place.astype(jnp.bfloat16)  # fault

    def correlate(day, factor):
        a, b = rank(day).astype(jnp.float32), rank(factor).astype(jnp.float32)
        apart = jnp.sum(jnp.square(a - b))
        n = day.shape[0]
        return 6.0 * apart / (n * (n * n - 1.0))

    lost = jax.vmap(correlate)(gains, factors)
    return lost, 1.0 - jnp.mean(lost)


def ranks_in_fp32(gains, factors):
    def rank(x):
        place = jnp.argsort(jnp.argsort(x))
        return place.astype(jnp.float32)

    def correlate(day, factor):
        a, b = rank(day), rank(factor)
        apart = jnp.sum(jnp.square(a - b))
        n = day.shape[0]
        return 6.0 * apart / (n * (n * n - 1.0))

    lost = jax.vmap(correlate)(gains, factors)
    return lost, 1.0 - jnp.mean(lost)


def ranks_arguments():
    gains = _normal(620, 8, 700)
    return gains, gains + _normal(621, 8, 700, scale=0.005)


def suppression_of_bf16_boxes(anchors, features, params):
    """Boxes of small objects on a large photo, matched by their overlap."""
    offsets = 2.0 * jnp.tanh(features @ params["box"])
    corners = jnp.concatenate([anchors, anchors + 9.0], axis=-1) + offsets
    corners = corners.astype(jnp.bfloat16)  # fault
    boxes = corners.astype(jnp.float32)
    low = jnp.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = jnp.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = jnp.prod(jnp.maximum(high - low, 0.0), axis=-1)
    area = jnp.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    overlap = shared / (area[:, None] + area[None] - shared + 1e-6)
    scores = jax.nn.sigmoid(features @ params["score"])
    better = scores[None] > scores[:, None]
    return overlap, scores * jnp.prod(jnp.where(better, 1 - overlap, 1.0), axis=1)


def suppression_of_fp32_boxes(anchors, features, params):
    offsets = 2.0 * jnp.tanh(features @ params["box"])
    boxes = jnp.concatenate([anchors, anchors + 9.0], axis=-1) + offsets
    low = jnp.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = jnp.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = jnp.prod(jnp.maximum(high - low, 0.0), axis=-1)
    area = jnp.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    overlap = shared / (area[:, None] + area[None] - shared + 1e-6)
    scores = jax.nn.sigmoid(features @ params["score"])
    better = scores[None] > scores[:, None]
    return overlap, scores * jnp.prod(jnp.where(better, 1 - overlap, 1.0), axis=1)


def suppression_arguments():
    rng = np.random.default_rng(630)
    centres = np.repeat(rng.uniform(1100, 2000, (8, 2)), 4, axis=0)
    anchors = (centres + rng.uniform(-3, 3, (32, 2))).astype(np.float32)
    params = {"box": _normal(631, 6, 4, scale=0.2), "score": _normal(632, 6)}
    return anchors, _normal(633, 32, 6), params


def beams_scored_in_bf16(table, head, first):
    """Beam search over 60 tokens; the log-probabilities of beams add up in BF16."""
    beams, vocabulary = 4, table.shape[0]

    def extend(carry, _):
        scores, state, tokens = carry
        state = jnp.tanh(0.7 * state + table[tokens])
        chances = jax.nn.log_softmax(state @ head)
        sums = scores[:, None] + chances.astype(scores.dtype)  # fault
        best, where = jax.lax.top_k(sums.reshape(-1), beams)
        parents = where // vocabulary
        tokens = (where % vocabulary).astype(tokens.dtype)
        return (best, state[parents], tokens), tokens

    scores = jnp.array([-250.0, -251.0, -252.0, -253.0]).astype(jnp.bfloat16)
    start = (scores, jnp.zeros((beams, table.shape[1])), first)
    (scores, state, _), tokens = jax.lax.scan(extend, start, None, length=60)
    return scores, state, jax.nn.one_hot(tokens, vocabulary).mean((0, 1))


def beams_scored_in_fp32(table, head, first):
    beams, vocabulary = 4, table.shape[0]

    def extend(carry, _):
        scores, state, tokens = carry
        state = jnp.tanh(0.7 * state + table[tokens])
        sums = scores[:, None] + jax.nn.log_softmax(state @ head)
        best, where = jax.lax.top_k(sums.reshape(-1), beams)
        parents = where // vocabulary
        tokens = (where % vocabulary).astype(tokens.dtype)
        return (best, state[parents], tokens), tokens

    scores = jnp.array([-250.0, -251.0, -252.0, -253.0])
    start = (scores, jnp.zeros((beams, table.shape[1])), first)
    (scores, state, _), tokens = jax.lax.scan(extend, start, None, length=60)
    return scores, state, jax.nn.one_hot(tokens, vocabulary).mean((0, 1))


def beams_arguments():
    table = jnp.asarray(_normal(640, 20, 8))
    return table, _normal(641, 8, 20, scale=0.5), np.int32([0, 5, 9, 14])


class _Houses(nnx.Module):
    """A perceptron on standardized columns."""

    def __init__(self):
        rngs = nnx.Rngs(650)
        self.hidden = nnx.Linear(3, 16, rngs=rngs)
        self.out = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.hidden(x)))


_GRAPH, _STATE = nnx.split(_Houses())


def houses_standardized_after_cast(state, table, prices):
    """The year, the area and the altitude of sold houses; a gradient step."""
    columns = table.astype(jnp.bfloat16)  # fault
    columns = columns.astype(jnp.float32)
    centred = columns - jnp.mean(columns, axis=0)
    spread = jnp.sqrt(jnp.mean(jnp.square(centred), axis=0)) + 1e-3
    inputs = centred / spread

    def loss(s):
        model = nnx.merge(_GRAPH, s)
        return jnp.mean(jnp.square(model(inputs)[:, 0] - prices))

    grads = jax.grad(loss)(state)
    return inputs, jax.tree.map(lambda p, g: p - 0.05 * g, state, grads)


def houses_standardized_before_cast(state, table, prices):
    centred = table - jnp.mean(table, axis=0)
    spread = jnp.sqrt(jnp.mean(jnp.square(centred), axis=0)) + 1e-3
    inputs = (centred / spread).astype(jnp.bfloat16).astype(jnp.float32)

    def loss(s):
        model = nnx.merge(_GRAPH, s)
        return jnp.mean(jnp.square(model(inputs)[:, 0] - prices))

    grads = jax.grad(loss)(state)
    return inputs, jax.tree.map(lambda p, g: p - 0.05 * g, state, grads)


def houses_arguments():
    rng = np.random.default_rng(651)
    years = rng.integers(2009, 2024, 48)
    table = np.stack([years, rng.uniform(60, 220, 48), rng.uniform(1490, 1560, 48)], 1)
    state = jax.tree.map(jnp.asarray, _STATE)
    return state, table.astype(np.float32), _normal(652, 48)


def scan_turned_by_matmul(points, angle, shift, plane):
    """Two laser scans of a wall are put together by a rotation; the residuals."""
    c, s = jnp.cos(angle), jnp.sin(angle)
    zero, one = jnp.zeros_like(c), jnp.ones_like(c)
    turn = jnp.array([[c, -s, zero], [s, c, zero], [zero, zero, one]])
    turned = points @ turn.T  # fault
    moved = turned + shift
    gap = jnp.sum(moved * plane[:3], axis=-1) + plane[3]
    weights = 1.0 / (1.0 + jnp.square(gap / 0.05))
    return moved, gap, weights


def scan_turned_by_sums(points, angle, shift, plane):
    c, s = jnp.cos(angle), jnp.sin(angle)
    x, y, z = points[:, 0], points[:, 1], points[:, 2]
    turned = jnp.stack([c * x - s * y, s * x + c * y, z], axis=-1)
    moved = turned + shift
    gap = jnp.sum(moved * plane[:3], axis=-1) + plane[3]
    weights = 1.0 / (1.0 + jnp.square(gap / 0.05))
    return moved, gap, weights


def scan_arguments():
    rng = np.random.default_rng(660)
    wall = np.stack(
        [rng.uniform(-8, 8, 64), np.full(64, 6.0), rng.uniform(0, 3, 64)], 1
    )
    wall += 0.02 * rng.standard_normal((64, 3))
    c, s, shift = np.cos(0.3), np.sin(0.3), np.float32([0.4, -0.2, 0.05])
    points = (wall - shift) @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    plane = np.float32([0, 1, 0, -6])
    return points.astype(np.float32), np.float32(0.3), shift, plane


def returns_from_cast_bins(probabilities, rewards):
    """Lambda returns of a critic that predicts a distribution over 64 bins."""
    bins = jnp.linspace(0.0, 1000.0, 64)
    values = probabilities @ bins  # fault
    nudge = rewards + 0.997 * values[:, 1:] - values[:, :-1]

    def back(ahead, now):
        total = now + 0.997 * 0.95 * ahead
        return total, total

    end = jnp.zeros(rewards.shape[0])
    _, advantages = jax.lax.scan(back, end, nudge.T, reverse=True)
    return values, advantages


def returns_from_exact_bins(probabilities, rewards):
    bins = jnp.linspace(0.0, 1000.0, 64)
    values = jnp.sum(probabilities * bins, axis=-1)
    nudge = rewards + 0.997 * values[:, 1:] - values[:, :-1]

    def back(ahead, now):
        total = now + 0.997 * 0.95 * ahead
        return total, total

    end = jnp.zeros(rewards.shape[0])
    _, advantages = jax.lax.scan(back, end, nudge.T, reverse=True)
    return values, advantages


def returns_arguments():
    rng = np.random.default_rng(670)
    place = (
        np.arange(64) - rng.uniform(36, 40, (12, 1, 1)) - 0.1 * rng.random((12, 33, 1))
    )
    shape = np.exp(-0.5 * (place / 2.0) ** 2)
    probabilities = shape / shape.sum(-1, keepdims=True)
    rewards = rng.uniform(0, 2, (12, 32))
    return probabilities.astype(np.float32), rewards.astype(np.float32)


FAULTS = (
    Fault(
        name="b-fourier-phases-by-bf16-matmul",
        kinds=("coarse",),
        faulty=field_with_cast_phases,
        healthy=field_with_exact_phases,
        arguments=field_arguments,
        policy="bf16",
        source="NeRF under autocast: the product with the frequency matrix is cast",
    ),
    Fault(
        name="b-spearman-ranks-in-bf16",
        kinds=("coarse", "integer"),
        faulty=ranks_in_bf16,
        healthy=ranks_in_fp32,
        arguments=ranks_arguments,
        policy="fp32",
        source="rank metrics in half precision: ranks above 256 tie",
    ),
    Fault(
        name="b-small-boxes-in-bf16",
        kinds=("coarse",),
        faulty=suppression_of_bf16_boxes,
        healthy=suppression_of_fp32_boxes,
        arguments=suppression_arguments,
        policy="bf16",
        source="torchvision issues: box coordinates under autocast step by 8 pixels",
    ),
    Fault(
        name="b-beam-scores-in-bf16",
        kinds=("coarse", "absorption"),
        faulty=beams_scored_in_bf16,
        healthy=beams_scored_in_fp32,
        arguments=beams_arguments,
        policy="fp32",
        source="transformers issues: beam search in half precision picks other beams",
    ),
    Fault(
        name="b-years-cast-before-standardizing",
        kinds=("coarse", "cancellation"),
        faulty=houses_standardized_after_cast,
        healthy=houses_standardized_before_cast,
        arguments=houses_arguments,
        policy="bf16",
        source="tabular pipelines: .bfloat16() on raw columns such as years",
    ),
    Fault(
        name="b-point-cloud-turned-by-fp8-matmul",
        kinds=("coarse",),
        faulty=scan_turned_by_matmul,
        healthy=scan_turned_by_sums,
        arguments=scan_arguments,
        policy="fp8",
        source="JAX and PyTorch3D issues: default matmul precision moves geometry",
    ),
    Fault(
        name="b-critic-bins-by-mx-matmul",
        kinds=("coarse",),
        faulty=returns_from_cast_bins,
        healthy=returns_from_exact_bins,
        arguments=returns_arguments,
        policy="mxfp8",
        target="trn3",
        source="DreamerV3 ports: the expectation over value bins runs as a cast matmul",
    ),
)
