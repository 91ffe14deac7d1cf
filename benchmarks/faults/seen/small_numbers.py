"""Probabilities, products and powers that fall below a format's smallest number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    attention,
    block_params,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


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


@fault("underflow")
@source("Yang (2000), Maximum likelihood estimation on large phylogenies")
@inputs(
    lambda: np.eye(4, dtype=np.float32)[integers(341, 4, 120, 20)],
    "119 0.2..1.5 @342; 4 =0.25",
)
def phylogenetic_partials_unscaled(tips, lengths, root):
    """A tree's likelihood by Felsenstein's pruning, along a ladder of species."""

    def join(partial, branch):  # -
        tip, length = branch
        stay = 0.25 + 0.75 * jnp.exp(-4 * length / 3)
        change = (1.0 - stay) / 3
        matrix = jnp.where(jnp.eye(4, dtype=bool), stay, change)
        partial = (partial @ matrix) * (tip @ matrix)  # fault
        return partial, None

    # + def join(state, branch):
    # +     partial, log = state
    # +     tip, length = branch
    # +     stay = 0.25 + 0.75 * jnp.exp(-4 * length / 3)
    # +     change = (1.0 - stay) / 3
    # +     matrix = jnp.where(jnp.eye(4, dtype=bool), stay, change)
    # +     partial = (partial @ matrix) * (tip @ matrix)
    # +     size = partial.max(-1)
    # +     return (partial / size[:, None], log + jnp.log(size)), None

    partial, _ = jax.lax.scan(join, tips[0], (tips[1:], lengths))  # -
    return jnp.log(partial @ root)  # -
    # + start = (tips[0], jnp.zeros(tips.shape[1]))
    # + (partial, log), _ = jax.lax.scan(join, start, (tips[1:], lengths))
    # + return jnp.log(partial @ root) + log


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
@source("Raffel et al. (2017), monotonic attention, on the closed form")
@inputs("k: 16x16 w*0.9 @361, q: 16x16 w*0.9, o: 16x8 w; 60x16 @364; 10x16 @365")
def monotonic_attention_divides_by_cumprod(params, memory, queries):
    """Monotonic attention: where the reader is expected to stop, step after step."""
    keys = memory @ params["k"]

    def step(before, query):
        stop = jax.nn.sigmoid(keys @ (query @ params["q"]) / 4 + 2.0)
        passed = jnp.cumprod(1.0 - stop)  # fault
        passed = jnp.concatenate([jnp.ones(1), passed[:-1]])  # -
        here = stop * passed * jnp.cumsum(before / passed)  # -
        # + def walk(still, here):
        # +     reaching = here[0] + still
        # +     return (1.0 - here[1]) * reaching, here[1] * reaching
        # + _, here = jax.lax.scan(walk, 0.0 * before[0], (before, stop))
        return here, here @ memory

    first = jax.nn.one_hot(0, memory.shape[0])
    _, context = jax.lax.scan(step, first, queries)
    return context @ params["o"]


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
