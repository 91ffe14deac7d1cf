"""The ways in which a random program is run; each gives the bits of op by op."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import neuronjax as nj
from tests.conformance import bits
from tests.fuzz.program import Program

Step = Callable[..., Any]
Args = Sequence[jax.Array]

POLICIES: Mapping[str, nj.Policy] = {
    **{
        name: bits.POLICIES[name]
        for name in ("fp32", "bf16", "fp8", "bf16_stochastic", "bf16_all")
    },
    # Every write and every cast; of the chips trn3 alone rounds partial sums.
    "bf16_all_stochastic": nj.Policy(
        auto_cast="all", auto_cast_type="bf16", rounding="stochastic", seed=5
    ),
    "fp8_stochastic": nj.Policy(
        auto_cast="matmult",
        auto_cast_type="fp8",
        rounding="stochastic",
        scaling="current",
        overflow="saturate",
        seed=3,
    ),
}
#: Threads that call one emulated function at once.
CALLERS = 4


def emulation(program: Program, policy: str, outside: bool) -> Step:
    """The emulated program; its transformation outside or inside of the emulation."""
    function = program.untransformed()
    if outside:
        return program.transformed(emulated(function, program.target, policy))
    return emulated(program.transformed(function), program.target, policy)


def emulated(function: Step, target: str, policy: str) -> Step:
    """`nj.jit` with a call index where it needs one; all its calls give one result."""
    chosen = POLICIES[policy]
    step = nj.jit(function, target=target, policy=chosen)
    if chosen.rounding == "stochastic":
        return step.with_rounding_seed(bits.CALL_INDEX)
    return step


def _in_a_scan(step: Step, args: Args) -> Any:
    """Stacked as integers: XLA's own loops move FP8 by way of FP16, and change NaNs."""

    def turns(args: Args) -> Any:
        return lax.scan(lambda _, x: (_, _codes(step(*args))), 0, None, length=2)[1]

    types = jax.eval_shape(step, *args)
    stacked = jax.jit(turns)(list(args))
    first, second = (
        jax.tree.map(lambda x, t, n=n: _decoded(x[n], t), stacked, types)
        for n in (0, 1)
    )
    bits.assert_same(first, second, "turns of a scan")
    return first


def _codes(tree: Any) -> Any:
    return jax.tree.map(
        lambda x: x.view(jnp.uint8) if x.dtype.name.startswith("float8") else x, tree
    )


def _decoded(x: jax.Array, type: jax.ShapeDtypeStruct) -> jax.Array:
    return x.view(type.dtype) if x.dtype != type.dtype else x


def _donated(step: Step, args: Args) -> Any:
    copies = [jnp.array(a, copy=True) for a in args]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        out = jax.jit(step, donate_argnums=range(len(args)))(*copies)
    return jax.block_until_ready(out)


def _batched(step: Step, args: Args) -> Any:
    """The second of three equal examples."""
    stacked = [jnp.stack([a] * 3) for a in args]
    return jax.tree.map(lambda x: x[1], jax.vmap(step)(*stacked))


def _by_threads(step: Step, args: Args) -> Any:
    x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    found: list[Any] = []
    start = threading.Barrier(CALLERS)

    def call() -> None:
        start.wait()
        with jax.enable_x64(x64):  # contexts are a thread's own
            try:
                found.append(step(*args))
            except Exception as error:  # raised again below, where it is seen
                found.append(error)

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for result in found:
        if isinstance(result, Exception):
            raise result
        bits.assert_same(result, found[0], "threads")
    return found[0]


WAYS: dict[str, Callable[[Step, Args], Any]] = {
    "jit": lambda step, args: step(*args),
    "outer jit": lambda step, args: jax.jit(step)(*args),
    "constants of an outer jit": lambda step, args: jax.jit(lambda: step(*args))(),
    "scan": _in_a_scan,
    "donated": _donated,
    "batched": _batched,
    "threads": _by_threads,
}


def applies(way: str, policy: str) -> bool:
    """Whether it promises the same bits: an example rounds at random by its place."""
    return way != "batched" or POLICIES[policy].rounding != "stochastic"
