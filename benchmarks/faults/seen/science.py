"""Physics, simulations and statistics."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import normal, uniform, weight


def heat_arguments():
    x = np.linspace(0, 1, 64)
    u = 300.0 + 40.0 * np.sin(3 * np.pi * x) * np.exp(-x)
    return u.astype(np.float32), "f32 0.4"


@fault("stagnation", "absorption")
@source("Croci and Giles on the heat equation with rounding in low precision")
@inputs(by=heat_arguments)
def heat_equation_field_bf16(u, rate):
    """Explicit heat equation with its field in BF16."""

    def step(u, _):
        wide = u.astype(jnp.float32)  # -
        padded = jnp.pad(wide, 1, mode="edge")  # -
        # + padded = jnp.pad(u, 1, mode="edge")
        curve = padded[2:] - 2.0 * wide + padded[:-2]  # -
        # + curve = padded[2:] - 2.0 * u + padded[:-2]
        change = rate * curve  # -
        u = u + change.astype(jnp.bfloat16)  # fault
        # + u = u + rate * curve
        return u, None

    u, _ = jax.lax.scan(step, u.astype(jnp.bfloat16), None, length=200)  # -
    # + u, _ = jax.lax.scan(step, u, None, length=200)
    u = u.astype(jnp.float32)  # -
    return u - 300.0, jnp.max(u) - jnp.min(u)


@fault("overflow", "non-finite", policy="fp32")
@source("ocean wave tools: linear theory gives NaN in deep water")
@inputs("12 0..1 @212; 12 40..300 @211; f32 1500; f32 12; f32 5; 32 even 0..60")
def deep_water_cosh_over_sinh(amplitude, length, depth, place, below, time):
    """The horizontal velocity of water under a sum of linear waves."""
    k = 2 * jnp.pi / length
    omega = jnp.sqrt(9.81 * k * jnp.tanh(k * depth))
    phase = k * place - omega * time[:, None]
    height = depth - below
    profile = jnp.cosh(k * height) / jnp.sinh(k * depth)  # fault
    # + upper = 1.0 + jnp.exp(-2 * k * height)
    # + lower = 1.0 - jnp.exp(-2 * k * depth)
    # + profile = jnp.exp(-k * below) * upper / lower
    velocity = amplitude * omega * profile * jnp.cos(phase)
    return velocity.sum(-1)


@fault("cancellation", policy="fp32")
@source("particle-in-cell codes: (γ - 1) m c² of slow particles in FP32")
@inputs("16 0.0001..0.0005 @221; 16 0.5..1.5 @222; f32 9.383e+08")
def kinetic_energy_as_gamma_minus_one(momentum, charge_field, mass_energy):
    """Ions in a trap: kinetic energies along the orbit, relativistic throughout."""

    def step(state, _):
        place, momentum = state
        momentum = momentum - 0.05 * charge_field * place
        place = place + 0.05 * momentum / jnp.sqrt(1.0 + momentum**2)
        gamma = jnp.sqrt(1.0 + momentum**2)
        kinetic = mass_energy * (gamma - 1.0)  # fault
        # + kinetic = mass_energy * momentum**2 / (gamma + 1.0)
        return (place, momentum), kinetic

    start = (jnp.zeros_like(momentum), momentum)
    (place, momentum), kinetic = jax.lax.scan(step, start, None, length=60)
    return kinetic, place


@fault("cancellation", policy="fp32")
@source("numerics notes: coth(x) - 1/x near zero")
@inputs("40 0.0003..0.004 @231; f32 0.8")
def langevin_function_in_weak_field(field, coupling):
    """A ferrofluid's magnetization in weak fields: mean-field iterations."""

    def langevin(x):
        return 1.0 / jnp.tanh(x) - 1.0 / x  # fault
        # + small = jnp.abs(x) < 0.1
        # + safe = jnp.where(small, 1.0, x)
        # + square = x * x
        # + series = x * (1 / 3 - square * (1 / 45 - square * 2 / 945))
        # + return jnp.where(small, series, 1.0 / jnp.tanh(safe) - 1.0 / safe)

    def step(m, _):
        return langevin(field + coupling * m), None

    m, _ = jax.lax.scan(step, field / 3.0, None, length=12)
    return m, m / field


@fault("cancellation", policy="fp32")
@source("celestial mechanics: E - e sin E when e is near 1 and E small")
@inputs("64 0.0001..0.001 @241; f32 1e-06; f32 9e+08")
def kepler_equation_of_near_parabola(anomaly, nearness, period):
    """When comets of nearly parabolic orbits pass the points of an ephemeris."""
    eccentricity = 1.0 - nearness
    mean_anomaly = anomaly - eccentricity * jnp.sin(anomaly)  # fault
    # + square = anomaly * anomaly
    # + series = 1 / 6 - square * (1 / 120 - square / 5040)
    # + mean_anomaly = nearness * anomaly + eccentricity * anomaly * square * series
    days = mean_anomaly * period / (2 * jnp.pi)
    half = jnp.sin(anomaly / 2)
    x = nearness - 2 * half * half
    y = jnp.sqrt(nearness * (2.0 - nearness)) * jnp.sin(anomaly)
    return days, x, y


def ringdown_arguments():
    time = np.linspace(0.0, 1.0, 64, dtype=np.float32)
    tones = np.linspace(5.0, 15.0, 9, dtype=np.float32)[:, None]
    templates = np.exp(-3 * time) * np.sin(2 * np.pi * tones * time)
    strain = templates[[2, 5, 6]] + 0.3 * normal(251, 3, 64)
    return (1e-21 * strain).astype(np.float32), templates.astype(np.float32)


@fault("underflow")
@source("gravitational-wave forums: strain of 1e-21 squared in FP32")
@inputs(by=ringdown_arguments)
def strain_power_of_gravitational_wave(strain, templates):
    """How well templates match a gravitational wave, whose strain is near 1e-21."""
    # + strain = strain * 2.0**70
    power = strain * strain  # here
    size = jnp.sqrt(power.sum(-1, keepdims=True))
    shapes = templates / jnp.sqrt((templates * templates).sum(-1, keepdims=True))
    match = (strain / size) @ shapes.T
    return match, jnp.argmax(match, axis=-1)


def argon_arguments():
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(27, 3)
    positions = (grid + 0.05 * normal(440, 27, 3)) * 4.0e-10
    depth = np.float32(119.8)  # as a temperature
    return positions.astype("f4"), np.float32(3.405e-10), depth, normal(441, 27, 2)


@fault("underflow")
@source("molecular dynamics in FP32 with SI units: sigma**6 is 1e-57")
@inputs(by=argon_arguments)
def lennard_jones_in_metres(positions, sigma, depth, charges):
    """Lennard-Jones energy of argon in SI units."""
    gap = positions[:, None] - positions
    far = jnp.sqrt(jnp.sum(gap * gap, -1) + jnp.eye(len(positions)))
    six = sigma**6  # fault
    attraction = six / far**2 / far**2 / far**2  # -
    # + near = sigma / far
    # + attraction = near**6
    pair = 4 * depth * (attraction * attraction - attraction)
    pair = jnp.where(jnp.eye(len(positions)) > 0, 0.0, pair)
    return pair.sum(1) @ charges, pair.sum() / 2


@fault("underflow", "non-finite")
@source("POT issues: Sinkhorn with small regularization gives NaN; log domain")
@inputs("w: 6x6 w @445; 24x6 +-1 @455; 24x6 +1 @456")
def sinkhorn_kernel_underflows(params, x, y):
    """Entropic optimal transport between point clouds, by Sinkhorn's scaling."""
    a, b = jnp.tanh(x @ params["w"]), jnp.tanh(y @ params["w"])
    gap = a[:, None] - b
    cost = jnp.sum(gap * gap, axis=-1)
    kernel = jnp.exp(-cost / 0.02)  # fault

    def step(u, _):  # -
        v = (1 / 24) / (u @ kernel)
        u = (1 / 24) / (kernel @ v)
        return u, v

    # + def step(f, _):
    # +     g = -jax.nn.logsumexp((f[:, None] - cost) / 0.02, axis=0) * 0.02
    # +     f = -jax.nn.logsumexp((g - cost) / 0.02, axis=1) * 0.02
    # +     return f, g

    u, v = jax.lax.scan(step, jnp.ones(24), None, length=60)  # -
    plan = u[:, None] * kernel * v[-1]  # -
    # + f, g = jax.lax.scan(step, jnp.zeros(24), None, length=60)
    # + plan = jnp.exp((f[:, None] + g[-1] - cost) / 0.02) / 24
    return jnp.sum(plan * cost)


@fault("absorption", "coarse", "stagnation")
@source("event data: seconds since 1970 in FP32 have steps of 128")
@inputs(
    "rates: 16 0.1..2 @446, in: 16x32 w, out: 32x2 w; f32 1.7e+09; "
    "100 0.02..0.3 @449; 100 @450"
)
def unix_time_in_fp32(params, epoch, intervals, readings):
    """A log of sensor events: times since 1970, and rates between them."""

    def advance(now, interval):
        now = now + interval  # here
        return now, now

    _, times = jax.lax.scan(advance, epoch, intervals)  # -
    since = times - epoch  # -
    # + _, since = jax.lax.scan(advance, 0.0 * epoch, intervals)
    phase = jnp.sin(since[:, None] * params["rates"])
    return jax.nn.relu(phase @ params["in"]) @ params["out"], (readings * since).sum()


def kriging_arguments():
    features = normal(451, 24, 8)
    features[12:] = features[:12]
    y = features @ weight(452, 8, 1)[:, 0]
    return features, y.astype("f4"), "8x8 @453; 8x4 w*0.5 @454"


@fault("absorption", "singular", policy="fp32")
@source("GPJax and GPyTorch: a jitter of 1e-6 in FP32, Cholesky gives NaN")
@inputs(by=kriging_arguments)
def jitter_absorbed_by_diagonal(features, y, query, scale):
    """Interpolation by a Gaussian process whose inputs repeat: jitter is needed."""
    x, q = features @ scale, query @ scale
    gap, between = x[:, None] - x, q[:, None] - x
    kernel = 100.0 * jnp.exp(-0.5 * jnp.sum(gap * gap, axis=-1))
    cross = 100.0 * jnp.exp(-0.5 * jnp.sum(between * between, axis=-1))
    jitter = 1e-6 * jnp.eye(len(y))  # -
    # + jitter = 0.02 * jnp.eye(len(y))
    kernel = kernel + jitter  # here
    root = jnp.linalg.cholesky(kernel)
    half = jax.scipy.linalg.solve_triangular(root, y, lower=True)
    solved = jax.scipy.linalg.solve_triangular(root.T, half, lower=False)
    return cross @ solved


def determinant_arguments():
    factor = np.tril(normal(2310, 60, 60, scale=1e-4))
    factor[np.arange(60), np.arange(60)] = 1e-3 * (1 + uniform(2311, 60))
    mean = normal(2312, 60)
    points = mean + normal(2313, 24, 60) @ factor.T
    return points.astype(np.float32), mean, factor


@fault("underflow", policy="fp32")
@source("np.linalg.det against slogdet: determinants of covariances are zero")
@inputs(by=determinant_arguments)
def gaussian_volume_as_product(points, mean, factor):
    """Log-densities under a Gaussian of sixty sensors with millivolt noise."""
    z = jax.scipy.linalg.solve_triangular(factor, (points - mean).T, lower=True)
    volume = jnp.prod(jnp.diagonal(factor))  # fault
    # + volume = jnp.sum(jnp.log(jnp.diagonal(factor)))
    size = points.shape[1] * jnp.log(2 * jnp.pi)
    density = -0.5 * jnp.sum(z * z, axis=0) - jnp.log(volume) - 0.5 * size  # -
    # + density = -0.5 * jnp.sum(z * z, axis=0) - volume - 0.5 * size
    return density, density.mean()


@fault("underflow", "non-finite")
@source("particle filter tutorials: weights become 0/0 after some dozen steps")
@inputs("64 @2305; 90x64 @2306; 90 *0.7 +2.5 @2307")
def particle_weights_never_normalized(start, noise, observed):
    """A particle filter that multiplies its weights and never normalizes them."""

    def step(carry, inputs):
        x, w = carry  # -
        # + x, log_w = carry
        shock, y = inputs
        x = 0.9 * x + 0.3 * shock
        w = w * jnp.exp(-0.5 * ((y - x) / 0.4) ** 2)  # fault
        return (x, w), jnp.sum(w * x) / jnp.sum(w)  # -
        # + log_w = log_w - 0.5 * ((y - x) / 0.4) ** 2
        # + log_w = log_w - jax.nn.logsumexp(log_w)
        # + return (x, log_w), jnp.sum(jnp.exp(log_w) * x)

    w = jnp.full(start.shape, 1.0 / start.shape[0])  # -
    (_, w), estimates = jax.lax.scan(step, (start, w), (noise, observed))  # -
    return estimates, w / jnp.sum(w)  # -
    # + log_w = jnp.full(start.shape, -jnp.log(float(start.shape[0])))
    # + (_, log_w), estimates = jax.lax.scan(step, (start, log_w), (noise, observed))
    # + return estimates, jax.nn.softmax(log_w)


@fault("absorption", "stagnation", "coarse", policy="fp32")
@source("game engines (Unity, Godot, Kerbal Space Program): floating origin")
@inputs(
    np.array([[98304.0, -65536.0, 81920.0]], np.float32),
    lambda: (np.round(normal(2320, 12, 3, scale=1.0) * 8) / 8).astype(np.float32),
    "12x3 *0.5 @2321; f32 0.4",
)
def slow_bodies_far_from_world_origin(origin, offset, velocity, pull):
    """Slow bodies of a game far from the origin of its world, at 240 frames."""

    def frame(carry, _):
        position, velocity = carry  # -
        home = position - origin  # -
        # + home, velocity = carry
        velocity = velocity - (1 / 240) * pull * home
        position = position + velocity * (1 / 240)  # fault
        return (position, velocity), None  # -
        # + return (home + velocity * (1 / 240), velocity), None

    start = (origin + offset, velocity)  # -
    (position, velocity), _ = jax.lax.scan(frame, start, None, length=96)  # -
    return position - origin, velocity  # -
    # + (home, velocity), _ = jax.lax.scan(frame, (offset, velocity), None, length=96)
    # + return home, velocity


@fault("cancellation", policy="fp32")
@source("Kahan; Herbie's benchmarks: 1 - cos(x) at small angles")
@inputs("24 *0.0001 @2308; 23 1..5 @2309")
def bending_energy_by_one_minus_cosine(bonds, stiffness):
    """Energies and forces of a nearly straight polymer: k (1 - cos(angle))."""

    def energy(angles):
        lift = 1 - jnp.cos(angles)  # fault
        # + lift = 2 * jnp.sin(angles / 2) ** 2
        return jnp.sum(stiffness * lift) * 1e6, lift

    angles = jnp.diff(bonds)
    (total, lift), force = jax.value_and_grad(energy, has_aux=True)(angles)
    weights = jax.nn.softmax(-1e6 * lift)
    return total, lift * 1e6, force, weights


@fault("stagnation", "absorption")
@source("Higham, Accuracy and Stability: order of summation of 1/n**2")
@inputs("10 1..2 @2314; 10 0.5..1.5 @2315")
def lattice_sum_nearest_first_in_bf16(charges, spacings):
    """Potentials of a line of charges, a sum over shells from the nearest on."""

    def shell(total, n):
        term = charges / (n * spacings) ** 2
        total = total + term.astype(jnp.bfloat16)  # fault
        return total, None  # -
        # + return total + term, None

    zeros = jnp.zeros(spacings.shape, jnp.bfloat16)  # -
    shells = jnp.arange(1, 101).astype(jnp.float32)  # -
    # + shells = jnp.arange(100, 0, -1).astype(jnp.float32)
    total, _ = jax.lax.scan(shell, zeros, shells)  # -
    # + total, _ = jax.lax.scan(shell, jnp.zeros(spacings.shape), shells)
    total = total.astype(jnp.float32)  # -
    return total, total * spacings**2 / charges - 1.0


def lorentz_arguments():
    tree = uniform(2371, 12, 12)
    return "12x5 *2 @2370", tree / tree.sum(-1, keepdims=True)


@fault("non-finite", "singular", "cancellation", policy="fp32")
@source("hyperbolic embeddings (geoopt issues): arccosh below one is NaN")
@inputs(by=lorentz_arguments)
def hyperboloid_distance_to_itself(points, tree):
    """Distances in the hyperboloid model between words and their taxonomy's nodes."""
    time = jnp.sqrt(1 + jnp.sum(points**2, axis=-1))
    inner = time[:, None] * time[None, :] - jnp.sum(
        points[:, None] * points, axis=-1
    )  # -
    distance = jnp.arccosh(inner)  # fault
    # + gap = jnp.sum((points[:, None] - points) ** 2, axis=-1)
    # + total = jnp.sum(
    # +     (points[:, None] - points) * (points[:, None] + points), axis=-1
    # + )
    # + lag = total / (time[:, None] + time)
    # + half = jnp.sqrt(jnp.maximum(gap - lag**2, 0.0)) / 2
    # + distance = 2 * jnp.arcsinh(half)
    score = jax.nn.softmax(-distance, axis=-1)
    return distance, -jnp.mean(jnp.sum(tree * jnp.log(score), axis=-1))


@fault("overflow", "non-finite")
@source("scipy and TensorFlow Probability issues: gamma(35.5) exceeds FP32")
@inputs("24 @2316; f32 3 8 30 90 150; 5 *0.2 @2317")
def student_density_by_gamma(x, freedom, location):
    """Log-likelihoods of returns under Student's t, with the gamma function itself."""
    half = jnp.stack([freedom + 1, freedom]) / 2  # -
    top, bottom = jax.scipy.special.gamma(half)  # fault
    bottom = bottom * jnp.sqrt(freedom * jnp.pi)  # -
    # + top = jax.scipy.special.gammaln((freedom + 1) / 2)
    # + bottom = jax.scipy.special.gammaln(freedom / 2) + 0.5 * jnp.log(
    # +     freedom * jnp.pi
    # + )
    z = x[:, None] - location
    kernel = (1 + z * z / freedom) ** (-(freedom + 1) / 2)  # -
    # + kernel = -(freedom + 1) / 2 * jnp.log1p(z * z / freedom)
    density = top / bottom * kernel  # -
    # + density = top - bottom + kernel
    return density, jnp.log(density).sum(0)  # -
    # + return jnp.exp(density), density.sum(0)
