"""Trains a Flax model with Optax: what a user would write, with `jit` as an argument.

A `TrainingRecipe` holds model, optimizer, sizes and seed, and no machine. The defaults
train 1,037,696 parameters on 16 x 64 characters per step: one and a half to three
minutes on two cores for one native and three emulated runs, and enough to see learning.

Give `jax.jit` for the native run, and for the same program on an emulated chip:

    train(functools.partial(neuronjax.jit, target="trn2", policy="fp8"), recipe, corpus)
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from neuronjax.cli.quickstart import model
from neuronjax.cli.quickstart.data import VOCAB_SIZE, Corpus
from neuronjax.cli.quickstart.model import GPTConfig

_MODEL = GPTConfig(vocab_size=VOCAB_SIZE, layers=5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """Everything that decides a run, beside the machine it runs on.

    Attributes:
        model: the sizes of the GPT.
        steps: training steps.
        batch: sequences per step.
        length: predictions per sequence.
        peak_rate: learning rate after the warm-up, a tenth of all steps.
        heldout_batches: batches of the evaluation.
        seed: of the initial parameters and of the batches.
    """

    model: GPTConfig = _MODEL
    steps: int = 100
    batch: int = 16
    length: int = 64
    peak_rate: float = 5e-3
    heldout_batches: int = 8
    seed: int = 0

    def optimizer(self) -> optax.GradientTransformation:
        """AdamW under clipped gradients, a linear warm-up and a cosine decay."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run leaves: losses in nats per character, times of this computer."""

    losses: list[float]
    heldout_loss: float
    compile_seconds: float
    step_seconds: list[float]
    step: Any  # the compiled train step


def train(
    jit: Callable[..., Any],
    recipe: TrainingRecipe,
    corpus: Corpus,
    on_step: Callable[[float], object] = lambda loss: None,
) -> Trained:
    """Trains from scratch, then evaluates; `on_step` is told every loss."""
    graphdef, params = model.create(recipe.model, recipe.seed)
    loss_of = functools.partial(model.loss, graphdef)
    optimizer = recipe.optimizer()
    state = optimizer.init(params)

    def train_step(params: Any, state: Any, tokens: Any) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(params, tokens)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    sizes = dict(size=recipe.batch, length=recipe.length)
    batches = corpus.batches(steps=recipe.steps, seed=recipe.seed, **sizes)
    heldout = corpus.heldout_batches(count=recipe.heldout_batches, **sizes)

    start = time.perf_counter()
    step = jit(train_step).lower(params, state, heldout[0]).compile()
    evaluate = jit(loss_of).lower(params, heldout[0]).compile()
    compile_seconds = time.perf_counter() - start

    losses, step_seconds = [], []
    for tokens in batches:
        start = time.perf_counter()
        params, state, loss = step(params, state, tokens)
        losses.append(float(loss))  # waits for the step to end
        step_seconds.append(time.perf_counter() - start)
        on_step(losses[-1])

    return Trained(
        losses=losses,
        heldout_loss=float(np.mean([evaluate(params, batch) for batch in heldout])),
        compile_seconds=compile_seconds,
        step_seconds=step_seconds,
        step=step,
    )
