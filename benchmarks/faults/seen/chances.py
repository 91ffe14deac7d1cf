"""Probabilities, choices and generative models."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp
from benchmarks.faults.parts import (
    attention,
    block_params,
    convolution,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


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


@fault("overflow", policy="fp16")
@source("VAE training under FP16: exp(logvar) of an early encoder is Inf")
@inputs(
    "first: 3x3x3x8 *0.2 @364, second: 3x3x8x8 *0.15, mean spread: 128x8 w, "
    "shift: 8 =0 [3]=11.5, decode: 8x768 w; 6x16x16x3 @369; 6x8 @370"
)
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


@fault("coarse", "singular", "non-finite")
@source("gumbel_softmax in half precision: a uniform number of exactly one")
@inputs(
    "in: 12x32 w @371, codes: 32x32 w, book: 32x8 w; 40x12 @375",
    "40x32 0.01..0.99 @374 [3,4]=0.9991 [7,30]=0.9993 [7,2]=0.9985",
)
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


def mixture_arguments():
    x = normal(420, 64, 16)
    project = weight(421, 16, 64)
    means = (x @ project)[::16] * 0.9
    weights = {"project": project, "logits": normal(423, 4)}
    return x, means.copy(), "4x64 -0.7..-0.5 @422", weights


@fault("underflow", "non-finite")
@source("EM written by hand: responsibilities 0/0 in many dimensions")
@inputs(by=mixture_arguments)
def mixture_densities_all_zero(x, means, log_scale, weights):
    """One EM step of a Gaussian mixture in 64 dimensions."""
    y = x @ weights["project"]
    scale = jnp.exp(log_scale)  # -
    gap = (y[:, None, :] - means) / scale  # -
    # + gap = (y[:, None, :] - means) / jnp.exp(log_scale)
    density = jnp.exp(-0.5 * jnp.sum(gap * gap, axis=-1))  # fault
    joint = jax.nn.softmax(weights["logits"]) * density / jnp.prod(scale, axis=-1)  # -
    share = joint / joint.sum(-1, keepdims=True)  # -
    # + logp = -0.5 * jnp.sum(gap * gap, axis=-1) - log_scale.sum(-1)
    # + share = jax.nn.softmax(jax.nn.log_softmax(weights["logits"]) + logp, axis=-1)
    total = share.sum(0)
    return (share.T @ y) / (total[:, None] + 1e-3), total


def tokens_arguments():
    tokens = integers(424, 64, 32)
    params = {
        "embed": normal(425, 64, 16),
        "mix": weight(426, 16, 16),
        # A bonus of the sampler: two groups of words, the second a bit better.
        "prior": np.where(np.arange(64) < 20, 40.0, 40.05).astype(np.float32),
    }
    table = np.round(normal(427, 64, 16) * 2) / 64
    table[20:40] = table[:20]
    return params, tokens, table.astype(np.float32)


@fault("coarse", "uniform")
@source("vLLM and transformers: BF16 logits tie, greedy output depends on order")
@inputs(by=tokens_arguments)
def greedy_choice_among_bf16_ties(params, tokens, table):
    """Greedy decoding; the head's outputs are stored in the model's BF16."""
    h = layer_norm(params["embed"][tokens] @ params["mix"])
    logits = h @ table.T + params["prior"]
    logits = logits.astype(jnp.bfloat16)  # fault
    best = jnp.argmax(logits, axis=-1)
    return best, params["embed"][best]


@fault("uniform", "coarse", policy="fp32")
@source("retrieval libraries: all cosines of a narrow cone are 1.0 in BF16")
@inputs("in: 16x32 w*0.7 @701, common: 32 *24; 40x16 @703; 16 @704")
def cosines_of_anisotropic_embeddings_in_bf16(params, documents, question):
    """Pools passages by standardized cosines; the embeddings share a direction."""
    keys = jnp.tanh(documents @ params["in"]) + params["common"]
    query = jnp.tanh(question @ params["in"]) + params["common"]
    keys = keys / jnp.linalg.norm(keys, axis=-1, keepdims=True)
    query = query / jnp.linalg.norm(query)
    scores = jnp.sum(keys * query, axis=-1).astype(jnp.bfloat16)  # fault
    # + scores = jnp.sum(keys * query, axis=-1)
    scores = scores.astype(jnp.float32)  # -
    standard = (scores - scores.mean()) / (scores.std() + 1e-6)
    share = jax.nn.softmax(2.0 * standard)
    return share, share @ documents


def evidence_arguments():
    truth = normal(711, 6)
    models = truth + normal(712, 8, 6, scale=0.012)
    x = normal(713, 6000, 6)
    y = x @ truth + normal(714, 6000)
    return models.astype(np.float32), "8 =1", x, y.astype(np.float32), "9x6 @715"


@fault("uniform", "coarse", policy="fp32")
@source("model averaging: large log evidences lose their differences")
@inputs(by=evidence_arguments)
def evidence_softmax_before_maximum(models, noise, x, y, future):
    """Averages regression models by their evidence, as the log sums come in BF16."""
    miss = (x @ models.T - y[:, None]) / noise
    logs = -0.5 * jnp.sum(miss**2, axis=0) - y.size * jnp.log(noise)
    share = jax.nn.softmax(logs.astype(jnp.bfloat16))  # fault
    # + share = jax.nn.softmax((logs - logs.max()).astype(jnp.bfloat16))
    share = share.astype(jnp.float32)
    return share, future @ (share @ models)


@fault("uniform", "coarse")
@source("Tallec and Ollivier (2018), chrono initialization, run in BF16")
@inputs(
    {
        "gates": "8x16 w*0.05 @722",
        "bias": lambda: np.log(uniform(721, 16, low=600.0, high=1000.0)).astype(
            np.float32
        ),
        "in": "8x16 w*0.3 @723",
        "first": "16 *2 @724",
    },
    "400x8 @725",
)
def chrono_forget_gate_rounds_to_one(params, signal):
    """A leaky cell that should forget within a thousand steps, by chrono's bias."""

    def step(cell, x):
        gates = x @ params["gates"] + params["bias"]
        keep = jax.nn.sigmoid(gates.astype(jnp.bfloat16))  # fault
        # + keep = jax.nn.sigmoid(gates)
        keep = keep.astype(jnp.float32)  # -
        cell = keep * cell + 0.01 * jnp.tanh(x @ params["in"])
        return cell, keep

    cell, kept = jax.lax.scan(step, params["first"], signal)
    return cell, jnp.prod(kept, axis=0)


def _language_model(params, tokens):
    x = params["embed"][tokens]
    x = x + attention(params["body"], layer_norm(x))
    return layer_norm(x) @ params["head"] + params["bias"]


def jensen_arguments():
    """Both models have learned that control tokens never occur in a text."""
    control = np.arange(48) % 8 == 3

    def model(seed):
        return {
            "embed": normal(seed, 48, 24),
            "body": block_params(seed + 1, 24),
            "head": weight(seed + 11, 24, 48, 2.0),
            "bias": np.where(control, -130.0, 0.0).astype(np.float32),
        }

    return model(301), model(315), integers(331, 48, 16)


@fault("underflow", "non-finite")
@source("Liger-Kernel pull request: JSD of tokens that both models rule out")
@inputs(by=jensen_arguments)
def jensen_mixture_in_probability_space(student, teacher, tokens):
    """Distillation by the Jensen-Shannon divergence of two language models."""

    def loss_of(student):
        p = jax.nn.log_softmax(_language_model(student, tokens))
        q = jax.nn.log_softmax(_language_model(teacher, tokens))
        mixture = 0.5 * jnp.exp(p) + 0.5 * jnp.exp(q)  # fault
        m = jnp.log(mixture)  # -
        # + m = jnp.logaddexp(p, q) - jnp.log(2.0)
        left = jnp.sum(jnp.exp(p) * (p - m), axis=-1)
        right = jnp.sum(jnp.exp(q) * (q - m), axis=-1)
        return jnp.mean(0.5 * left + 0.5 * right)

    return jax.value_and_grad(loss_of)(student)


def conversion_arguments():
    visitors = np.array([40, 90, 300, 480, 640, 820], np.float32)
    share = np.array([0.1, 0.3, 0.4, 0.5, 0.45, 0.6], np.float32)
    grid = np.linspace(0.0025, 0.9975, 200)
    return np.round(visitors * share), visitors, (grid * (1 - grid)).astype(np.float32)


@fault("underflow", "non-finite", policy="fp32")
@source("forum questions: grid approximation gives NaN with many trials")
@inputs(by=conversion_arguments)
def grid_posterior_of_binomial_powers(buyers, visitors, prior):
    """Conversion rates of several pages, by Bayes on a grid of rates."""
    grid = jnp.linspace(0.0025, 0.9975, 200)

    def rate(k, n):
        likelihood = grid**k * (1.0 - grid) ** (n - k)  # fault
        posterior = likelihood * prior  # -
        # + log = k * jnp.log(grid) + (n - k) * jnp.log1p(-grid)
        # + posterior = jax.nn.softmax(log + jnp.log(prior))
        posterior = posterior / posterior.sum()  # -
        mean = posterior @ grid
        return mean, jnp.sqrt(posterior @ (grid - mean) ** 2)

    return jax.vmap(rate)(buyers, visitors)


def topics_arguments():
    words = uniform(353, 5, 30)
    words = words / words.sum(-1, keepdims=True)
    gammas = -np.log(uniform(351, 24, 5, low=0.05, high=0.95))
    return gammas, "24x5 0.05..1 @352; f32 0.005", words


@fault("underflow", "non-finite", policy="fp32")
@source("NumPy, PyTorch and JAX issues: dirichlet with a small alpha")
@inputs(by=topics_arguments)
def dirichlet_of_small_concentration(gammas, draws, concentration, words):
    """Documents' topics from a sparse Dirichlet, and the words that they make."""
    boost = draws ** (1.0 / concentration)  # fault
    raw = gammas * boost  # -
    topics = raw / raw.sum(-1, keepdims=True)  # -
    # + log = jnp.log(gammas) + jnp.log(draws) / concentration
    # + topics = jax.nn.softmax(log)
    return topics, topics @ words


@fault("underflow", "non-finite")
@source("optimizer code: row times column before the division by the mean")
@inputs("in: 16x32 w*0.3 @371, out: 32x8 w*0.3; 32x16 @373; 32x8 @374")
def adafactor_outer_product_of_factors(params, x, y):
    """A first step of Adafactor; the loss is shared out over all tokens of the run."""

    def loss_of(params):
        h = jax.nn.gelu(x @ params["in"])
        return jnp.sum((h @ params["out"] - y) ** 2) * 1e-11

    def scaled(grad):
        square = grad * grad + 1e-30
        row, column = square.mean(1), square.mean(0)
        factors = row[:, None] * column[None, :] / row.mean()  # fault
        # + factors = (row / row.mean())[:, None] * column[None, :]
        return grad * jax.lax.rsqrt(factors)

    updates = jax.tree.map(scaled, jax.grad(loss_of)(params))
    updates, _ = optax.clip_by_block_rms(1.0).update(updates, optax.EmptyState())
    return jax.tree.map(lambda p, u: p - 0.01 * u, params, updates)
