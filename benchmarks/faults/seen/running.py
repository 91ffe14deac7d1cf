"""Running sums and states that are carried through a loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import normal


def boosting_arguments():
    features = normal(300, 64, 5)
    prices = 340 + features @ np.float32([1.0, -0.8, 0.5, 0.3, 0.0])
    prices = prices + normal(301, 64, scale=0.3)
    return features, prices.astype(np.float32), "120 int 0..5 @302; 120 *0.4 @303"


@fault("absorption", "stagnation", "coarse", policy="fp32")
@source("gradient boosting on accelerators: margins kept in half precision")
@inputs(by=boosting_arguments)
def b_boosted_predictions_in_half(features, prices, columns, cuts):
    """Boosted stumps for house prices; the predictions are stored in FP16."""

    def grow(predicted, stump):
        column, cut = stump
        left = (jnp.take(features, column, axis=1) < cut).astype(jnp.float32)
        residual = prices - predicted.astype(jnp.float32)  # -
        # + residual = prices - predicted
        low = jnp.sum(left * residual) / (jnp.sum(left) + 1.0)
        high = jnp.sum((1 - left) * residual) / (jnp.sum(1 - left) + 1.0)
        leaf = 0.05 * jnp.where(left > 0, low, high)  # -
        predicted = predicted + leaf.astype(predicted.dtype)  # fault
        # + predicted = predicted + 0.05 * jnp.where(left > 0, low, high)
        return predicted, jnp.mean(residual**2)

    base = jnp.round(jnp.mean(prices))
    start = jnp.full(prices.shape, base).astype(jnp.float16)  # -
    # + start = jnp.full(prices.shape, base)
    predicted, errors = jax.lax.scan(grow, start, (columns, cuts))
    lift = predicted.astype(jnp.float32) - base  # -
    return lift, errors  # -
    # + return predicted - base, errors


@fault("absorption", "stagnation")
@source("Glow's objective starts with -n log 256; terms are added in 16 bits")
@inputs(
    {
        "in": lambda: normal(310, 80, 128, 12, scale=0.08),
        "scale": lambda: normal(311, 80, 12, 128, scale=0.1),
        "bias": lambda: normal(312, 80, 128, scale=0.02, shift=0.07),
        "shift": lambda: normal(313, 80, 12, 128, scale=0.01),
    },
    lambda: (
        np.random.default_rng(314).integers(0, 256, (4, 2 * 128)).astype(np.float32)
    ),
)
def b_flow_log_determinant_in_bf16(layers, images):
    """Bits per pixel of a flow of 80 affine couplings over 8-bit pixels."""
    pixels = images.shape[-1]

    def couple(carry, layer):
        x, logdet = carry
        a, b = jnp.split(x, 2, axis=-1)
        h = jnp.tanh(a @ layer["in"])
        s = 0.2 * jnp.tanh(h @ layer["scale"] + layer["bias"])
        b = b * jnp.exp(s) + h @ layer["shift"]
        added = (jnp.sum(s, axis=-1) / np.log(2.0)).astype(logdet.dtype)  # -
        logdet = logdet + added  # fault
        # + logdet = logdet + jnp.sum(s, axis=-1) / np.log(2.0)
        return (jnp.concatenate([b, a], axis=-1), logdet), None

    x = images / 256.0 - 0.5
    levels = jnp.full(images.shape[0], -8.0 * pixels, jnp.bfloat16)  # -
    # + levels = jnp.full(images.shape[0], -8.0 * pixels, jnp.float32)
    (z, logdet), _ = jax.lax.scan(couple, (x, levels), layers)
    prior = -0.5 * jnp.sum(z * z, axis=-1) - 0.5 * pixels * np.log(2 * np.pi)
    bits = -(prior / np.log(2.0) + logdet.astype(jnp.float32)) / pixels  # -
    # + bits = -(prior / np.log(2.0) + logdet) / pixels
    return bits, logdet


def refinement_arguments():
    matrix = np.eye(24) + 0.1 * np.random.default_rng(320).standard_normal((24, 24))
    rough = np.linalg.inv(matrix + 0.03 * normal(321, 24, 24))
    return matrix.astype(np.float32), rough.astype(np.float32), "24x6 @322"


@fault("absorption", "coarse", "stagnation", policy="fp32")
@source("Carson and Higham: the solution is updated in the working precision")
@inputs(by=refinement_arguments)
def b_refinement_correction_in_bf16(matrix, inverse, right):
    """Iterative refinement of many right-hand sides with a rough inverse."""

    def refine(x, _):
        residual = right - matrix @ x.astype(jnp.float32)  # -
        # + residual = right - matrix @ x
        correction = inverse @ residual
        x = x + correction.astype(x.dtype)  # fault
        return x, None  # -
        # + return x + correction, None

    first = (inverse @ right).astype(jnp.bfloat16)  # -
    x, _ = jax.lax.scan(refine, first, None, length=10)  # -
    # + x, _ = jax.lax.scan(refine, inverse @ right, None, length=10)
    return x, jnp.max(jnp.abs(x), axis=0)


@fault("absorption", "stagnation", policy="fp32")
@source("filtering in short words: the variance stops falling (Bierman)")
@inputs("1800x16 +5 @330; f32 1")
def b_kalman_variance_in_bf16(series, noise):
    """A Kalman filter for the constant levels of 16 sensors."""

    def update(carry, y):
        level, variance = carry
        gain = variance / (variance + noise.astype(variance.dtype))  # -
        # + gain = variance / (variance + noise)
        variance = variance - gain * variance  # here
        level = level + gain.astype(jnp.float32) * (y - level)  # -
        # + level = level + gain * (y - level)
        return (level, variance), level

    start = (series[0], jnp.ones(series.shape[1], jnp.bfloat16))  # -
    # + start = (series[0], jnp.ones(series.shape[1]))
    (level, variance), levels = jax.lax.scan(update, start, series[1:])
    return variance, jnp.var(levels[-300:], axis=0), level


@fault("stagnation", "absorption", policy="fp16")
@source("path tracers: accumulation buffers of 16 bits darken after many passes")
@inputs("5x3 @340; f32 0.9 0.7 0.5; 24x3 @341")
def b_progressive_film_in_half(spheres, lights, directions):
    """A progressive renderer adds a sample per pass to a film in FP16."""

    def sample(film, jitter):
        rays = directions + 0.05 * jitter
        rays = rays / jnp.sqrt(jnp.sum(rays * rays, axis=-1, keepdims=True))
        along = rays @ spheres.T
        shade = jax.nn.softplus(4.0 * jnp.max(along, axis=-1, keepdims=True))
        radiance = shade * lights  # -
        film = film + radiance.astype(film.dtype)  # fault
        return film, None  # -
        # + return film + shade * lights, None

    passes = 5000
    angle = jnp.arange(passes)[:, None] * jnp.array(
        [0.61803399, 0.75487767, 0.56984029]
    )
    jitters = 2.0 * (angle - jnp.floor(angle)) - 1.0
    film = jnp.zeros((directions.shape[0], 3), jnp.float16)  # -
    # + film = jnp.zeros((directions.shape[0], 3), jnp.float32)
    film, _ = jax.lax.scan(sample, film, jitters)
    image = film.astype(jnp.float32) / passes  # -
    # + image = film / passes
    return image, image / (1.0 + image)


@fault("stagnation", "absorption")
@source("DeepSeek-V3 ports: the bias that balances experts must stay in FP32")
@inputs("1300x16x6 @350; 6x8 *0.3 @351; f32 4 3 3.5 -3 -4 -3.5 3 -3")
def b_router_bias_in_bf16(tokens, router, skew):
    """Experts are balanced by a bias that moves by 0.0005 per batch."""
    experts = router.shape[1]

    def balance(bias, batch):
        scores = jax.nn.sigmoid(batch @ router + skew)
        _, chosen = jax.lax.top_k(scores + bias.astype(jnp.float32), 2)  # -
        # + _, chosen = jax.lax.top_k(scores + bias, 2)
        load = jnp.mean(jax.nn.one_hot(chosen, experts), axis=(0, 1))
        error = jnp.sign(1.0 / experts - load)  # -
        bias = bias + (5e-4 * error).astype(bias.dtype)  # fault
        return bias, load  # -
        # + return bias + 5e-4 * jnp.sign(1.0 / experts - load), load

    start = jnp.zeros(experts, jnp.bfloat16)  # -
    bias, loads = jax.lax.scan(balance, start, tokens)  # -
    # + bias, loads = jax.lax.scan(balance, jnp.zeros(experts), tokens)
    return bias, jnp.mean(loads[-50:], axis=0)


@fault("stagnation", "absorption")
@source("environment wrappers: statistics in the dtype of the observations")
@inputs(
    {
        "in": np.float32([[-0.3, -0.6, 0.1, -0.2], [-0.1, -0.2, 0.2, -0.1]]),
        "out": lambda: (
            np.full((4, 1), 30.0, np.float32) * np.float32([[1], [1], [-0.2], [1]])
        ),
    },
    "12x2 *0.05 @360; 1500x12 *0.2 @361",
)
def b_episode_return_in_bf16(policy, starts, gusts):
    """A wrapper of a pole-balancing environment adds up the rewards of episodes."""

    def step(carry, gust):
        state, total = carry
        push = jnp.tanh(state @ policy["in"]) @ policy["out"]
        angle, speed = state[:, 0], state[:, 1]
        speed = speed + 0.02 * (9.8 * jnp.sin(angle) + push[:, 0] + gust)
        angle = angle + 0.02 * speed
        reward = 0.05 * jnp.exp(-10.0 * angle**2) - 1e-4 * push[:, 0] ** 2
        total = total + reward.astype(total.dtype)  # fault
        return (jnp.stack([angle, speed], axis=-1), total), None  # -
        # + return (jnp.stack([angle, speed], axis=-1), total + reward), None

    total = jnp.zeros(starts.shape[0], jnp.bfloat16)  # -
    # + total = jnp.zeros(starts.shape[0])
    (state, total), _ = jax.lax.scan(step, (starts, total), gusts)
    total = total.astype(jnp.float32)  # -
    return total, jnp.max(total), state


@fault("stagnation", "absorption", policy="tf32")
@source("volume rendering under autocast: many thin steps along a ray")
@inputs(
    "waves: 3x16 @370, phase: 16, out: 16x1 *0.2; 16x3 *0.4 @375; "
    "from: 12x3 @373, to: 12x3"
)
def b_optical_depth_in_bf16(density, colour, rays):
    """Light through smoke: the optical depth grows along 600 short steps."""
    steps = 600

    def march(carry, i):
        depth, light = carry
        place = rays["from"] + rays["to"] * ((i + 0.5) / steps)
        waves = jnp.sin(place @ density["waves"] + density["phase"])
        sigma = jax.nn.softplus(waves @ density["out"])[:, 0]
        part = sigma * (3.0 / steps)
        depth = depth + part.astype(depth.dtype)  # fault
        # + depth = depth + part
        seen = jnp.exp(-depth.astype(jnp.float32)) * part  # -
        # + seen = jnp.exp(-depth) * part
        light = light + seen[:, None] * jax.nn.sigmoid(waves @ colour)
        return (depth, light), None

    count = rays["from"].shape[0]
    start = (jnp.zeros(count, jnp.bfloat16), jnp.zeros((count, 3)))  # -
    # + start = (jnp.zeros(count), jnp.zeros((count, 3)))
    (depth, light), _ = jax.lax.scan(march, start, jnp.arange(steps))
    return light, jnp.exp(-depth.astype(jnp.float32))  # -
    # + return light, jnp.exp(-depth)
