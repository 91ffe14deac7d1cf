"""Parts without faults that several programs share: arguments, layers, small models."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.faults.parts import normal, uniform


def mlp_params(seed: int, *widths: int) -> Any:
    """Return weights and biases of a perceptron."""
    return [
        {
            "w": normal(seed + i, n, m, scale=n**-0.5),
            "b": normal(seed + 50 + i, m, scale=0.1),
        }
        for i, (n, m) in enumerate(itertools.pairwise(widths))
    ]


def mlp(params, x):
    """Return the output of a perceptron with tanh between its layers."""
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def layer_norm(x, gain, bias):
    """Return LayerNorm in two passes, in FP32."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    var = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(var + 1e-5) * gain + bias


def split_heads(x, heads):
    """Return (heads, T, D / heads) of (T, D)."""
    return x.reshape(x.shape[0], heads, -1).transpose(1, 0, 2)


def join_heads(x):
    """Return (T, D) of (heads, T, D / heads), the inverse of `split_heads`."""
    return x.transpose(1, 0, 2).reshape(x.shape[1], -1)


def causal_attention(p, x, heads=4):
    """Return causal self-attention with a masked softmax."""
    q, k, v = (split_heads(x @ p[n], heads) for n in ("q", "k", "v"))
    scores = jnp.einsum("htd,hsd->hts", q * q.shape[-1] ** -0.5, k)
    mask = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return join_heads(jnp.einsum("hts,hsd->htd", weights, v)) @ p["o"]


def block_params(seed: int, width: int, hidden: int) -> Any:
    """Return the parameters of one transformer block."""
    s = width**-0.5
    return {
        "q": normal(seed, width, width, scale=s),
        "k": normal(seed + 1, width, width, scale=s),
        "v": normal(seed + 2, width, width, scale=s),
        "o": normal(seed + 3, width, width, scale=s),
        "up": normal(seed + 4, width, hidden, scale=s),
        "down": normal(seed + 5, hidden, width, scale=hidden**-0.5),
        "g1": uniform(seed + 6, width, low=0.8, high=1.2),
        "b1": normal(seed + 7, width, scale=0.1),
        "g2": uniform(seed + 8, width, low=0.8, high=1.2),
        "b2": normal(seed + 9, width, scale=0.1),
    }


def feed_forward(p, x):
    """Return the second half of a block."""
    return jax.nn.gelu(layer_norm(x, p["g2"], p["b2"]) @ p["up"]) @ p["down"]


def block(p, x):
    """Return the output of a pre-norm transformer block over (T, D)."""
    x = x + causal_attention(p, layer_norm(x, p["g1"], p["b1"]))
    return x + feed_forward(p, x)
