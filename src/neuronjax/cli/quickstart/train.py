"""Trains a Flax model with Optax: what a user would write, with `jit` as an argument.

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
from neuronjax.cli.quickstart.data import Corpus
from neuronjax.cli.quickstart.recipe import Recipe


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
    recipe: Recipe,
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
