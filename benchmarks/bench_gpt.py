"""A GPT train step: run time, compile time, and the shares of capture and lowering.

The model is the quickstart's with 4 layers, width 256, 4 heads, 128 tokens, batch 8,
vocabulary 256, under Adam; parameters are float32, and every result of the step is an
output. Compile time is trace + lower + XLA, of a new jit object with JAX's caches
cleared. "Warm" means that the host's kernels are already compiled, "cold" that they are
compiled during the measurement, as on a user's first run. A "second process" finds the
programs of the first in JAX's persistent cache.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import neuronjax as nj
from benchmarks import training
from benchmarks.harness import (
    Effort,
    Result,
    Samples,
    compare_calls,
    in_fresh_process,
    interleave,
    ratio,
    row,
)
from examples import gpt as model
from neuronjax.capture.decode import decode_module
from neuronjax.capture.trace import PLATFORM
from neuronjax.hardware import resolve_target
from neuronjax.lowering import lower

# The chip for a policy: trn2, or trn3 for microscaling.
TARGET, MICROSCALING_TARGET = "trn2", "trn3"
CONFIG = model.GPTConfig(vocab_size=256, layers=4, heads=4, width=256, hidden=704)
BATCH, TOKENS = 8, 128
SIZES = {**dataclasses.asdict(CONFIG), "batch": BATCH, "tokens": TOKENS}

EXACT = nj.Policy.preset("bf16")
HOST = dataclasses.replace(EXACT, accumulation="host")
TABLES = dataclasses.replace(EXACT, transcendentals="scalar_engine")
# Targets of the run times and of the compile times; "host" leaves the order of sums to
# the host's XLA.
STEPS = {
    "bf16": (EXACT, 1.6),
    "bf16_host": (HOST, 1.2),
    "fp8": (nj.Policy.preset("fp8"), 1.7),
    "mxfp8": (nj.Policy.preset("mxfp8"), 2.2),
    "fp32": (nj.Policy.preset("fp32"), 3.0),
    "tf32": (nj.Policy.preset("tf32"), None),
}
COMPILED = {"bf16": 2.5, "fp8": 4.0, "mxfp8": 5.0}
DEEP = 12

# ---- The program.


@functools.cache
def problem(layers: int = CONFIG.layers) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return (the train step, its arguments)."""
    return training.gpt(dataclasses.replace(CONFIG, layers=layers), BATCH, TOKENS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Build:
    """A compiled step, with the seconds of each stage."""

    executable: Callable[..., Any]
    trace: float
    lower: float
    xla: float


def emulation(policy: nj.Policy, layers: int = CONFIG.layers) -> Any:
    """Return the emulated step as a new object."""
    step, _ = problem(layers)
    target = MICROSCALING_TARGET if (policy.name or "").startswith("mx") else TARGET
    return nj.jit(step, target=target, policy=policy)


def build(policy: nj.Policy | None, layers: int = CONFIG.layers) -> Build:
    """Compile the step with a new jit object; natively without a policy."""
    step, args = problem(layers)
    function = step if policy is None else emulation(policy, layers)
    times = [time.perf_counter()]
    # Native and emulated take the same path, with a jit object for this call alone.
    traced = jax.jit(lambda *args: function(*args)).trace(*args)
    times.append(time.perf_counter())
    lowered = traced.lower()
    times.append(time.perf_counter())
    executable = lowered.compile()
    times.append(time.perf_counter())
    stages = dict(zip(("trace", "lower", "xla"), np.diff(times).tolist(), strict=True))
    return Build(executable=executable, **stages)


first_build = functools.cache(build)

# ---- Run time.


def step_time(policy: nj.Policy, effort: Effort) -> Result:
    """Measure emulated over native run time of the step."""
    _, args = problem()
    native, emulated = first_build(None), first_build(policy)
    return compare_calls(
        native.executable, emulated.executable, args, effort, sizes=SIZES
    )


@row("gpt_step/bf16_tables", target=1.0)
def step_tables(effort: Effort) -> Result:
    """Measure ScalarE's functions by tables over the default, reported as native."""
    _, args = problem()
    exact, tables = first_build(EXACT), first_build(TABLES)
    return compare_calls(exact.executable, tables.executable, args, effort, sizes=SIZES)


for _name, (_policy, _target) in STEPS.items():
    row(f"gpt_step/{_name}", target=_target)(functools.partial(step_time, _policy))

# ---- Compile time.


def compile_warm(policy: nj.Policy, effort: Effort) -> Result:
    """Measure emulated over native compile time, with compiled host kernels."""
    first_build(policy)  # compiles the kernels
    builds: dict[nj.Policy | None, list[Build]] = {None: [], policy: []}
    thunks = [lambda p=p: builds[p].append(build(p)) for p in builds]
    # A build takes a minute where a step takes a second.
    few = Effort(repetitions=effort.repetitions // 8, seconds=60.0, minimum=1)
    native, emulated = interleave(thunks, few, before=jax.clear_caches, warm_up=0)
    details = _stages("native", builds[None]) | _stages("emulated", builds[policy])
    return ratio(native, emulated, sizes=SIZES, details=details)


for _name, _target in COMPILED.items():
    _policy, _ = STEPS[_name]
    row(f"gpt_compile/{_name}_warm", target=_target)(
        functools.partial(compile_warm, _policy)
    )


def _stages(prefix: str, builds: list[Build]) -> dict[str, float]:
    def median(stage: str) -> float:
        return Samples(tuple(getattr(b, stage) for b in builds)).median

    stages = ("trace", "lower", "xla")
    return {f"{prefix}_{stage}_seconds": median(stage) for stage in stages}


@row("gpt_compile/bf16_cold", target=4)
def compile_cold(effort: Effort) -> Result:
    """Measure compile time once in a new process without compiled kernels."""
    del effort
    with tempfile.TemporaryDirectory() as empty:
        environment = {"NEURONJAX_CACHE_DIR": empty}
        native, emulated, details = in_fresh_process(build_both, environment)
    return ratio(Samples((native,)), Samples((emulated,)), sizes=SIZES, details=details)


def build_both() -> tuple[float, float, dict[str, float]]:
    """Return (native seconds, emulated seconds, their stages), each compiled once."""
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jax.numpy.zeros(8)))  # start JAX
    builds = [build(None), build(EXACT)]
    native, emulated = (b.trace + b.lower + b.xla for b in builds)
    details = _stages("native", builds[:1]) | _stages("emulated", builds[1:])
    return native, emulated, details


@row("gpt_compile/second", target=3)
def compile_second(effort: Effort) -> Result:
    """Measure once the seconds to the first result in a second process."""
    del effort
    with tempfile.TemporaryDirectory() as empty:
        environment = {"NEURONJAX_CACHE_DIR": empty}
        first, bits = in_fresh_process(first_result, environment)
        second, again = in_fresh_process(first_result, environment)
    if bits != again:
        raise ValueError("the second process has other bits than the first")
    details = {"first_process_seconds": first}
    return Result(value=Samples((second,)), unit="s", sizes=SIZES, details=details)


def first_result() -> tuple[float, int]:
    """Return (seconds to the results of the first step, their CRC-32)."""
    nj.keep_compiled()
    _, args = problem()
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jax.numpy.zeros(8)))  # start JAX
    start = time.perf_counter()
    results = jax.block_until_ready(emulation(EXACT)(*args))
    seconds = time.perf_counter() - start
    leaves = (np.asarray(x).tobytes() for x in jax.tree.leaves(results))
    return seconds, zlib.crc32(b"".join(leaves))


@row("gpt_compile/layers_12", target=2)
def compile_deep(effort: Effort) -> Result:
    """Measure once the compile time of twelve layers over one, both emulated."""
    del effort
    times: dict[str, float] = {}
    for layers in (1, DEEP):
        for name, policy in (("native", None), ("emulated", EXACT)):
            build(policy, layers)  # compiles the kernels
            jax.clear_caches()
            b = build(policy, layers)
            times[f"{name}_{layers}_layers_seconds"] = b.trace + b.lower + b.xla
    one, twelve = (times[f"emulated_{n}_layers_seconds"] for n in (1, DEEP))
    return ratio(Samples((one,)), Samples((twelve,)), sizes=SIZES, details=times)


def operations(policy: nj.Policy, effort: Effort) -> Result:
    """Measure the number of StableHLO operations for XLA per instruction."""
    del effort
    _, args = problem()
    call = emulation(policy)
    text = jax.jit(lambda *args: call(*args)).lower(*args).as_text()
    found = text.count(" = stablehlo.") + text.count(' = "stablehlo.')
    instructions = len(call.lower(*args).instructions)
    details = {"operations": found, "instructions": instructions}
    value = Samples((found / instructions,))
    return Result(value=value, unit="ops", sizes=SIZES, details=details)


for _name in COMPILED:
    _policy, _ = STEPS[_name]
    row(f"gpt_operations/{_name}")(functools.partial(operations, _policy))

# ---- Capture and lowering, per op of the captured program.


@row("gpt_lowering/neuronjax", target=40)
def lowering(effort: Effort) -> Result:
    """Measure microseconds of decoding and lowering per StableHLO op."""
    step, args = problem()
    module = _stablehlo(step, args)
    decoded = decode_module(module)
    count = sum(1 for _ in decoded.walk())
    target = resolve_target(TARGET)
    decode, low = interleave(
        (
            lambda: decode_module(module),
            lambda: lower(decoded, target=target, policy=EXACT),
        ),
        effort,
    )
    both = Samples(tuple(map(sum, zip(decode.values, low.values, strict=True))))
    details = {
        "decode_us_per_op": decode.median / count * 1e6,
        "lower_us_per_op": low.median / count * 1e6,
    }
    return _per_op(both, count, details)


@row("gpt_lowering/jax")
def jax_lowering(effort: Effort) -> Result:
    """Measure microseconds of JAX's own trace and lowering per StableHLO op."""
    step, args = problem()
    count = sum(1 for _ in decode_module(_stablehlo(step, args)).walk())
    thunk = functools.partial(_stablehlo, step, args)
    (times,) = interleave((thunk,), effort, before=jax.clear_caches)
    return _per_op(times, count, {})


def _stablehlo(step: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return the step's module, made as `neuronjax.capture.trace` makes it."""
    traced = jax.jit(lambda *args: step(*args), keep_unused=True).trace(*args)
    return traced.lower(lowering_platforms=(PLATFORM,)).compiler_ir()


def _per_op(times: Samples, count: int, details: dict[str, float]) -> Result:
    return Result(
        value=times.scaled(1e6 / count),
        unit="us",
        emulated=times,
        sizes={**SIZES, "stablehlo_ops": count},
        details=details,
    )
