"""The cost of statistics: the train step of `bench_gpt` with and without `collect=`.

Both run under the same policy in the same process and are compiled before anything is
timed, so the ratio is that of the measurements alone. "every8" measures an eighth of
every tensor. Compile time is not included, although every kind of tensor adds a kernel.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

import neuronjax as nj
from benchmarks import bench_gpt
from benchmarks.harness import Effort, Result, compare_calls, row
from neuronjax.execution.probes.collect import Collect

VARIANTS: dict[str, tuple[Collect, float | None]] = {
    "default": (Collect(), 1.3),
    "every8": (Collect(every=8), 1.3),
    "histogram": (Collect(histogram=True), None),
}


def build(collect: Collect) -> Callable[..., Any]:
    """Return the step compiled with statistics."""
    step, args = bench_gpt.problem()
    measured = nj.jit(
        step, target=bench_gpt.TARGET, policy=bench_gpt.EXACT, collect=collect
    )
    return jax.jit(lambda *args: measured(*args)).lower(*args).compile()


def step_time(collect: Collect, effort: Effort) -> Result:
    """Measure the run time with statistics over that without."""
    _, args = bench_gpt.problem()
    plain = bench_gpt.first_build(bench_gpt.EXACT).executable
    measured = build(collect)
    result = compare_calls(plain, measured, args, effort, sizes=bench_gpt.SIZES)
    _, statistics = measured(*args)
    sites = float(len(statistics.sites))
    return dataclasses.replace(result, details={**result.details, "sites": sites})


for _name, (_collect, _target) in VARIANTS.items():
    row(f"collect_gpt/{_name}", target=_target)(functools.partial(step_time, _collect))
