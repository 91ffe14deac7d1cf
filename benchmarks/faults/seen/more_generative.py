"""Autoencoders, flows, diffusion, sampling of categories."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import mlp, mlp_params, normal, uniform


def vae_half_variance(p, x, noise):
    """A VAE's loss whose posterior variance is made in FP16."""

    def loss(p):
        mean, log_var = jnp.split(mlp(p["enc"], x), 2, axis=-1)
        z = mean + jnp.exp(0.5 * log_var) * noise
        var = jnp.exp(log_var.astype(jnp.float16))  # fault
        var = var.astype(jnp.float32)
        kl = 0.5 * jnp.sum(var + jnp.square(mean) - 1.0 - jnp.log(var), axis=-1)
        recon = jnp.sum(jnp.square(mlp(p["dec"], z) - x), axis=-1)
        return jnp.mean(recon + kl)

    return jax.value_and_grad(loss)(p)


def vae_fp32_variance(p, x, noise):
    def loss(p):
        mean, log_var = jnp.split(mlp(p["enc"], x), 2, axis=-1)
        z = mean + jnp.exp(0.5 * log_var) * noise
        kl = 0.5 * jnp.sum(jnp.exp(log_var) + jnp.square(mean) - 1.0 - log_var, axis=-1)
        recon = jnp.sum(jnp.square(mlp(p["dec"], z) - x), axis=-1)
        return jnp.mean(recon + kl)

    return jax.value_and_grad(loss)(p)


def vae_arguments():
    p = {"enc": mlp_params(800, 16, 32, 8), "dec": mlp_params(810, 4, 32, 16)}
    p["enc"][1]["b"][4:] -= 15.0
    p["enc"][1]["w"][:, 4:] *= 4.0
    return p, normal(801, 32, 16), normal(802, 32, 4)


def diffusion_half_alphas(params, x, noise, betas):
    """Log signal-to-noise ratios that weigh a diffusion loss, from FP16 products."""
    log_bar = jnp.cumsum(jnp.log1p(-betas))
    bar = jnp.exp(log_bar).astype(jnp.float16)  # fault
    bar = bar.astype(jnp.float32)
    log_snr = jnp.log(bar) - jnp.log1p(-jnp.exp(log_bar))
    noisy = jnp.exp(0.5 * log_bar)[:, None] * x
    noisy = noisy + jnp.sqrt(-jnp.expm1(log_bar))[:, None] * noise
    features = jnp.concatenate([noisy, 0.1 * log_snr[:, None]], axis=-1)
    error = jnp.sum(jnp.square(mlp(params, features) - noise), axis=-1)
    return log_snr, jnp.mean(error)


def diffusion_log_alphas(params, x, noise, betas):
    log_bar = jnp.cumsum(jnp.log1p(-betas))
    log_snr = log_bar - jnp.log1p(-jnp.exp(log_bar))
    noisy = jnp.exp(0.5 * log_bar)[:, None] * x
    noisy = noisy + jnp.sqrt(-jnp.expm1(log_bar))[:, None] * noise
    features = jnp.concatenate([noisy, 0.1 * log_snr[:, None]], axis=-1)
    error = jnp.sum(jnp.square(mlp(params, features) - noise), axis=-1)
    return log_snr, jnp.mean(error)


def diffusion_arguments():
    betas = np.linspace(0.01, 0.35, 100).astype(np.float32)
    return mlp_params(820, 9, 32, 8), normal(821, 100, 8), normal(822, 100, 8), betas


def noise_level_bf16(params, x0, noise, bar):
    """Noise is predicted from a prediction of the image, for low noise levels."""
    rest = 1.0 - bar
    noisy = jnp.sqrt(bar)[:, None] * x0 + jnp.sqrt(rest)[:, None] * noise
    guess = x0 + 0.001 * jnp.tanh(mlp(params, noisy))
    variance = 1.0 - bar.astype(jnp.bfloat16)  # fault
    variance = variance.astype(jnp.float32)
    eps = (noisy - jnp.sqrt(bar)[:, None] * guess) / jnp.sqrt(variance)[:, None]
    return eps, jnp.mean(jnp.square(eps - noise))


def noise_level_fp32(params, x0, noise, bar):
    rest = 1.0 - bar
    noisy = jnp.sqrt(bar)[:, None] * x0 + jnp.sqrt(rest)[:, None] * noise
    guess = x0 + 0.001 * jnp.tanh(mlp(params, noisy))
    eps = (noisy - jnp.sqrt(bar)[:, None] * guess) / jnp.sqrt(rest)[:, None]
    return eps, jnp.mean(jnp.square(eps - noise))


def noise_level_arguments():
    bar = np.linspace(0.9994, 0.96, 24).astype(np.float32)
    return mlp_params(830, 8, 32, 8), normal(831, 24, 8), normal(832, 24, 8), bar


def gumbel_bf16_uniform(params, codebook, x, u):
    """A discrete autoencoder samples codes by Gumbel noise made in BF16."""
    logits = mlp(params, x)
    noise = -jnp.log(-jnp.log(u.astype(jnp.bfloat16)))  # fault
    soft = jax.nn.softmax((logits + noise.astype(jnp.float32)) / 0.7, axis=-1)
    decoded = soft @ codebook
    return jnp.argmax(soft, axis=-1), jnp.mean(jnp.square(decoded - x))


def gumbel_fp32_uniform(params, codebook, x, u):
    logits = mlp(params, x)
    noise = -jnp.log(-jnp.log(u))
    soft = jax.nn.softmax((logits + noise) / 0.7, axis=-1)
    decoded = soft @ codebook
    return jnp.argmax(soft, axis=-1), jnp.mean(jnp.square(decoded - x))


def gumbel_arguments():
    u = uniform(842, 1e-4, 0.9995, 24, 64)
    return mlp_params(840, 8, 24, 64), normal(841, 64, 8), normal(843, 24, 8), u


def flow_product_of_scales(layers, x):
    """Likelihood under affine couplings whose Jacobian is a product of scales."""

    def coupling(state, p):
        x, log_det = state
        a, b = jnp.split(x, 2, axis=-1)
        scale = jnp.exp(jnp.tanh(a @ p["s"]) + p["bias"])
        b = b * scale + a @ p["t"]
        volume = jnp.prod(scale, axis=-1)  # fault
        log_det = log_det + jnp.log(volume)
        return (jnp.concatenate([b, a], axis=-1) * 0.5, log_det), None

    state = (x, jnp.zeros(x.shape[0]))
    (z, log_det), _ = jax.lax.scan(coupling, state, layers)
    prior = -0.5 * jnp.sum(jnp.square(z), axis=-1)
    return prior + log_det, jnp.mean(prior + log_det)


def flow_sum_of_logs(layers, x):
    def coupling(state, p):
        x, log_det = state
        a, b = jnp.split(x, 2, axis=-1)
        log_scale = jnp.tanh(a @ p["s"]) + p["bias"]
        b = b * jnp.exp(log_scale) + a @ p["t"]
        log_det = log_det + jnp.sum(log_scale, axis=-1)
        return (jnp.concatenate([b, a], axis=-1) * 0.5, log_det), None

    state = (x, jnp.zeros(x.shape[0]))
    (z, log_det), _ = jax.lax.scan(coupling, state, layers)
    prior = -0.5 * jnp.sum(jnp.square(z), axis=-1)
    return prior + log_det, jnp.mean(prior + log_det)


def flow_arguments():
    layers = {
        "s": normal(850, 3, 64, 64, scale=0.05),
        "t": normal(851, 3, 64, 64, scale=0.05),
        "bias": np.array([1.55, 0.2, -0.3], np.float32)[:, None] * np.ones((3, 64)),
    }
    layers["bias"] = layers["bias"].astype(np.float32)
    return layers, normal(852, 12, 128)


FAULTS = (
    Fault(
        name="vae-posterior-variance-in-half",
        kinds=("underflow",),
        faulty=vae_half_variance,
        healthy=vae_fp32_variance,
        arguments=vae_arguments,
        policy="bf16",
        source="VAE issues: KL is inf once exp(log_var) vanishes in FP16",
    ),
    Fault(
        name="diffusion-alpha-products-in-half",
        kinds=("underflow",),
        faulty=diffusion_half_alphas,
        healthy=diffusion_log_alphas,
        arguments=diffusion_arguments,
        policy="bf16",
        source="diffusion issues: log SNR of the last steps is -inf in half precision",
    ),
    Fault(
        name="noise-level-one-minus-bf16-alpha",
        kinds=("cancellation", "coarse"),
        faulty=noise_level_bf16,
        healthy=noise_level_fp32,
        arguments=noise_level_arguments,
        policy="bf16",
        source="samplers run wholly in BF16: 1 - alpha_bar is 0 for the last steps",
    ),
    Fault(
        name="gumbel-noise-from-bf16-uniform",
        kinds=("singular", "coarse", "non-finite"),
        faulty=gumbel_bf16_uniform,
        healthy=gumbel_fp32_uniform,
        arguments=gumbel_arguments,
        policy="bf16",
        source="Gumbel-softmax issues: a uniform draw that rounds to 1 gives inf",
    ),
    Fault(
        name="flow-volume-as-product",
        kinds=("overflow",),
        faulty=flow_product_of_scales,
        healthy=flow_sum_of_logs,
        arguments=flow_arguments,
        policy="bf16",
        source="normalizing flows: log of a product of scales instead of a sum of logs",
    ),
)
