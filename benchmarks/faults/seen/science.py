"""Simulation and estimation: constants, orbits, particles, series."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import normal, uniform, weight


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


@fault("absorption", "stagnation")
@source("simulations with t += dt in the dtype of the state")
@inputs("2x16 @457; 16x4 @469; f32 1.3")
def clock_of_bf16_stands_still(state, rows, drive):
    """A driven oscillator, resumed at t = 8; the clock is BF16 like the state."""
    step = jnp.asarray(0.02, jnp.bfloat16)  # -

    def advance(carry, _):  # -
        x, v, t = carry
        force = jnp.sin(drive * t.astype(jnp.float32)) - 0.5 * x - 0.1 * v
        v = v + 0.02 * force
        x = x + 0.02 * v
        t = t + step  # fault
        return (x, v, t), x

    # + def advance(carry, i):
    # +     x, v = carry
    # +     t = 8.0 + 0.02 * i
    # +     force = jnp.sin(drive * t) - 0.5 * x - 0.1 * v
    # +     v = v + 0.02 * force
    # +     x = x + 0.02 * v
    # +     return (x, v), x

    start = (state[0], state[1], jnp.asarray(8.0, jnp.bfloat16))  # -
    _, path = jax.lax.scan(advance, start, None, length=200)  # -
    # + _, path = jax.lax.scan(advance, (state[0], state[1]), jnp.arange(200.0))
    return path @ rows


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


@fault("underflow", policy="fp32")
@source("physics codes ported to FP32: hbar**2 and k_B * h are below 1e-38")
@inputs(
    "10 2e-09..8e-09 @2300",
    lambda: uniform(2301, 10, low=0.05, high=0.9) * np.float32(9.109e-31),
    "4x2 w @2302",
)
def hbar_squared_in_si_units(widths, masses, params):
    """Levels of quantum wells in SI units, and an emitter's brightness from them."""
    hbar = jnp.float32(1.0545718e-34)
    n = jnp.arange(1, 6, dtype=jnp.float32)
    k = jnp.pi * n / widths[:, None]  # -
    action = hbar * hbar / (2 * masses[:, None])  # fault
    energy = action * k**2 / 1.602e-19  # -
    # + momentum = hbar / 1e-24 * (jnp.pi * n / widths[:, None])
    # + root = jnp.sqrt(1.602e-19 * 2e18 * (masses[:, None] * 1e30))
    # + energy = (momentum / root) ** 2
    gap = jnp.diff(energy, axis=1)
    return energy, jax.nn.softmax(-gap / 0.05), gap @ params


@fault("underflow")
@source("Knuth's Poisson recurrence: NumPy and Julia switch methods above 10")
@inputs("12 70..125 @2303", lambda: uniform(2304, 12, low=70.0, high=99.0).round())
def poisson_tail_from_exp_minus_rate(rates, counts):
    """Tail probabilities of Poisson counts by the recurrence p_k = p_(k-1) rate/k."""

    def tail(rate, count):
        first = jnp.exp(-rate)  # fault

        def grow(carry, k):  # -
            p, total = carry
            p = jnp.where(k == 0, p, p * rate / jnp.maximum(k, 1))
            return (p, total + jnp.where(k <= count, p, 0.0)), p

        ks = jnp.arange(100).astype(jnp.float32)
        (_, total), table = jax.lax.scan(grow, (first, jnp.zeros(())), ks)  # -
        return total, table.max()  # -
        # + steps = jnp.log(rate) - jnp.log(jnp.maximum(ks, 1))
        # + log_p = jnp.cumsum(jnp.where(ks > 0, steps, 0.0)) - rate
        # + seen = jnp.where(ks <= count, log_p, -jnp.inf)
        # + return jnp.exp(jax.nn.logsumexp(seen)), jnp.exp(log_p.max())

    below, peak = jax.vmap(tail)(rates, counts)
    return below, peak, jnp.where(below > 0.05, 1.0, 0.0)


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


@fault("absorption", "stagnation", "coarse")
@source("half-precision weather and climate models: tendencies below an ulp")
@inputs(
    lambda: (300 + np.round(2 * np.sin(np.arange(32) * np.pi / 16)) / 2).astype(
        np.float32
    ),
    "32 0.02..0.1 @2330; 32x4 w @2331",
)
def heat_steps_in_half_kelvins(rod, source, params):
    """Heat in a rod by explicit steps; the temperatures are kelvins in FP16."""

    def step(rod, _):  # -
        bend = jnp.roll(rod, 1) - 2 * rod + jnp.roll(rod, -1)
        change = 0.05 * bend.astype(jnp.float32) + source
        rod = rod + change.astype(jnp.float16)  # fault
        return rod, None

    # + def step(rise, _):
    # +     rod = start + rise
    # +     bend = jnp.roll(rod, 1) - 2 * rod + jnp.roll(rod, -1)
    # +     return rise + 0.05 * bend + source, None

    end, _ = jax.lax.scan(step, rod.astype(jnp.float16), None, length=90)  # -
    rise = end.astype(jnp.float32) - rod  # -
    # + start = rod - 300.0
    # + rise, _ = jax.lax.scan(step, jnp.zeros_like(rod), None, length=90)
    return rise, jax.nn.relu(rise) @ params


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


@fault("coarse", "absorption", policy="fp32")
@source("fractal viewers on GPUs: blocks of equal pixels; perturbation theory")
@inputs("f32 -0.74364388 0.13182591; f32 1e-09")
def mandelbrot_zoom_without_reference_orbit(centre, span):
    """Escape distances of a deep zoom: every pixel has its own constant c."""
    grid = jnp.arange(-8, 8) * span
    re, im = centre[:, None, None] + jnp.stack(jnp.meshgrid(grid, grid))  # fault

    def turn(z, _):  # -
        x, y = z
        return (x * x - y * y + re, 2 * x * y + im), None

    # + re = jnp.broadcast_to(grid[None, :], (16, 16))
    # + im = jnp.broadcast_to(grid[:, None], (16, 16))
    # + def turn(carry, _):
    # +     (x, y), (u, v) = carry
    # +     down = 2 * (x * u - y * v) + (u * u - v * v) + re
    # +     across = 2 * (x * v + y * u) + 2 * u * v + im
    # +     z = (x * x - y * y + centre[0], 2 * x * y + centre[1])
    # +     return (z, (down, across)), None

    zeros = jnp.zeros((16, 16))
    (x, y), _ = jax.lax.scan(turn, (zeros, zeros), None, length=9)  # -
    (x0, y0), _ = jax.lax.scan(
        lambda z, _: (
            (z[0] * z[0] - z[1] * z[1] + centre[0], 2 * z[0] * z[1] + centre[1]),
            None,
        ),
        (0.0 * centre[0], 0.0 * centre[1]),
        None,
        length=9,
    )  # -
    return (x - x0) / span, (y - y0) / span  # -
    # + start = ((0.0 * centre[0], 0.0 * centre[1]), (zeros, zeros))
    # + (_, (u, v)), _ = jax.lax.scan(turn, start, None, length=9)
    # + return u / span, v / span


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


@fault("cancellation")
@source("multilateration: differences of ranges with a centimetre's baseline")
@inputs("10x3 *40000 @2340; 5x3 *0.05 @2341; 8x3 w @2342")
def arrival_times_of_far_bang(source, microphones, params):
    """Differences of arrival times of a far bang at an array of microphones."""
    distance = jnp.sqrt(jnp.sum((source[:, None] - microphones) ** 2, axis=-1))  # -
    # + gap = source[:, None] - microphones
    # + distance = jnp.sqrt(jnp.sum(gap**2, axis=-1))
    ahead = distance[:, 1:] - distance[:, :1]  # fault
    # + apart = microphones[:1] - microphones[1:]
    # + sides = jnp.sum(apart * (gap[:, 1:] + gap[:, :1]), axis=-1)
    # + ahead = sides / (distance[:, 1:] + distance[:, :1])
    delay = ahead / 343.0 * 48000.0
    features = jnp.stack([jnp.sin(delay / 10), jnp.cos(delay / 10)], -1)
    return delay, features.reshape(source.shape[0], -1) @ params


def zenith_arguments():
    directions = normal(2350, 20, 3, scale=9.0)
    directions[:, 2] = 20000.0 + directions[:, 2]
    return directions, "in: 2x8 w @2351, out: 8x2 w"


@fault("singular")
@source("astropy and GIS: separations by arccos near the pole, use atan2")
@inputs(by=zenith_arguments)
def zenith_angle_by_arccos(directions, params):
    """Zenith angles of satellites overhead, for a troposphere's mapping function."""
    size = jnp.sqrt(jnp.sum(directions**2, axis=-1))  # -
    height = directions[:, 2] / size  # -
    angle = jnp.arccos(jnp.clip(height, -1.0, 1.0))  # fault
    # + flat = jnp.sqrt(jnp.sum(directions[:, :2] ** 2, axis=-1))
    # + angle = jnp.arctan2(flat, directions[:, 2])
    scaled = angle / 1e-3
    code = jnp.stack([jnp.sin(scaled), jnp.cos(scaled)], axis=-1)
    return scaled, jnp.tanh(code @ params["in"]) @ params["out"]


def slerp_arguments():
    start, end = normal(2360, 14, 4), normal(2361, 14, 4)
    end = np.where(np.sum(start * end, -1, keepdims=True) < 0, -end, end)
    start[:4] = np.eye(4)
    end[:4] = np.eye(4)
    start /= np.linalg.norm(start, axis=-1, keepdims=True)
    end /= np.linalg.norm(end, axis=-1, keepdims=True)
    return start, end, "6 even 0..1"


@fault("non-finite", "singular")
@source("animation code and latent slerp in diffusion scripts: sin(0)/sin(0)")
@inputs(by=slerp_arguments)
def slerp_of_joints_at_rest(start, end, times):
    """Keyframes of a skeleton by slerp; some joints do not move."""
    cosine = jnp.clip(jnp.sum(start * end, axis=-1, keepdims=True), -1.0, 1.0)
    angle = jnp.arccos(cosine)  # -
    # + near = cosine > 0.9995
    # + angle = jnp.arccos(jnp.where(near, 0.0, cosine))

    def at(t):
        share = jnp.stack([1 - t, t])[:, None, None]  # -
        left, right = jnp.sin(share * angle) / jnp.sin(angle)  # fault
        # + left = jnp.where(near, 1 - t, jnp.sin((1 - t) * angle) / jnp.sin(angle))
        # + right = jnp.where(near, t, jnp.sin(t * angle) / jnp.sin(angle))
        return left * start + right * end

    frames = jax.vmap(at)(times)
    return frames, frames[1:] - frames[:-1]


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
