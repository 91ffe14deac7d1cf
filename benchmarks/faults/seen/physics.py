"""Molecules, waves, heat, radiation, circuits and particles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import normal, uniform


def argon_arguments():
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3) * 3.8e-10
    x = (grid + normal(1200, 27, 3, scale=1e-11)).astype(np.float32)
    constants = [np.float32(c) for c in (3.4e-10, 1.65e-21, 6.63e-26, 2e-15)]
    return x, "27x3 *150 @1201", *constants


@fault("underflow", "non-finite", policy="fp32")
@source("molecular dynamics FAQs: metres to the sixth power vanish in FP32")
@inputs(by=argon_arguments)
def argon_in_si_units(x, v, sigma, depth, mass, dt):
    """Five leapfrog steps of argon in SI units; powers before the quotient."""
    same = jnp.eye(x.shape[0], dtype=bool)

    def forces(x):
        gap = x[:, None] - x[None]
        r2 = jnp.where(same, sigma * sigma * 4.0, jnp.sum(gap * gap, axis=-1))
        sr6 = sigma**6 / r2**3  # fault
        # + sr2 = sigma * sigma / r2
        # + sr6 = sr2 * sr2 * sr2
        size = 24.0 * depth / r2 * (2.0 * sr6 * sr6 - sr6)
        return jnp.sum(size[..., None] * gap, axis=1)

    def step(state, _):
        x, v = state
        v = v + dt * (forces(x) / mass)
        return (x + dt * v, v), None

    (x, v), _ = jax.lax.scan(step, (x, v), None, length=5)
    return x, v


def sinkhorn_arguments():
    a, b = uniform(1210, 20, low=0.5, high=1.5), uniform(1211, 20, low=0.5, high=1.5)
    left, right = (
        normal(1212, 20, 2, scale=0.6),
        normal(1213, 20, 2, scale=0.6, shift=1),
    )
    left[4] -= 1.5
    return a / a.sum(), b / b.sum(), left, right


@fault("underflow", "non-finite", policy="fp32")
@source("computational optimal transport literature: stabilized Sinkhorn")
@inputs(by=sinkhorn_arguments)
def sinkhorn_outside_log_domain(a, b, left, right):
    """Optimal transport between two clouds with a small regularization."""
    gap = left[:, None] - right[None]
    cost = jnp.sum(gap * gap, axis=-1)
    kernel = jnp.exp(-cost / 0.02)  # fault
    # + scaled = -cost / 0.02
    # + log_a, log_b = jnp.log(a), jnp.log(b)

    def step(state, _):
        u, v = state  # -
        u = a / jnp.sum(kernel * v[None], axis=1)  # -
        v = b / jnp.sum(kernel * u[:, None], axis=0)  # -
        return (u, v), None  # -
        # + f, g = state
        # + f = log_a - jax.nn.logsumexp(scaled + g[None], axis=1)
        # + g = log_b - jax.nn.logsumexp(scaled + f[:, None], axis=0)
        # + return (f, g), None

    (u, v), _ = jax.lax.scan(
        step, (jnp.ones_like(a), jnp.ones_like(b)), None, length=60
    )  # -
    plan = u[:, None] * kernel * v[None]  # -
    # + (f, g), _ = jax.lax.scan(step, (0.0 * a, 0.0 * b), None, length=60)
    # + plan = jnp.exp(scaled + f[:, None] + g[None])
    return jnp.sum(plan * cost), plan


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


@fault("singular", "non-finite")
@source("JAX FAQ and issues: gradient of a norm at zero is NaN, also under a mask")
@inputs("mlp 12x16x1 @1220; 9x3 *1.5 @1221")
def force_field_own_distance(p, x):
    """Energy and forces of a graph network on distances, the own one included."""

    def energy(x):
        gap = x[:, None] - x[None]
        distance = jnp.sqrt(jnp.sum(gap * gap, axis=-1))  # fault
        # + same = jnp.eye(x.shape[0], dtype=bool)
        # + square = jnp.where(same, 1.0, jnp.sum(gap * gap, axis=-1))
        # + distance = jnp.where(same, 0.0, jnp.sqrt(square))
        other = 1.0 - jnp.eye(x.shape[0])
        centres = jnp.linspace(0.0, 5.0, 12)
        basis = jnp.exp(-2.0 * jnp.square(distance[..., None] - centres))
        message = jnp.tanh(basis @ p[0]["w"] + p[0]["b"]) * other[..., None]
        atoms = jnp.tanh(jnp.sum(message, axis=1) * 0.2)
        return jnp.sum(atoms @ p[1]["w"])

    value, slope = jax.value_and_grad(energy)(x)
    return value, -slope


@fault("cancellation", policy="fp32")
@source("numerical differentiation: a step too small for FP32")
@inputs("mlp 1x24x1 @1230; 64 0..1 @1231; 64 -0.2..0.2 @1232")
def poisson_network_second_difference(params, points, forcing):
    """Residual of a Poisson equation with differences of a network's values."""
    h = 2e-4  # -

    def u(x):
        hidden = jnp.tanh(x[:, None] * params[0]["w"] + params[0]["b"])
        return jnp.sum(hidden * params[1]["w"][:, 0], axis=-1)

    ahead, here, behind = u(points + h), u(points), u(points - h)  # -
    curvature = (ahead - 2.0 * here + behind) / (h * h)  # fault
    # + def slope(x):
    # +     return jax.jvp(u, (x,), (jnp.ones_like(x),))[1]
    # + curvature = jax.jvp(slope, (points,), (jnp.ones_like(points),))[1]
    residual = curvature + forcing
    return residual, jnp.mean(jnp.square(residual))


@fault("overflow", "non-finite", policy="fp32")
@source("radiative transfer codes: exp(hc / λkT) at short wavelengths in FP32")
@inputs("12 even 210..320; 40 even 0.4..14; 40 0..1 @201")
def planck_exponential_of_short_waves(temperature, wavelength, response):
    """What a sensor sees of bodies, and its derivative by their temperature."""
    first, second = 1.19104e8, 14387.77  # W µm⁴ / m² / sr, µm K

    def signal(kelvins):
        x = second / (wavelength * kelvins)
        growth = jnp.exp(x)  # fault
        radiance = first / wavelength**5 / (growth - 1.0)  # -
        # + decay = jnp.exp(-x)
        # + radiance = first / wavelength**5 * decay / (1.0 - decay)
        return response @ radiance

    return jax.vmap(jax.value_and_grad(signal))(temperature)


def swell_arguments():
    numbers = (np.float32(x) for x in (1500.0, 12.0, 5.0))
    depth, place, below = numbers
    return "12 0..1 @212; 12 40..300 @211", depth, place, below, "32 even 0..60"


@fault("overflow", "non-finite", policy="fp32")
@source("ocean wave tools: linear theory gives NaN in deep water")
@inputs(by=swell_arguments)
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


def spectrum_arguments():
    ladder = np.arange(40, dtype=np.float32)
    levels = 9800.0 + 310.0 * ladder - 1.5 * ladder**2
    return levels, "24 even 40..300"


@fault("underflow", "non-finite", policy="fp32")
@source("partition functions: subtract the ground state before exp")
@inputs(by=spectrum_arguments)
def partition_sum_without_ground_state(levels, kelvins):
    """A molecule's heat capacity from its vibrational levels, in units of k."""

    def capacity(temperature):
        occupation = jnp.exp(-levels / temperature)  # fault
        # + above_ground = levels - levels.min()
        # + occupation = jnp.exp(-above_ground / temperature)
        share = occupation / occupation.sum()
        mean = share @ levels  # -
        # + mean = share @ above_ground
        return share @ (levels - mean) ** 2 / temperature**2  # -
        # + return share @ (above_ground - mean) ** 2 / temperature**2

    return jax.vmap(capacity)(kelvins)


def oscillator_arguments():
    coefficients = normal(261, 140, scale=0.3)
    coefficients[:90] *= 0.01
    return "32 even 13.5..16.5", coefficients


@fault("underflow", policy="fp32")
@source("Bunck (2009), A fast algorithm for evaluation of normalized Hermite functions")
@inputs(by=oscillator_arguments)
def oscillator_states_from_vanished_ground(x, coefficients):
    """A wave function expanded in the oscillator's states, by their recurrence."""
    ground = jnp.pi**-0.25 * jnp.exp(-x * x / 2)  # fault
    # + scale = -x * x / 2

    def step(state, n):
        below, here = state  # -
        # + below, here, log = state
        above = jnp.sqrt(2 / n) * x * here - jnp.sqrt((n - 1) / n) * below
        return (here, above), above  # -
        # + size = jnp.maximum(jnp.abs(above), jnp.abs(here))
        # + grown = jnp.where(size > 1e3, size, 1.0)
        # + below, here = here / grown, above / grown
        # + log = log + jnp.log(grown)
        # + return (below, here, log), here * jnp.exp(log)

    # + first = jnp.full_like(x, jnp.pi**-0.25)

    numbers = jnp.arange(1.0, coefficients.size)
    start = (jnp.zeros_like(ground), ground)  # -
    # + start = (jnp.zeros_like(x), first, scale)
    _, states = jax.lax.scan(step, start, numbers)
    return coefficients[0] * ground + coefficients[1:] @ states  # -
    # + return coefficients[0] * first * jnp.exp(scale) + coefficients[1:] @ states
