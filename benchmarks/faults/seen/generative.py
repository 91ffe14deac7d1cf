"""Generative models: diffusion, flows, autoencoders, adversaries, sampling."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp, mlp_params
from benchmarks.faults.parts import convolution, layer_norm, normal, weight


def denoise(params, x, t):
    """A small network that predicts noise."""
    features = jnp.stack([jnp.sin(3 * t), jnp.cos(3 * t), t])
    h = jax.nn.silu(x @ params["in"] + features @ params["time"])
    return layer_norm(h) @ params["out"]


def denoiser(seed):
    names = {"in": (16, 32), "time": (3, 32), "out": (32, 16)}
    return {n: weight(seed + i, *s) for i, (n, s) in enumerate(names.items())}


@fault("underflow", "singular", "non-finite")
@source("diffusers: alphas_cumprod in FP16 is zero at the last cosine step")
@inputs(
    lambda: denoiser(360),
    "32x16 @363; 32x16 @359",
    lambda: np.append(np.linspace(0.02, 0.98, 31), 0.9999).astype(np.float32),
)
def cosine_schedule_ends_at_zero(params, clean, noise, times):
    """A diffusion loss with min-SNR weights on a cosine schedule."""
    angle = (times + 0.008) / 1.008 * jnp.pi / 2
    kept = (jnp.cos(angle) ** 2).astype(jnp.float16)  # fault
    # + kept = jnp.cos(angle) ** 2
    kept = kept.astype(jnp.float32)  # -
    snr = kept / (1 - kept + 1e-4)
    weights = jnp.minimum(snr, 5.0) / snr
    signal, spread = jnp.cos(angle), jnp.sin(angle)

    def loss_of(params):
        x = signal[:, None] * clean + spread[:, None] * noise
        guess = jax.vmap(denoise, in_axes=(None, 0, 0))(params, x, times)
        return jnp.mean(weights * jnp.mean((guess - noise) ** 2, axis=-1))

    return jax.value_and_grad(loss_of)(params)


@fault("coarse", "cancellation")
@source("pipelines under .to(bf16): 1 - alphas_cumprod of early steps is 0")
@inputs(lambda: denoiser(385), "16x16 @388; 100 even 0.0001..0.004")
def ddpm_table_in_bf16(params, x, betas):
    """Posterior variances of DDPM from a table in the model's BF16."""
    kept = jnp.cumprod(1 - betas).astype(jnp.bfloat16)  # fault
    kept = kept.astype(jnp.float32)  # -
    before = jnp.concatenate([jnp.ones(1), kept[:-1]])  # -
    # + gone = -jnp.expm1(jnp.cumsum(jnp.log1p(-betas)))
    # + before = jnp.concatenate([jnp.zeros(1), gone[:-1]])
    variance = betas * (1 - before + 1e-6) / (1 - kept + 1e-6)  # -
    # + variance = betas * (before + 1e-6) / (gone + 1e-6)

    def step(x, now):
        beta, kept, variance, t = now  # -
        # + beta, gone, variance, t = now
        noise = denoise(params, x, t)
        x = (x - beta / jnp.sqrt(1 - kept + 1e-6) * noise) / jnp.sqrt(1 - beta)  # -
        # + x = (x - beta / jnp.sqrt(gone + 1e-6) * noise) / jnp.sqrt(1 - beta)
        return x + jnp.sqrt(variance) * 0.1, None

    t = jnp.arange(betas.shape[0]) / 1000.0
    table = jax.tree.map(lambda a: a[::-1], (betas, kept, variance, t))  # -
    # + table = jax.tree.map(lambda a: a[::-1], (betas, gone, variance, t))
    return jax.lax.scan(step, x, table)[0], variance


@fault("absorption", "stagnation")
@source("flow matching samplers: latents kept in BF16 over many small steps")
@inputs(lambda: denoiser(389), "16x16 *2 @392; f32 1")
def euler_steps_on_bf16_latents(params, x, count):
    """A flow matching sampler of many Euler steps on BF16 latents."""

    def step(x, t):
        field = denoise(params, x.astype(jnp.float32), t)  # -
        # + field = denoise(params, x.astype(jnp.bfloat16).astype(jnp.float32), t)
        move = (0.005 * field).astype(jnp.bfloat16)
        x = x + move  # fault
        return x, None  # -
        # + return x + move.astype(jnp.float32), None

    times = count * jnp.arange(200) / 200
    x, _ = jax.lax.scan(step, x.astype(jnp.bfloat16), times)  # -
    return x.astype(jnp.float32)  # -
    # + return jax.lax.scan(step, x, times)[0]


def kl_arguments():
    shift = np.zeros(8, np.float32)
    shift[3] = 11.5
    params = {
        "first": normal(364, 3, 3, 3, 8, scale=0.2),
        "second": normal(365, 3, 3, 8, 8, scale=0.15),
        "mean": weight(366, 128, 8),
        "spread": weight(367, 128, 8),
        "shift": shift,
        "decode": weight(368, 8, 768),
    }
    return params, "6x16x16x3 @369; 6x8 @370"


@fault("overflow", policy="fp16")
@source("VAE training under FP16: exp(logvar) of an early encoder is Inf")
@inputs(by=kl_arguments)
def vae_variance_beyond_half(params, images, noise):
    """A convolutional VAE in FP16: the KL term of its latent code."""
    h = jax.nn.relu(convolution(images, params["first"], 2))
    h = jax.nn.relu(convolution(h, params["second"], 2)).reshape(len(images), -1)
    mean = (h @ params["mean"]).astype(jnp.float16)
    log_variance = (h @ params["spread"] + params["shift"]).astype(jnp.float16)
    # + log_variance = log_variance.astype(jnp.float32)
    variance = jnp.exp(log_variance)  # here
    kl = variance.astype(jnp.float32) + mean.astype(jnp.float32) ** 2  # -
    # + kl = variance + mean.astype(jnp.float32) ** 2
    # + kl = 0.5 * (kl - 1.0 - log_variance).sum(-1)
    kl = 0.5 * (kl - 1.0 - log_variance.astype(jnp.float32)).sum(-1)  # -
    z = mean.astype(jnp.float32) + noise
    picture = jnp.tanh(z @ params["decode"])
    return jnp.mean((picture - images.reshape(len(images), -1)) ** 2), kl.mean()


def gumbel_arguments():
    params = {"in": weight(371, 12, 32), "codes": weight(372, 32, 32)}
    u = np.random.default_rng(374).uniform(0.01, 0.99, (40, 32))
    u[3, 4], u[7, 30], u[7, 2] = 0.9991, 0.9993, 0.9985
    return params | {"book": weight(373, 32, 8)}, "40x12 @375", np.float32(u)


@fault("coarse", "singular", "non-finite")
@source("gumbel_softmax in half precision: a uniform number of exactly one")
@inputs(by=gumbel_arguments)
def gumbel_uniform_rounds_to_one(params, x, uniform_of):
    """Straight-through Gumbel softmax; the uniform numbers are drawn in BF16."""
    h = jax.nn.relu(x @ params["in"])
    logits = h @ params["codes"]
    u = uniform_of.astype(jnp.bfloat16)  # fault
    noise = -jnp.log(-jnp.log(u.astype(jnp.float32)))  # -
    # + noise = -jnp.log(-jnp.log(uniform_of))
    soft = jax.nn.softmax((logits + noise) / 0.7)
    return soft @ params["book"]  # -
    # + return soft.astype(jnp.bfloat16).astype(jnp.float32) @ params["book"]


@fault("overflow", "non-finite")
@source("spectral norm written by hand, normalized once after the loop")
@inputs("g1: 8x32 w @376, g2: 32x24 w, d1: 24x32, d2: 32x1 w; 16x8 @380; 24 @381")
def power_iteration_without_norm(params, z, vector):
    """A GAN's discriminator loss with spectral normalization by power iteration."""
    fake = jnp.tanh(jax.nn.relu(z @ params["g1"]) @ params["g2"])
    w = params["d1"]
    gram = w @ w.T

    def iterate(v, _):
        v = gram @ v  # here
        return v, None  # -
        # + return v / jnp.sqrt(jnp.sum(v * v)), None

    v, _ = jax.lax.scan(iterate, vector, None, length=60)
    v = v / jnp.sqrt(jnp.sum(v * v))  # -
    sigma = jnp.sqrt(v @ (gram @ v))
    h = jax.nn.leaky_relu(fake @ (w / sigma), 0.2)
    return jax.nn.softplus(h @ params["d2"]).mean(), sigma


@fault("singular", "non-finite")
@source("generation servers: temperature=0 requests give NaN probabilities")
@inputs("embed: 48x32 @382, up: 32x64 w, down: 64x32 w; i32 3 14 15 9; f32 0.7 0 1 0")
def temperature_zero_divides(params, tokens, temperature):
    """One decoding step, where a temperature of zero means greedy."""
    x = params["embed"][tokens]
    h = jax.nn.gelu(x @ params["up"]) @ params["down"] + x
    logits = layer_norm(h) @ params["embed"].T
    scaled = logits / temperature[:, None]  # fault
    # + greedy = temperature[:, None] == 0
    # + scaled = logits / jnp.where(greedy, 1.0, temperature[:, None])
    probs = jax.nn.softmax(scaled)  # -
    # + best = jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])
    # + probs = jnp.where(greedy, best, jax.nn.softmax(scaled))
    kept = jnp.where(probs >= jnp.sort(probs)[:, -8:-7], probs, 0)
    return kept / kept.sum(-1, keepdims=True)


def vae_arguments():
    p = {"enc": mlp_params(800, 16, 32, 8), "dec": mlp_params(810, 4, 32, 16)}
    p["enc"][1]["b"][4:] -= 15.0
    p["enc"][1]["w"][:, 4:] *= 4.0
    return p, "32x16 @801; 32x4 @802"


@fault("underflow")
@source("VAE issues: KL is inf once exp(log_var) vanishes in FP16")
@inputs(by=vae_arguments)
def vae_posterior_variance_in_half(p, x, noise):
    """A VAE's loss whose posterior variance is made in FP16."""

    def loss(p):
        mean, log_var = jnp.split(mlp(p["enc"], x), 2, axis=-1)
        z = mean + jnp.exp(0.5 * log_var) * noise
        var = jnp.exp(log_var.astype(jnp.float16))  # fault
        var = var.astype(jnp.float32)  # -
        kl = 0.5 * jnp.sum(var + jnp.square(mean) - 1.0 - jnp.log(var), axis=-1)  # -
        # + kl = 0.5 * jnp.sum(
        # +     jnp.exp(log_var) + jnp.square(mean) - 1.0 - log_var, axis=-1
        # + )
        recon = jnp.sum(jnp.square(mlp(p["dec"], z) - x), axis=-1)
        return jnp.mean(recon + kl)

    return jax.value_and_grad(loss)(p)


@fault("underflow")
@source("diffusion issues: log SNR of the last steps is -inf in half precision")
@inputs("mlp 9x32x8 @820; 100x8 @821; 100x8 @822; 100 even 0.01..0.35")
def diffusion_alpha_products_in_half(params, x, noise, betas):
    """Log signal-to-noise ratios that weigh a diffusion loss, from FP16 products."""
    log_bar = jnp.cumsum(jnp.log1p(-betas))
    bar = jnp.exp(log_bar).astype(jnp.float16)  # fault
    bar = bar.astype(jnp.float32)  # -
    log_snr = jnp.log(bar) - jnp.log1p(-jnp.exp(log_bar))  # -
    # + log_snr = log_bar - jnp.log1p(-jnp.exp(log_bar))
    noisy = jnp.exp(0.5 * log_bar)[:, None] * x
    noisy = noisy + jnp.sqrt(-jnp.expm1(log_bar))[:, None] * noise
    features = jnp.concatenate([noisy, 0.1 * log_snr[:, None]], axis=-1)
    error = jnp.sum(jnp.square(mlp(params, features) - noise), axis=-1)
    return log_snr, jnp.mean(error)


@fault("cancellation", "coarse")
@source("samplers run wholly in BF16: 1 - alpha_bar is 0 for the last steps")
@inputs("mlp 8x32x8 @830; 24x8 @831; 24x8 @832; 24 even 0.9994..0.96")
def noise_level_one_minus_bf16_alpha(params, x0, noise, bar):
    """Noise is predicted from a prediction of the image, for low noise levels."""
    rest = 1.0 - bar
    noisy = jnp.sqrt(bar)[:, None] * x0 + jnp.sqrt(rest)[:, None] * noise
    guess = x0 + 0.001 * jnp.tanh(mlp(params, noisy))
    variance = 1.0 - bar.astype(jnp.bfloat16)  # fault
    variance = variance.astype(jnp.float32)  # -
    eps = (noisy - jnp.sqrt(bar)[:, None] * guess) / jnp.sqrt(variance)[:, None]  # -
    # + eps = (noisy - jnp.sqrt(bar)[:, None] * guess) / jnp.sqrt(rest)[:, None]
    return eps, jnp.mean(jnp.square(eps - noise))


@fault("singular", "coarse", "non-finite")
@source("Gumbel-softmax issues: a uniform draw that rounds to 1 gives inf")
@inputs("mlp 8x24x64 @840; 64x8 @841; 24x8 @843; 24x64 0.0001..0.9995 @842")
def gumbel_noise_from_bf16_uniform(params, codebook, x, u):
    """A discrete autoencoder samples codes by Gumbel noise made in BF16."""
    logits = mlp(params, x)
    noise = -jnp.log(-jnp.log(u.astype(jnp.bfloat16)))  # fault
    # + noise = -jnp.log(-jnp.log(u))
    soft = jax.nn.softmax((logits + noise.astype(jnp.float32)) / 0.7, axis=-1)  # -
    # + soft = jax.nn.softmax((logits + noise) / 0.7, axis=-1)
    decoded = soft @ codebook
    return jnp.argmax(soft, axis=-1), jnp.mean(jnp.square(decoded - x))


def flow_arguments():
    layers = {
        "s": normal(850, 3, 64, 64, scale=0.05),
        "t": normal(851, 3, 64, 64, scale=0.05),
        "bias": np.array([1.55, 0.2, -0.3], np.float32)[:, None] * np.ones((3, 64)),
    }
    layers["bias"] = layers["bias"].astype(np.float32)
    return layers, "12x128 @852"


@fault("overflow")
@source("normalizing flows: log of a product of scales instead of a sum of logs")
@inputs(by=flow_arguments)
def flow_volume_as_product(layers, x):
    """Likelihood under affine couplings whose Jacobian is a product of scales."""

    def coupling(state, p):
        x, log_det = state
        a, b = jnp.split(x, 2, axis=-1)
        scale = jnp.exp(jnp.tanh(a @ p["s"]) + p["bias"])  # -
        b = b * scale + a @ p["t"]  # -
        # + log_scale = jnp.tanh(a @ p["s"]) + p["bias"]
        # + b = b * jnp.exp(log_scale) + a @ p["t"]
        volume = jnp.prod(scale, axis=-1)  # fault
        log_det = log_det + jnp.log(volume)  # -
        # + log_det = log_det + jnp.sum(log_scale, axis=-1)
        return (jnp.concatenate([b, a], axis=-1) * 0.5, log_det), None

    state = (x, jnp.zeros(x.shape[0]))
    (z, log_det), _ = jax.lax.scan(coupling, state, layers)
    prior = -0.5 * jnp.sum(jnp.square(z), axis=-1)
    return prior + log_det, jnp.mean(prior + log_det)
