"""Parts without faults that the programs of this set share: data, layers, losses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def normal(seed: int, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Any:
    """Return FP32 normal numbers."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return (shift + scale * values).astype(np.float32)


def uniform(seed: int, *shape: int, low: float = 0.0, high: float = 1.0) -> Any:
    """Return FP32 uniform numbers."""
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def integers(seed: int, high: int, *shape: int, low: int = 0) -> Any:
    """Return int32 numbers from `low` to below `high`."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.int32)


def weight(seed: int, rows: int, columns: int, gain: float = 1.0) -> Any:
    """Return a weight that keeps the variance, times `gain`."""
    return normal(seed, rows, columns, scale=gain / rows**0.5)


def block_params(seed: int, width: int) -> dict[str, Any]:
    """Return the weights of `block`."""
    shapes = {"q": 1, "k": 1, "v": 1, "o": 1, "up": 2}
    params = {
        name: weight(seed + i, width, times * width)
        for i, (name, times) in enumerate(shapes.items())
    }
    return params | {"down": weight(seed + 9, 2 * width, width)}


def layer_norm(x: Any) -> Any:
    """Return LayerNorm in two passes in FP32."""
    x = x.astype(jnp.float32)
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def attention(params: dict[str, Any], x: Any) -> Any:
    """Return the output of one causal head."""
    q, k, v = (x @ params[name] for name in "qkv")
    scores = (q / q.shape[-1] ** 0.5) @ k.T
    causal = jnp.tril(jnp.ones(scores.shape, bool))
    return jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ v @ params["o"]


def feed_forward(params: dict[str, Any], x: Any) -> Any:
    """Return the output of two layers with GELU between them."""
    return jax.nn.gelu(x @ params["up"]) @ params["down"]


def block(params: dict[str, Any], x: Any) -> Any:
    """Return the output of a pre-norm transformer block."""
    x = x + attention(params, layer_norm(x))
    return x + feed_forward(params, layer_norm(x))


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the mean cross entropy over rows."""
    scores = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(scores, labels[:, None], axis=-1).mean()


def convolution(x: Any, kernel: Any, stride: int = 1) -> Any:
    """Return a convolution of NHWC with an HWIO kernel."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=numbers
    )
