"""Solvers: linear systems, orbits, fluids, step control, clocks of the sky."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import normal, uniform, weight


def gradients_faulty(matrix, right):
    """Conjugate gradients with a fixed number of sweeps, of an easy system."""

    def sweep(carry, _):
        x, residual, p, square = carry
        ap = matrix @ p
        alpha = square / jnp.dot(p, ap)  # fault
        x = x + alpha * p
        residual = residual - alpha * ap
        new = jnp.dot(residual, residual)
        p = residual + (new / square) * p
        return (x, residual, p, new), new

    start = (jnp.zeros_like(right), right, right, jnp.dot(right, right))
    (x, *_), _ = jax.lax.scan(sweep, start, None, length=60)
    return x


def gradients_healthy(matrix, right):
    least = 1e-24 * jnp.dot(right, right)

    def sweep(carry, _):
        x, residual, p, square = carry
        go = square > least
        ap = matrix @ p
        alpha = jnp.where(go, square / jnp.where(go, jnp.dot(p, ap), 1.0), 0.0)
        x = x + alpha * p
        residual = residual - alpha * ap
        new = jnp.dot(residual, residual)
        p = residual + jnp.where(go, new / jnp.where(go, square, 1.0), 0.0) * p
        return (x, residual, p, jnp.where(go, new, 0.0)), new

    start = (jnp.zeros_like(right), right, right, jnp.dot(right, right))
    (x, *_), _ = jax.lax.scan(sweep, start, None, length=60)
    return x


def gradients_arguments():
    rough = normal(9301, 8, 8).astype(np.float64)
    matrix = rough @ rough.T / 8 + 2 * np.eye(8)
    return matrix.astype(np.float32), normal(9302, 8)


def springs_faulty(stiffness, place, speed):
    """Stoermer's position form of Verlet's method at a fine step."""
    dt = 1e-4
    rest = jnp.ones_like(place)

    def step(carry, _):
        now, before = carry
        force = -stiffness @ (now - rest)
        after = 2 * now - before + force * dt * dt  # fault
        return (after, now), None

    before = place - speed * dt
    (end, _), _ = jax.lax.scan(step, (place, before), None, length=1500)
    return end - place


def springs_healthy(stiffness, place, speed):
    dt = 1e-4
    rest = jnp.ones_like(place)

    def step(carry, _):
        moved, speed = carry
        force = -stiffness @ (place + moved - rest)
        speed = speed + force * dt
        return (moved + speed * dt, speed), None

    start = (jnp.zeros_like(place), speed)
    (moved, _), _ = jax.lax.scan(step, start, None, length=1500)
    return moved


def springs_arguments():
    stiffness = np.diag(uniform(9311, 6, low=4.0, high=9.0)) + 0.3
    place = 1.0 + uniform(9312, 6, low=0.3, high=0.8)
    return stiffness.astype(np.float32), place, normal(9313, 6, scale=0.05)


def cluster_faulty(place, speed, mass):
    """Kick and drift of a star cluster, all pairs at once."""

    def pull(place):
        gap = place[None] - place[:, None]
        square = jnp.sum(gap * gap, axis=-1, keepdims=True)
        each = mass[None, :, None] * gap / square**1.5  # fault
        return jnp.sum(each, axis=1)

    speed = speed + 0.01 * pull(place)
    place = place + 0.01 * speed
    return place, speed


def cluster_healthy(place, speed, mass):
    def pull(place):
        gap = place[None] - place[:, None]
        square = jnp.sum(gap * gap, axis=-1, keepdims=True)
        square = square + jnp.eye(mass.size)[..., None]
        each = mass[None, :, None] * gap / square**1.5
        return jnp.sum(each, axis=1)

    speed = speed + 0.01 * pull(place)
    place = place + 0.01 * speed
    return place, speed


def lattice_faulty(speed, relax):
    """A lattice Boltzmann fluid, slow, whose populations are stored in half."""
    ways = np.array([[x, y] for x in (0, 1, -1) for y in (0, 1, -1)])
    share = np.outer([4 / 6, 1 / 6, 1 / 6], [4 / 6, 1 / 6, 1 / 6]).reshape(9, 1, 1)
    share = share.astype(np.float32)

    def balance(density, flow):
        along = jnp.einsum("kd,dxy->kxy", ways.astype(np.float32), flow)
        square = jnp.sum(flow * flow, axis=0)
        return share * density * (1 + 3 * along + 4.5 * along**2 - 1.5 * square)

    def look(f):
        density = jnp.sum(f, axis=0)
        return density, jnp.einsum("kd,kxy->dxy", ways.astype(np.float32), f) / density

    def step(stored, _):
        f = stored.astype(jnp.float32)
        f = f + relax * (balance(*look(f)) - f)
        f = jnp.stack([jnp.roll(a, (w[0], w[1]), (0, 1)) for a, w in zip(f, ways)])
        return f.astype(jnp.float16), None  # fault

    start = balance(jnp.ones_like(speed[0]), speed)
    end, _ = jax.lax.scan(step, start.astype(jnp.float16), None, length=16)
    return look(end.astype(jnp.float32))[1]


def lattice_healthy(speed, relax):
    ways = np.array([[x, y] for x in (0, 1, -1) for y in (0, 1, -1)])
    share = np.outer([4 / 6, 1 / 6, 1 / 6], [4 / 6, 1 / 6, 1 / 6]).reshape(9, 1, 1)
    share = share.astype(np.float32)

    def balance(excess, flow):
        along = jnp.einsum("kd,dxy->kxy", ways.astype(np.float32), flow)
        square = jnp.sum(flow * flow, axis=0)
        moved = 3 * along + 4.5 * along**2 - 1.5 * square
        return share * (excess + (1 + excess) * moved)

    def look(g):
        excess = jnp.sum(g, axis=0)
        flow = jnp.einsum("kd,kxy->dxy", ways.astype(np.float32), g)
        return excess, flow / (1 + excess)

    def step(stored, _):
        g = stored.astype(jnp.float32)
        g = g + relax * (balance(*look(g)) - g)
        g = jnp.stack([jnp.roll(a, (w[0], w[1]), (0, 1)) for a, w in zip(g, ways)])
        return g.astype(jnp.float16), None

    start = balance(jnp.zeros_like(speed[0]), speed)
    end, _ = jax.lax.scan(step, start.astype(jnp.float16), None, length=16)
    return look(end.astype(jnp.float32))[1]


def lattice_arguments():
    y, x = np.mgrid[:12, :12] * (2 * np.pi / 12)
    flow = np.stack([np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y)]) * 1.5e-3
    return flow.astype(np.float32), np.float32(1.2)


def water_faulty(slopes, excess, speed):
    """Smoothed particles of water: Tait's pressure of a weak compression."""
    stiff, dense = 2.2e9 / 7.15, 1000.0
    pressure = stiff * ((1 + excess / dense) ** 7.15 - 1)  # fault
    both = (pressure[:, None] + pressure[None]) / dense**2
    force = -jnp.einsum("ij,ijd->id", both, slopes)
    return pressure, speed + 1e-5 * force


def water_healthy(slopes, excess, speed):
    stiff, dense = 2.2e9 / 7.15, 1000.0
    pressure = stiff * jnp.expm1(7.15 * jnp.log1p(excess / dense))
    both = (pressure[:, None] + pressure[None]) / dense**2
    force = -jnp.einsum("ij,ijd->id", both, slopes)
    return pressure, speed + 1e-5 * force


def water_arguments():
    slopes = normal(9351, 20, 20, 2, scale=0.5)
    excess = uniform(9352, 20, low=5e-5, high=2e-4)
    return slopes, excess, normal(9353, 20, 2, scale=0.01)


def steps_faulty(rates, start, tolerance):
    """Heun with step control for a batch of decays, of which one is at rest."""

    def one(rate, y):
        def advance(carry, _):
            y, h = carry
            k1 = -rate * y
            k2 = -rate * (y + h * k1)
            error = 0.5 * h * jnp.abs(k2 - k1)
            y = y + 0.5 * h * (k1 + k2)
            grow = 0.9 * jnp.sqrt(tolerance / error)  # fault
            return (y, h * grow), h

        (y, _), taken = jax.lax.scan(advance, (y, 0.05), None, length=8)
        return y, jnp.sum(taken)

    return jax.vmap(one)(rates, start)


def steps_healthy(rates, start, tolerance):
    def one(rate, y):
        def advance(carry, _):
            y, h = carry
            k1 = -rate * y
            k2 = -rate * (y + h * k1)
            error = 0.5 * h * jnp.abs(k2 - k1)
            y = y + 0.5 * h * (k1 + k2)
            some = error > 0.0
            grow = 0.9 * jnp.sqrt(tolerance / jnp.where(some, error, 1.0))
            return (y, h * jnp.where(some, grow, 1.0)), h

        (y, _), taken = jax.lax.scan(advance, (y, 0.05), None, length=8)
        return y, jnp.sum(taken)

    return jax.vmap(one)(rates, start)


def steps_arguments():
    rates = uniform(9361, 10, low=0.5, high=3.0)
    start = uniform(9362, 10, low=0.5, high=2.0)
    start[4] = 0.0
    return rates, start, np.float32(2e-3)


def ocean_faulty(surface, speed, depth):
    """A tsunami on a deep ocean by the conservative form of shallow water."""
    dt, dx, g = 2.0, 2000.0, 9.81

    def step(carry, _):
        eta, u = carry
        east = jnp.roll(eta, -1)
        push = 0.5 * g * ((depth + east) ** 2 - (depth + eta) ** 2)  # fault
        u = u - dt / dx * push / depth
        eta = eta - dt / dx * depth * (u - jnp.roll(u, 1))
        return (eta, u), None

    (eta, u), _ = jax.lax.scan(step, (surface, speed), None, length=30)
    return eta, u


def ocean_healthy(surface, speed, depth):
    dt, dx, g = 2.0, 2000.0, 9.81

    def step(carry, _):
        eta, u = carry
        east = jnp.roll(eta, -1)
        push = g * (depth + 0.5 * (east + eta)) * (east - eta)
        u = u - dt / dx * push / depth
        eta = eta - dt / dx * depth * (u - jnp.roll(u, 1))
        return (eta, u), None

    (eta, u), _ = jax.lax.scan(step, (surface, speed), None, length=30)
    return eta, u


def ocean_arguments():
    x = np.arange(64)
    surface = 0.002 * np.exp(-(((x - 25) / 9.0) ** 2)) * np.cos(x / 5.0)
    return surface.astype(np.float32), np.zeros(64, np.float32), np.float32(4000.0)


def burgers_faulty(field, network):
    """A learned closure for Burgers' equation: slopes by a matrix of differences."""
    n = field.shape[1]
    left, right = jnp.eye(n, k=-1), jnp.eye(n, k=1)
    stencil = (left - right) * (n / 2.0)
    slope = field[:, 1:-1] @ stencil[1:-1, 1:-1]  # fault
    slope = slope[:, 1:-1]
    closure = jnp.tanh(slope[..., None] * network["in"]) @ network["out"]
    return slope, field[:, 2:-2] - 1e-3 * (field[:, 2:-2] * slope + closure[..., 0])


def burgers_healthy(field, network):
    n = field.shape[1]
    slope = (field[:, 3:-1] - field[:, 1:-3]) * (n / 2.0)
    closure = jnp.tanh(slope[..., None] * network["in"]) @ network["out"]
    return slope, field[:, 2:-2] - 1e-3 * (field[:, 2:-2] * slope + closure[..., 0])


def burgers_arguments():
    x = np.linspace(0, 1, 66)
    phase = uniform(9381, 6, 1, high=6.0)
    field = 1.2 + 0.1 * np.sin(2 * np.pi * x + phase) + 0.05 * np.cos(9 * x * phase)
    network = {"in": normal(9382, 32, scale=0.3), "out": normal(9383, 32, 1, scale=0.1)}
    return field.astype(np.float32), network


def telescope_faulty(date, longitude, ascension, camera):
    """Where stars fall on a transit camera, from Modified Julian Dates."""
    since = date - 51544.5
    sidereal = 280.46061837 + 360.98564736629 * since  # fault
    hour = (sidereal + longitude - ascension + 180.0) % 360.0 - 180.0
    return hour, jnp.tanh(hour[:, None] @ camera)


def telescope_healthy(date, longitude, ascension, camera):
    since = date - 51544.5
    whole = jnp.floor(since)
    turn = 360.98564736629 * (since - whole)
    sidereal = 280.46061837 + (0.98564736629 * whole) % 360.0 + turn
    hour = (sidereal + longitude - ascension + 180.0) % 360.0 - 180.0
    return hour, jnp.tanh(hour[:, None] @ camera)


def telescope_arguments():
    rng = np.random.default_rng(9391)
    date = 61000.0 + rng.integers(0, 256 * 300, 32) / 256.0
    angle = (280.46061837 + 360.98564736629 * (date - 51544.5)) % 360.0
    star = (angle + 17.25 + rng.uniform(-0.2, 0.2, 32)) % 360.0
    return (
        date.astype(np.float32),
        np.float32(17.25),
        star.astype(np.float32),
        weight(9392, 1, 6, 4.0),
    )


FAULTS = (
    Fault(
        name="d-conjugate-gradients-past-the-end",
        kinds=("non-finite", "underflow", "singular"),
        faulty=gradients_faulty,
        healthy=gradients_healthy,
        arguments=gradients_arguments,
        policy="fp32",
        source="JAX questions: CG in a fori_loop gives NaN when it has converged",
    ),
    Fault(
        name="d-verlet-in-position-form",
        kinds=("absorption",),
        faulty=springs_faulty,
        healthy=springs_healthy,
        arguments=springs_arguments,
        policy="fp32",
        source="Hairer, Lubich and Wanner: Stoermer's form adds h**2 f to positions",
    ),
    Fault(
        name="d-star-pulls-itself",
        kinds=("non-finite", "singular"),
        faulty=cluster_faulty,
        healthy=cluster_healthy,
        arguments=lambda: (
            normal(9321, 18, 3),
            normal(9322, 18, 3, scale=0.3),
            uniform(9323, 18, low=0.5),
        ),
        policy="bf16",
        source="N-body tutorials in JAX and NumPy: the diagonal is 0 / 0",
    ),
    Fault(
        name="d-lattice-boltzmann-populations-in-half",
        kinds=("coarse", "absorption"),
        faulty=lattice_faulty,
        healthy=lattice_healthy,
        arguments=lattice_arguments,
        policy="fp32",
        source="Lehmann et al. (2022), lattice Boltzmann in 16 bits: shift by weights",
    ),
    Fault(
        name="d-tait-pressure-of-weak-compression",
        kinds=("cancellation", "absorption"),
        faulty=water_faulty,
        healthy=water_healthy,
        arguments=water_arguments,
        policy="fp32",
        source="SPH codes in single precision: noise in the pressure at rest",
    ),
    Fault(
        name="d-step-control-of-zero-error",
        kinds=("singular", "non-finite", "overflow"),
        faulty=steps_faulty,
        healthy=steps_healthy,
        arguments=steps_arguments,
        policy="bf16",
        source="ODE-solver issues: trajectories at rest divide by an error of zero",
    ),
    Fault(
        name="d-tsunami-on-the-squared-depth",
        kinds=("cancellation", "absorption"),
        faulty=ocean_faulty,
        healthy=ocean_healthy,
        arguments=ocean_arguments,
        policy="fp32",
        source="well-balanced schemes: g h**2 / 2 in single precision",
    ),
    Fault(
        name="d-differences-by-mx-matmul",
        kinds=("coarse", "cancellation"),
        faulty=burgers_faulty,
        healthy=burgers_healthy,
        arguments=burgers_arguments,
        policy="mxfp8",
        target="trn3",
        source="stencils as matmuls on tensor engines, quantized with the network",
    ),
    Fault(
        name="d-sidereal-angle-in-fp32",
        kinds=("coarse",),
        faulty=telescope_faulty,
        healthy=telescope_healthy,
        arguments=telescope_arguments,
        policy="fp32",
        source="astronomy questions: sidereal time is off by a degree in floats",
    ),
)
