"""Predict what a GPT costs to train and to serve on Trainium, before you rent anything.

The example uses only shapes: it initialises no parameter and runs nothing. It prices
the train step of the quickstart's Flax GPT, with 110 million parameters, on Trainium 1,
2 and 3 in BF16 and FP8, and compares it with a GPU node whose step you measured. Then
it serves the same parameters with a KV cache. Some prices have no public list: the
defaults of `--trn3-price`, `--gpu-price` and `--gpu-step` are figures to replace, not
quotes.

    python -m examples.estimate --gpu-step 0.25 --gpu-price 40
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
import typer
from flax import nnx
from rich.console import Console

import neuronjax as nj
from examples.gpt import DecoderBlock, GPTConfig, create, loss

CONFIG = GPTConfig(
    vocab_size=32_768,
    layers=12,
    heads=12,
    width=768,
    hidden=2048,
    dtype="bfloat16",
    remat=True,
    scan_layers=True,
)
HEAD_WIDTH = CONFIG.width // CONFIG.heads
BATCH, TOKENS = 8, 1024  # of one copy's step
GPU_BATCH = 512  # sequences of the GPU node's step
TRAINED_ON = 10e9  # tokens

PROMPT, CACHE = 1024, 2048  # tokens of a prompt; positions that the cache has
SERVED, PREFILLED = 16, 1  # sequences that decode together; of one prefill

TRAINED = ("trn1.32xlarge", "trn2.48xlarge", "trn3-ultraserver-gen1")
SERVES = ("inf2.48xlarge", "trn2.48xlarge")
OPTIMIZER = optax.adamw(3e-4)


def shapes(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@functools.cache
def model() -> tuple[nnx.GraphDef, Any]:
    """The structure of the GPT and the shapes of its parameters."""
    found: list[nnx.GraphDef] = []

    def params() -> nnx.State:
        graphdef, state = create(CONFIG)
        found.append(graphdef)
        return state

    types = jax.eval_shape(params)
    return found[0], types


# -- training --------------------------------------------------------------------------


def train_step(params: Any, opt_state: Any, tokens: jax.Array) -> tuple[Any, ...]:
    """One step of AdamW on [B, T + 1] tokens."""
    graphdef, _ = model()
    value, grads = jax.value_and_grad(functools.partial(loss, graphdef))(params, tokens)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def training(trn3_price: float, gpu_step: float, gpu_price: float) -> nj.Estimate:
    """Dollars for the trained model, on every machine and under both policies."""
    _, params = model()
    gpu = nj.Machine(
        name="your GPU node",
        step_seconds=gpu_step,
        price_per_hour=gpu_price,
        tokens_per_step=GPU_BATCH * TOKENS,
    )
    priced = nj.estimate(
        train_step,
        instance=TRAINED,
        policy=("bf16", "fp8"),
        tokens=TRAINED_ON,
        tokens_per_step=BATCH * TOKENS,
        price_per_hour={"trn3-ultraserver-gen1": trn3_price},
        utilization=0.9,
        against=gpu,
    )
    opt_state = jax.eval_shape(OPTIMIZER.init, params)
    return priced(params, opt_state, shapes(BATCH, TOKENS + 1))


# -- serving ---------------------------------------------------------------------------


def rotate(x: jax.Array, position: jax.Array) -> jax.Array:
    """Rotary embedding of [B, T, H, head width] at the T positions given."""
    half = x.shape[-1] // 2
    frequency = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = (position[:, None] * frequency)[None, :, None, :]
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    turned = (left * cos - right * sin, right * cos + left * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def attend(
    block: DecoderBlock,
    x: jax.Array,
    cache: tuple[jax.Array, jax.Array],
    start: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Attention of T new tokens to a layer's cache, [B, positions, H, head width]."""
    batch, length, _ = x.shape
    split = (batch, length, CONFIG.heads, HEAD_WIDTH)
    q, k, v = (part.reshape(split) for part in jnp.split(block.qkv(x), 3, axis=-1))
    position = start + jnp.arange(length)
    new = (rotate(k, position), v)
    at = (0, start, 0, 0)
    keys, values = (
        jax.lax.dynamic_update_slice(old, n, at)
        for old, n in zip(cache, new, strict=True)
    )
    scores = jnp.einsum(
        "bqhd,bkhd->bhqk",
        rotate(q, position),
        keys,
        preferred_element_type=jnp.float32,
    )
    seen = jnp.arange(keys.shape[1]) <= position[:, None]
    scores = jnp.where(seen, scores * HEAD_WIDTH**-0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, values)
    return block.out(mixed.reshape(x.shape)), (keys, values)


def extend(
    params: Any, cache: tuple[jax.Array, jax.Array], tokens: jax.Array, start: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The next token after [B, T] new ones, and the cache with them in it."""
    graphdef, _ = model()
    gpt = nnx.merge(graphdef, params)
    structure, layers = nnx.split(gpt.blocks.layers)

    def body(x: jax.Array, layer: tuple[Any, Any]) -> tuple[jax.Array, Any]:
        block = nnx.merge(structure, layer[0])
        mixed, cache = attend(block, block.attention_norm(x), layer[1], start)
        x += mixed
        return x + block.swiglu(block.mlp_norm(x)), cache

    x, cache = jax.lax.scan(body, gpt.embed(tokens), (layers, cache))
    logits = gpt.embed.attend(gpt.norm(x[:, -1]))
    return jnp.argmax(logits, axis=-1).astype(jnp.int32), cache


def prefill(params: Any, cache: Any, prompt: jax.Array) -> tuple[jax.Array, Any]:
    """The first token of [B, T] prompts, and their cache."""
    return extend(params, cache, prompt, jnp.int32(0))


def decode(
    params: Any, cache: Any, token: jax.Array, position: jax.Array
) -> tuple[jax.Array, Any]:
    """The token after [B] tokens, and the cache with them in it."""
    return extend(params, cache, token[:, None], position)


def cache_of(batch: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Keys and values of all layers."""
    shape = (CONFIG.layers, batch, CACHE, CONFIG.heads, HEAD_WIDTH)
    one = shapes(*shape, dtype=jnp.bfloat16)
    return one, one


def serving() -> nj.ServingEstimate:
    """Latency and dollars per token; weights in BF16."""
    _, params = model()
    weights = jax.tree.map(lambda x: shapes(*x.shape, dtype=jnp.bfloat16), params)
    priced = nj.estimate_serving(
        prefill,
        decode,
        instance=SERVES,
        policy="bf16",
        prompt_tokens=PROMPT,
        output_tokens=256,
        batch=SERVED,
        prefill_batch=PREFILLED,
        utilization=0.5,
    )
    return priced(
        (weights, cache_of(PREFILLED), shapes(PREFILLED, PROMPT)),
        (weights, cache_of(SERVED), shapes(SERVED), shapes()),
    )


def main(
    trn3_price: float = 100.0, gpu_step: float = 0.25, gpu_price: float = 50.0
) -> None:
    """Prints what training and serving cost."""
    console = Console()
    console.print(training(trn3_price, gpu_step, gpu_price))
    console.print(serving())


if __name__ == "__main__":
    typer.run(main)
