"""Faults in statistics, finance and signals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import normal, uniform, weight


def savings_faulty(rates, years, shares, weights):
    """Wealth after interest that is paid by the second."""
    n = 365.0 * 86400.0
    per_second = rates / n
    growth = jnp.log(1 + per_second)  # fault
    exponent = n * growth * years[:, None]
    wealth = jnp.exp(exponent) * shares
    return wealth, wealth @ weights


def savings_healthy(rates, years, shares, weights):
    n = 365.0 * 86400.0
    per_second = rates / n
    growth = jnp.log1p(per_second)
    exponent = n * growth * years[:, None]
    wealth = jnp.exp(exponent) * shares
    return wealth, wealth @ weights


def tails_faulty(x, groups, threshold):
    """p-values of the means of groups, combined by Fisher's method."""
    mean = groups @ x / groups.sum(1, keepdims=True)
    z = (mean - threshold) * jnp.sqrt(groups.sum(1, keepdims=True))
    p = 0.5 * (1 - jax.lax.erf(z * 0.70710678))  # fault
    return p, -2 * jnp.log(p).sum(0)


def tails_healthy(x, groups, threshold):
    mean = groups @ x / groups.sum(1, keepdims=True)
    z = (mean - threshold) * jnp.sqrt(groups.sum(1, keepdims=True))
    p = 0.5 * jax.lax.erfc(z * 0.70710678)
    return p, -2 * jnp.log(p).sum(0)


def tails_arguments():
    x = normal(465, 128, 4, shift=1.0)
    groups = (uniform(466, 16, 128) < 0.25).astype(np.float32)
    return x, groups, np.float32(0.0)


def windows_faulty(signal, kernel):
    """Moving power of a sensor in windows of 16 samples, from prefix sums."""
    power = signal * signal
    ends = jnp.cumsum(power)  # fault
    starts = jnp.concatenate([jnp.zeros(16), ends[:-16]])
    window = ends - starts
    level = jnp.log1p(jnp.maximum(window, 0.0))
    return window, level.reshape(-1, 64) @ kernel


def windows_healthy(signal, kernel):
    power = signal * signal
    padded = jnp.concatenate([jnp.zeros(15), power])
    window = sum(padded[i : i + power.shape[0]] for i in range(16))
    level = jnp.log1p(window)
    return window, level.reshape(-1, 64) @ kernel


def windows_arguments():
    signal = normal(467, 8192)
    signal[:2000] *= 3000.0
    signal[2000:] *= 0.5
    return signal, weight(468, 64, 4)


FAULTS = (
    Fault(
        name="interest-by-the-second",
        kinds=("absorption", "cancellation"),
        faulty=savings_faulty,
        healthy=savings_healthy,
        arguments=lambda: (
            uniform(470, 8, low=0.01, high=0.08),
            uniform(471, 16, low=1.0, high=30.0),
            uniform(472, 8, low=0.5, high=1.0),
            uniform(473, 8, 2),
        ),
        policy="bf16",
        source="Goldberg, What Every Computer Scientist Should Know, compound interest",
    ),
    Fault(
        name="p-value-as-one-minus-cdf",
        kinds=("cancellation",),
        faulty=tails_faulty,
        healthy=tails_healthy,
        arguments=tails_arguments,
        policy="bf16",
        source="statistics packages: 1 - cdf(x) instead of the survival function",
    ),
    Fault(
        name="moving-power-from-prefix-sums",
        kinds=("absorption", "stagnation", "cancellation"),
        faulty=windows_faulty,
        healthy=windows_healthy,
        arguments=windows_arguments,
        policy="bf16",
        source="pandas rolling and integral images: the running sum's rounding stays",
    ),
)
