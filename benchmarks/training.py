"""Train steps that several benchmarks measure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from examples import gpt as model

Step = Callable[..., Any]


def train_step(loss: Step, optimizer: optax.GradientTransformation) -> Step:
    """Return (params, state, *batch) -> (params, state, loss)."""

    def step(params: Any, state: Any, *batch: Any) -> tuple[Any, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def token_ids(config: model.GPTConfig, rows: int, tokens: int) -> np.ndarray:
    """Return rows of random tokens, one longer than the model's input."""
    shape = (rows, tokens + 1)
    return np.random.default_rng(0).integers(0, config.vocab_size, shape, np.int32)


def gpt(
    config: model.GPTConfig, batch: int, tokens: int
) -> tuple[Step, tuple[Any, ...]]:
    """Return a step of the quickstart's GPT under Adam, and its arguments."""
    graphdef, params = model.create(config)
    optimizer = optax.adam(1e-3)
    step = train_step(functools.partial(model.loss, graphdef), optimizer)
    text = jax.numpy.asarray(token_ids(config, batch, tokens))
    return step, (params, optimizer.init(params), text)


def descent(gradients: Step, axis: str | None = None) -> Step:
    """Return a step of gradient descent, with the mean gradient over an axis."""

    def step(params: Any, batch: jax.Array) -> Any:
        grads = gradients(params, batch)
        if axis is not None:
            grads = lax.pmean(grads, axis)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    return step


def data_parallel(gradients: Step, devices: int) -> Step:
    """Return a step of gradient descent on a mesh that divides the batch."""
    return jax.shard_map(
        descent(gradients, "dp"),
        mesh=nj.make_mesh((devices,), ("dp",)),
        in_specs=(P(), P("dp")),
        out_specs=P(),
        check_vma=False,
    )
