"""Costs that do not depend on arithmetic: cached calls, long loops, large programs.

The time of a cached call is the excess over a native call of the same function. A
loop's compile time should not depend on its number of turns. Decoding and lowering are
timed on a program of ten thousand ops of the kinds in a train step.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import neuronjax as nj
from benchmarks.harness import Effort, Result, Samples, interleave, ratio, row
from neuronjax.capture.decode import decode_module
from neuronjax.capture.trace import PLATFORM
from neuronjax.hardware import resolve_target
from neuronjax.lowering import lower

# One cached call is too short to be timed.
CALLS = 200
LEAVES = 50
STEPS = 1000, 10
LAYERS = 590  # slightly more than 10,000 ops

# ---- Cached calls.


def overhead(leaves: int, effort: Effort) -> Result:
    """Measure the microseconds by which a cached call is slower than a native one."""
    argument = {f"leaf{i}": jnp.zeros(8) for i in range(leaves)}
    native = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree))
    emulated = nj.jit(
        lambda tree: jax.tree.map(lambda x: x + 1, tree), target="trn2", policy="fp32"
    )

    def calls(function: Callable[..., Any]) -> Any:
        return [function(argument) for _ in range(CALLS)][-1]

    thunks = [functools.partial(calls, function) for function in (native, emulated)]
    times = interleave(thunks, effort)
    one_native, one_emulated = (t.scaled(1 / CALLS) for t in times)
    pairs = zip(one_native.values, one_emulated.values, strict=True)
    return Result(
        value=Samples(tuple((slow - fast) * 1e6 for fast, slow in pairs)),
        unit="us",
        native=one_native,
        emulated=one_emulated,
        sizes={"leaves": leaves, "calls": CALLS},
    )


row("dispatch/one_leaf", target=100)(functools.partial(overhead, 1))
row("dispatch/fifty_leaves", target=100)(functools.partial(overhead, LEAVES))

# ---- Long loops.


@row("scan/1000_over_10", target=1.2)
def scan_compile(effort: Effort) -> Result:
    """Measure the compile time of a scan of 1,000 steps over that of 10 steps."""

    def seconds(steps: int) -> Any:
        def loop(carry: jax.Array) -> Any:
            def body(x: jax.Array, _: None) -> Any:
                return jnp.tanh(x @ x), x.sum()

            return lax.scan(body, carry, None, length=steps)

        step = nj.jit(loop, target="trn2", policy="bf16")
        return step.lower(jax.ShapeDtypeStruct((64, 64), jnp.float32)).compile()

    thunks = [functools.partial(seconds, n) for n in STEPS]
    long, short = interleave(thunks, effort, before=jax.clear_caches)
    return ratio(short, long, sizes={"steps": STEPS[0], "beside": STEPS[1]})


# ---- Large programs.


@functools.cache
def large_module() -> Any:
    """Return a residual network as straight-line StableHLO."""

    def network(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(LAYERS):
            y = jnp.maximum(x @ w, 0)
            x = x + (y - y.mean(-1, keepdims=True)) * 0.1
        return x

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 32), (32, 32))]
    traced = jax.jit(network).trace(*shapes)
    return traced.lower(lowering_platforms=(PLATFORM,)).compiler_ir()


@row("program/10000_ops", target=400)
def large_program(effort: Effort) -> Result:
    """Measure the milliseconds to decode and lower, scaled to exactly 10,000 ops."""
    module = large_module()
    target, policy = resolve_target("trn2"), nj.Policy.preset("bf16")
    count = sum(1 for _ in decode_module(module).walk())

    def both() -> None:
        lower(decode_module(module), target=target, policy=policy)

    start = time.perf_counter()
    both()
    first = time.perf_counter() - start
    (times,) = interleave((both,), effort)
    return Result(
        value=times.scaled(1e3 * 10_000 / count),
        unit="ms",
        emulated=times,
        sizes={"stablehlo_ops": count},
        details={"first_seconds": first},
    )
