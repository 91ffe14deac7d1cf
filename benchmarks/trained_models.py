"""The models that `does_it_train` trains: a GPT, a ViT and a mixture of experts.

The ViT reads digits, the others text. All have three sizes and process 1,024 tokens per
step, 64 examples of 16, so that each of 64 devices gets one example. This module does
not use neuronjax.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

from examples.gpt import GPT, DecoderBlock, GPTConfig
from neuronjax.cli.quickstart.data import load

EXAMPLES, TOKENS = 64, 16
CLASSES, PIXELS = 10, 16
EXPERTS, CHOSEN = 4, 2

Batch = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """A size of every model.

    Attributes:
        name: the name in tables.
        layers, width, heads: sizes of the blocks.
        hidden: hidden width of the GPT's SwiGLU; of the ViT's MLP it is four times the
            width, and of each expert it is `hidden / CHOSEN`.
        rate: peak learning rate.
        steps: number of steps of a run.
    """

    name: str
    layers: int
    width: int
    heads: int
    hidden: int
    rate: float
    steps: int


SIZES = (
    Size(name="S", layers=2, width=64, heads=2, hidden=192, rate=5e-3, steps=200),
    Size(name="M", layers=5, width=128, heads=4, hidden=352, rate=3e-3, steps=100),
    Size(name="L", layers=8, width=320, heads=10, hidden=864, rate=1e-3, steps=60),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A model with its loss and data.

    Attributes:
        name: the name in tables.
        make: size and random keys -> the module.
        loss: module and batch -> mean cross entropy in nats.
        batches: steps and seed -> arrays for every step.
        head: pattern of the parameters that compute logits, for rules.
    """

    name: str
    make: Callable[[Size, nnx.Rngs], nnx.Module]
    loss: Callable[..., jax.Array]
    batches: Callable[[int, int], Iterator[Batch]]
    head: str


# -- GPT: the quickstart's model and text ----------------------------------------------


def _config(size: Size) -> GPTConfig:
    sizes = dataclasses.asdict(size)
    fields = {name: sizes[name] for name in ("layers", "width", "heads", "hidden")}
    return GPTConfig(**fields)


def _gpt(size: Size, rngs: nnx.Rngs) -> GPT:
    return GPT(_config(size), rngs)


def _gpt_loss(gpt: nnx.Module, tokens: jax.Array) -> jax.Array:
    return _cross_entropy(gpt(tokens[:, :-1]), tokens[:, 1:])  # type: ignore[operator]


def _text(steps: int, seed: int) -> Iterator[Batch]:
    batches = load().batches(steps=steps, size=EXAMPLES, length=TOKENS, seed=seed)
    for tokens in batches:
        yield (tokens,)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    logits = logits.astype(jnp.float32)  # also if the model is in BF16
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


# -- MoE: the GPT, with a router and experts in place of each MLP ----------------------


class ExpertBlock(DecoderBlock):
    """A decoder block whose tokens each go to `CHOSEN` of `EXPERTS` experts.

    Every expert computes every token, and the gates of those that the router does not
    choose are 0. The values are those of a dispatch that drops no token. Gates are FP32
    and are multiplied in outside of matmuls.
    """

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs)
        width, hidden = config.width, config.hidden // CHOSEN
        draw = jax.nn.initializers.lecun_normal(batch_axis=(0,))
        shapes = (EXPERTS, width, 2 * hidden), (EXPERTS, hidden, width)
        weights = (nnx.Param(draw(rngs.params(), shape)) for shape in shapes)
        self.gate_up, self.down = weights
        self.router = nnx.Linear(width, EXPERTS, use_bias=False, rngs=rngs)

    def swiglu(self, x: jax.Array) -> jax.Array:
        chances = jax.nn.softmax(self.router(x).astype(jnp.float32), axis=-1)
        best, experts = jax.lax.top_k(chances, CHOSEN)
        best /= best.sum(axis=-1, keepdims=True)
        gates = (jax.nn.one_hot(experts, EXPERTS) * best[..., None]).sum(axis=-2)
        inner = jnp.einsum("btd,edh->bteh", x, self.gate_up[...])
        gate, up = jnp.split(inner, 2, axis=-1)
        outer = jnp.einsum("bteh,ehd->bted", jax.nn.silu(gate) * up, self.down[...])
        return (outer * gates[..., None]).sum(axis=-2).astype(x.dtype)


def _moe(size: Size, rngs: nnx.Rngs) -> GPT:
    gpt, config = _gpt(size, rngs), _config(size)
    blocks: list[DecoderBlock] = [ExpertBlock(config, rngs) for _ in range(size.layers)]
    gpt.blocks.layers = nnx.List(blocks)  # type: ignore[assignment]
    return gpt


# -- ViT: scikit-learn's digits --------------------------------------------------------


class Encoder(nnx.Module):
    """A pre-norm block with LayerNorm, attention to all tokens, and GELU."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        linear = functools.partial(nnx.Linear, rngs=rngs)
        width, hidden = size.width, 4 * size.width
        self.heads = size.heads
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, hidden), linear(hidden, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        split = (*x.shape[:2], self.heads, -1)
        parts = jnp.split(self.qkv(self.norms[0](x)), 3, axis=-1)
        q, k, v = (part.reshape(split) for part in parts)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(v.dtype)
        x += self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))
        return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))


class ViT(nnx.Module):
    """Patches [B, 16, PIXELS] -> logits [B, CLASSES]; the blocks are one scan."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        make = nnx.vmap(lambda rngs: Encoder(size, rngs))
        self.patches = nnx.Linear(PIXELS, size.width, rngs=rngs)
        self.places = nnx.Param(jnp.zeros((TOKENS, size.width)))
        self.blocks = make(rngs.split(size.layers))
        self.norm = nnx.LayerNorm(size.width, rngs=rngs)
        self.head = nnx.Linear(size.width, CLASSES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        graphdef, params = nnx.split(self.blocks)

        def body(x: jax.Array, layer: nnx.State) -> tuple[jax.Array, None]:
            return nnx.merge(graphdef, layer)(x), None

        places = self.places[...]
        x = self.patches(images.astype(places.dtype)) + places
        x, _ = jax.lax.scan(body, x, params)
        return self.head(self.norm(x).mean(axis=1))


def _vit_loss(vit: nnx.Module, images: jax.Array, labels: jax.Array) -> jax.Array:
    return _cross_entropy(vit(images), labels)  # type: ignore[operator]


def _digits(steps: int, seed: int) -> Iterator[Batch]:
    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    images = np.pad((pixels / 16).reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    corners = [(i, j) for i in range(0, 8, 2) for j in range(0, 8, 2)]
    patches = [images[:, i : i + 4, j : j + 4].reshape(-1, PIXELS) for i, j in corners]
    tokens = np.stack(patches, axis=1).astype(np.float32)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = rng.integers(0, len(labels), EXAMPLES)
        yield tokens[rows], labels[rows].astype(np.int32)


MODELS = (
    Model(name="GPT", make=_gpt, loss=_gpt_loss, batches=_text, head="embed"),
    Model(name="ViT", make=ViT, loss=_vit_loss, batches=_digits, head="head|patches"),
    Model(name="MoE", make=_moe, loss=_gpt_loss, batches=_text, head="embed"),
)


# -- training --------------------------------------------------------------------------


def optimizer(size: Size) -> optax.GradientTransformation:
    """Return AdamW with clipped gradients, a linear warm-up and a cosine decay."""
    rate = optax.warmup_cosine_decay_schedule(
        0.0, size.rate, size.steps // 10, size.steps
    )
    adamw = optax.adamw(rate, b2=0.95, weight_decay=0.1)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def initial(model: Model, size: Size, seed: int, dtype: str) -> Any:
    """Return a new model's structure and parameters."""
    graphdef, params = nnx.split(model.make(size, nnx.Rngs(seed)), nnx.Param)
    return graphdef, jax.tree.map(lambda x: x.astype(dtype), params)


def parameters(model: Model, size: Size) -> int:
    """Return the number of a model's parameters."""
    shapes = jax.eval_shape(lambda: initial(model, size, 0, "float32")[1])
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))
