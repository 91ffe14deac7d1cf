"""Simulation: molecules, waves, heat, transport."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import mlp_params, normal, uniform


def argon_si_powers(x, v, sigma, depth, mass, dt):
    """Five leapfrog steps of argon in SI units; powers before the quotient."""
    same = jnp.eye(x.shape[0], dtype=bool)

    def forces(x):
        gap = x[:, None] - x[None]
        r2 = jnp.where(same, sigma * sigma * 4.0, jnp.sum(gap * gap, axis=-1))
        sr6 = sigma**6 / r2**3  # fault
        size = 24.0 * depth / r2 * (2.0 * sr6 * sr6 - sr6)
        return jnp.sum(size[..., None] * gap, axis=1)

    def step(state, _):
        x, v = state
        v = v + dt * (forces(x) / mass)
        return (x + dt * v, v), None

    (x, v), _ = jax.lax.scan(step, (x, v), None, length=5)
    return x, v


def argon_si_ratio(x, v, sigma, depth, mass, dt):
    same = jnp.eye(x.shape[0], dtype=bool)

    def forces(x):
        gap = x[:, None] - x[None]
        r2 = jnp.where(same, sigma * sigma * 4.0, jnp.sum(gap * gap, axis=-1))
        sr2 = sigma * sigma / r2
        sr6 = sr2 * sr2 * sr2
        size = 24.0 * depth / r2 * (2.0 * sr6 * sr6 - sr6)
        return jnp.sum(size[..., None] * gap, axis=1)

    def step(state, _):
        x, v = state
        v = v + dt * (forces(x) / mass)
        return (x + dt * v, v), None

    (x, v), _ = jax.lax.scan(step, (x, v), None, length=5)
    return x, v


def argon_arguments():
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3) * 3.8e-10
    x = (grid + normal(1200, 27, 3, scale=1e-11)).astype(np.float32)
    constants = [np.float32(c) for c in (3.4e-10, 1.65e-21, 6.63e-26, 2e-15)]
    return x, normal(1201, 27, 3, scale=150.0), *constants


def sinkhorn_kernel(a, b, left, right):
    """Optimal transport between two clouds with a small regularization."""
    gap = left[:, None] - right[None]
    cost = jnp.sum(gap * gap, axis=-1)
    kernel = jnp.exp(-cost / 0.02)  # fault

    def step(state, _):
        u, v = state
        u = a / jnp.sum(kernel * v[None], axis=1)
        v = b / jnp.sum(kernel * u[:, None], axis=0)
        return (u, v), None

    (u, v), _ = jax.lax.scan(
        step, (jnp.ones_like(a), jnp.ones_like(b)), None, length=60
    )
    plan = u[:, None] * kernel * v[None]
    return jnp.sum(plan * cost), plan


def sinkhorn_log(a, b, left, right):
    gap = left[:, None] - right[None]
    cost = jnp.sum(gap * gap, axis=-1)
    scaled = -cost / 0.02
    log_a, log_b = jnp.log(a), jnp.log(b)

    def step(state, _):
        f, g = state
        f = log_a - jax.nn.logsumexp(scaled + g[None], axis=1)
        g = log_b - jax.nn.logsumexp(scaled + f[:, None], axis=0)
        return (f, g), None

    (f, g), _ = jax.lax.scan(step, (0.0 * a, 0.0 * b), None, length=60)
    plan = jnp.exp(scaled + f[:, None] + g[None])
    return jnp.sum(plan * cost), plan


def sinkhorn_arguments():
    a, b = uniform(1210, 0.5, 1.5, 20), uniform(1211, 0.5, 1.5, 20)
    left, right = (
        normal(1212, 20, 2, scale=0.6),
        normal(1213, 20, 2, scale=0.6, shift=1),
    )
    left[4] -= 1.5
    return a / a.sum(), b / b.sum(), left, right


def heat_bf16(u, rate):
    """Explicit heat equation with its field in BF16."""

    def step(u, _):
        wide = u.astype(jnp.float32)
        padded = jnp.pad(wide, 1, mode="edge")
        curve = padded[2:] - 2.0 * wide + padded[:-2]
        change = rate * curve
        u = u + change.astype(jnp.bfloat16)  # fault
        return u, None

    u, _ = jax.lax.scan(step, u.astype(jnp.bfloat16), None, length=200)
    u = u.astype(jnp.float32)
    return u - 300.0, jnp.max(u) - jnp.min(u)


def heat_fp32(u, rate):
    def step(u, _):
        padded = jnp.pad(u, 1, mode="edge")
        curve = padded[2:] - 2.0 * u + padded[:-2]
        u = u + rate * curve
        return u, None

    u, _ = jax.lax.scan(step, u, None, length=200)
    return u - 300.0, jnp.max(u) - jnp.min(u)


def heat_arguments():
    x = np.linspace(0, 1, 64)
    u = 300.0 + 40.0 * np.sin(3 * np.pi * x) * np.exp(-x)
    return u.astype(np.float32), np.float32(0.4)


def molecule_norm_gradient(p, x):
    """Energy and forces of a graph network on distances, the own one included."""

    def energy(x):
        gap = x[:, None] - x[None]
        distance = jnp.sqrt(jnp.sum(gap * gap, axis=-1))  # fault
        other = 1.0 - jnp.eye(x.shape[0])
        centres = jnp.linspace(0.0, 5.0, 12)
        basis = jnp.exp(-2.0 * jnp.square(distance[..., None] - centres))
        message = jnp.tanh(basis @ p[0]["w"] + p[0]["b"]) * other[..., None]
        atoms = jnp.tanh(jnp.sum(message, axis=1) * 0.2)
        return jnp.sum(atoms @ p[1]["w"])

    value, slope = jax.value_and_grad(energy)(x)
    return value, -slope


def molecule_guarded(p, x):
    def energy(x):
        gap = x[:, None] - x[None]
        same = jnp.eye(x.shape[0], dtype=bool)
        square = jnp.where(same, 1.0, jnp.sum(gap * gap, axis=-1))
        distance = jnp.where(same, 0.0, jnp.sqrt(square))
        other = 1.0 - jnp.eye(x.shape[0])
        centres = jnp.linspace(0.0, 5.0, 12)
        basis = jnp.exp(-2.0 * jnp.square(distance[..., None] - centres))
        message = jnp.tanh(basis @ p[0]["w"] + p[0]["b"]) * other[..., None]
        atoms = jnp.tanh(jnp.sum(message, axis=1) * 0.2)
        return jnp.sum(atoms @ p[1]["w"])

    value, slope = jax.value_and_grad(energy)(x)
    return value, -slope


def molecule_arguments():
    return mlp_params(1220, 12, 16, 1), normal(1221, 9, 3, scale=1.5)


def pinn_small_step(params, points, forcing):
    """Residual of a Poisson equation with differences of a network's values."""
    h = 2e-4

    def u(x):
        hidden = jnp.tanh(x[:, None] * params[0]["w"] + params[0]["b"])
        return jnp.sum(hidden * params[1]["w"][:, 0], axis=-1)

    ahead, here, behind = u(points + h), u(points), u(points - h)
    curvature = (ahead - 2.0 * here + behind) / (h * h)  # fault
    residual = curvature + forcing
    return residual, jnp.mean(jnp.square(residual))


def pinn_derivative(params, points, forcing):
    def u(x):
        hidden = jnp.tanh(x[:, None] * params[0]["w"] + params[0]["b"])
        return jnp.sum(hidden * params[1]["w"][:, 0], axis=-1)

    def slope(x):
        return jax.jvp(u, (x,), (jnp.ones_like(x),))[1]

    curvature = jax.jvp(slope, (points,), (jnp.ones_like(points),))[1]
    residual = curvature + forcing
    return residual, jnp.mean(jnp.square(residual))


def pinn_arguments():
    params = mlp_params(1230, 1, 24, 1)
    return params, uniform(1231, 0, 1, 64), uniform(1232, -0.2, 0.2, 64)


FAULTS = (
    Fault(
        name="argon-in-si-units",
        kinds=("underflow", "non-finite"),
        faulty=argon_si_powers,
        healthy=argon_si_ratio,
        arguments=argon_arguments,
        policy="fp32",
        source="molecular dynamics FAQs: metres to the sixth power vanish in FP32",
    ),
    Fault(
        name="sinkhorn-outside-log-domain",
        kinds=("underflow", "non-finite"),
        faulty=sinkhorn_kernel,
        healthy=sinkhorn_log,
        arguments=sinkhorn_arguments,
        policy="fp32",
        source="computational optimal transport literature: stabilized Sinkhorn",
    ),
    Fault(
        name="heat-equation-field-bf16",
        kinds=("stagnation", "absorption"),
        faulty=heat_bf16,
        healthy=heat_fp32,
        arguments=heat_arguments,
        policy="bf16",
        source="Croci and Giles on the heat equation with rounding in low precision",
    ),
    Fault(
        name="force-field-own-distance",
        kinds=("singular", "non-finite"),
        faulty=molecule_norm_gradient,
        healthy=molecule_guarded,
        arguments=molecule_arguments,
        policy="bf16",
        source=(
            "JAX FAQ and issues: gradient of a norm at zero is NaN, also under a mask"
        ),
    ),
    Fault(
        name="poisson-network-second-difference",
        kinds=("cancellation",),
        faulty=pinn_small_step,
        healthy=pinn_derivative,
        arguments=pinn_arguments,
        policy="fp32",
        source="numerical differentiation: a step too small for FP32",
    ),
)
