"""Formulas that subtract neighbours, or that are evaluated beside a singularity."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault


def _normal(seed, *shape, scale=1.0, shift=0.0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return (shift + scale * values).astype(np.float32)


def shrink_subtracted(variables, codes, targets):
    """A sparse-coding layer in Linen whose activation is x - tanh(x)."""

    class Shrink(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = nn.Dense(16, name="encode", use_bias=False)(x)
            small = h - jnp.tanh(h)  # fault
            code = small / jnp.max(jnp.abs(small))
            return nn.Dense(4, name="decode", use_bias=False)(code), code

    model = Shrink()

    def loss(v):
        out, code = model.apply(v, codes)
        return jnp.mean(jnp.square(out - targets)), code

    (value, code), grads = jax.value_and_grad(loss, has_aux=True)(variables)
    return value, code, grads["params"]["decode"]["kernel"]


def shrink_by_polynomial(variables, codes, targets):
    class Shrink(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = nn.Dense(16, name="encode", use_bias=False)(x)
            near = jnp.clip(h, -0.1, 0.1)
            s = near * near
            cubic = near * s * (1 / 3 - s * (2 / 15 - s * (17 / 315 - s * 62 / 2835)))
            small = jnp.where(jnp.abs(h) < 0.1, cubic, h - jnp.tanh(h))
            code = small / jnp.max(jnp.abs(small))
            return nn.Dense(4, name="decode", use_bias=False)(code), code

    model = Shrink()

    def loss(v):
        out, code = model.apply(v, codes)
        return jnp.mean(jnp.square(out - targets)), code

    (value, code), grads = jax.value_and_grad(loss, has_aux=True)(variables)
    return value, code, grads["params"]["decode"]["kernel"]


def shrink_arguments():
    params = {
        "encode": {"kernel": _normal(400, 8, 16, scale=1e-4)},
        "decode": {"kernel": _normal(401, 16, 4, scale=0.25)},
    }
    return {"params": params}, _normal(402, 12, 8), _normal(403, 12, 4, scale=0.3)


def gate_gradient_from_output(params, x, y):
    """A gate with its own backward pass, as a fused kernel has it: s (1 - s)."""

    @jax.custom_vjp
    def gate(v):
        return jax.nn.sigmoid(v)

    def forward(v):
        s = jax.nn.sigmoid(v)
        return s, s

    def backward(s, g):
        closing = 1.0 - s  # fault
        return (g * s * closing,)

    gate.defvjp(forward, backward)

    def loss(p):
        opened = gate(x @ p["gate"] + p["bias"])
        out = (x @ p["value"]) * opened
        return jnp.mean(jnp.square(out - y))

    grads = jax.grad(loss)(params)
    return grads["gate"], grads["bias"], grads["value"]


def gate_gradient_from_input(params, x, y):
    @jax.custom_vjp
    def gate(v):
        return jax.nn.sigmoid(v)

    def forward(v):
        return jax.nn.sigmoid(v), v

    def backward(v, g):
        return (g * jax.nn.sigmoid(v) * jax.nn.sigmoid(-v),)

    gate.defvjp(forward, backward)

    def loss(p):
        opened = gate(x @ p["gate"] + p["bias"])
        out = (x @ p["value"]) * opened
        return jnp.mean(jnp.square(out - y))

    grads = jax.grad(loss)(params)
    return grads["gate"], grads["bias"], grads["value"]


def gate_arguments():
    params = {
        "gate": _normal(410, 8, 12, scale=0.15),
        "bias": np.full(12, 16.0, np.float32),
        "value": _normal(411, 8, 12, scale=0.4),
    }
    return params, _normal(412, 32, 8), _normal(413, 32, 12)


def divergence_of_entropies(params, views):
    """Jensen-Shannon divergence between the predictions for two views."""

    def entropy(p):
        return -jnp.sum(p * jnp.log(p), axis=-1)

    h = jnp.tanh(views @ params["in"])
    p, q = jax.nn.softmax(h @ params["out"], axis=-1)
    apart = entropy(0.5 * (p + q))
    alone = 0.5 * (entropy(p) + entropy(q))
    divergence = apart - alone  # fault
    return divergence, jnp.sqrt(jnp.maximum(divergence, 0.0)).mean()


def divergence_of_ratios(params, views):
    h = jnp.tanh(views @ params["in"])
    p, q = jax.nn.softmax(h @ params["out"], axis=-1)
    gap = (p - q) / (p + q)
    s = gap * gap
    series = s * (1 + s * (1 / 6 + s * (1 / 15 + s / 28)))
    divergence = 0.25 * jnp.sum((p + q) * series, axis=-1)
    return divergence, jnp.sqrt(jnp.maximum(divergence, 0.0)).mean()


def divergence_arguments():
    params = {"in": _normal(420, 8, 16, scale=0.3), "out": _normal(421, 16, 10)}
    view = _normal(422, 16, 8)
    views = np.stack([view, view * np.float32(1 + 2.0**-8)])
    return params, views


def frechet_expanded(params, real, fake):
    """The Frechet distance between features, with diagonal covariances."""

    def moments(x):
        h = jax.nn.relu(x @ params["in"]) @ params["out"]
        centre = jnp.mean(h, axis=0)
        return centre, jnp.mean(jnp.square(h - centre), axis=0)

    (m1, v1), (m2, v2) = moments(real), moments(fake)
    shift = jnp.sum(jnp.square(m1 - m2))
    spread = jnp.sum(v1) + jnp.sum(v2) - 2.0 * jnp.sum(jnp.sqrt(v1 * v2))  # fault
    return shift + spread, spread


def frechet_squared(params, real, fake):
    def moments(x):
        h = jax.nn.relu(x @ params["in"]) @ params["out"]
        centre = jnp.mean(h, axis=0)
        return centre, jnp.mean(jnp.square(h - centre), axis=0)

    (m1, v1), (m2, v2) = moments(real), moments(fake)
    shift = jnp.sum(jnp.square(m1 - m2))
    spread = jnp.sum(jnp.square((v1 - v2) / (jnp.sqrt(v1) + jnp.sqrt(v2))))
    return shift + spread, spread


def frechet_arguments():
    params = {"in": _normal(430, 8, 32, scale=0.5), "out": _normal(431, 32, 24)}
    real = _normal(432, 128, 8)
    return params, real, real[::-1] * np.float32(1.0001)


def bessel_as_written(params, gaps, cutoff):
    """A directional message block with spherical Bessel functions of order one."""
    x = gaps[..., None] / cutoff * params["roots"]
    bessel = jnp.sin(x) / (x * x) - jnp.cos(x) / x  # fault
    basis = bessel * params["norms"]
    filters = jax.nn.silu(basis @ params["hidden"])
    fade = 0.5 * (jnp.cos(jnp.pi * gaps / cutoff) + 1.0)
    messages = (filters @ params["out"]) * fade[..., None]
    return basis, messages.sum(axis=1)


def bessel_by_series(params, gaps, cutoff):
    x = gaps[..., None] / cutoff * params["roots"]
    s = jnp.minimum(x * x, 0.25)
    near = x / 3 * (1 - s / 10 * (1 - s / 28 * (1 - s / 54 * (1 - s / 88))))
    far = jnp.where(x < 0.5, 1.0, x)
    bessel = jnp.where(x < 0.5, near, jnp.sin(far) / (far * far) - jnp.cos(far) / far)
    basis = bessel * params["norms"]
    filters = jax.nn.silu(basis @ params["hidden"])
    fade = 0.5 * (jnp.cos(jnp.pi * gaps / cutoff) + 1.0)
    messages = (filters @ params["out"]) * fade[..., None]
    return basis, messages.sum(axis=1)


def bessel_arguments():
    rng = np.random.default_rng(440)
    params = {
        "roots": np.float32([4.493409, 7.725252, 10.904122, 14.066194]),
        "norms": np.float32([8e3, 5e3, 4e3, 3e3]),
        "hidden": _normal(441, 4, 12, scale=0.5),
        "out": _normal(442, 12, 3, scale=0.3),
    }
    return params, rng.uniform(1e-4, 6e-4, (10, 6)).astype(np.float32), np.float32(5)


def losses_by_tangent(ranks, exposures, scale):
    """Heavy-tailed losses by the quantile function of the Cauchy distribution."""
    losses = scale * jnp.tan(jnp.pi * (ranks - 0.5))  # fault
    portfolio = losses @ exposures
    ordered = jnp.sort(portfolio)
    shortfall = jnp.mean(ordered[-4:])
    value_at_risk = ordered[-4]
    return losses, portfolio, shortfall, value_at_risk


def losses_by_cotangent(ranks, exposures, scale):
    losses = scale / jnp.tan(jnp.pi * (1.0 - ranks))
    portfolio = losses @ exposures
    ordered = jnp.sort(portfolio)
    shortfall = jnp.mean(ordered[-4:])
    value_at_risk = ordered[-4]
    return losses, portfolio, shortfall, value_at_risk


def losses_arguments():
    left = np.random.default_rng(450).integers(3, 200, (40, 6)) * 2.0**-24
    exposures = np.random.default_rng(451).uniform(0.5, 2, 6).astype(np.float32)
    return (1 - left).astype(np.float32), exposures, np.float32(0.01)


def dose_with_equal_rates(dose, volume, absorbed, cleared, times):
    """Drug in blood after a tablet: the Bateman function, rates nearly equal."""
    strength = dose / volume * absorbed
    left = jnp.exp(-cleared * times[:, None])
    taken = jnp.exp(-absorbed * times[:, None])
    level = strength * (left - taken) / (absorbed - cleared)  # fault
    area = jnp.sum(0.5 * (level[1:] + level[:-1]) * jnp.diff(times)[:, None], axis=0)
    return level, area, jnp.max(level, axis=0)


def dose_with_expm1(dose, volume, absorbed, cleared, times):
    strength = dose / volume * absorbed
    left = jnp.exp(-cleared * times[:, None])
    taken = jnp.expm1(-(absorbed - cleared) * times[:, None])
    level = strength * left * -taken / (absorbed - cleared)
    area = jnp.sum(0.5 * (level[1:] + level[:-1]) * jnp.diff(times)[:, None], axis=0)
    return level, area, jnp.max(level, axis=0)


def dose_arguments():
    rng = np.random.default_rng(460)
    cleared = rng.uniform(0.2, 0.4, 16).astype(np.float32)
    apart = 1 + rng.integers(5, 60, 16) * rng.choice([-1, 1], 16) * 2.0**-22
    absorbed = (cleared * apart).astype(np.float32)
    volume = rng.uniform(20, 40, 16).astype(np.float32)
    times = np.linspace(0.25, 12, 24).astype(np.float32)
    return np.float32(250), volume, absorbed, cleared, times


FAULTS = (
    Fault(
        name="b-tanhshrink-of-small-codes",
        kinds=("cancellation",),
        faulty=shrink_subtracted,
        healthy=shrink_by_polynomial,
        arguments=shrink_arguments,
        policy="bf16",
        source="accelerator back ends: tanhshrink as x - tanh(x) is zero near zero",
    ),
    Fault(
        name="b-gate-gradient-from-its-output",
        kinds=("cancellation", "absorption"),
        faulty=gate_gradient_from_output,
        healthy=gate_gradient_from_input,
        arguments=gate_arguments,
        policy="bf16",
        source="TensorFlow issue on SigmoidGrad: y (1 - y) for large positive inputs",
    ),
    Fault(
        name="b-jensen-shannon-of-close-views",
        kinds=("cancellation",),
        faulty=divergence_of_entropies,
        healthy=divergence_of_ratios,
        arguments=divergence_arguments,
        policy="fp32",
        source="SciPy and forums: H(m) - (H(p) + H(q)) / 2 is negative for close p, q",
    ),
    Fault(
        name="b-frechet-distance-expanded",
        kinds=("cancellation",),
        faulty=frechet_expanded,
        healthy=frechet_squared,
        arguments=frechet_arguments,
        policy="fp32",
        source="FID implementations: tr A + tr B - 2 tr sqrt(AB) of nearly equal sets",
    ),
    Fault(
        name="b-spherical-bessel-at-short-range",
        kinds=("cancellation", "singular"),
        faulty=bessel_as_written,
        healthy=bessel_by_series,
        arguments=bessel_arguments,
        policy="bf16",
        source="DimeNet ports: closed forms of spherical Bessel functions near zero",
    ),
    Fault(
        name="b-cauchy-tail-by-tangent",
        kinds=("singular", "cancellation"),
        faulty=losses_by_tangent,
        healthy=losses_by_cotangent,
        arguments=losses_arguments,
        policy="bf16",
        source="random libraries: tan(pi (u - 1/2)) beside its pole, tails of Cauchy",
    ),
    Fault(
        name="b-bateman-with-equal-rates",
        kinds=("singular", "cancellation"),
        faulty=dose_with_equal_rates,
        healthy=dose_with_expm1,
        arguments=dose_arguments,
        policy="fp32",
        source="pharmacokinetic forums: the one-compartment formula at ka near ke",
    ),
)
