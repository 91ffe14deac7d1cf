"""Data-parallel training on 64 emulated chips, against one chip 64 times.

The transformer of the quickstart (a million parameters) under SGD, one sequence per
device; gradients are averaged over all devices by the algorithm that size selects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from benchmarks.harness import Effort, Result, Samples, interleave, ratio, row
from neuronjax.quickstart import model

TARGET = "trn2.48xlarge"
CONFIG = model.GPTConfig(vocab_size=128, layers=4, heads=4, width=128, hidden=352)
DEVICES, FEW = 64, 4
TOKENS = 32


@functools.cache
def problem() -> tuple[Callable[..., Any], Any]:
    """(gradients of one device, parameters)."""
    graphdef, params = model.create(CONFIG)
    return jax.grad(functools.partial(model.loss, graphdef)), params


def tokens(devices: int) -> np.ndarray:
    shape = (devices, TOKENS + 1)
    return np.random.default_rng(0).integers(0, CONFIG.vocab_size, shape, np.int32)


def _descended(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def parallel_step(devices: int) -> Any:
    """The step on a mesh of so many devices."""
    gradients, _ = problem()

    def step(params: Any, batch: jax.Array) -> Any:
        grads = gradients(params, batch)
        return _descended(params, lax.pmean(grads, "dp"))

    mesh = nj.make_mesh((devices,), ("dp",))
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(P(), P("dp")), out_specs=P(), check_vma=False
    )
    return nj.jit(mapped, target=TARGET, policy="bf16")


@row("chips/64_over_sequential", target=1.3)
def many_chips(effort: Effort) -> Result:
    """A step on 64 devices over 64 steps on one."""
    gradients, params = problem()
    batch = tokens(DEVICES)
    together = parallel_step(DEVICES)

    def step(params: Any, batch: jax.Array) -> Any:
        return _descended(params, gradients(params, batch))

    alone = nj.jit(step, target=TARGET, policy="bf16")

    def sequential() -> Any:
        return [alone(params, one[None]) for one in batch][-1]

    times = interleave((sequential, lambda: together(params, batch)), effort)
    return ratio(*times, sizes={"devices": DEVICES, "tokens": TOKENS})


@row("chips/compile_64_over_4", target=1.3)
def compile_time(effort: Effort) -> Result:
    """Trace, lower and compile for 64 devices over the same for 4."""
    _, params = problem()

    def compiled(devices: int) -> Any:
        return parallel_step(devices).lower(params, tokens(devices)).compile()

    thunks = [functools.partial(compiled, n) for n in (DEVICES, FEW)]
    many, few = interleave(thunks, effort, before=jax.clear_caches)
    pairs = zip(many.values, few.values, strict=True)
    return Result(
        value=Samples(tuple(a / b for a, b in pairs)),
        unit="x",
        native=few,
        emulated=many,
        sizes={"devices": DEVICES, "beside": FEW},
    )
