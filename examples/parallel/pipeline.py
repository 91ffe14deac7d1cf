"""Train with pipeline parallelism: each device has some layers.

The schedule is 1F1B on a common clock. In a tick, a stage does one forward and one
backward pass, of different microbatches, and sends results to its neighbours. Stage s
of S takes microbatch m forward at tick m + s and backward at tick m + 2 (S - 1) - s, so
the last stage starts the backward pass at once. A stage stores only its inputs, of at
most 2 S - 1 microbatches however many there are, and computes the rest again. M
microbatches take M + 2 (S - 1) ticks; passes outside of the schedule run too, on zero
gradients.

    python -m examples.parallel.pipeline
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from examples.parallel import model, training
from examples.parallel.model import Block

MESH = nj.make_mesh((4,), ("pp",))
MICROBATCHES = 4
init = functools.partial(model.init, layers=4)
SPECS = training.specs(init, dict.fromkeys(jax.eval_shape(init)["layers"], P("pp")))


def stage(
    params: Any, x: jax.Array, tokens: jax.Array, block: Block
) -> tuple[jax.Array, jax.Array]:
    """This stage's layers; the first stage begins with the embedding.

    Returns:
        The residual stream for the next stage, and the loss, which counts on the last.
    """
    embedded = model.embed(params, tokens[:, :-1])
    x = jnp.where(lax.axis_index("pp") == 0, embedded, x)
    x = model.blocks(params["layers"], x, block)
    return x, model.cross_entropy(params, x, tokens[:, 1:])


class Clock(NamedTuple):
    """What a stage has between two ticks."""

    arriving: jax.Array  # from the stage before, [B, T, D]
    returning: jax.Array  # its gradient, from the stage behind
    inputs: jax.Array  # remembered, [2 S - 1, B, T, D]
    loss: jax.Array
    grads: Any


def value_and_grad(
    params: Any, tokens: jax.Array, block: Block = model.block
) -> tuple[jax.Array, Any]:
    """Sums over the microbatches, then over the stages what all of them have."""
    stages, number = lax.axis_size("pp"), lax.axis_index("pp")
    micro = tokens.reshape(MICROBATCHES, -1, tokens.shape[1])
    remembered = 2 * stages - 1
    last = (number == stages - 1).astype(jnp.float32) / MICROBATCHES
    onward = [(s, s + 1) for s in range(stages - 1)]
    back = [(s + 1, s) for s in range(stages - 1)]

    def tick(clock: Clock, time: jax.Array) -> tuple[Clock, None]:
        ahead, behind = time - number, time - 2 * (stages - 1) + number
        inputs = clock.inputs.at[ahead % remembered].set(clock.arriving)
        scheduled = (behind >= 0) & (behind < MICROBATCHES)

        leaving, _ = stage(params, clock.arriving, micro[ahead % MICROBATCHES], block)
        (_, loss), pullback = jax.vjp(
            lambda params, x: stage(params, x, micro[behind % MICROBATCHES], block),
            params,
            inputs[behind % remembered],
        )
        counts = jnp.where(scheduled, last, 0.0)
        grads, returning = pullback((clock.returning, counts))
        return Clock(
            arriving=lax.ppermute(leaving, "pp", onward),
            returning=lax.ppermute(returning * scheduled, "pp", back),
            inputs=inputs,
            loss=clock.loss + loss * counts,
            grads=jax.tree.map(jnp.add, clock.grads, grads),
        ), None

    stream = jnp.zeros((*micro.shape[1:2], micro.shape[2] - 1, model.D))
    start = Clock(
        arriving=stream,
        returning=stream,
        inputs=jnp.zeros((remembered, *stream.shape)),
        loss=jnp.float32(0),
        grads=jax.tree.map(jnp.zeros_like, params),
    )
    ticks = jnp.arange(MICROBATCHES + 2 * (stages - 1))
    end, _ = lax.scan(tick, start, ticks)
    grads = training.sum_replicated(end.grads, SPECS, "pp")
    return lax.psum(end.loss, "pp"), grads


STRATEGY = training.Strategy(
    mesh=MESH,
    params=SPECS,
    batch=P(),
    value_and_grad=value_and_grad,
    init=init,
)

if __name__ == "__main__":
    training.main(STRATEGY)
