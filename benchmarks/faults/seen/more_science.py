"""More faults of simulations: constants, orbits, particles, series, geometry."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import normal, uniform, weight


def hbar_faulty(widths, masses, params):
    """Levels of quantum wells in SI units, and an emitter's brightness from them."""
    hbar = jnp.float32(1.0545718e-34)
    n = jnp.arange(1, 6, dtype=jnp.float32)
    k = jnp.pi * n / widths[:, None]
    action = hbar * hbar / (2 * masses[:, None])  # fault
    energy = action * k**2 / 1.602e-19
    gap = jnp.diff(energy, axis=1)
    return energy, jax.nn.softmax(-gap / 0.05), gap @ params


def hbar_healthy(widths, masses, params):
    hbar = jnp.float32(1.0545718e-34)
    n = jnp.arange(1, 6, dtype=jnp.float32)
    momentum = hbar / 1e-24 * (jnp.pi * n / widths[:, None])
    root = jnp.sqrt(1.602e-19 * 2e18 * (masses[:, None] * 1e30))
    energy = (momentum / root) ** 2
    gap = jnp.diff(energy, axis=1)
    return energy, jax.nn.softmax(-gap / 0.05), gap @ params


def poisson_faulty(rates, counts):
    """Tail probabilities of Poisson counts by the recurrence p_k = p_(k-1) rate/k."""

    def tail(rate, count):
        first = jnp.exp(-rate)  # fault

        def grow(carry, k):
            p, total = carry
            p = jnp.where(k == 0, p, p * rate / jnp.maximum(k, 1))
            return (p, total + jnp.where(k <= count, p, 0.0)), p

        ks = jnp.arange(100).astype(jnp.float32)
        (_, total), table = jax.lax.scan(grow, (first, jnp.zeros(())), ks)
        return total, table.max()

    below, peak = jax.vmap(tail)(rates, counts)
    return below, peak, jnp.where(below > 0.05, 1.0, 0.0)


def poisson_healthy(rates, counts):
    def tail(rate, count):
        ks = jnp.arange(100).astype(jnp.float32)
        steps = jnp.log(rate) - jnp.log(jnp.maximum(ks, 1))
        log_p = jnp.cumsum(jnp.where(ks > 0, steps, 0.0)) - rate
        seen = jnp.where(ks <= count, log_p, -jnp.inf)
        return jnp.exp(jax.nn.logsumexp(seen)), jnp.exp(log_p.max())

    below, peak = jax.vmap(tail)(rates, counts)
    return below, peak, jnp.where(below > 0.05, 1.0, 0.0)


def determinant_faulty(points, mean, factor):
    """Log-densities under a Gaussian of sixty sensors with millivolt noise."""
    z = jax.scipy.linalg.solve_triangular(factor, (points - mean).T, lower=True)
    volume = jnp.prod(jnp.diagonal(factor))  # fault
    size = points.shape[1] * jnp.log(2 * jnp.pi)
    density = -0.5 * jnp.sum(z * z, axis=0) - jnp.log(volume) - 0.5 * size
    return density, density.mean()


def determinant_healthy(points, mean, factor):
    z = jax.scipy.linalg.solve_triangular(factor, (points - mean).T, lower=True)
    volume = jnp.sum(jnp.log(jnp.diagonal(factor)))
    size = points.shape[1] * jnp.log(2 * jnp.pi)
    density = -0.5 * jnp.sum(z * z, axis=0) - volume - 0.5 * size
    return density, density.mean()


def determinant_arguments():
    factor = np.tril(normal(2310, 60, 60, scale=1e-4))
    factor[np.arange(60), np.arange(60)] = 1e-3 * (1 + uniform(2311, 60))
    mean = normal(2312, 60)
    points = mean + normal(2313, 24, 60) @ factor.T
    return points.astype(np.float32), mean, factor


def particles_faulty(start, noise, observed):
    """A particle filter that multiplies its weights and never normalizes them."""

    def step(carry, inputs):
        x, w = carry
        shock, y = inputs
        x = 0.9 * x + 0.3 * shock
        w = w * jnp.exp(-0.5 * ((y - x) / 0.4) ** 2)  # fault
        return (x, w), jnp.sum(w * x) / jnp.sum(w)

    w = jnp.full(start.shape, 1.0 / start.shape[0])
    (_, w), estimates = jax.lax.scan(step, (start, w), (noise, observed))
    return estimates, w / jnp.sum(w)


def particles_healthy(start, noise, observed):
    def step(carry, inputs):
        x, log_w = carry
        shock, y = inputs
        x = 0.9 * x + 0.3 * shock
        log_w = log_w - 0.5 * ((y - x) / 0.4) ** 2
        log_w = log_w - jax.nn.logsumexp(log_w)
        return (x, log_w), jnp.sum(jnp.exp(log_w) * x)

    log_w = jnp.full(start.shape, -jnp.log(float(start.shape[0])))
    (_, log_w), estimates = jax.lax.scan(step, (start, log_w), (noise, observed))
    return estimates, jax.nn.softmax(log_w)


def world_faulty(origin, offset, velocity, pull):
    """Slow bodies of a game far from the origin of its world, at 240 frames."""

    def frame(carry, _):
        position, velocity = carry
        home = position - origin
        velocity = velocity - (1 / 240) * pull * home
        position = position + velocity * (1 / 240)  # fault
        return (position, velocity), None

    start = (origin + offset, velocity)
    (position, velocity), _ = jax.lax.scan(frame, start, None, length=96)
    return position - origin, velocity


def world_healthy(origin, offset, velocity, pull):
    def frame(carry, _):
        home, velocity = carry
        velocity = velocity - (1 / 240) * pull * home
        return (home + velocity * (1 / 240), velocity), None

    (home, velocity), _ = jax.lax.scan(frame, (offset, velocity), None, length=96)
    return home, velocity


def world_arguments():
    origin = np.array([[98304.0, -65536.0, 81920.0]], np.float32)
    offset = np.round(normal(2320, 12, 3, scale=1.0) * 8) / 8
    return (
        origin,
        offset.astype(np.float32),
        normal(2321, 12, 3, scale=0.5),
        np.float32(0.4),
    )


def heat_faulty(rod, source, params):
    """Heat in a rod by explicit steps; the temperatures are kelvins in FP16."""

    def step(rod, _):
        bend = jnp.roll(rod, 1) - 2 * rod + jnp.roll(rod, -1)
        change = 0.05 * bend.astype(jnp.float32) + source
        rod = rod + change.astype(jnp.float16)  # fault
        return rod, None

    end, _ = jax.lax.scan(step, rod.astype(jnp.float16), None, length=90)
    rise = end.astype(jnp.float32) - rod
    return rise, jax.nn.relu(rise) @ params


def heat_healthy(rod, source, params):
    def step(rise, _):
        rod = start + rise
        bend = jnp.roll(rod, 1) - 2 * rod + jnp.roll(rod, -1)
        return rise + 0.05 * bend + source, None

    start = rod - 300.0
    rise, _ = jax.lax.scan(step, jnp.zeros_like(rod), None, length=90)
    return rise, jax.nn.relu(rise) @ params


def heat_arguments():
    rod = 300 + np.round(2 * np.sin(np.arange(32) * np.pi / 16)) / 2
    source = uniform(2330, 32, low=0.02, high=0.1)
    return rod.astype(np.float32), source, weight(2331, 32, 4)


def bending_faulty(bonds, stiffness):
    """Energies and forces of a nearly straight polymer: k (1 - cos(angle))."""

    def energy(angles):
        lift = 1 - jnp.cos(angles)  # fault
        return jnp.sum(stiffness * lift) * 1e6, lift

    angles = jnp.diff(bonds)
    (total, lift), force = jax.value_and_grad(energy, has_aux=True)(angles)
    weights = jax.nn.softmax(-1e6 * lift)
    return total, lift * 1e6, force, weights


def bending_healthy(bonds, stiffness):
    def energy(angles):
        lift = 2 * jnp.sin(angles / 2) ** 2
        return jnp.sum(stiffness * lift) * 1e6, lift

    angles = jnp.diff(bonds)
    (total, lift), force = jax.value_and_grad(energy, has_aux=True)(angles)
    weights = jax.nn.softmax(-1e6 * lift)
    return total, lift * 1e6, force, weights


def mandelbrot_faulty(centre, span):
    """Escape distances of a deep zoom: every pixel has its own constant c."""
    grid = jnp.arange(-8, 8) * span
    re, im = centre[:, None, None] + jnp.stack(jnp.meshgrid(grid, grid))  # fault

    def turn(z, _):
        x, y = z
        return (x * x - y * y + re, 2 * x * y + im), None

    zeros = jnp.zeros((16, 16))
    (x, y), _ = jax.lax.scan(turn, (zeros, zeros), None, length=9)
    (x0, y0), _ = jax.lax.scan(
        lambda z, _: (
            (z[0] * z[0] - z[1] * z[1] + centre[0], 2 * z[0] * z[1] + centre[1]),
            None,
        ),
        (0.0 * centre[0], 0.0 * centre[1]),
        None,
        length=9,
    )
    return (x - x0) / span, (y - y0) / span


def mandelbrot_healthy(centre, span):
    grid = jnp.arange(-8, 8) * span
    re = jnp.broadcast_to(grid[None, :], (16, 16))
    im = jnp.broadcast_to(grid[:, None], (16, 16))

    def turn(carry, _):
        (x, y), (u, v) = carry
        down = 2 * (x * u - y * v) + (u * u - v * v) + re
        across = 2 * (x * v + y * u) + 2 * u * v + im
        z = (x * x - y * y + centre[0], 2 * x * y + centre[1])
        return (z, (down, across)), None

    zeros = jnp.zeros((16, 16))
    start = ((0.0 * centre[0], 0.0 * centre[1]), (zeros, zeros))
    (_, (u, v)), _ = jax.lax.scan(turn, start, None, length=9)
    return u / span, v / span


def lattice_faulty(charges, spacings):
    """Potentials of a line of charges, a sum over shells from the nearest on."""

    def shell(total, n):
        term = charges / (n * spacings) ** 2
        total = total + term.astype(jnp.bfloat16)  # fault
        return total, None

    zeros = jnp.zeros(spacings.shape, jnp.bfloat16)
    shells = jnp.arange(1, 101).astype(jnp.float32)
    total, _ = jax.lax.scan(shell, zeros, shells)
    total = total.astype(jnp.float32)
    return total, total * spacings**2 / charges - 1.0


def lattice_healthy(charges, spacings):
    def shell(total, n):
        term = charges / (n * spacings) ** 2
        return total + term, None

    shells = jnp.arange(100, 0, -1).astype(jnp.float32)
    total, _ = jax.lax.scan(shell, jnp.zeros(spacings.shape), shells)
    return total, total * spacings**2 / charges - 1.0


def arrival_faulty(source, microphones, params):
    """Differences of arrival times of a far bang at an array of microphones."""
    distance = jnp.sqrt(jnp.sum((source[:, None] - microphones) ** 2, axis=-1))
    ahead = distance[:, 1:] - distance[:, :1]  # fault
    delay = ahead / 343.0 * 48000.0
    features = jnp.stack([jnp.sin(delay / 10), jnp.cos(delay / 10)], -1)
    return delay, features.reshape(source.shape[0], -1) @ params


def arrival_healthy(source, microphones, params):
    gap = source[:, None] - microphones
    distance = jnp.sqrt(jnp.sum(gap**2, axis=-1))
    apart = microphones[:1] - microphones[1:]
    sides = jnp.sum(apart * (gap[:, 1:] + gap[:, :1]), axis=-1)
    ahead = sides / (distance[:, 1:] + distance[:, :1])
    delay = ahead / 343.0 * 48000.0
    features = jnp.stack([jnp.sin(delay / 10), jnp.cos(delay / 10)], -1)
    return delay, features.reshape(source.shape[0], -1) @ params


def arrival_arguments():
    source = normal(2340, 10, 3, scale=40000.0)
    microphones = normal(2341, 5, 3, scale=0.05)
    return source, microphones, weight(2342, 8, 3)


def zenith_faulty(directions, params):
    """Zenith angles of satellites overhead, for a troposphere's mapping function."""
    size = jnp.sqrt(jnp.sum(directions**2, axis=-1))
    height = directions[:, 2] / size
    angle = jnp.arccos(jnp.clip(height, -1.0, 1.0))  # fault
    scaled = angle / 1e-3
    code = jnp.stack([jnp.sin(scaled), jnp.cos(scaled)], axis=-1)
    return scaled, jnp.tanh(code @ params["in"]) @ params["out"]


def zenith_healthy(directions, params):
    flat = jnp.sqrt(jnp.sum(directions[:, :2] ** 2, axis=-1))
    angle = jnp.arctan2(flat, directions[:, 2])
    scaled = angle / 1e-3
    code = jnp.stack([jnp.sin(scaled), jnp.cos(scaled)], axis=-1)
    return scaled, jnp.tanh(code @ params["in"]) @ params["out"]


def zenith_arguments():
    directions = normal(2350, 20, 3, scale=9.0)
    directions[:, 2] = 20000.0 + directions[:, 2]
    return directions, {"in": weight(2351, 2, 8), "out": weight(2352, 8, 2)}


def slerp_faulty(start, end, times):
    """Keyframes of a skeleton by slerp; some joints do not move."""
    cosine = jnp.clip(jnp.sum(start * end, axis=-1, keepdims=True), -1.0, 1.0)
    angle = jnp.arccos(cosine)

    def at(t):
        share = jnp.stack([1 - t, t])[:, None, None]
        left, right = jnp.sin(share * angle) / jnp.sin(angle)  # fault
        return left * start + right * end

    frames = jax.vmap(at)(times)
    return frames, frames[1:] - frames[:-1]


def slerp_healthy(start, end, times):
    cosine = jnp.clip(jnp.sum(start * end, axis=-1, keepdims=True), -1.0, 1.0)
    near = cosine > 0.9995
    angle = jnp.arccos(jnp.where(near, 0.0, cosine))

    def at(t):
        left = jnp.where(near, 1 - t, jnp.sin((1 - t) * angle) / jnp.sin(angle))
        right = jnp.where(near, t, jnp.sin(t * angle) / jnp.sin(angle))
        return left * start + right * end

    frames = jax.vmap(at)(times)
    return frames, frames[1:] - frames[:-1]


def slerp_arguments():
    start, end = normal(2360, 14, 4), normal(2361, 14, 4)
    end = np.where(np.sum(start * end, -1, keepdims=True) < 0, -end, end)
    start[:4] = np.eye(4)
    end[:4] = np.eye(4)
    start /= np.linalg.norm(start, axis=-1, keepdims=True)
    end /= np.linalg.norm(end, axis=-1, keepdims=True)
    return start, end, np.linspace(0, 1, 6, dtype=np.float32)


def lorentz_faulty(points, tree):
    """Distances in the hyperboloid model between words and their taxonomy's nodes."""
    time = jnp.sqrt(1 + jnp.sum(points**2, axis=-1))
    inner = time[:, None] * time[None, :] - jnp.sum(points[:, None] * points, axis=-1)
    distance = jnp.arccosh(inner)  # fault
    score = jax.nn.softmax(-distance, axis=-1)
    return distance, -jnp.mean(jnp.sum(tree * jnp.log(score), axis=-1))


def lorentz_healthy(points, tree):
    time = jnp.sqrt(1 + jnp.sum(points**2, axis=-1))
    gap = jnp.sum((points[:, None] - points) ** 2, axis=-1)
    total = jnp.sum((points[:, None] - points) * (points[:, None] + points), axis=-1)
    lag = total / (time[:, None] + time)
    half = jnp.sqrt(jnp.maximum(gap - lag**2, 0.0)) / 2
    distance = 2 * jnp.arcsinh(half)
    score = jax.nn.softmax(-distance, axis=-1)
    return distance, -jnp.mean(jnp.sum(tree * jnp.log(score), axis=-1))


def lorentz_arguments():
    points = normal(2370, 12, 5, scale=2.0)
    tree = uniform(2371, 12, 12)
    return points, tree / tree.sum(-1, keepdims=True)


def student_faulty(x, freedom, location):
    """Log-likelihoods of returns under Student's t, with the gamma function itself."""
    half = jnp.stack([freedom + 1, freedom]) / 2
    top, bottom = jax.scipy.special.gamma(half)  # fault
    bottom = bottom * jnp.sqrt(freedom * jnp.pi)
    z = x[:, None] - location
    kernel = (1 + z * z / freedom) ** (-(freedom + 1) / 2)
    density = top / bottom * kernel
    return density, jnp.log(density).sum(0)


def student_healthy(x, freedom, location):
    top = jax.scipy.special.gammaln((freedom + 1) / 2)
    bottom = jax.scipy.special.gammaln(freedom / 2) + 0.5 * jnp.log(freedom * jnp.pi)
    z = x[:, None] - location
    kernel = -(freedom + 1) / 2 * jnp.log1p(z * z / freedom)
    density = top - bottom + kernel
    return jnp.exp(density), density.sum(0)


FAULTS = (
    Fault(
        name="hbar-squared-in-si-units",
        kinds=("underflow",),
        faulty=hbar_faulty,
        healthy=hbar_healthy,
        arguments=lambda: (
            uniform(2300, 10, low=2e-9, high=8e-9),
            uniform(2301, 10, low=0.05, high=0.9) * np.float32(9.109e-31),
            weight(2302, 4, 2),
        ),
        policy="fp32",
        source="physics codes ported to FP32: hbar**2 and k_B * h are below 1e-38",
    ),
    Fault(
        name="poisson-tail-from-exp-minus-rate",
        kinds=("underflow",),
        faulty=poisson_faulty,
        healthy=poisson_healthy,
        arguments=lambda: (
            uniform(2303, 12, low=70.0, high=125.0),
            uniform(2304, 12, low=70.0, high=99.0).round(),
        ),
        policy="bf16",
        source="Knuth's Poisson recurrence: NumPy and Julia switch methods above 10",
    ),
    Fault(
        name="gaussian-volume-as-product",
        kinds=("underflow",),
        faulty=determinant_faulty,
        healthy=determinant_healthy,
        arguments=determinant_arguments,
        policy="fp32",
        source="np.linalg.det against slogdet: determinants of covariances are zero",
    ),
    Fault(
        name="particle-weights-never-normalized",
        kinds=("underflow", "non-finite"),
        faulty=particles_faulty,
        healthy=particles_healthy,
        arguments=lambda: (
            normal(2305, 64),
            normal(2306, 90, 64),
            normal(2307, 90, scale=0.7, shift=2.5),
        ),
        policy="bf16",
        source="particle filter tutorials: weights become 0/0 after some dozen steps",
    ),
    Fault(
        name="slow-bodies-far-from-world-origin",
        kinds=("absorption", "stagnation", "coarse"),
        faulty=world_faulty,
        healthy=world_healthy,
        arguments=world_arguments,
        policy="fp32",
        source="game engines (Unity, Godot, Kerbal Space Program): floating origin",
    ),
    Fault(
        name="heat-steps-in-half-kelvins",
        kinds=("absorption", "stagnation", "coarse"),
        faulty=heat_faulty,
        healthy=heat_healthy,
        arguments=heat_arguments,
        policy="bf16",
        source="half-precision weather and climate models: tendencies below an ulp",
    ),
    Fault(
        name="bending-energy-by-one-minus-cosine",
        kinds=("cancellation",),
        faulty=bending_faulty,
        healthy=bending_healthy,
        arguments=lambda: (
            normal(2308, 24, scale=1e-4),
            uniform(2309, 23, low=1.0, high=5.0),
        ),
        policy="fp32",
        source="Kahan; Herbie's benchmarks: 1 - cos(x) at small angles",
    ),
    Fault(
        name="mandelbrot-zoom-without-reference-orbit",
        kinds=("coarse", "absorption"),
        faulty=mandelbrot_faulty,
        healthy=mandelbrot_healthy,
        arguments=lambda: (
            np.array([-0.74364388, 0.13182591], np.float32),
            np.float32(1e-9),
        ),
        policy="fp32",
        source="fractal viewers on GPUs: blocks of equal pixels; perturbation theory",
    ),
    Fault(
        name="lattice-sum-nearest-first-in-bf16",
        kinds=("stagnation", "absorption"),
        faulty=lattice_faulty,
        healthy=lattice_healthy,
        arguments=lambda: (
            uniform(2314, 10, low=1.0, high=2.0),
            uniform(2315, 10, low=0.5, high=1.5),
        ),
        policy="bf16",
        source="Higham, Accuracy and Stability: order of summation of 1/n**2",
    ),
    Fault(
        name="arrival-times-of-far-bang",
        kinds=("cancellation",),
        faulty=arrival_faulty,
        healthy=arrival_healthy,
        arguments=arrival_arguments,
        policy="bf16",
        source="multilateration: differences of ranges with a centimetre's baseline",
    ),
    Fault(
        name="zenith-angle-by-arccos",
        kinds=("singular",),
        faulty=zenith_faulty,
        healthy=zenith_healthy,
        arguments=zenith_arguments,
        policy="bf16",
        source="astropy and GIS: separations by arccos near the pole, use atan2",
    ),
    Fault(
        name="slerp-of-joints-at-rest",
        kinds=("non-finite", "singular"),
        faulty=slerp_faulty,
        healthy=slerp_healthy,
        arguments=slerp_arguments,
        policy="bf16",
        source="animation code and latent slerp in diffusion scripts: sin(0)/sin(0)",
    ),
    Fault(
        name="hyperboloid-distance-to-itself",
        kinds=("non-finite", "singular", "cancellation"),
        faulty=lorentz_faulty,
        healthy=lorentz_healthy,
        arguments=lorentz_arguments,
        policy="fp32",
        source="hyperbolic embeddings (geoopt issues): arccosh below one is NaN",
    ),
    Fault(
        name="student-density-by-gamma",
        kinds=("overflow", "non-finite"),
        faulty=student_faulty,
        healthy=student_healthy,
        arguments=lambda: (
            normal(2316, 24),
            np.array([3.0, 8.0, 30.0, 90.0, 150.0], np.float32),
            normal(2317, 5, scale=0.2),
        ),
        policy="bf16",
        source="scipy and TensorFlow Probability issues: gamma(35.5) exceeds FP32",
    ),
)
