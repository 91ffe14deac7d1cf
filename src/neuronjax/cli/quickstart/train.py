"""Trains a Flax model with Optax: a user's program, with `jit` as an argument.

A `TrainingRecipe` has model, optimizer and sizes, but no machine. By default it trains
1,037,696 parameters on 8 x 64 characters per step, for enough steps to lower the loss.
`neuronjax.study` gives `train` a `jit` for each machine, and `jax.jit` for the host.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from neuronjax.cli.quickstart import model
from neuronjax.cli.quickstart.data import VOCAB_SIZE, Corpus
from neuronjax.cli.quickstart.model import GPTConfig

_MODEL = GPTConfig(vocab_size=VOCAB_SIZE, layers=5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """Everything that determines a run, except the machine.

    Attributes:
        model: the sizes of the GPT.
        batch: sequences per step.
        length: predictions per sequence.
        peak_rate: learning rate after the warm-up, which takes a tenth of all steps.
        heldout_batches: batches of the evaluation.
    """

    model: GPTConfig = _MODEL
    steps: int = 45
    batch: int = 8
    length: int = 64
    peak_rate: float = 5e-3
    heldout_batches: int = 4

    def optimizer(self) -> optax.GradientTransformation:
        """Return AdamW with clipped gradients, a linear warm-up and a cosine decay."""
        warmup = max(1, self.steps // 10)
        rate = optax.warmup_cosine_decay_schedule(
            0.0, self.peak_rate, warmup, max(self.steps, warmup + 1)
        )
        adamw = optax.adamw(rate, b2=0.95, weight_decay=0.1)
        return optax.chain(optax.clip_by_global_norm(1.0), adamw)


TINY = TrainingRecipe(
    model=GPTConfig(vocab_size=VOCAB_SIZE, layers=1, heads=1, width=16, hidden=16),
    steps=2,
    batch=2,
    length=8,
    heldout_batches=1,
)
"""Learns nothing; tries every part in seconds."""


#: The model that is priced: 124 million parameters, 8 x 1,024 tokens for each copy.
REAL = TrainingRecipe(
    model=GPTConfig(vocab_size=50_304, layers=12, heads=12, width=768, hidden=2048),
    batch=8,
    length=1024,
)


def train(
    jit: Callable[..., Any], seed: int, *, recipe: TrainingRecipe, corpus: Corpus
) -> Iterator[dict[str, float]]:
    """Train from scratch, then evaluate.

    Yields:
        After every step its loss in nats per character and the seconds that it took on
        this computer, compilation included; with the last step also the loss on text
        that was held out.
    """
    train_step, loss_of = functions(recipe)
    step, evaluate = jit(train_step), jit(loss_of)
    _, params = model.create(recipe.model, seed)
    state = recipe.optimizer().init(params)
    sizes = dict(size=recipe.batch, length=recipe.length)
    heldout = corpus.heldout_batches(count=recipe.heldout_batches, **sizes)
    batches = corpus.batches(steps=recipe.steps, seed=seed, **sizes)
    for n, tokens in enumerate(batches, 1):
        start = time.perf_counter()
        params, state, loss = step(params, state, tokens)
        record = {"loss": float(loss), "seconds": time.perf_counter() - start}
        if n == recipe.steps:
            losses = [evaluate(params, batch) for batch in heldout]
            record["held out"] = float(np.mean(losses))
        yield record


@functools.cache
def functions(recipe: TrainingRecipe) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the train step and the loss of a recipe, which suit all seeds."""
    shapes = nnx.eval_shape(lambda: model.GPT(recipe.model, nnx.Rngs(0)))
    loss_of = functools.partial(model.loss, nnx.graphdef(shapes))
    optimizer = recipe.optimizer()

    def train_step(params: Any, state: Any, tokens: Any) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(params, tokens)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return train_step, loss_of


def priced(recipe: TrainingRecipe = REAL) -> tuple[Any, ...]:
    """Return a recipe's train step and the types of its arguments; execute nothing."""
    params = jax.eval_shape(lambda: model.create(recipe.model)[1])
    state = jax.eval_shape(recipe.optimizer().init, params)
    shape = (recipe.batch, recipe.length + 1)
    return functions(recipe)[0], params, state, jax.ShapeDtypeStruct(shape, jnp.int32)
