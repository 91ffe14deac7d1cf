"""`compare` of train steps, in seconds and over the native step.

The models are the quickstart's GPT, with 1 million and 10 million parameters, and a
UNet of 13,255 ops. They are trained by Adam and compared under bf16 with float64,
without the search for causes. "Cold" includes the compilation of a program for every
kind of instruction and size, as on a user's first call in a process; the value is the
time of the second call.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import jax

from benchmarks import training, unet
from benchmarks.harness import Effort, Result, Samples, row, seconds_of
from examples import gpt as model
from neuronjax.api.compare import compare

#: Configurations by millions of parameters.
CONFIGS = {
    1: model.GPTConfig(vocab_size=256, layers=4, heads=4, width=160, hidden=384),
    10: model.GPTConfig(vocab_size=256, layers=6, heads=4, width=320, hidden=1280),
}
BATCH, TOKENS = 4, 64


def measured(made: Callable[[], tuple[training.Step, tuple]], effort: Effort) -> Result:
    """Measure the second comparison in seconds, with the first in the details. `made`
    returns a step and its arguments."""
    del effort
    step, args = made()
    native = jax.jit(step)
    jax.block_until_ready(native(*args))
    native_seconds = min(seconds_of(lambda: native(*args)) for _ in range(3))
    compared = compare(step, policy="bf16", explain=False)
    times, ops = [], 0
    for _ in range(2):
        start = time.perf_counter()
        ops = len(compared(*args).ops)
        times.append(time.perf_counter() - start)
    cold, warm = times
    return Result(
        value=Samples((warm,)),
        unit="s",
        sizes={
            "parameters": sum(p.size for p in jax.tree.leaves(args[0])),
            "ops": ops,
        },
        details={
            "cold_seconds": cold,
            "native_seconds": native_seconds,
            "over_native": warm / native_seconds,
        },
    )


for _millions, _config in CONFIGS.items():
    _made = functools.partial(training.gpt, _config, BATCH, TOKENS)
    _target = 5.0 if _millions == 10 else None
    row(f"compare/gpt_{_millions}m", target=_target)(functools.partial(measured, _made))
row("compare/unet", target=20.0)(functools.partial(measured, unet.step))
