"""A tiny transformer as plain functions of a pytree, and text for it to learn.

Pre-norm decoder: RMSNorm, learned positions, causal attention, ReLU MLP. The layers'
parameters are stacked along a leading axis. No size is read from a constant: a
function given a shard of the heads, of the hidden units or of the layers computes its
part. Where a device hands over to others, `block` calls `enter` and `leave`.

B sequences, T tokens, D width, H heads of K, F hidden units, V characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

V, D, H, K, F = 64, 32, 4, 8, 64
BATCH, LENGTH = 8, 16

Params = dict[str, Any]
Operator = Callable[[jax.Array], jax.Array]
Block = Callable[[Params, jax.Array], jax.Array]


def init(seed: int = 0, layers: int = 2) -> Params:
    """FP32 parameters; those of the layers have a leading axis of `layers`."""
    keys = iter(jax.random.split(jax.random.key(seed), 8))

    def normal(*shape: int, fan_in: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) * fan_in**-0.5

    return {
        "embed": normal(V, D, fan_in=D),
        "positions": normal(LENGTH, D, fan_in=D),
        "layers": {
            "norm_attention": jnp.ones((layers, D)),
            "qkv": normal(layers, D, 3, H, K, fan_in=D),
            "out": normal(layers, H, K, D, fan_in=H * K),
            "norm_mlp": jnp.ones((layers, D)),
            "up": normal(layers, D, F, fan_in=D),
            "down": normal(layers, F, D, fan_in=F),
        },
        "norm": jnp.ones(D),
        "head": normal(D, V, fan_in=D),
    }


# ---- Forward.


def embed(params: Params, tokens: jax.Array, start: Any = 0) -> jax.Array:
    """[B, T] tokens at the positions from `start` -> [B, T, D]."""
    places = lax.dynamic_slice_in_dim(params["positions"], start, tokens.shape[1])
    return params["embed"][tokens] + places


def rms_norm(scale: jax.Array, x: jax.Array) -> jax.Array:
    return scale * x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attention(layer: Params, x: jax.Array) -> jax.Array:
    """[B, T, D] -> [B, T, D], the sum over the heads that `layer` has."""
    q, k, v = jnp.moveaxis(jnp.einsum("btd,dshk->btshk", x, layer["qkv"]), 2, 0)
    scores = jnp.einsum("bqhk,bthk->bhqt", q, k) * q.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
    mixed = jnp.einsum("bhqt,bthk->bqhk", weights, v)
    return jnp.einsum("bqhk,hkd->bqd", mixed, layer["out"])


def mlp(layer: Params, x: jax.Array) -> jax.Array:
    """[B, T, D] -> [B, T, D], the sum over the hidden units that `layer` has."""
    return jax.nn.relu(x @ layer["up"]) @ layer["down"]


def identity(x: jax.Array) -> jax.Array:
    return x


def block(
    layer: Params,
    x: jax.Array,
    *,
    enter: Operator = identity,
    leave: Operator = identity,
    mlp: Callable[[Params, jax.Array], jax.Array] = mlp,
) -> jax.Array:
    """One layer, [B, T, D] -> [B, T, D].

    Args:
        layer: its parameters, or one device's part of them.
        x: the residual stream.
        enter: what happens to it before attention and before the MLP.
        leave: what happens to their results.
        mlp: the second half of the layer.
    """
    x += leave(attention(layer, enter(rms_norm(layer["norm_attention"], x))))
    return x + leave(mlp(layer, enter(rms_norm(layer["norm_mlp"], x))))


def blocks(layers: Params, x: jax.Array, block: Block = block) -> jax.Array:
    """The layers one after the other."""
    return lax.scan(lambda x, layer: (block(layer, x), None), x, layers)[0]


def cross_entropy(params: Params, x: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean loss, in nats per character, of [B, T, D] against [B, T]."""
    logits = rms_norm(params["norm"], x) @ params["head"]
    chosen = jax.nn.one_hot(targets, logits.shape[-1])
    return -jnp.mean(jnp.sum(chosen * jax.nn.log_softmax(logits), axis=-1))


def loss(params: Params, tokens: jax.Array, block: Block = block) -> jax.Array:
    """Of predicting tokens[:, 1:] from what comes before; tokens is [B, T + 1]."""
    x = blocks(params["layers"], embed(params, tokens[:, :-1]), block)
    return cross_entropy(params, x, tokens[:, 1:])


# ---- Text.


def text() -> np.ndarray:
    """Python's documentation in the 64 characters from space to underscore."""
    letters = "\n".join(topics[name] for name in sorted(topics)).upper()
    codes = np.frombuffer(letters.encode("ascii", "replace"), np.uint8).astype(np.int32)
    return np.where((codes >= 32) & (codes < 96), codes - 32, 0)


def batches(steps: int, seed: int = 0, batch: int = BATCH) -> Iterator[np.ndarray]:
    """Random pieces of the text, [batch, LENGTH + 1]."""
    data, rng = text(), np.random.default_rng(seed)
    for _ in range(steps):
        starts = rng.integers(len(data) - LENGTH, size=(batch, 1))
        yield data[starts + np.arange(LENGTH + 1)]
