"""Faults in generative models: diffusion, flows, VAEs, GANs, sampling."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import convolution, layer_norm, normal, weight


def denoise(params, x, t):
    """A small network that predicts noise."""
    features = jnp.stack([jnp.sin(3 * t), jnp.cos(3 * t), t])
    h = jax.nn.silu(x @ params["in"] + features @ params["time"])
    return layer_norm(h) @ params["out"]


def denoiser(seed):
    names = {"in": (16, 32), "time": (3, 32), "out": (32, 16)}
    return {n: weight(seed + i, *s) for i, (n, s) in enumerate(names.items())}


def min_snr_faulty(params, clean, noise, times):
    """A diffusion loss with min-SNR weights on a cosine schedule."""
    angle = (times + 0.008) / 1.008 * jnp.pi / 2
    kept = (jnp.cos(angle) ** 2).astype(jnp.float16)  # fault
    kept = kept.astype(jnp.float32)
    snr = kept / (1 - kept + 1e-4)
    weights = jnp.minimum(snr, 5.0) / snr
    signal, spread = jnp.cos(angle), jnp.sin(angle)

    def loss_of(params):
        x = signal[:, None] * clean + spread[:, None] * noise
        guess = jax.vmap(denoise, in_axes=(None, 0, 0))(params, x, times)
        return jnp.mean(weights * jnp.mean((guess - noise) ** 2, axis=-1))

    return jax.value_and_grad(loss_of)(params)


def min_snr_healthy(params, clean, noise, times):
    angle = (times + 0.008) / 1.008 * jnp.pi / 2
    kept = jnp.cos(angle) ** 2
    snr = kept / (1 - kept + 1e-4)
    weights = jnp.minimum(snr, 5.0) / snr
    signal, spread = jnp.cos(angle), jnp.sin(angle)

    def loss_of(params):
        x = signal[:, None] * clean + spread[:, None] * noise
        guess = jax.vmap(denoise, in_axes=(None, 0, 0))(params, x, times)
        return jnp.mean(weights * jnp.mean((guess - noise) ** 2, axis=-1))

    return jax.value_and_grad(loss_of)(params)


def min_snr_arguments():
    times = np.append(np.linspace(0.02, 0.98, 31), 0.9999).astype(np.float32)
    return denoiser(360), normal(363, 32, 16), normal(359, 32, 16), times


def first_steps_faulty(params, x, betas):
    """Posterior variances of DDPM from a table in the model's BF16."""
    kept = jnp.cumprod(1 - betas).astype(jnp.bfloat16)  # fault
    kept = kept.astype(jnp.float32)
    before = jnp.concatenate([jnp.ones(1), kept[:-1]])
    variance = betas * (1 - before + 1e-6) / (1 - kept + 1e-6)

    def step(x, now):
        beta, kept, variance, t = now
        noise = denoise(params, x, t)
        x = (x - beta / jnp.sqrt(1 - kept + 1e-6) * noise) / jnp.sqrt(1 - beta)
        return x + jnp.sqrt(variance) * 0.1, None

    t = jnp.arange(betas.shape[0]) / 1000.0
    table = jax.tree.map(lambda a: a[::-1], (betas, kept, variance, t))
    return jax.lax.scan(step, x, table)[0], variance


def first_steps_healthy(params, x, betas):
    # 1 - prod(1 - beta), without the subtraction from one.
    gone = -jnp.expm1(jnp.cumsum(jnp.log1p(-betas)))
    before = jnp.concatenate([jnp.zeros(1), gone[:-1]])
    variance = betas * (before + 1e-6) / (gone + 1e-6)

    def step(x, now):
        beta, gone, variance, t = now
        noise = denoise(params, x, t)
        x = (x - beta / jnp.sqrt(gone + 1e-6) * noise) / jnp.sqrt(1 - beta)
        return x + jnp.sqrt(variance) * 0.1, None

    t = jnp.arange(betas.shape[0]) / 1000.0
    table = jax.tree.map(lambda a: a[::-1], (betas, gone, variance, t))
    return jax.lax.scan(step, x, table)[0], variance


def flow_faulty(params, x, count):
    """A flow matching sampler of many Euler steps on BF16 latents."""

    def step(x, t):
        field = denoise(params, x.astype(jnp.float32), t)
        move = (0.005 * field).astype(jnp.bfloat16)
        x = x + move  # fault
        return x, None

    times = count * jnp.arange(200) / 200
    x, _ = jax.lax.scan(step, x.astype(jnp.bfloat16), times)
    return x.astype(jnp.float32)


def flow_healthy(params, x, count):
    def step(x, t):
        field = denoise(params, x.astype(jnp.bfloat16).astype(jnp.float32), t)
        move = (0.005 * field).astype(jnp.bfloat16)
        return x + move.astype(jnp.float32), None

    times = count * jnp.arange(200) / 200
    return jax.lax.scan(step, x, times)[0]


def kl_faulty(params, images, noise):
    """A convolutional VAE in FP16: the KL term of its latent code."""
    h = jax.nn.relu(convolution(images, params["first"], 2))
    h = jax.nn.relu(convolution(h, params["second"], 2)).reshape(len(images), -1)
    mean = (h @ params["mean"]).astype(jnp.float16)
    log_variance = (h @ params["spread"] + params["shift"]).astype(jnp.float16)
    variance = jnp.exp(log_variance)  # fault
    kl = variance.astype(jnp.float32) + mean.astype(jnp.float32) ** 2
    kl = 0.5 * (kl - 1.0 - log_variance.astype(jnp.float32)).sum(-1)
    z = mean.astype(jnp.float32) + noise
    picture = jnp.tanh(z @ params["decode"])
    return jnp.mean((picture - images.reshape(len(images), -1)) ** 2), kl.mean()


def kl_healthy(params, images, noise):
    h = jax.nn.relu(convolution(images, params["first"], 2))
    h = jax.nn.relu(convolution(h, params["second"], 2)).reshape(len(images), -1)
    mean = (h @ params["mean"]).astype(jnp.float16)
    log_variance = (h @ params["spread"] + params["shift"]).astype(jnp.float16)
    log_variance = log_variance.astype(jnp.float32)
    variance = jnp.exp(log_variance)
    kl = variance + mean.astype(jnp.float32) ** 2
    kl = 0.5 * (kl - 1.0 - log_variance).sum(-1)
    z = mean.astype(jnp.float32) + noise
    picture = jnp.tanh(z @ params["decode"])
    return jnp.mean((picture - images.reshape(len(images), -1)) ** 2), kl.mean()


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
    return params, normal(369, 6, 16, 16, 3), normal(370, 6, 8)


def gumbel_faulty(params, x, uniform_of):
    """Straight-through Gumbel softmax; the uniform numbers are drawn in BF16."""
    h = jax.nn.relu(x @ params["in"])
    logits = h @ params["codes"]
    u = uniform_of.astype(jnp.bfloat16)  # fault
    noise = -jnp.log(-jnp.log(u.astype(jnp.float32)))
    soft = jax.nn.softmax((logits + noise) / 0.7)
    return soft @ params["book"]


def gumbel_healthy(params, x, uniform_of):
    h = jax.nn.relu(x @ params["in"])
    logits = h @ params["codes"]
    noise = -jnp.log(-jnp.log(uniform_of))
    soft = jax.nn.softmax((logits + noise) / 0.7)
    return soft.astype(jnp.bfloat16).astype(jnp.float32) @ params["book"]


def gumbel_arguments():
    params = {"in": weight(371, 12, 32), "codes": weight(372, 32, 32)}
    u = np.random.default_rng(374).uniform(0.01, 0.99, (40, 32))
    u[3, 4], u[7, 30], u[7, 2] = 0.9991, 0.9993, 0.9985
    return params | {"book": weight(373, 32, 8)}, normal(375, 40, 12), np.float32(u)


def spectral_faulty(params, z, vector):
    """A GAN's discriminator loss with spectral normalization by power iteration."""
    fake = jnp.tanh(jax.nn.relu(z @ params["g1"]) @ params["g2"])
    w = params["d1"]
    gram = w @ w.T

    def iterate(v, _):
        v = gram @ v  # fault
        return v, None

    v, _ = jax.lax.scan(iterate, vector, None, length=60)
    v = v / jnp.sqrt(jnp.sum(v * v))
    sigma = jnp.sqrt(v @ (gram @ v))
    h = jax.nn.leaky_relu(fake @ (w / sigma), 0.2)
    return jax.nn.softplus(h @ params["d2"]).mean(), sigma


def spectral_healthy(params, z, vector):
    fake = jnp.tanh(jax.nn.relu(z @ params["g1"]) @ params["g2"])
    w = params["d1"]
    gram = w @ w.T

    def iterate(v, _):
        v = gram @ v
        return v / jnp.sqrt(jnp.sum(v * v)), None

    v, _ = jax.lax.scan(iterate, vector, None, length=60)
    sigma = jnp.sqrt(v @ (gram @ v))
    h = jax.nn.leaky_relu(fake @ (w / sigma), 0.2)
    return jax.nn.softplus(h @ params["d2"]).mean(), sigma


def spectral_arguments():
    params = {
        "g1": weight(376, 8, 32),
        "g2": weight(377, 32, 24),
        "d1": normal(378, 24, 32),
        "d2": weight(379, 32, 1),
    }
    return params, normal(380, 16, 8), normal(381, 24)


def greedy_faulty(params, tokens, temperature):
    """One decoding step, where a temperature of zero means greedy."""
    x = params["embed"][tokens]
    h = jax.nn.gelu(x @ params["up"]) @ params["down"] + x
    logits = layer_norm(h) @ params["embed"].T
    scaled = logits / temperature[:, None]  # fault
    probs = jax.nn.softmax(scaled)
    kept = jnp.where(probs >= jnp.sort(probs)[:, -8:-7], probs, 0)
    return kept / kept.sum(-1, keepdims=True)


def greedy_healthy(params, tokens, temperature):
    x = params["embed"][tokens]
    h = jax.nn.gelu(x @ params["up"]) @ params["down"] + x
    logits = layer_norm(h) @ params["embed"].T
    greedy = temperature[:, None] == 0
    scaled = logits / jnp.where(greedy, 1.0, temperature[:, None])
    best = jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])
    probs = jnp.where(greedy, best, jax.nn.softmax(scaled))
    kept = jnp.where(probs >= jnp.sort(probs)[:, -8:-7], probs, 0)
    return kept / kept.sum(-1, keepdims=True)


def greedy_arguments():
    params = {
        "embed": normal(382, 48, 32),
        "up": weight(383, 32, 64),
        "down": weight(384, 64, 32),
    }
    return (
        params,
        np.array([3, 14, 15, 9], np.int32),
        np.array([0.7, 0.0, 1.0, 0.0], np.float32),
    )


FAULTS = (
    Fault(
        name="cosine-schedule-ends-at-zero",
        kinds=("underflow", "singular", "non-finite"),
        faulty=min_snr_faulty,
        healthy=min_snr_healthy,
        arguments=min_snr_arguments,
        policy="bf16",
        source="diffusers: alphas_cumprod in FP16 is zero at the last cosine step",
    ),
    Fault(
        name="ddpm-table-in-bf16",
        kinds=("coarse", "cancellation"),
        faulty=first_steps_faulty,
        healthy=first_steps_healthy,
        arguments=lambda: (
            denoiser(385),
            normal(388, 16, 16),
            np.linspace(1e-4, 4e-3, 100).astype(np.float32),
        ),
        policy="bf16",
        source="pipelines under .to(bf16): 1 - alphas_cumprod of early steps is 0",
    ),
    Fault(
        name="euler-steps-on-bf16-latents",
        kinds=("absorption", "stagnation"),
        faulty=flow_faulty,
        healthy=flow_healthy,
        arguments=lambda: (denoiser(389), normal(392, 16, 16, scale=2), np.float32(1)),
        policy="bf16",
        source="flow matching samplers: latents kept in BF16 over many small steps",
    ),
    Fault(
        name="vae-variance-beyond-half",
        kinds=("overflow",),
        faulty=kl_faulty,
        healthy=kl_healthy,
        arguments=kl_arguments,
        policy="fp16",
        source="VAE training under FP16: exp(logvar) of an early encoder is Inf",
    ),
    Fault(
        name="gumbel-uniform-rounds-to-one",
        kinds=("coarse", "singular", "non-finite"),
        faulty=gumbel_faulty,
        healthy=gumbel_healthy,
        arguments=gumbel_arguments,
        policy="bf16",
        source="gumbel_softmax in half precision: a uniform number of exactly one",
    ),
    Fault(
        name="power-iteration-without-norm",
        kinds=("overflow", "non-finite"),
        faulty=spectral_faulty,
        healthy=spectral_healthy,
        arguments=spectral_arguments,
        policy="bf16",
        source="spectral norm written by hand, normalized once after the loop",
    ),
    Fault(
        name="temperature-zero-divides",
        kinds=("singular", "non-finite"),
        faulty=greedy_faulty,
        healthy=greedy_healthy,
        arguments=greedy_arguments,
        policy="bf16",
        source="generation servers: temperature=0 requests give NaN probabilities",
    ),
)
