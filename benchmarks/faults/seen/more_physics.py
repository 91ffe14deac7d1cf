"""Waves, radiation, circuits and particles, written as they stand in the textbook."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import normal, uniform


def planck_faulty(temperature, wavelength, response):
    """What a sensor sees of bodies, and its derivative by their temperature."""
    first, second = 1.19104e8, 14387.77  # W µm⁴ / m² / sr, µm K

    def signal(kelvins):
        x = second / (wavelength * kelvins)
        growth = jnp.exp(x)  # fault
        radiance = first / wavelength**5 / (growth - 1.0)
        return response @ radiance

    return jax.vmap(jax.value_and_grad(signal))(temperature)


def planck_healthy(temperature, wavelength, response):
    first, second = 1.19104e8, 14387.77

    def signal(kelvins):
        x = second / (wavelength * kelvins)
        decay = jnp.exp(-x)
        radiance = first / wavelength**5 * decay / (1.0 - decay)
        return response @ radiance

    return jax.vmap(jax.value_and_grad(signal))(temperature)


def planck_arguments():
    wavelength = np.linspace(0.4, 14.0, 40).astype(np.float32)
    temperature = np.linspace(210.0, 320.0, 12).astype(np.float32)
    return temperature, wavelength, uniform(201, 40)


def swell_faulty(amplitude, length, depth, place, below, time):
    """The horizontal velocity of water under a sum of linear waves."""
    k = 2 * jnp.pi / length
    omega = jnp.sqrt(9.81 * k * jnp.tanh(k * depth))
    phase = k * place - omega * time[:, None]
    height = depth - below
    profile = jnp.cosh(k * height) / jnp.sinh(k * depth)  # fault
    velocity = amplitude * omega * profile * jnp.cos(phase)
    return velocity.sum(-1)


def swell_healthy(amplitude, length, depth, place, below, time):
    k = 2 * jnp.pi / length
    omega = jnp.sqrt(9.81 * k * jnp.tanh(k * depth))
    phase = k * place - omega * time[:, None]
    height = depth - below
    upper = 1.0 + jnp.exp(-2 * k * height)
    lower = 1.0 - jnp.exp(-2 * k * depth)
    profile = jnp.exp(-k * below) * upper / lower
    velocity = amplitude * omega * profile * jnp.cos(phase)
    return velocity.sum(-1)


def swell_arguments():
    length = uniform(211, 12, low=40.0, high=300.0)
    time = np.linspace(0.0, 60.0, 32).astype(np.float32)
    numbers = (np.float32(x) for x in (1500.0, 12.0, 5.0))
    depth, place, below = numbers
    return uniform(212, 12), length, depth, place, below, time


def ion_faulty(momentum, charge_field, mass_energy):
    """Ions in a trap: kinetic energies along the orbit, relativistic throughout."""

    def step(state, _):
        place, momentum = state
        momentum = momentum - 0.05 * charge_field * place
        place = place + 0.05 * momentum / jnp.sqrt(1.0 + momentum**2)
        gamma = jnp.sqrt(1.0 + momentum**2)
        kinetic = mass_energy * (gamma - 1.0)  # fault
        return (place, momentum), kinetic

    start = (jnp.zeros_like(momentum), momentum)
    (place, momentum), kinetic = jax.lax.scan(step, start, None, length=60)
    return kinetic, place


def ion_healthy(momentum, charge_field, mass_energy):
    def step(state, _):
        place, momentum = state
        momentum = momentum - 0.05 * charge_field * place
        place = place + 0.05 * momentum / jnp.sqrt(1.0 + momentum**2)
        gamma = jnp.sqrt(1.0 + momentum**2)
        kinetic = mass_energy * momentum**2 / (gamma + 1.0)
        return (place, momentum), kinetic

    start = (jnp.zeros_like(momentum), momentum)
    (place, momentum), kinetic = jax.lax.scan(step, start, None, length=60)
    return kinetic, place


def ion_arguments():
    momentum = uniform(221, 16, low=1e-4, high=5e-4)
    return momentum, uniform(222, 16, low=0.5, high=1.5), np.float32(9.383e8)


def magnet_faulty(field, coupling):
    """A ferrofluid's magnetization in weak fields: mean-field iterations."""

    def langevin(x):
        return 1.0 / jnp.tanh(x) - 1.0 / x  # fault

    def step(m, _):
        return langevin(field + coupling * m), None

    m, _ = jax.lax.scan(step, field / 3.0, None, length=12)
    return m, m / field


def magnet_healthy(field, coupling):
    def langevin(x):
        small = jnp.abs(x) < 0.1
        safe = jnp.where(small, 1.0, x)
        square = x * x
        series = x * (1 / 3 - square * (1 / 45 - square * 2 / 945))
        return jnp.where(small, series, 1.0 / jnp.tanh(safe) - 1.0 / safe)

    def step(m, _):
        return langevin(field + coupling * m), None

    m, _ = jax.lax.scan(step, field / 3.0, None, length=12)
    return m, m / field


def magnet_arguments():
    return uniform(231, 40, low=3e-4, high=4e-3), np.float32(0.8)


def comet_faulty(anomaly, nearness, period):
    """When comets of nearly parabolic orbits pass the points of an ephemeris."""
    eccentricity = 1.0 - nearness
    mean_anomaly = anomaly - eccentricity * jnp.sin(anomaly)  # fault
    days = mean_anomaly * period / (2 * jnp.pi)
    half = jnp.sin(anomaly / 2)
    x = nearness - 2 * half * half
    y = jnp.sqrt(nearness * (2.0 - nearness)) * jnp.sin(anomaly)
    return days, x, y


def comet_healthy(anomaly, nearness, period):
    eccentricity = 1.0 - nearness
    square = anomaly * anomaly
    series = 1 / 6 - square * (1 / 120 - square / 5040)
    mean_anomaly = nearness * anomaly + eccentricity * anomaly * square * series
    days = mean_anomaly * period / (2 * jnp.pi)
    half = jnp.sin(anomaly / 2)
    x = nearness - 2 * half * half
    y = jnp.sqrt(nearness * (2.0 - nearness)) * jnp.sin(anomaly)
    return days, x, y


def comet_arguments():
    nearness = np.float32(1e-6)
    return uniform(241, 64, low=1e-4, high=1e-3), nearness, np.float32(9e8)


def ringdown_faulty(strain, templates):
    """How well templates match a gravitational wave, whose strain is near 1e-21."""
    power = strain * strain  # fault
    size = jnp.sqrt(power.sum(-1, keepdims=True))
    shapes = templates / jnp.sqrt((templates * templates).sum(-1, keepdims=True))
    match = (strain / size) @ shapes.T
    return match, jnp.argmax(match, axis=-1)


def ringdown_healthy(strain, templates):
    strain = strain * 2.0**70
    power = strain * strain
    size = jnp.sqrt(power.sum(-1, keepdims=True))
    shapes = templates / jnp.sqrt((templates * templates).sum(-1, keepdims=True))
    match = (strain / size) @ shapes.T
    return match, jnp.argmax(match, axis=-1)


def ringdown_arguments():
    time = np.linspace(0.0, 1.0, 64, dtype=np.float32)
    tones = np.linspace(5.0, 15.0, 9, dtype=np.float32)[:, None]
    templates = np.exp(-3 * time) * np.sin(2 * np.pi * tones * time)
    strain = templates[[2, 5, 6]] + 0.3 * normal(251, 3, 64)
    return (1e-21 * strain).astype(np.float32), templates.astype(np.float32)


def spectrum_faulty(levels, kelvins):
    """A molecule's heat capacity from its vibrational levels, in units of k."""

    def capacity(temperature):
        occupation = jnp.exp(-levels / temperature)  # fault
        share = occupation / occupation.sum()
        mean = share @ levels
        return share @ (levels - mean) ** 2 / temperature**2

    return jax.vmap(capacity)(kelvins)


def spectrum_healthy(levels, kelvins):
    def capacity(temperature):
        above_ground = levels - levels.min()
        occupation = jnp.exp(-above_ground / temperature)
        share = occupation / occupation.sum()
        mean = share @ above_ground
        return share @ (above_ground - mean) ** 2 / temperature**2

    return jax.vmap(capacity)(kelvins)


def spectrum_arguments():
    ladder = np.arange(40, dtype=np.float32)
    levels = 9800.0 + 310.0 * ladder - 1.5 * ladder**2
    return levels, np.linspace(40.0, 300.0, 24).astype(np.float32)


def oscillator_faulty(x, coefficients):
    """A wave function expanded in the oscillator's states, by their recurrence."""
    ground = jnp.pi**-0.25 * jnp.exp(-x * x / 2)  # fault

    def step(state, n):
        below, here = state
        above = jnp.sqrt(2 / n) * x * here - jnp.sqrt((n - 1) / n) * below
        return (here, above), above

    numbers = jnp.arange(1.0, coefficients.size)
    start = (jnp.zeros_like(ground), ground)
    _, states = jax.lax.scan(step, start, numbers)
    return coefficients[0] * ground + coefficients[1:] @ states


def oscillator_healthy(x, coefficients):
    scale = -x * x / 2

    def step(state, n):
        below, here, log = state
        above = jnp.sqrt(2 / n) * x * here - jnp.sqrt((n - 1) / n) * below
        size = jnp.maximum(jnp.abs(above), jnp.abs(here))
        grown = jnp.where(size > 1e3, size, 1.0)
        below, here = here / grown, above / grown
        log = log + jnp.log(grown)
        return (below, here, log), here * jnp.exp(log)

    first = jnp.full_like(x, jnp.pi**-0.25)
    numbers = jnp.arange(1.0, coefficients.size)
    start = (jnp.zeros_like(x), first, scale)
    _, states = jax.lax.scan(step, start, numbers)
    return coefficients[0] * first * jnp.exp(scale) + coefficients[1:] @ states


def oscillator_arguments():
    coefficients = normal(261, 140, scale=0.3)
    coefficients[:90] *= 0.01
    return np.linspace(13.5, 16.5, 32).astype(np.float32), coefficients


FAULTS = (
    Fault(
        name="planck-exponential-of-short-waves",
        kinds=("overflow", "non-finite"),
        faulty=planck_faulty,
        healthy=planck_healthy,
        arguments=planck_arguments,
        policy="fp32",
        source="radiative transfer codes: exp(hc / λkT) at short wavelengths in FP32",
    ),
    Fault(
        name="deep-water-cosh-over-sinh",
        kinds=("overflow", "non-finite"),
        faulty=swell_faulty,
        healthy=swell_healthy,
        arguments=swell_arguments,
        policy="fp32",
        source="ocean wave tools: linear theory gives NaN in deep water",
    ),
    Fault(
        name="kinetic-energy-as-gamma-minus-one",
        kinds=("cancellation",),
        faulty=ion_faulty,
        healthy=ion_healthy,
        arguments=ion_arguments,
        policy="fp32",
        source="particle-in-cell codes: (γ - 1) m c² of slow particles in FP32",
    ),
    Fault(
        name="langevin-function-in-weak-field",
        kinds=("cancellation",),
        faulty=magnet_faulty,
        healthy=magnet_healthy,
        arguments=magnet_arguments,
        policy="fp32",
        source="numerics notes: coth(x) - 1/x near zero",
    ),
    Fault(
        name="kepler-equation-of-near-parabola",
        kinds=("cancellation",),
        faulty=comet_faulty,
        healthy=comet_healthy,
        arguments=comet_arguments,
        policy="fp32",
        source="celestial mechanics: E - e sin E when e is near 1 and E small",
    ),
    Fault(
        name="strain-power-of-gravitational-wave",
        kinds=("underflow",),
        faulty=ringdown_faulty,
        healthy=ringdown_healthy,
        arguments=ringdown_arguments,
        policy="bf16",
        source="gravitational-wave forums: strain of 1e-21 squared in FP32",
    ),
    Fault(
        name="partition-sum-without-ground-state",
        kinds=("underflow", "non-finite"),
        faulty=spectrum_faulty,
        healthy=spectrum_healthy,
        arguments=spectrum_arguments,
        policy="fp32",
        source="partition functions: subtract the ground state before exp",
    ),
    Fault(
        name="oscillator-states-from-vanished-ground",
        kinds=("underflow",),
        faulty=oscillator_faulty,
        healthy=oscillator_healthy,
        arguments=oscillator_arguments,
        policy="fp32",
        source="Bunck (2009), A fast algorithm for evaluation of normalized Hermite"
        " functions",
    ),
)
