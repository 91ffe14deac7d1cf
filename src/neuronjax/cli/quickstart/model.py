"""A small GPT in Flax NNX: the model of the quickstart.

Pre-norm decoder: RMSNorm, rotary position embedding, causal multi-head attention,
SwiGLU, and an output head tied to the embedding, in float32. This file does not use
neuronjax: it is an example of a user's program. The functions at the end are pure
functions of (graphdef, params, tokens), so any JAX transformation applies to them.

Shapes: B sequences, T tokens each, H heads, D the width of the residual stream, and
V the vocabulary.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax
from flax import nnx


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The sizes of a GPT.

    Attributes:
        vocab_size: V, the number of tokens.
        layers: the number of blocks.
        heads: H, the attention heads; `width / heads` must be whole and even.
        width: D, the size of the residual stream.
        hidden: the inner size of the SwiGLU.
    """

    vocab_size: int = 256
    layers: int = 4
    heads: int = 4
    width: int = 128
    hidden: int = 352


def rotate(x: jax.Array) -> jax.Array:
    """Return x with rotary position embedding (Su et al. 2021) in the half-split
    layout.

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
    """Return softmax attention in which a token sees itself and the tokens before it.

    Queries, keys, values and the result are [B, T, H, head width]; scores and softmax
    are float32.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    scores *= q.shape[-1] ** -0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)


class DecoderBlock(nnx.Module):
    """A pre-norm decoder block, [B, T, D] -> [B, T, D]."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs) -> None:
        def norm() -> nnx.RMSNorm:
            return nnx.RMSNorm(config.width, rngs=rngs)

        def linear(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, use_bias=False, rngs=rngs)

        width = config.width
        self.heads = config.heads
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

    def __call__(self, x: jax.Array) -> jax.Array:
        x += self.attend(self.attention_norm(x))
        return x + self.swiglu(self.mlp_norm(x))


class GPT(nnx.Module):
    """The whole model: int32 tokens [B, T] -> float32 logits [B, T, V].

    All blocks are one module whose parameters have a leading axis of `layers`.
    """

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs) -> None:
        make = nnx.vmap(lambda rngs: DecoderBlock(config, rngs))
        self.embed = nnx.Embed(config.vocab_size, config.width, rngs=rngs)
        self.blocks = make(rngs.split(config.layers))
        self.norm = nnx.RMSNorm(config.width, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        graphdef, params = nnx.split(self.blocks)

        def body(x: jax.Array, layer: nnx.State) -> tuple[jax.Array, None]:
            return nnx.merge(graphdef, layer)(x), None

        x, _ = jax.lax.scan(body, self.embed(tokens), params)
        return self.embed.attend(self.norm(x))


def create(config: GPTConfig, seed: int = 0) -> tuple[nnx.GraphDef, nnx.State]:
    """Return a freshly initialised model, split into its structure and its
    parameters."""
    return nnx.split(GPT(config, nnx.Rngs(seed)))


def loss(graphdef: nnx.GraphDef, params: nnx.State, tokens: jax.Array) -> jax.Array:
    """Return the mean cross entropy, in nats, of predicting tokens from earlier tokens.

    Structure and parameters come from `create`; T tokens make T - 1 predictions.
    """
    predictions = nnx.merge(graphdef, params)(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(
        predictions, tokens[:, 1:]
    ).mean()
