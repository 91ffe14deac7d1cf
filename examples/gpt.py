"""Define a small GPT in Flax NNX: the quickstart's, with options.

The model is a pre-norm decoder: RMSNorm, rotary position embedding, causal multi-head
attention, SwiGLU, and an output head tied to the embedding. Parameters are float32;
`dtype` is the type of activations and matrix products. The file does not use neuronjax:
it is the program that a user would bring. The functions at the end are pure functions
of (graphdef, params, tokens), so any JAX transformation applies to them.

Shapes: B sequences, T tokens each, H heads, D the width of the residual stream, and V
the vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The sizes and switches of a GPT.

    Attributes:
        vocab_size: V, the number of tokens.
        layers: the number of blocks.
        heads: H, the attention heads; `width / heads` must be whole and even.
        width: D, the size of the residual stream.
        hidden: the inner size of the SwiGLU.
        dropout: the probability that a block output element is dropped; 0 is off.
        dtype: name of the computation type; the parameters stay float32.
        remat: recompute each block in the backward pass (`jax.checkpoint`).
        scan_layers: stack the blocks' parameters and run them in one `lax.scan`.

    Raises:
        ValueError: if the heads do not divide the width into even head widths.
    """

    vocab_size: int = 256
    layers: int = 4
    heads: int = 4
    width: int = 128
    hidden: int = 352
    dropout: float = 0.0
    dtype: str = "float32"
    remat: bool = False
    scan_layers: bool = False

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} must be a multiple of 2 * heads = "
                f"{2 * self.heads}: rotary embedding turns pairs of a head's elements."
            )


# ---- Building blocks, without parameters.


def rotate(x: jax.Array) -> jax.Array:
    """Rotary position embedding (Su et al. 2021) in the half-split layout.

    x is [B, T, H, head width] with an even head width; the position is the index in T,
    and the angles are float32.
    """
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    position = jnp.arange(x.shape[1], dtype=jnp.float32)
    angle = (position[:, None] * frequency)[None, :, None, :]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (left * cos - right * sin, right * cos + left * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Softmax attention in which a token sees itself and the tokens before it.

    Queries, keys, values and the result are [B, T, H, head width]; scores and softmax
    are float32.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    scores *= q.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)


def dropout(key: jax.Array | None, x: jax.Array, rate: float) -> jax.Array:
    """x with each element zeroed with probability `rate` and the rest scaled up.

    Without a key (evaluation) or with rate 0, x itself.
    """
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


# ---- Modules.


class DecoderBlock(nnx.Module):
    """One pre-norm decoder block, [B, T, D] -> [B, T, D]."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs) -> None:
        def norm() -> nnx.RMSNorm:
            return nnx.RMSNorm(config.width, dtype=dtype, rngs=rngs)

        def linear(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, use_bias=False, dtype=dtype, rngs=rngs)

        dtype, width = jnp.dtype(config.dtype), config.width
        self.heads, self.rate = config.heads, config.dropout
        self.attention_norm, self.mlp_norm = norm(), norm()
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.gate_up = linear(width, 2 * config.hidden)
        self.down = linear(config.hidden, width)

    def attend(self, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (a.reshape(split) for a in jnp.split(self.qkv(x), 3, axis=-1))
        mixed = causal_attention(rotate(q), rotate(k), v)
        return self.out(mixed.reshape(x.shape))

    def swiglu(self, x: jax.Array) -> jax.Array:
        gate, up = jnp.split(self.gate_up(x), 2, axis=-1)
        return self.down(jax.nn.silu(gate) * up)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        keys = (None, None) if key is None else jax.random.split(key)
        x += dropout(keys[0], self.attend(self.attention_norm(x)), self.rate)
        return x + dropout(keys[1], self.swiglu(self.mlp_norm(x)), self.rate)


def _as_function(
    block: DecoderBlock, remat: bool
) -> tuple[Callable[..., Any], nnx.State]:
    """The block as (function of (params, x, key), params)."""
    graphdef, params = nnx.split(block)

    def apply(params: nnx.State, x: jax.Array, key: jax.Array | None) -> jax.Array:
        return nnx.merge(graphdef, params)(x, key)

    return (jax.checkpoint(apply) if remat else apply), params


class ListedBlocks(nnx.Module):
    """The blocks one after the other; each appears in the program by itself."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs) -> None:
        self.remat = config.remat
        self.layers = nnx.List(
            [DecoderBlock(config, rngs) for _ in range(config.layers)]
        )

    def __call__(self, x: jax.Array, keys: jax.Array | None) -> jax.Array:
        for index, block in enumerate(self.layers):
            apply, params = _as_function(block, self.remat)
            x = apply(params, x, None if keys is None else keys[index])
        return x


class StackedBlocks(nnx.Module):
    """The blocks as one whose parameters have a leading axis of `layers`."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs) -> None:
        self.remat = config.remat
        make = nnx.vmap(lambda rngs: DecoderBlock(config, rngs))
        self.layers = make(rngs.split(config.layers))

    def __call__(self, x: jax.Array, keys: jax.Array | None) -> jax.Array:
        apply, params = _as_function(self.layers, self.remat)

        def body(x: jax.Array, layer: tuple[Any, Any]) -> tuple[jax.Array, None]:
            return apply(layer[0], x, layer[1]), None

        return jax.lax.scan(body, x, (params, keys))[0]


class GPT(nnx.Module):
    """The whole model: int32 tokens [B, T] -> float32 logits [B, T, V]."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs) -> None:
        blocks = StackedBlocks if config.scan_layers else ListedBlocks
        dtype = jnp.dtype(config.dtype)
        self.depth = config.layers
        self.embed = nnx.Embed(config.vocab_size, config.width, dtype=dtype, rngs=rngs)
        self.blocks = blocks(config, rngs)
        self.norm = nnx.RMSNorm(config.width, dtype=dtype, rngs=rngs)

    def __call__(self, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
        keys = None if key is None else jax.random.split(key, self.depth)
        x = self.norm(self.blocks(self.embed(tokens), keys))
        return self.embed.attend(x).astype(jnp.float32)


# ---- The model as pure functions.


def create(config: GPTConfig, seed: int = 0) -> tuple[nnx.GraphDef, nnx.State]:
    """A freshly initialised model, split into its structure and its parameters."""
    return nnx.split(GPT(config, nnx.Rngs(seed)))


def logits(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    tokens: jax.Array,
    key: jax.Array | None = None,
) -> jax.Array:
    """The next-token logits, float32 [B, T, V], of int32 tokens [B, T] in [0, V).

    Structure and parameters come from `create`; without a key nothing is dropped.
    """
    return nnx.merge(graphdef, params)(tokens, key)


def loss(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    tokens: jax.Array,
    key: jax.Array | None = None,
) -> jax.Array:
    """Mean cross entropy, in nats, of predicting each token from those before it.

    The arguments are those of `logits`; T tokens make T - 1 predictions.
    """
    predictions = logits(graphdef, params, tokens[:, :-1], key)
    return optax.softmax_cross_entropy_with_integer_labels(
        predictions, tokens[:, 1:]
    ).mean()
