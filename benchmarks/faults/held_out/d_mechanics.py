"""Solvers: linear systems, orbits, fluids, step control, clocks of the sky."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import normal, uniform


def gradients_arguments():
    rough = normal(9301, 8, 8).astype(np.float64)
    matrix = rough @ rough.T / 8 + 2 * np.eye(8)
    return matrix.astype(np.float32), "8 @9302"


@fault("non-finite", "underflow", "singular", policy="fp32")
@source("JAX questions: CG in a fori_loop gives NaN when it has converged")
@inputs(by=gradients_arguments)
def d_conjugate_gradients_past_the_end(matrix, right):
    """Conjugate gradients with a fixed number of sweeps, of an easy system."""

    # + least = 1e-24 * jnp.dot(right, right)
    def sweep(carry, _):
        x, residual, p, square = carry
        # + go = square > least
        ap = matrix @ p
        alpha = square / jnp.dot(p, ap)  # fault
        # + alpha = jnp.where(go, square / jnp.where(go, jnp.dot(p, ap), 1.0), 0.0)
        x = x + alpha * p
        residual = residual - alpha * ap
        new = jnp.dot(residual, residual)
        p = residual + (new / square) * p  # -
        # + p = residual + jnp.where(go, new / jnp.where(go, square, 1.0), 0.0) * p
        return (x, residual, p, new), new  # -
        # + return (x, residual, p, jnp.where(go, new, 0.0)), new

    start = (jnp.zeros_like(right), right, right, jnp.dot(right, right))
    (x, *_), _ = jax.lax.scan(sweep, start, None, length=60)
    return x


@fault("absorption", policy="fp32")
@source("Hairer, Lubich and Wanner: Stoermer's form adds h**2 f to positions")
@inputs(
    lambda: (np.diag(uniform(9311, 6, low=4.0, high=9.0)) + 0.3).astype(np.float32),
    lambda: 1.0 + uniform(9312, 6, low=0.3, high=0.8),
    "6 *0.05 @9313",
)
def d_verlet_in_position_form(stiffness, place, speed):
    """Stoermer's position form of Verlet's method at a fine step."""
    dt = 1e-4
    rest = jnp.ones_like(place)

    def step(carry, _):
        now, before = carry  # -
        force = -stiffness @ (now - rest)  # -
        # + moved, speed = carry
        # + force = -stiffness @ (place + moved - rest)
        after = 2 * now - before + force * dt * dt  # fault
        return (after, now), None  # -
        # + speed = speed + force * dt
        # + return (moved + speed * dt, speed), None

    before = place - speed * dt  # -
    (end, _), _ = jax.lax.scan(step, (place, before), None, length=1500)  # -
    return end - place  # -
    # + start = (jnp.zeros_like(place), speed)
    # + (moved, _), _ = jax.lax.scan(step, start, None, length=1500)
    # + return moved


@fault("non-finite", "singular")
@source("N-body tutorials in JAX and NumPy: the diagonal is 0 / 0")
@inputs("18x3 @9321; 18x3 *0.3 @9322; 18 0.5..1 @9323")
def d_star_pulls_itself(place, speed, mass):
    """Kick and drift of a star cluster, all pairs at once."""

    def pull(place):
        gap = place[None] - place[:, None]
        square = jnp.sum(gap * gap, axis=-1, keepdims=True)
        # + square = square + jnp.eye(mass.size)[..., None]
        each = mass[None, :, None] * gap / square**1.5  # here
        return jnp.sum(each, axis=1)

    speed = speed + 0.01 * pull(place)
    place = place + 0.01 * speed
    return place, speed


def lattice_arguments():
    y, x = np.mgrid[:12, :12] * (2 * np.pi / 12)
    flow = np.stack([np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y)]) * 1.5e-3
    return flow.astype(np.float32), "f32 1.2"


@fault("coarse", "absorption", policy="fp32")
@source("Lehmann et al. (2022), lattice Boltzmann in 16 bits: shift by weights")
@inputs(by=lattice_arguments)
def d_lattice_boltzmann_populations_in_half(speed, relax):
    """A lattice Boltzmann fluid, slow, whose populations are stored in half."""
    ways = np.array([[x, y] for x in (0, 1, -1) for y in (0, 1, -1)])
    share = np.outer([4 / 6, 1 / 6, 1 / 6], [4 / 6, 1 / 6, 1 / 6]).reshape(9, 1, 1)
    share = share.astype(np.float32)

    def balance(density, flow):  # -
        along = jnp.einsum("kd,dxy->kxy", ways.astype(np.float32), flow)
        square = jnp.sum(flow * flow, axis=0)
        return share * density * (1 + 3 * along + 4.5 * along**2 - 1.5 * square)

    # + def balance(excess, flow):
    # +     along = jnp.einsum("kd,dxy->kxy", ways.astype(np.float32), flow)
    # +     square = jnp.sum(flow * flow, axis=0)
    # +     moved = 3 * along + 4.5 * along**2 - 1.5 * square
    # +     return share * (excess + (1 + excess) * moved)

    def look(f):  # -
        density = jnp.sum(f, axis=0)
        return density, jnp.einsum("kd,kxy->dxy", ways.astype(np.float32), f) / density

    # + def look(g):
    # +     excess = jnp.sum(g, axis=0)
    # +     flow = jnp.einsum("kd,kxy->dxy", ways.astype(np.float32), g)
    # +     return excess, flow / (1 + excess)

    def step(stored, _):
        f = stored.astype(jnp.float32)  # -
        f = f + relax * (balance(*look(f)) - f)  # -
        f = jnp.stack([jnp.roll(a, (w[0], w[1]), (0, 1)) for a, w in zip(f, ways)])  # -
        return f.astype(jnp.float16), None  # fault
        # + g = stored.astype(jnp.float32)
        # + g = g + relax * (balance(*look(g)) - g)
        # + g = jnp.stack([jnp.roll(a, (w[0], w[1]), (0, 1)) for a, w in zip(g, ways)])
        # + return g.astype(jnp.float16), None

    start = balance(jnp.ones_like(speed[0]), speed)  # -
    # + start = balance(jnp.zeros_like(speed[0]), speed)
    end, _ = jax.lax.scan(step, start.astype(jnp.float16), None, length=16)
    return look(end.astype(jnp.float32))[1]


@fault("cancellation", "absorption", policy="fp32")
@source("SPH codes in single precision: noise in the pressure at rest")
@inputs("20x20x2 *0.5 @9351; 20 5e-05..0.0002 @9352; 20x2 *0.01 @9353")
def d_tait_pressure_of_weak_compression(slopes, excess, speed):
    """Smoothed particles of water: Tait's pressure of a weak compression."""
    stiff, dense = 2.2e9 / 7.15, 1000.0
    pressure = stiff * ((1 + excess / dense) ** 7.15 - 1)  # fault
    # + pressure = stiff * jnp.expm1(7.15 * jnp.log1p(excess / dense))
    both = (pressure[:, None] + pressure[None]) / dense**2
    force = -jnp.einsum("ij,ijd->id", both, slopes)
    return pressure, speed + 1e-5 * force


@fault("singular", "non-finite", "overflow")
@source("ODE-solver issues: trajectories at rest divide by an error of zero")
@inputs("10 0.5..3 @9361; 10 0.5..2 @9362 [4]=0; f32 0.002")
def d_step_control_of_zero_error(rates, start, tolerance):
    """Heun with step control for a batch of decays, of which one is at rest."""

    def one(rate, y):
        def advance(carry, _):
            y, h = carry
            k1 = -rate * y
            k2 = -rate * (y + h * k1)
            error = 0.5 * h * jnp.abs(k2 - k1)
            y = y + 0.5 * h * (k1 + k2)
            grow = 0.9 * jnp.sqrt(tolerance / error)  # fault
            # + some = error > 0.0
            # + grow = 0.9 * jnp.sqrt(tolerance / jnp.where(some, error, 1.0))
            return (y, h * grow), h  # -
            # + return (y, h * jnp.where(some, grow, 1.0)), h

        (y, _), taken = jax.lax.scan(advance, (y, 0.05), None, length=8)
        return y, jnp.sum(taken)

    return jax.vmap(one)(rates, start)


def ocean_arguments():
    x = np.arange(64)
    surface = 0.002 * np.exp(-(((x - 25) / 9.0) ** 2)) * np.cos(x / 5.0)
    return surface.astype(np.float32), "64 =0; f32 4000"


@fault("cancellation", "absorption", policy="fp32")
@source("well-balanced schemes: g h**2 / 2 in single precision")
@inputs(by=ocean_arguments)
def d_tsunami_on_the_squared_depth(surface, speed, depth):
    """A tsunami on a deep ocean by the conservative form of shallow water."""
    dt, dx, g = 2.0, 2000.0, 9.81

    def step(carry, _):
        eta, u = carry
        east = jnp.roll(eta, -1)
        push = 0.5 * g * ((depth + east) ** 2 - (depth + eta) ** 2)  # fault
        # + push = g * (depth + 0.5 * (east + eta)) * (east - eta)
        u = u - dt / dx * push / depth
        eta = eta - dt / dx * depth * (u - jnp.roll(u, 1))
        return (eta, u), None

    (eta, u), _ = jax.lax.scan(step, (surface, speed), None, length=30)
    return eta, u


def burgers_arguments():
    x = np.linspace(0, 1, 66)
    phase = uniform(9381, 6, 1, high=6.0)
    field = 1.2 + 0.1 * np.sin(2 * np.pi * x + phase) + 0.05 * np.cos(9 * x * phase)
    return field.astype(np.float32), "in: 32 *0.3 @9382, out: 32x1 *0.1"


@fault("coarse", "cancellation", policy="mxfp8", target="trn3")
@source("stencils as matmuls on tensor engines, quantized with the network")
@inputs(by=burgers_arguments)
def d_differences_by_mx_matmul(field, network):
    """A learned closure for Burgers' equation: slopes by a matrix of differences."""
    n = field.shape[1]
    left, right = jnp.eye(n, k=-1), jnp.eye(n, k=1)  # -
    stencil = (left - right) * (n / 2.0)  # -
    slope = field[:, 1:-1] @ stencil[1:-1, 1:-1]  # fault
    # + slope = (field[:, 3:-1] - field[:, 1:-3]) * (n / 2.0)
    slope = slope[:, 1:-1]  # -
    closure = jnp.tanh(slope[..., None] * network["in"]) @ network["out"]
    return slope, field[:, 2:-2] - 1e-3 * (field[:, 2:-2] * slope + closure[..., 0])


def telescope_arguments():
    rng = np.random.default_rng(9391)
    date = 61000.0 + rng.integers(0, 256 * 300, 32) / 256.0
    angle = (280.46061837 + 360.98564736629 * (date - 51544.5)) % 360.0
    star = (angle + 17.25 + rng.uniform(-0.2, 0.2, 32)) % 360.0
    return (
        date.astype(np.float32),
        "f32 17.25",
        star.astype(np.float32),
        "1x6 w*4 @9392",
    )


@fault("coarse", policy="fp32")
@source("astronomy questions: sidereal time is off by a degree in floats")
@inputs(by=telescope_arguments)
def d_sidereal_angle_in_fp32(date, longitude, ascension, camera):
    """Where stars fall on a transit camera, from Modified Julian Dates."""
    since = date - 51544.5
    sidereal = 280.46061837 + 360.98564736629 * since  # fault
    # + whole = jnp.floor(since)
    # + turn = 360.98564736629 * (since - whole)
    # + sidereal = 280.46061837 + (0.98564736629 * whole) % 360.0 + turn
    hour = (sidereal + longitude - ascension + 180.0) % 360.0 - 180.0
    return hour, jnp.tanh(hour[:, None] @ camera)
