"""Data-parallel training on 64 emulated chips, against 64 steps on one chip.

The model is the quickstart's transformer (a million parameters) under SGD, with one
sequence per device. Gradients are averaged over all devices by the algorithm that their
size selects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import neuronjax as nj
from benchmarks import training
from benchmarks.harness import Effort, Result, in_fresh_process, interleave, ratio, row
from examples import gpt as model
from neuronjax.execution.device_sharding import real_devices

TARGET = "trn2.48xlarge"
CONFIG = model.GPTConfig(vocab_size=128, layers=4, heads=4, width=128, hidden=352)
DEVICES, FEW = 64, 4
TOKENS = 32


@functools.cache
def problem() -> tuple[Callable[..., Any], Any]:
    """Return (gradients of one device, parameters)."""
    graphdef, params = model.create(CONFIG)
    return jax.grad(functools.partial(model.loss, graphdef)), params


def tokens(devices: int) -> np.ndarray:
    return training.token_ids(CONFIG, devices, TOKENS)


def parallel_step(devices: int) -> Any:
    """Return the step on a mesh of this many devices."""
    mapped = training.data_parallel(problem()[0], devices)
    return nj.jit(mapped, target=TARGET, policy="bf16")


@row("chips/64_over_sequential", target=1.3)
def many_chips(effort: Effort) -> Result:
    """Measure a step on 64 devices over 64 steps on one."""
    gradients, params = problem()
    batch = tokens(DEVICES)
    together = parallel_step(DEVICES)
    alone = nj.jit(training.descent(gradients), target=TARGET, policy="bf16")

    def sequential() -> Any:
        return [alone(params, one[None]) for one in batch][-1]

    times = interleave((sequential, lambda: together(params, batch)), effort)
    return ratio(
        *times,
        sizes={"devices": DEVICES, "tokens": TOKENS},
        details={"memory_over_copies": memory_over_copies(together, params, batch)},
    )


def memory_over_copies(step: Any, params: Any, batch: np.ndarray) -> float:
    """Return a step's peak memory over one copy of the state per device."""
    plan = step.lower(params, batch).compile().memory_analysis()
    needed = (
        plan.temp_size_in_bytes
        + plan.argument_size_in_bytes
        + plan.output_size_in_bytes
    )
    copy = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    return needed / (DEVICES * copy)


@row("chips/two_real_over_one", target=0.75)
def two_real_devices(effort: Effort) -> Result:
    """Measure a step on 64 emulated devices over two host devices, against one."""
    # The number of host devices is fixed when the first one is used.
    return in_fresh_process(functools.partial(_two_real_devices, effort), {})


def _two_real_devices(effort: Effort) -> Result:
    jax.config.update("jax_num_cpu_devices", 2)
    mesh = Mesh(np.asarray(jax.devices()), ("chips",))
    _, params = problem()
    step, batch = parallel_step(DEVICES), tokens(DEVICES)

    def carried() -> Any:
        with real_devices(mesh):
            return step(params, batch)

    times = interleave((lambda: step(params, batch), carried), effort)
    return ratio(*times, sizes={"devices": DEVICES, "tokens": TOKENS})


@row("chips/compile_64_over_4", target=1.3)
def compile_time(effort: Effort) -> Result:
    """Measure trace, lower and compile for 64 devices over the same for 4."""
    _, params = problem()

    def compiled(devices: int) -> Any:
        return parallel_step(devices).lower(params, tokens(devices)).compile()

    thunks = [functools.partial(compiled, n) for n in (DEVICES, FEW)]
    many, few = interleave(thunks, effort, before=jax.clear_caches)
    return ratio(few, many, sizes={"devices": DEVICES, "beside": FEW})
