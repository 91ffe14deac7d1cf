"""`python -m benchmarks.scaling`: how the emulation's cost grows, and with what.

There are four sweeps: parameters of a GPT (train step under Adam, one sequence of 64
tokens), length of its sequence, emulated devices of a data-parallel step, and ops of a
straight-line program. At each point native `jax.jit` and the emulation (trn2, bf16
preset) run in turn. A point consists of run time, compile time (trace, lower, XLA;
once, with new jit objects) and the bytes that XLA plans for: arguments, results and
temporaries without aliases. For several devices, the native side runs the step of one
device once for each device, because one host can do no more.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks import results_file, training
from benchmarks.harness import Effort, Result, interleave, progress, ratio
from examples import gpt as model

TARGET, INSTANCE, POLICY = "trn2", "trn2.48xlarge", "bf16"
FULL = Effort(repetitions=7, seconds=8.0, minimum=2)
QUICK = Effort(repetitions=2, seconds=1.0, minimum=2)
#: A program that would take longer to compile is only decoded and lowered.
COMPILE_SECONDS = 150.0

Entry = dict[str, Any]
#: (layers, width, hidden): 1, 10, 30 and 100 million parameters.
MODELS = ((4, 128, 352), (6, 384, 1024), (6, 640, 1728), (8, 1024, 2752))
SMALL = MODELS[0]
TOKENS = 64
LENGTHS = (64, 128, 256, 512, 1024, 2048)
DEVICES = (1, 4, 16, 64)
OPS = (100, 1_000, 10_000)

# ---- A point.


@dataclasses.dataclass(frozen=True)
class Build:
    """A compiled function, with its compile time and planned memory."""

    call: Callable[..., Any]
    seconds: float
    planned_bytes: int


def build(function: Callable[..., Any], *args: Any) -> Build:
    """Compile a function, or an emulated one, with a new jit object."""
    start = time.perf_counter()
    compiled = jax.jit(lambda *args: function(*args)).lower(*args).compile()
    seconds = time.perf_counter() - start
    plan: Any = compiled.memory_analysis()
    planned = (
        plan.temp_size_in_bytes
        + plan.argument_size_in_bytes
        + plan.output_size_in_bytes
        - plan.alias_size_in_bytes
    )
    return Build(compiled, seconds, planned)


def point(
    sweep: str,
    value: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    effort: Effort,
    **sizes: Any,
) -> Entry:
    """Return a point: one function of the same arguments, native and emulated."""
    native = build(function, *args)
    emulated = build(nj.jit(function, target=TARGET, policy=POLICY), *args)
    times = interleave(
        (lambda: native.call(*args), lambda: emulated.call(*args)), effort
    )
    return entry(sweep, value, native, emulated, ratio(*times), sizes)


def entry(
    sweep: str,
    value: int,
    native: Build,
    emulated: Build,
    times: Result,
    sizes: Mapping[str, Any],
) -> Entry:
    """Return a point as plain data."""
    if times.native is None or times.emulated is None:
        raise ValueError("a point needs both times")
    made = {
        "sweep": sweep,
        "value": value,
        "sizes": dict(sizes),
        "ratio": times.value.median,
        "ratio_quartiles": list(times.value.quartiles),
        "runs": len(times.value.values),
        "native_seconds": times.native.median,
        "emulated_seconds": times.emulated.median,
        "native_compile_seconds": native.seconds,
        "emulated_compile_seconds": emulated.seconds,
        "native_planned_bytes": native.planned_bytes,
        "emulated_planned_bytes": emulated.planned_bytes,
    }
    progress(
        f"{sweep} {value}: {made['ratio']:.2f} x, compile"
        f" {native.seconds:.1f} and {emulated.seconds:.1f} s"
    )
    return made


# ---- The sweeps.


def train_step(
    sizes: tuple[int, int, int], tokens: int
) -> tuple[Callable[..., Any], tuple[Any, ...], int]:
    """Return (step, arguments, number of parameters) of a GPT under Adam."""
    layers, width, hidden = sizes
    config = model.GPTConfig(layers=layers, width=width, hidden=hidden)
    step, args = training.gpt(config, 1, tokens)
    return step, args, sum(leaf.size for leaf in jax.tree.leaves(args[0]))


def model_sizes(effort: Effort, quick: bool) -> Iterator[Entry]:
    """Yield points for 1 to 100 million parameters."""
    for sizes in MODELS[:2] if quick else MODELS:
        step, args, count = train_step(sizes, TOKENS)
        about = dict(zip(("layers", "width", "hidden"), sizes, strict=True))
        yield point("parameters", count, step, args, effort, **about, tokens=TOKENS)


def sequence_lengths(effort: Effort, quick: bool) -> Iterator[Entry]:
    """Yield points by the number of tokens of the one sequence."""
    for tokens in LENGTHS[1:3] if quick else LENGTHS[1:]:
        step, args, count = train_step(SMALL, tokens)
        yield point("tokens", tokens, step, args, effort, parameters=count)


def device_counts(effort: Effort, quick: bool) -> Iterator[Entry]:
    """Yield points by the number of devices; the native side runs a step for each."""
    layers, width, hidden = SMALL
    config = model.GPTConfig(layers=layers, width=width, hidden=hidden)
    graphdef, params = model.create(config)
    gradients = jax.grad(functools.partial(model.loss, graphdef))

    alone = training.descent(gradients)
    native = None
    for devices in (1, 4) if quick else DEVICES:
        text = training.token_ids(config, devices, 32)
        mapped = training.data_parallel(gradients, devices)
        function = alone if devices == 1 else mapped
        native = native or build(alone, params, text[:1])
        emulated = nj.jit(function, target=INSTANCE, policy=POLICY)
        together = build(emulated, params, text)
        times = interleave(
            (
                functools.partial(_each, native.call, params, text),
                functools.partial(together.call, params, text),
            ),
            effort,
        )
        sizes = {"tokens": 32, "native_bytes_are_of": "one device"}
        yield entry("devices", devices, native, together, ratio(*times), sizes)


def _each(step: Callable[..., Any], params: Any, text: np.ndarray) -> Any:
    return [step(params, one[None]) for one in text][-1]


def straight_line(ops: int) -> Callable[..., Any]:
    """Return a network without a loop: a matmul, a maximum, a mean and a residual per
    layer, which are 10 StableHLO ops."""

    def network(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(ops // 10):
            y = jnp.maximum(x @ w, 0)
            x = x + (y - y.mean(-1, keepdims=True)) * 0.1
        return x

    return network


def program_lengths(effort: Effort, quick: bool) -> Iterator[Entry]:
    """Yield points by the number of ops of a program without a loop."""
    rng = np.random.default_rng(0)
    shapes = (8, 32), (32, 32)
    args = tuple(jnp.asarray(rng.standard_normal(s, np.float32)) for s in shapes)
    compile_seconds = 0.0
    for ops in OPS[:2] if quick else OPS:
        network = straight_line(ops)
        start = time.perf_counter()
        emulated = nj.jit(network, target=TARGET, policy=POLICY)
        count = sum(1 for _ in emulated.lower(*args).program.walk())
        front = time.perf_counter() - start
        if compile_seconds * 10 > COMPILE_SECONDS:
            why = f"by the last point it would take {compile_seconds * 10:.0f} s"
            sizes = {"stablehlo_ops": count, "front_end_seconds": front}
            yield {"sweep": "ops", "value": ops, "sizes": sizes, "not_compiled": why}
            continue
        sizes = {"stablehlo_ops": count, "front_end_seconds": front}
        made = point("ops", ops, network, args, effort, **sizes)
        compile_seconds = made["emulated_compile_seconds"]
        yield made


SWEEPS = {
    "parameters": model_sizes,
    "tokens": sequence_lengths,
    "devices": device_counts,
    "ops": program_lengths,
}
#: Points that have not begun by this time are left out; `cut` names their sweeps.
MINUTES = {False: 13.0, True: 3.5}


def measure(quick: bool) -> dict[str, Any]:
    """Return the points of all sweeps, measured from the smallest to the largest."""
    jax.config.update("jax_enable_compilation_cache", False)
    effort = QUICK if quick else FULL
    start = time.perf_counter()
    going = {name: sweep(effort, quick) for name, sweep in SWEEPS.items()}
    entries: list[Entry] = []
    while going and time.perf_counter() - start < 60 * MINUTES[quick]:
        for name in list(going):
            if made := next(going[name], None):
                entries.append(made)
            else:
                del going[name]
    entries.sort(key=lambda made: (list(SWEEPS).index(made["sweep"]), made["value"]))
    return {"entries": entries, "cut": list(going)}


def show(found: Mapping[str, Any]) -> str:
    """Return a line for each point."""
    cut = [f"{name}: cut short by the clock" for name in found["cut"]]
    return "\n".join([*map(_line, found["entries"]), *cut])


def _line(made: Mapping[str, Any]) -> str:
    head = f"{made['sweep']:12} {made['value']:>12,}"
    if "not_compiled" in made:
        return f"{head}  not compiled: {made['not_compiled']}"
    memory = made["emulated_planned_bytes"] / made["native_planned_bytes"]
    compiling = made["emulated_compile_seconds"] / made["native_compile_seconds"]
    return (
        f"{head}  run {made['ratio']:5.2f} x, compile {compiling:5.1f} x,"
        f" memory {memory:5.2f} x"
    )


if __name__ == "__main__":
    sys.exit(results_file.command("scaling", measure, show))
