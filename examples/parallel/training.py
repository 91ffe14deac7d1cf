"""Train on a mesh, with the same code for every way of spreading a model over it.

A `Strategy` defines a mesh, how parameters and batches are cut, and what one device
computes of its parts. This file turns it into a `jax.shard_map` under `nj.jit`: once
for gradients, and once for a whole training step, in which each device keeps Adam's
moments of its own parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import optax
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec as P

import neuronjax as nj
from examples.parallel import model

TARGET = "trn2.48xlarge"
ADAM = optax.adam(3e-3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """How a model is trained on many devices.

    Attributes:
        mesh: the devices.
        params: the PartitionSpec of every parameter.
        batch: the PartitionSpec of tokens, [B, T + 1].
        value_and_grad: of one device's parameters and tokens the loss of the whole
            batch, and of that the gradients of the device's parameters.
        init: makes the whole parameters.
        whole_loss: the same loss on one device, of the whole parameters and batch.
    """

    mesh: AbstractMesh
    params: Any
    batch: P
    value_and_grad: Callable[[Any, jax.Array], tuple[jax.Array, Any]]
    init: Callable[[], Any] = model.init
    whole_loss: Callable[[Any, jax.Array], jax.Array] = model.loss


def specs(init: Callable[[], Any], cut: Mapping[str, P] | None = None) -> Any:
    """Every device has all parameters, but of the layers' those in `cut` as it says."""
    whole = jax.tree.map(lambda _: P(), jax.eval_shape(init))
    return {**whole, "layers": {**whole["layers"], **(cut or {})}}


def sum_replicated(grads: Any, specs: Any, axis: str) -> Any:
    """Adds up, over an axis, the gradients of the parameters not cut along it."""
    return jax.tree.map(
        lambda g, spec: g if axis in spec else lax.psum(g, axis), grads, specs
    )


def value_and_grad(strategy: Strategy, policy: str | nj.Policy = "bf16") -> nj.Emulated:
    """(params, tokens) -> (loss, gradients) of whole arrays, on emulated devices."""
    mapped = jax.shard_map(
        strategy.value_and_grad,
        mesh=strategy.mesh,
        in_specs=(strategy.params, strategy.batch),
        out_specs=(P(), strategy.params),
        check_vma=False,
    )
    return nj.jit(mapped, target=TARGET, policy=policy)


def training_step(strategy: Strategy, policy: str | nj.Policy = "bf16") -> nj.Emulated:
    """(params, state, tokens) -> (params, state, loss) of whole arrays."""

    def step(params: Any, state: Any, tokens: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, grads = strategy.value_and_grad(params, tokens)
        updates, state = ADAM.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    moments = state_specs(strategy)
    mapped = jax.shard_map(
        step,
        mesh=strategy.mesh,
        in_specs=(strategy.params, moments, strategy.batch),
        out_specs=(strategy.params, moments, P()),
        check_vma=False,
    )
    return nj.jit(mapped, target=TARGET, policy=policy)


def state_specs(strategy: Strategy) -> Any:
    """Adam's moments are cut as their parameters are; its counter is everywhere."""
    state = jax.eval_shape(lambda: ADAM.init(strategy.init()))
    return optax.tree.map_params(
        ADAM,
        lambda _, spec: spec,
        state,
        strategy.params,
        transform_non_params=lambda _: P(),
    )


def train(
    strategy: Strategy, steps: int, policy: str | nj.Policy = "bf16"
) -> Iterator[float]:
    """Yields the loss of every step."""
    step = training_step(strategy, policy)
    params = strategy.init()
    state = ADAM.init(params)
    for tokens in model.batches(steps):
        params, state, loss = step(params, state, tokens)
        yield float(loss)


def main(strategy: Strategy, steps: int = 100) -> None:
    """Trains, and prints the mean loss of every ten steps."""
    sizes = " x ".join(f"{n} {axis}" for axis, n in strategy.mesh.shape.items())
    print(f"{sizes} on an emulated {TARGET}, BF16; nats per character")
    recent: list[float] = []
    for number, loss in enumerate(train(strategy, steps), 1):
        recent.append(loss)
        if number % 10 == 0:
            print(f"steps {number - 9:3}-{number:3}: {np.mean(recent):.3f}")
            recent.clear()
