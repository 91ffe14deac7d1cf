"""Formulas that subtract neighbours, or are evaluated beside a singularity."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import integers, layer_norm, normal, uniform, weight


@fault("cancellation")
@source("FPBench NMSE 3.1, 2sqrt: sqrt(x + 1) - sqrt(x)")
@inputs(
    "speed: f32 2.5, frequency: f32 900, out: 16x3 w @3101; 12x16 0.5..8 @3102; "
    "f32 4321.7"
)
def moveout_by_difference_of_roots(params, offsets, depth):
    """Normal moveout: how much later a far geophone hears a deep reflector."""
    path = jnp.sqrt(depth * depth + offsets * offsets)
    later = (path - depth) / params["speed"]  # fault
    # + later = offsets * offsets / (path + depth) / params["speed"]
    picks = jnp.sin(later * params["frequency"])
    return later, jnp.tanh(picks @ params["out"])


@fault("cancellation")
@source("Kassam and Trefethen on ETDRK4; Higham's (exp(x) - 1) / x")
@inputs("8x8 w @3110; 4x8 @3111", lambda: -np.logspace(-7, -4, 12).astype(np.float32))
def phi_function_by_exp_minus_one(weights, x, rates):
    """Exponential integrators weigh a nonlinear term by (exp(z) - 1) / z."""

    def stage(x, rate):
        phi = (jnp.exp(rate) - 1.0) / rate  # fault
        # + phi = jnp.expm1(rate) / rate
        force = jnp.tanh(x @ weights)
        return jnp.exp(rate) * x + phi * force, phi

    return jax.lax.scan(stage, x, rates)


@fault("overflow", policy="fp32")
@source("hypot: the square of a number above 1.8e19 is Inf in FP32")
@inputs("5x12 *3e+19 @3112; 5x12 *3e+19 @3113")
def modulus_of_strong_field(real, imaginary):
    """Amplitudes of a field in V/m at an antenna's focus, then its directivity."""
    amplitude = jnp.sqrt(real * real + imaginary * imaginary)  # fault
    # + big = jnp.maximum(jnp.abs(real), jnp.abs(imaginary))
    # + amplitude = big * jnp.sqrt((real / big) ** 2 + (imaginary / big) ** 2)
    peak = amplitude.max(-1, keepdims=True)
    return amplitude / peak, jnp.log10(peak)


@fault("cancellation", policy="fp32")
@source("FPBench NMSE 3.3.1: 1 / (x + 1) - 1 / x")
@inputs("9 1..5 @3114; 9 20..60 @3115; f32 2e-05")
def tide_as_difference_of_pulls(masses, distance, size):
    """Tidal acceleration: the pull on the near side minus that on the centre."""

    def tide(mass, distance):
        near = mass / (distance - size) ** 2  # -
        # + near = distance - size
        centre = mass / distance**2  # -
        return near - centre  # fault
        # + return mass * size * (distance + near) / (near * distance) ** 2

    tides = jax.vmap(tide)(masses, distance)
    return tides, tides / jnp.sum(tides)


@fault("overflow", "non-finite")
@source("Herbie's logistic functions; Bradley-Terry by hand")
@inputs(
    "12 *70 @3116; 40x2 int 0..12 @3117", lambda: integers(3118, 2, 40).astype(bool)
)
def elo_loss_log_of_one_plus_exp(strengths, games, results):
    """Fits Bradley-Terry strengths on a long scale: log(1 + exp(gap))."""

    def loss_of(strengths):
        gap = strengths[games[:, 1]] - strengths[games[:, 0]]
        gap = jnp.where(results, gap, -gap)
        return jnp.mean(jnp.log(1.0 + jnp.exp(gap)))  # fault
        # + return jnp.mean(jax.nn.softplus(gap))

    loss, grad = jax.value_and_grad(loss_of)(strengths)
    return loss, strengths - 4.0 * grad


@fault("cancellation", policy="fp32")
@source("Demmel: the values of (x - 2)^9 expanded, near its root")
@inputs("6x10 0.93..1.07 @3120; 10x3 w @3121")
def seventh_power_expanded(x, w):
    """A feature (x - 1)^7 near 1, by the expanded polynomial and Horner's rule."""
    coefficients = jnp.array([1.0, -7.0, 21.0, -35.0, 35.0, -21.0, 7.0, -1.0])  # -
    value = jnp.zeros_like(x)  # -
    # + value = (x - 1.0) ** 7
    for c in coefficients:  # -
        value = value * x + c  # fault
    scaled = value / jnp.max(jnp.abs(value))
    return scaled, jnp.tanh(scaled @ w)


@fault("cancellation", policy="fp32")
@source("Higham, Goldberg: exp(-x) by its Taylor series")
@inputs("8 9..14 @3122; 8 0.9..1.1 @3123")
def decay_by_alternating_series(times, rates):
    """Survival exp(-rate t) by its Taylor series, term after term in a loop."""
    z = -rates * times  # -

    def add(n, carry):  # -
        term, total = carry
        term = term * z / (n + 1).astype(jnp.float32)
        return term, total + term  # fault

    one = jnp.ones_like(z)  # -
    _, survival = jax.lax.fori_loop(0, 60, add, (one, one))  # -
    # + survival = jnp.exp(-rates * times)
    return survival, survival * rates


def huber_arguments():
    params = {"in": weight(3140, 6, 12), "out": weight(3141, 12, 1)}
    x = normal(3142, 32, 6)
    exact = np.tanh(x @ params["in"]) @ params["out"]
    return params, x, (exact + 3e-4 * normal(3143, 32, 1)).astype(np.float32)


@fault("cancellation", policy="fp32")
@source("robust losses (Barron): sqrt(1 + r^2) - 1 is zero for small r")
@inputs(by=huber_arguments)
def pseudo_huber_of_small_residuals(params, x, y):
    """The pseudo-Huber loss sqrt(1 + r^2) - 1 when residuals are already small."""

    def loss_of(params):
        r = jnp.tanh(x @ params["in"]) @ params["out"] - y
        return jnp.mean(jnp.sqrt(1.0 + r * r) - 1.0)  # fault
        # + return jnp.mean(r * r / (jnp.sqrt(1.0 + r * r) + 1.0))

    return jax.value_and_grad(loss_of)(params)


@fault("non-finite", "singular")
@source("TRL and verl: NaN advantages where a group's rewards are all equal")
@inputs(
    "in: 5x8 w @3151, out: 8x4 w; 6x8x5 @3153; 6x8 int 0..2 @3150 as f32 [2]=1",
    "6x8 int 0..4 @3154",
)
def group_with_equal_rewards(params, x, rewards, actions):
    """GRPO: rewards of a group minus their mean over their deviation; all equal."""
    mean = rewards.mean(1, keepdims=True)
    deviation = jnp.sqrt(jnp.mean((rewards - mean) ** 2, axis=1, keepdims=True))
    advantage = (rewards - mean) / deviation  # fault
    # + advantage = (rewards - mean) / (deviation + 1e-4)

    def loss_of(params):
        scores = jax.nn.log_softmax(jnp.tanh(x @ params["in"]) @ params["out"])
        chosen = jnp.take_along_axis(scores, actions[..., None], -1)[..., 0]
        return -jnp.mean(advantage * chosen)

    return advantage, jax.grad(loss_of)(params)


def smoothing_arguments():
    target = uniform(3160, 10, 8)
    target[target < 0.6] = 0.0
    target[:, 0] = 0.5
    target /= target.sum(-1, keepdims=True)
    return "12x8 w @3161; 10x12 @3162", target


@fault("non-finite", "singular")
@source("KLDivLoss with probability targets written by hand: 0 * log 0")
@inputs(by=smoothing_arguments)
def divergence_from_sparse_teacher(params, x, target):
    """Distillation: the divergence from a teacher whose top-k is zero elsewhere."""
    student = jax.nn.log_softmax(layer_norm(x) @ params)
    terms = target * (jnp.log(target) - student)  # fault
    # + safe = jnp.where(target > 0, target, 1.0)
    # + terms = target * (jnp.log(safe) - student)
    return terms.sum(-1).mean(), jnp.argmax(student, -1)


def dice_arguments():
    mask = integers(3170, 2, 64, 4).astype(np.float32)
    mask[:, 3] = 0.0
    params = weight(3171, 6, 4, 3.0)
    params[:, 3] = -np.abs(params[:, 3])
    return params, np.abs(normal(3172, 64, 6)), mask


@fault("non-finite", "singular")
@source("MONAI and segmentation_models issues: NaN Dice of an empty class")
@inputs(by=dice_arguments)
def dice_of_absent_class(params, image, mask):
    """The Dice coefficient of every class of a segmentation; one is not there."""
    scores = jax.nn.sigmoid(image @ params - 2.0)
    chosen = (scores > 0.5).astype(jnp.float32)
    both = jnp.sum(chosen * mask, axis=0)
    dice = 2.0 * both / (chosen.sum(0) + mask.sum(0))  # fault
    # + dice = (2.0 * both + 1.0) / (chosen.sum(0) + mask.sum(0) + 1.0)
    return dice, 1.0 - dice.mean()


@fault("cancellation")
@source("accelerator back ends: tanhshrink as x - tanh(x) is zero near zero")
@inputs(
    {
        "params": {
            "encode": "kernel: 8x16 *0.0001 @400",
            "decode": "kernel: 16x4 *0.25 @401",
        }
    },
    "12x8 @402; 12x4 *0.3 @403",
)
def tanhshrink_of_small_codes(variables, codes, targets):
    """A sparse-coding layer in Linen whose activation is x - tanh(x)."""

    class Shrink(nn.Module):  # -
        @nn.compact
        def __call__(self, x):
            h = nn.Dense(16, name="encode", use_bias=False)(x)
            small = h - jnp.tanh(h)  # fault
            code = small / jnp.max(jnp.abs(small))
            return nn.Dense(4, name="decode", use_bias=False)(code), code

    # + class Shrink(nn.Module):
    # +     @nn.compact
    # +     def __call__(self, x):
    # +         h = nn.Dense(16, name="encode", use_bias=False)(x)
    # +         near = jnp.clip(h, -0.1, 0.1)
    # +         s = near * near
    # +         cubic = (
    # +             near * s * (1 / 3 - s * (2 / 15 - s * (17 / 315 - s * 62 / 2835)))
    # +         )
    # +         small = jnp.where(jnp.abs(h) < 0.1, cubic, h - jnp.tanh(h))
    # +         code = small / jnp.max(jnp.abs(small))
    # +         return nn.Dense(4, name="decode", use_bias=False)(code), code

    model = Shrink()

    def loss(v):
        out, code = model.apply(v, codes)
        return jnp.mean(jnp.square(out - targets)), code

    (value, code), grads = jax.value_and_grad(loss, has_aux=True)(variables)
    return value, code, grads["params"]["decode"]["kernel"]


@fault("cancellation", "absorption")
@source("TensorFlow issue on SigmoidGrad: y (1 - y) for large positive inputs")
@inputs("gate: 8x12 *0.15 @410, bias: 12 =16, value: 8x12 *0.4; 32x8 @412; 32x12 @413")
def gate_gradient_from_its_output(params, x, y):
    """A gate with its own backward pass, as a fused kernel has it: s (1 - s)."""

    @jax.custom_vjp
    def gate(v):
        return jax.nn.sigmoid(v)

    def forward(v):
        s = jax.nn.sigmoid(v)  # -
        return s, s  # -
        # + return jax.nn.sigmoid(v), v

    def backward(s, g):  # -
        closing = 1.0 - s  # fault
        return (g * s * closing,)

    # + def backward(v, g):
    # +     return (g * jax.nn.sigmoid(v) * jax.nn.sigmoid(-v),)

    gate.defvjp(forward, backward)

    def loss(p):
        opened = gate(x @ p["gate"] + p["bias"])
        out = (x @ p["value"]) * opened
        return jnp.mean(jnp.square(out - y))

    grads = jax.grad(loss)(params)
    return grads["gate"], grads["bias"], grads["value"]


def divergence_arguments():
    view = normal(422, 16, 8)
    views = np.stack([view, view * np.float32(1 + 2.0**-8)])
    return "in: 8x16 *0.3 @420, out: 16x10", views


@fault("cancellation", policy="fp32")
@source("SciPy and forums: H(m) - (H(p) + H(q)) / 2 is negative for close p, q")
@inputs(by=divergence_arguments)
def jensen_shannon_of_close_views(params, views):
    """Jensen-Shannon divergence between the predictions for two views."""

    def entropy(p):  # -
        return -jnp.sum(p * jnp.log(p), axis=-1)

    h = jnp.tanh(views @ params["in"])
    p, q = jax.nn.softmax(h @ params["out"], axis=-1)
    apart = entropy(0.5 * (p + q))  # -
    alone = 0.5 * (entropy(p) + entropy(q))  # -
    divergence = apart - alone  # fault
    # + gap = (p - q) / (p + q)
    # + s = gap * gap
    # + series = s * (1 + s * (1 / 6 + s * (1 / 15 + s / 28)))
    # + divergence = 0.25 * jnp.sum((p + q) * series, axis=-1)
    return divergence, jnp.sqrt(jnp.maximum(divergence, 0.0)).mean()


def frechet_arguments():
    real = normal(432, 128, 8)
    return "in: 8x32 *0.5 @430, out: 32x24", real, real[::-1] * np.float32(1.0001)


@fault("cancellation", policy="fp32")
@source("FID implementations: tr A + tr B - 2 tr sqrt(AB) of nearly equal sets")
@inputs(by=frechet_arguments)
def frechet_distance_expanded(params, real, fake):
    """The Frechet distance between features, with diagonal covariances."""

    def moments(x):
        h = jax.nn.relu(x @ params["in"]) @ params["out"]
        centre = jnp.mean(h, axis=0)
        return centre, jnp.mean(jnp.square(h - centre), axis=0)

    (m1, v1), (m2, v2) = moments(real), moments(fake)
    shift = jnp.sum(jnp.square(m1 - m2))
    spread = jnp.sum(v1) + jnp.sum(v2) - 2.0 * jnp.sum(jnp.sqrt(v1 * v2))  # fault
    # + spread = jnp.sum(jnp.square((v1 - v2) / (jnp.sqrt(v1) + jnp.sqrt(v2))))
    return shift + spread, spread


@fault("cancellation", "singular")
@source("DimeNet ports: closed forms of spherical Bessel functions near zero")
@inputs(
    "roots: f32 4.493409 7.725252 10.904122 14.066194, "
    "norms: f32 8000 5000 4000 3000, hidden: 4x12 *0.5 @441, out: 12x3 *0.3",
    lambda: np.random.default_rng(440).uniform(1e-4, 6e-4, (10, 6)).astype(np.float32),
    "f32 5",
)
def spherical_bessel_at_short_range(params, gaps, cutoff):
    """A directional message block with spherical Bessel functions of order one."""
    x = gaps[..., None] / cutoff * params["roots"]
    bessel = jnp.sin(x) / (x * x) - jnp.cos(x) / x  # fault
    # + s = jnp.minimum(x * x, 0.25)
    # + near = x / 3 * (1 - s / 10 * (1 - s / 28 * (1 - s / 54 * (1 - s / 88))))
    # + far = jnp.where(x < 0.5, 1.0, x)
    # + bessel = jnp.where(
    # +     x < 0.5, near, jnp.sin(far) / (far * far) - jnp.cos(far) / far
    # + )
    basis = bessel * params["norms"]
    filters = jax.nn.silu(basis @ params["hidden"])
    fade = 0.5 * (jnp.cos(jnp.pi * gaps / cutoff) + 1.0)
    messages = (filters @ params["out"]) * fade[..., None]
    return basis, messages.sum(axis=1)


def dose_arguments():
    rng = np.random.default_rng(460)
    cleared = rng.uniform(0.2, 0.4, 16).astype(np.float32)
    apart = 1 + rng.integers(5, 60, 16) * rng.choice([-1, 1], 16) * 2.0**-22
    absorbed = (cleared * apart).astype(np.float32)
    volume = rng.uniform(20, 40, 16).astype(np.float32)
    return "f32 250", volume, absorbed, cleared, "24 even 0.25..12"


@fault("singular", "cancellation", policy="fp32")
@source("pharmacokinetic forums: the one-compartment formula at ka near ke")
@inputs(by=dose_arguments)
def bateman_with_equal_rates(dose, volume, absorbed, cleared, times):
    """Drug in blood after a tablet: the Bateman function, rates nearly equal."""
    strength = dose / volume * absorbed
    left = jnp.exp(-cleared * times[:, None])
    taken = jnp.exp(-absorbed * times[:, None])  # -
    # + taken = jnp.expm1(-(absorbed - cleared) * times[:, None])
    level = strength * (left - taken) / (absorbed - cleared)  # fault
    # + level = strength * left * -taken / (absorbed - cleared)
    area = jnp.sum(0.5 * (level[1:] + level[:-1]) * jnp.diff(times)[:, None], axis=0)
    return level, area, jnp.max(level, axis=0)
