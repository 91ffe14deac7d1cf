"""Simulations whose state is large and whose changes are small."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source


def ising_arguments():
    rng = np.random.default_rng(200)
    rows, columns = rng.integers(0, 48, (2, 1200)).astype(np.int32)
    draws = rng.random(1200).astype(np.float32)
    return "48x48 =1", rows, columns, draws, "f32 0.3"


@fault("absorption", "stagnation")
@source("lattice simulations: a total energy that is updated by differences")
@inputs(by=ising_arguments)
def b_ising_energy_in_bf16(spins, rows, columns, draws, beta):
    """Metropolis flips; the total energy is updated by every flip's difference."""
    n = spins.shape[0]
    bonds = spins * jnp.roll(spins, 1, 0) + spins * jnp.roll(spins, 1, 1)
    energy = -jnp.sum(bonds)

    def flip(carry, xs):
        spins, energy = carry
        i, j, draw = xs
        around = spins[(i + 1) % n, j] + spins[(i - 1) % n, j]
        around = around + spins[i, (j + 1) % n] + spins[i, (j - 1) % n]
        change = 2.0 * spins[i, j] * around
        accept = draw < jnp.exp(-beta * change)
        spins = spins.at[i, j].multiply(jnp.where(accept, -1.0, 1.0))
        energy = energy + jnp.where(accept, change, 0.0).astype(energy.dtype)  # fault
        # + energy = energy + jnp.where(accept, change, 0.0)
        return (spins, energy), energy

    start = (spins, energy.astype(jnp.bfloat16))  # -
    # + start = (spins, energy)
    (spins, _), trace = jax.lax.scan(flip, start, (rows, columns, draws))
    trace = trace.astype(jnp.float32) / (n * n)  # -
    # + trace = trace / (n * n)
    return trace, jnp.var(trace[200:]) * n * n, jnp.mean(spins)


@fault("absorption", "coarse", "cancellation", policy="fp32")
@source("compressible solvers at low Mach number: solve for the perturbation")
@inputs(
    lambda: (5e-3 * np.sin(2 * np.pi * np.arange(160) / 40)).astype(np.float32),
    "f32 343; f32 1.2",
)
def b_sound_on_absolute_pressure(source, speed, density):
    """Sound in a tube by staggered differences of the absolute pressure."""
    cells, courant = 96, 0.5
    ambient = 101325.0  # -
    taper = jnp.exp(-0.5 * ((jnp.arange(cells) - 20.0) / 3.0) ** 2)

    def step(carry, drive):
        p, u = carry
        u = u.at[1:-1].add(-courant / (density * speed) * (p[1:] - p[:-1]))
        flow = courant * density * speed * (u[1:] - u[:-1])
        p = p + (drive * taper - flow)  # here
        return (p, u), p[70] - ambient  # -
        # + return (p, u), p[70]

    start = (jnp.full(cells, ambient), jnp.zeros(cells + 1))  # -
    # + start = (jnp.zeros(cells), jnp.zeros(cells + 1))
    (p, _), heard = jax.lax.scan(step, start, source)
    return p - ambient, 20.0 * jnp.log10(jnp.sqrt(jnp.mean(heard**2)) / 2e-5)  # -
    # + return p, 20.0 * jnp.log10(jnp.sqrt(jnp.mean(heard**2)) / 2e-5)


def neurons_arguments():
    rng = np.random.default_rng(210)
    inputs = rng.uniform(0.8, 1.2, (1500, 12)).astype(np.float32)
    weights = rng.uniform(1.4, 3.0, (12, 10)).astype(np.float32)
    return inputs, weights, "f32 -50"


@fault("absorption", "stagnation")
@source("spiking networks: membrane potentials in half precision never rise")
@inputs(by=neurons_arguments)
def b_integrate_and_fire_in_bf16(inputs, weights, threshold):
    """Leaky integrate-and-fire neurons in millivolts, with steps of 0.1 ms."""
    rest, reset, tau, dt = -65.0, -70.0, 20.0, 0.1

    def step(carry, current):
        v, count = carry
        drive = (current @ weights).astype(v.dtype)  # -
        v = v + (rest - v + drive) * (dt / tau)  # fault
        # + v = v + (rest - v + current @ weights) * (dt / tau)
        fired = v > threshold.astype(v.dtype)  # -
        # + fired = v > threshold
        v = jnp.where(fired, reset, v).astype(v.dtype)  # -
        # + v = jnp.where(fired, reset, v)
        return (v, count + fired), None

    v = jnp.full(weights.shape[1], rest, jnp.bfloat16)  # -
    # + v = jnp.full(weights.shape[1], rest)
    count = jnp.zeros(weights.shape[1], jnp.int32)
    (v, count), _ = jax.lax.scan(step, (v, count), inputs)
    return count / (inputs.shape[0] * dt * 1e-3), v


def conformers_arguments():
    rng = np.random.default_rng(220)
    shape = rng.uniform(0, 4, (1, 10, 3))
    positions = shape + 0.02 * rng.standard_normal((12, 10, 3))
    species = rng.integers(0, 4, 10).astype(np.int32)
    return (
        "atom: f32 -13.587 -1029.4 -16321.7 -34613.2, centres: 8 even 0.5..5, "
        "hidden: 8x12 *0.6 @221, out: 12x1 *0.1",
        species,
        positions.astype(np.float32),
    )


@fault("absorption", "cancellation", "coarse", policy="fp32")
@source("neural potentials: isolated-atom energies swamp FP32 total energies")
@inputs(by=conformers_arguments)
def b_conformers_with_atom_energies(params, species, positions):
    """Energies of conformers: those of the atoms, and a network on the distances."""
    atoms = jnp.sum(params["atom"][species])  # -

    def energy(x):
        gap = jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, -1) + jnp.eye(len(x)))
        basis = jnp.exp(-2.0 * (gap[..., None] - params["centres"]) ** 2)
        pairs = jnp.tanh(basis @ params["hidden"]) @ params["out"]
        mask = 1.0 - jnp.eye(len(x))
        bonding = 0.5 * jnp.sum(pairs[..., 0] * mask)  # -
        total = atoms + bonding  # fault
        return total  # -
        # + return 0.5 * jnp.sum(pairs[..., 0] * mask)

    energies = jax.vmap(energy)(positions)  # -
    relative = energies - energies[0]  # -
    # + bonding = jax.vmap(energy)(positions)
    # + relative = bonding - bonding[0]
    return relative, jax.nn.softmax(-relative / 0.0257)


def transitions_arguments():
    rng = np.random.default_rng(230)
    rates = rng.uniform(0.2, 0.6, (4, 4)).astype(np.float32)
    np.fill_diagonal(rates, 0)
    leaves = np.eye(4, dtype=np.float32)[rng.integers(0, 4, (3, 20))]
    return rates, "f32 0.2 0.5 0.9", leaves


@fault("absorption", "coarse", policy="fp32")
@source("Moler and Van Loan, Nineteen Dubious Ways to Compute the Exponential")
@inputs(by=transitions_arguments)
def b_transition_matrix_by_limit(rates, lengths, leaves):
    """Transition matrices of a substitution model: (I + Qt / n) to the power of n."""
    q = rates - jnp.diag(jnp.sum(rates, axis=1))

    def branch(t):
        p = jnp.eye(4) + q * (t * 2.0**-26)  # fault
        # + e = q * (t * 2.0**-26)
        for _ in range(26):
            p = jnp.einsum("ij,jk->ik", p, p)  # -
            # + e = 2.0 * e + jnp.einsum("ij,jk->ik", e, e)
        return p  # -
        # + return jnp.eye(4) + e

    p = jax.vmap(branch)(lengths)
    likelihood = jnp.prod(jnp.einsum("bij,bsj->bsi", p, leaves), axis=0)
    return p, jnp.log(jnp.mean(likelihood, axis=-1))


def kepler_arguments():
    rng = np.random.default_rng(240)
    eccentricity = (1 - rng.integers(1, 9, 32) * 2.0**-20).astype(np.float32)
    anomaly = rng.uniform(2e-4, 1e-3, 32).astype(np.float32)
    return eccentricity, anomaly, "f32 0.00029591"


@fault("cancellation", policy="fp32")
@source("Gooding and Odell, Kepler's equation: E - e sin E at small E, e near 1")
@inputs(by=kepler_arguments)
def b_kepler_near_periapsis(eccentricity, anomaly, pull):
    """Time since periapsis of comets on nearly parabolic orbits, and their place."""
    a = 1.0 / (1.0 - eccentricity)
    motion = jnp.sqrt(pull / a**3)
    mean = anomaly - eccentricity * jnp.sin(anomaly)  # fault
    # + x = anomaly * anomaly
    # + cubic = anomaly * x / 6 * (1 - x / 20 * (1 - x / 42 * (1 - x / 72)))
    # + mean = (1 - eccentricity) * anomaly + eccentricity * cubic
    since = mean / motion
    half = jnp.sqrt((1 + eccentricity) * a) * jnp.tan(anomaly / 2)
    true = 2.0 * jnp.arctan(half)
    radius = 1.0 + 2.0 * a * eccentricity * jnp.sin(anomaly / 2) ** 2
    return since, true, radius
