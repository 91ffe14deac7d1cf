"""Faults in simulation and estimation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import normal, uniform, weight


def argon_faulty(positions, sigma, depth, charges):
    """Lennard-Jones energy of argon in SI units."""
    gap = positions[:, None] - positions
    far = jnp.sqrt(jnp.sum(gap * gap, -1) + jnp.eye(len(positions)))
    six = sigma**6  # fault
    attraction = six / far**2 / far**2 / far**2
    pair = 4 * depth * (attraction * attraction - attraction)
    pair = jnp.where(jnp.eye(len(positions)) > 0, 0.0, pair)
    return pair.sum(1) @ charges, pair.sum() / 2


def argon_healthy(positions, sigma, depth, charges):
    gap = positions[:, None] - positions
    far = jnp.sqrt(jnp.sum(gap * gap, -1) + jnp.eye(len(positions)))
    near = sigma / far
    attraction = near**6
    pair = 4 * depth * (attraction * attraction - attraction)
    pair = jnp.where(jnp.eye(len(positions)) > 0, 0.0, pair)
    return pair.sum(1) @ charges, pair.sum() / 2


def argon_arguments():
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(27, 3)
    positions = (grid + 0.05 * normal(440, 27, 3)) * 4.0e-10
    depth = np.float32(119.8)  # as a temperature
    return positions.astype("f4"), np.float32(3.405e-10), depth, normal(441, 27, 2)


def transport_faulty(params, x, y):
    """Entropic optimal transport between point clouds, by Sinkhorn's scaling."""
    a, b = jnp.tanh(x @ params["w"]), jnp.tanh(y @ params["w"])
    gap = a[:, None] - b
    cost = jnp.sum(gap * gap, axis=-1)
    kernel = jnp.exp(-cost / 0.02)  # fault

    def step(u, _):
        v = (1 / 24) / (u @ kernel)
        u = (1 / 24) / (kernel @ v)
        return u, v

    u, v = jax.lax.scan(step, jnp.ones(24), None, length=60)
    plan = u[:, None] * kernel * v[-1]
    return jnp.sum(plan * cost)


def transport_healthy(params, x, y):
    a, b = jnp.tanh(x @ params["w"]), jnp.tanh(y @ params["w"])
    gap = a[:, None] - b
    cost = jnp.sum(gap * gap, axis=-1)

    def step(f, _):
        g = -jax.nn.logsumexp((f[:, None] - cost) / 0.02, axis=0) * 0.02
        f = -jax.nn.logsumexp((g - cost) / 0.02, axis=1) * 0.02
        return f, g

    f, g = jax.lax.scan(step, jnp.zeros(24), None, length=60)
    plan = jnp.exp((f[:, None] + g[-1] - cost) / 0.02) / 24
    return jnp.sum(plan * cost)


def oscillator_faulty(state, rows, drive):
    """A driven oscillator, resumed at t = 8; the clock is BF16 like the state."""
    step = jnp.asarray(0.02, jnp.bfloat16)

    def advance(carry, _):
        x, v, t = carry
        force = jnp.sin(drive * t.astype(jnp.float32)) - 0.5 * x - 0.1 * v
        v = v + 0.02 * force
        x = x + 0.02 * v
        t = t + step  # fault
        return (x, v, t), x

    start = (state[0], state[1], jnp.asarray(8.0, jnp.bfloat16))
    _, path = jax.lax.scan(advance, start, None, length=200)
    return path @ rows


def oscillator_healthy(state, rows, drive):
    def advance(carry, i):
        x, v = carry
        t = 8.0 + 0.02 * i
        force = jnp.sin(drive * t) - 0.5 * x - 0.1 * v
        v = v + 0.02 * force
        x = x + 0.02 * v
        return (x, v), x

    _, path = jax.lax.scan(advance, (state[0], state[1]), jnp.arange(200.0))
    return path @ rows


def tracker_faulty(params, epoch, intervals, readings):
    """A log of sensor events: times since 1970, and rates between them."""

    def advance(now, interval):
        now = now + interval  # fault
        return now, now

    _, times = jax.lax.scan(advance, epoch, intervals)
    since = times - epoch
    phase = jnp.sin(since[:, None] * params["rates"])
    return jax.nn.relu(phase @ params["in"]) @ params["out"], (readings * since).sum()


def tracker_healthy(params, epoch, intervals, readings):
    def advance(now, interval):
        now = now + interval
        return now, now

    _, since = jax.lax.scan(advance, 0.0 * epoch, intervals)
    phase = jnp.sin(since[:, None] * params["rates"])
    return jax.nn.relu(phase @ params["in"]) @ params["out"], (readings * since).sum()


def tracker_arguments():
    params = {
        "rates": uniform(446, 16, low=0.1, high=2.0),
        "in": weight(447, 16, 32),
        "out": weight(448, 32, 2),
    }
    epoch = np.float32(1.7e9)
    return params, epoch, uniform(449, 100, low=0.02, high=0.3), normal(450, 100)


def kriging_faulty(features, y, query, scale):
    """Interpolation by a Gaussian process whose inputs repeat: jitter is needed."""
    x, q = features @ scale, query @ scale
    gap, between = x[:, None] - x, q[:, None] - x
    kernel = 100.0 * jnp.exp(-0.5 * jnp.sum(gap * gap, axis=-1))
    cross = 100.0 * jnp.exp(-0.5 * jnp.sum(between * between, axis=-1))
    jitter = 1e-6 * jnp.eye(len(y))
    kernel = kernel + jitter  # fault
    root = jnp.linalg.cholesky(kernel)
    half = jax.scipy.linalg.solve_triangular(root, y, lower=True)
    solved = jax.scipy.linalg.solve_triangular(root.T, half, lower=False)
    return cross @ solved


def kriging_healthy(features, y, query, scale):
    x, q = features @ scale, query @ scale
    gap, between = x[:, None] - x, q[:, None] - x
    kernel = 100.0 * jnp.exp(-0.5 * jnp.sum(gap * gap, axis=-1))
    cross = 100.0 * jnp.exp(-0.5 * jnp.sum(between * between, axis=-1))
    jitter = 0.02 * jnp.eye(len(y))
    kernel = kernel + jitter
    root = jnp.linalg.cholesky(kernel)
    half = jax.scipy.linalg.solve_triangular(root, y, lower=True)
    solved = jax.scipy.linalg.solve_triangular(root.T, half, lower=False)
    return cross @ solved


def kriging_arguments():
    features = normal(451, 24, 8)
    features[12:] = features[:12]
    y = features @ weight(452, 8, 1)[:, 0]
    return features, y.astype("f4"), normal(453, 8, 8), weight(454, 8, 4, 0.5)


FAULTS = (
    Fault(
        name="lennard-jones-in-metres",
        kinds=("underflow",),
        faulty=argon_faulty,
        healthy=argon_healthy,
        arguments=argon_arguments,
        policy="bf16",
        source="molecular dynamics in FP32 with SI units: sigma**6 is 1e-57",
    ),
    Fault(
        name="sinkhorn-kernel-underflows",
        kinds=("underflow", "non-finite"),
        faulty=transport_faulty,
        healthy=transport_healthy,
        arguments=lambda: (
            {"w": weight(445, 6, 6)},
            normal(455, 24, 6, shift=-1.0),
            normal(456, 24, 6, shift=1.0),
        ),
        policy="bf16",
        source="POT issues: Sinkhorn with small regularization gives NaN; log domain",
    ),
    Fault(
        name="clock-of-bf16-stands-still",
        kinds=("absorption", "stagnation"),
        faulty=oscillator_faulty,
        healthy=oscillator_healthy,
        arguments=lambda: (
            normal(457, 2, 16),
            normal(469, 16, 4),
            np.float32(1.3),
        ),
        policy="bf16",
        source="simulations with t += dt in the dtype of the state",
    ),
    Fault(
        name="unix-time-in-fp32",
        kinds=("absorption", "coarse", "stagnation"),
        faulty=tracker_faulty,
        healthy=tracker_healthy,
        arguments=tracker_arguments,
        policy="bf16",
        source="event data: seconds since 1970 in FP32 have steps of 128",
    ),
    Fault(
        name="jitter-absorbed-by-diagonal",
        kinds=("absorption", "singular"),
        faulty=kriging_faulty,
        healthy=kriging_healthy,
        arguments=kriging_arguments,
        policy="fp32",
        source="GPJax and GPyTorch: a jitter of 1e-6 in FP32, Cholesky gives NaN",
    ),
)
