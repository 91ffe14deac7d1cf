"""The only executor of fold plans: order, stages, hops, roundings.

A stage is a few additions in a straight line, or a `lax.scan` over the hops, so the
number of ranks does not change the compile time. XLA cannot reassociate a sum whose
operands and partial sums it does not know: operands are opaque, sums are sealed.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines.dispatch import wide
from neuronjax.execution.engines.fold import combiner, left_fold
from neuronjax.ir.fold_plan import FoldPlan, Stage
from neuronjax.numerics.exact import kept_apart
from neuronjax.numerics.float_format import FLOAT32, FloatFormat
from neuronjax.numerics.random_bits import fold, random_bits
from neuronjax.numerics.rounding import cast


class SumStorage(NamedTuple):
    """How a rank stores a partial sum.

    Attributes:
        format: the format in which the tensor is sent.
        rounding: "rne" or "stochastic".
        overflow: "ieee" or "saturate".
    """

    format: FloatFormat = FLOAT32
    rounding: str = "rne"
    overflow: str = "ieee"

    def stored(
        self, total: jax.Array, key: jax.Array, stage: int, hop: jax.Array | int = 0
    ) -> jax.Array:
        """Return a float32 partial sum as it is stored after a hop, in the format's
        dtype. Stochastic rounding draws one number per element, in row-major order of
        `total`, from a key into which stage and hop are folded."""
        if self.format == FLOAT32:
            return total
        options: dict[str, Any] = dict(rounding=self.rounding, overflow=self.overflow)
        if self.rounding == "stochastic":
            key = fold(fold(key, jnp.uint32(stage)), jnp.uint32(hop))
            options["random_bits"] = random_bits(total.shape, key)
        return cast(total, self.format, **options)


def fold_ranks(
    x: jax.Array,
    plan: FoldPlan,
    op: str,
    storage: SumStorage,
    zero: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """Fold an opaque [groups, ranks, chunks, m] over its ranks to [groups, chunks, m].
    The plan has an order for all chunks or one per chunk; `op` is "add" or "multiply".
    Arrays have the dtype of `storage.format`."""
    x = _in_order(x, plan)
    for number, stage in enumerate(plan.stages):
        # Otherwise XLA would compute a stage again for every operand of the next one.
        x = kept_apart(
            _staged(x, zero, key, number=number, stage=stage, op=op, storage=storage)
        )
    return x[0]


def _in_order(x: jax.Array, plan: FoldPlan) -> jax.Array:
    """Return x as [ranks, groups, chunks, m], with the ranks in the plan's order."""
    order = np.asarray(plan.order)
    if plan.chunks == 1:
        x = jnp.moveaxis(x, 1, 0)
        if np.array_equal(order[0], np.arange(plan.ranks)):
            return x
        return x.at[order[0]].get(mode="promise_in_bounds")
    x = x.at[:, order.T, np.arange(plan.chunks)].get(mode="promise_in_bounds")
    return jnp.moveaxis(x, 1, 0)


@functools.partial(jax.jit, static_argnames=("number", "stage", "op", "storage"))
def _staged(
    x: jax.Array,
    zero: jax.Array,
    key: jax.Array,
    *,
    number: int,
    stage: Stage,
    op: str,
    storage: SumStorage,
) -> jax.Array:
    """Return the sums of one stage, [partials // width, ...] of [partials, ...]."""
    add = combiner(op, zero)
    combine = lambda total, row: add(total, wide(row))  # noqa: E731
    hops = stage.width // stage.hop
    x = lax.reshape(x, (x.shape[0] // stage.width, hops, stage.hop, *x.shape[1:]))
    x = jnp.moveaxis(x, 0, 2)  # [hops, hop, partials, ...]
    first = x[0, 0]
    if stage.hop > 1:
        total = left_fold(x[0, 1:], combine, wide(first))
        first = storage.stored(total, key, number)
    if hops == 1:
        return first

    def step(received: jax.Array, inputs: tuple) -> tuple[jax.Array, None]:
        hop, own = inputs
        total = left_fold(own, combine, wide(received))
        return storage.stored(total, key, number, hop), None

    return lax.scan(step, first, (jnp.arange(1, hops, dtype=jnp.uint32), x[1:]))[0]
