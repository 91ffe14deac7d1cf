"""Faults of formulas, as in the suites of Herbie and FPBench, inside of programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import integers, layer_norm, normal, uniform, weight


def moveout_faulty(params, offsets, depth):
    """Normal moveout: how much later a far geophone hears a deep reflector."""
    path = jnp.sqrt(depth * depth + offsets * offsets)
    later = (path - depth) / params["speed"]  # fault
    picks = jnp.sin(later * params["frequency"])
    return later, jnp.tanh(picks @ params["out"])


def moveout_healthy(params, offsets, depth):
    path = jnp.sqrt(depth * depth + offsets * offsets)
    later = offsets * offsets / (path + depth) / params["speed"]
    picks = jnp.sin(later * params["frequency"])
    return later, jnp.tanh(picks @ params["out"])


def moveout_arguments():
    params = {
        "speed": np.float32(2.5),
        "frequency": np.float32(900.0),
        "out": weight(3101, 16, 3),
    }
    return params, uniform(3102, 12, 16, low=0.5, high=8.0), np.float32(4321.7)


def integrator_faulty(weights, x, rates):
    """Exponential integrators weigh a nonlinear term by (exp(z) - 1) / z."""

    def stage(x, rate):
        phi = (jnp.exp(rate) - 1.0) / rate  # fault
        force = jnp.tanh(x @ weights)
        return jnp.exp(rate) * x + phi * force, phi

    return jax.lax.scan(stage, x, rates)


def integrator_healthy(weights, x, rates):
    def stage(x, rate):
        phi = jnp.expm1(rate) / rate
        force = jnp.tanh(x @ weights)
        return jnp.exp(rate) * x + phi * force, phi

    return jax.lax.scan(stage, x, rates)


def modulus_faulty(real, imaginary):
    """Amplitudes of a field in V/m at an antenna's focus, then its directivity."""
    amplitude = jnp.sqrt(real * real + imaginary * imaginary)  # fault
    peak = amplitude.max(-1, keepdims=True)
    return amplitude / peak, jnp.log10(peak)


def modulus_healthy(real, imaginary):
    big = jnp.maximum(jnp.abs(real), jnp.abs(imaginary))
    amplitude = big * jnp.sqrt((real / big) ** 2 + (imaginary / big) ** 2)
    peak = amplitude.max(-1, keepdims=True)
    return amplitude / peak, jnp.log10(peak)


def tidal_faulty(masses, distance, size):
    """Tidal acceleration: the pull on the near side minus that on the centre."""

    def tide(mass, distance):
        near = mass / (distance - size) ** 2
        centre = mass / distance**2
        return near - centre  # fault

    tides = jax.vmap(tide)(masses, distance)
    return tides, tides / jnp.sum(tides)


def tidal_healthy(masses, distance, size):
    def tide(mass, distance):
        near = distance - size
        return mass * size * (distance + near) / (near * distance) ** 2

    tides = jax.vmap(tide)(masses, distance)
    return tides, tides / jnp.sum(tides)


def ratings_faulty(strengths, games, results):
    """Fits Bradley-Terry strengths on a long scale: log(1 + exp(gap))."""

    def loss_of(strengths):
        gap = strengths[games[:, 1]] - strengths[games[:, 0]]
        gap = jnp.where(results, gap, -gap)
        return jnp.mean(jnp.log(1.0 + jnp.exp(gap)))  # fault

    loss, grad = jax.value_and_grad(loss_of)(strengths)
    return loss, strengths - 4.0 * grad


def ratings_healthy(strengths, games, results):
    def loss_of(strengths):
        gap = strengths[games[:, 1]] - strengths[games[:, 0]]
        gap = jnp.where(results, gap, -gap)
        return jnp.mean(jax.nn.softplus(gap))

    loss, grad = jax.value_and_grad(loss_of)(strengths)
    return loss, strengths - 4.0 * grad


def seventh_faulty(x, w):
    """A feature (x - 1)^7 near 1, by the expanded polynomial and Horner's rule."""
    coefficients = jnp.array([1.0, -7.0, 21.0, -35.0, 35.0, -21.0, 7.0, -1.0])
    value = jnp.zeros_like(x)
    for c in coefficients:
        value = value * x + c  # fault
    scaled = value / jnp.max(jnp.abs(value))
    return scaled, jnp.tanh(scaled @ w)


def seventh_healthy(x, w):
    value = (x - 1.0) ** 7
    scaled = value / jnp.max(jnp.abs(value))
    return scaled, jnp.tanh(scaled @ w)


def taylor_faulty(times, rates):
    """Survival exp(-rate t) by its Taylor series, term after term in a loop."""
    z = -rates * times

    def add(n, carry):
        term, total = carry
        term = term * z / (n + 1).astype(jnp.float32)
        return term, total + term  # fault

    one = jnp.ones_like(z)
    _, survival = jax.lax.fori_loop(0, 60, add, (one, one))
    return survival, survival * rates


def taylor_healthy(times, rates):
    survival = jnp.exp(-rates * times)
    return survival, survival * rates


def huber_faulty(params, x, y):
    """The pseudo-Huber loss sqrt(1 + r^2) - 1 when residuals are already small."""

    def loss_of(params):
        r = jnp.tanh(x @ params["in"]) @ params["out"] - y
        return jnp.mean(jnp.sqrt(1.0 + r * r) - 1.0)  # fault

    return jax.value_and_grad(loss_of)(params)


def huber_healthy(params, x, y):
    def loss_of(params):
        r = jnp.tanh(x @ params["in"]) @ params["out"] - y
        return jnp.mean(r * r / (jnp.sqrt(1.0 + r * r) + 1.0))

    return jax.value_and_grad(loss_of)(params)


def huber_arguments():
    params = {"in": weight(3140, 6, 12), "out": weight(3141, 12, 1)}
    x = normal(3142, 32, 6)
    exact = np.tanh(x @ params["in"]) @ params["out"]
    return params, x, (exact + 3e-4 * normal(3143, 32, 1)).astype(np.float32)


def advantages_faulty(params, x, rewards, actions):
    """GRPO: rewards of a group minus their mean over their deviation; all equal."""
    mean = rewards.mean(1, keepdims=True)
    deviation = jnp.sqrt(jnp.mean((rewards - mean) ** 2, axis=1, keepdims=True))
    advantage = (rewards - mean) / deviation  # fault

    def loss_of(params):
        scores = jax.nn.log_softmax(jnp.tanh(x @ params["in"]) @ params["out"])
        chosen = jnp.take_along_axis(scores, actions[..., None], -1)[..., 0]
        return -jnp.mean(advantage * chosen)

    return advantage, jax.grad(loss_of)(params)


def advantages_healthy(params, x, rewards, actions):
    mean = rewards.mean(1, keepdims=True)
    deviation = jnp.sqrt(jnp.mean((rewards - mean) ** 2, axis=1, keepdims=True))
    advantage = (rewards - mean) / (deviation + 1e-4)

    def loss_of(params):
        scores = jax.nn.log_softmax(jnp.tanh(x @ params["in"]) @ params["out"])
        chosen = jnp.take_along_axis(scores, actions[..., None], -1)[..., 0]
        return -jnp.mean(advantage * chosen)

    return advantage, jax.grad(loss_of)(params)


def advantages_arguments():
    rewards = integers(3150, 2, 6, 8).astype(np.float32)
    rewards[2] = 1.0
    params = {"in": weight(3151, 5, 8), "out": weight(3152, 8, 4)}
    return params, normal(3153, 6, 8, 5), rewards, integers(3154, 4, 6, 8)


def smoothing_faulty(params, x, target):
    """Distillation: the divergence from a teacher whose top-k is zero elsewhere."""
    student = jax.nn.log_softmax(layer_norm(x) @ params)
    terms = target * (jnp.log(target) - student)  # fault
    return terms.sum(-1).mean(), jnp.argmax(student, -1)


def smoothing_healthy(params, x, target):
    student = jax.nn.log_softmax(layer_norm(x) @ params)
    safe = jnp.where(target > 0, target, 1.0)
    terms = target * (jnp.log(safe) - student)
    return terms.sum(-1).mean(), jnp.argmax(student, -1)


def smoothing_arguments():
    target = uniform(3160, 10, 8)
    target[target < 0.6] = 0.0
    target[:, 0] = 0.5
    target /= target.sum(-1, keepdims=True)
    return weight(3161, 12, 8), normal(3162, 10, 12), target


def dice_faulty(params, image, mask):
    """The Dice coefficient of every class of a segmentation; one is not there."""
    scores = jax.nn.sigmoid(image @ params - 2.0)
    chosen = (scores > 0.5).astype(jnp.float32)
    both = jnp.sum(chosen * mask, axis=0)
    dice = 2.0 * both / (chosen.sum(0) + mask.sum(0))  # fault
    return dice, 1.0 - dice.mean()


def dice_healthy(params, image, mask):
    scores = jax.nn.sigmoid(image @ params - 2.0)
    chosen = (scores > 0.5).astype(jnp.float32)
    both = jnp.sum(chosen * mask, axis=0)
    dice = (2.0 * both + 1.0) / (chosen.sum(0) + mask.sum(0) + 1.0)
    return dice, 1.0 - dice.mean()


def dice_arguments():
    mask = integers(3170, 2, 64, 4).astype(np.float32)
    mask[:, 3] = 0.0
    params = weight(3171, 6, 4, 3.0)
    params[:, 3] = -np.abs(params[:, 3])
    return params, np.abs(normal(3172, 64, 6)), mask


FAULTS = (
    Fault(
        name="moveout-by-difference-of-roots",
        kinds=("cancellation",),
        faulty=moveout_faulty,
        healthy=moveout_healthy,
        arguments=moveout_arguments,
        policy="bf16",
        source="FPBench NMSE 3.1, 2sqrt: sqrt(x + 1) - sqrt(x)",
    ),
    Fault(
        name="phi-function-by-exp-minus-one",
        kinds=("cancellation",),
        faulty=integrator_faulty,
        healthy=integrator_healthy,
        arguments=lambda: (
            weight(3110, 8, 8),
            normal(3111, 4, 8),
            -np.logspace(-7, -4, 12).astype(np.float32),
        ),
        policy="bf16",
        source="Kassam and Trefethen on ETDRK4; Higham's (exp(x) - 1) / x",
    ),
    Fault(
        name="modulus-of-strong-field",
        kinds=("overflow",),
        faulty=modulus_faulty,
        healthy=modulus_healthy,
        arguments=lambda: (
            normal(3112, 5, 12, scale=3e19),
            normal(3113, 5, 12, scale=3e19),
        ),
        policy="fp32",
        source="hypot: the square of a number above 1.8e19 is Inf in FP32",
    ),
    Fault(
        name="tide-as-difference-of-pulls",
        kinds=("cancellation",),
        faulty=tidal_faulty,
        healthy=tidal_healthy,
        arguments=lambda: (
            uniform(3114, 9, low=1.0, high=5.0),
            uniform(3115, 9, low=20.0, high=60.0),
            np.float32(2e-5),
        ),
        policy="fp32",
        source="FPBench NMSE 3.3.1: 1 / (x + 1) - 1 / x",
    ),
    Fault(
        name="elo-loss-log-of-one-plus-exp",
        kinds=("overflow", "non-finite"),
        faulty=ratings_faulty,
        healthy=ratings_healthy,
        arguments=lambda: (
            normal(3116, 12, scale=70.0),
            integers(3117, 12, 40, 2),
            integers(3118, 2, 40).astype(bool),
        ),
        policy="bf16",
        source="Herbie's logistic functions; Bradley-Terry by hand",
    ),
    Fault(
        name="seventh-power-expanded",
        kinds=("cancellation",),
        faulty=seventh_faulty,
        healthy=seventh_healthy,
        arguments=lambda: (
            uniform(3120, 6, 10, low=0.93, high=1.07),
            weight(3121, 10, 3),
        ),
        policy="fp32",
        source="Demmel: the values of (x - 2)^9 expanded, near its root",
    ),
    Fault(
        name="decay-by-alternating-series",
        kinds=("cancellation",),
        faulty=taylor_faulty,
        healthy=taylor_healthy,
        arguments=lambda: (
            uniform(3122, 8, low=9.0, high=14.0),
            uniform(3123, 8, low=0.9, high=1.1),
        ),
        policy="fp32",
        source="Higham, Goldberg: exp(-x) by its Taylor series",
    ),
    Fault(
        name="pseudo-huber-of-small-residuals",
        kinds=("cancellation",),
        faulty=huber_faulty,
        healthy=huber_healthy,
        arguments=huber_arguments,
        policy="fp32",
        source="robust losses (Barron): sqrt(1 + r^2) - 1 is zero for small r",
    ),
    Fault(
        name="group-with-equal-rewards",
        kinds=("non-finite", "singular"),
        faulty=advantages_faulty,
        healthy=advantages_healthy,
        arguments=advantages_arguments,
        policy="bf16",
        source="TRL and verl: NaN advantages where a group's rewards are all equal",
    ),
    Fault(
        name="divergence-from-sparse-teacher",
        kinds=("non-finite", "singular"),
        faulty=smoothing_faulty,
        healthy=smoothing_healthy,
        arguments=smoothing_arguments,
        policy="bf16",
        source="KLDivLoss with probability targets written by hand: 0 * log 0",
    ),
    Fault(
        name="dice-of-absent-class",
        kinds=("non-finite", "singular"),
        faulty=dice_faulty,
        healthy=dice_healthy,
        arguments=dice_arguments,
        policy="bf16",
        source="MONAI and segmentation_models issues: NaN Dice of an empty class",
    ),
)
