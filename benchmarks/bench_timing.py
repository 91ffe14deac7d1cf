"""The speed of pricing: microseconds per instruction, for plan plus schedule.

Nothing is executed and no tensor has a value. An instruction in a loop or a callee
counts as often as it is executed, because the schedule covers all turns of a loop; it
is extrapolated from the distance of two turns. The target of 10 us is 100,000
instructions per second. Kernels are traced and scheduled, 200,000 instructions one by
one.
"""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

import neuronjax as nj
from benchmarks.bench_nki import tiled
from benchmarks.harness import Effort, Result, Samples, row
from examples import gpt as model
from neuronjax.hardware import resolve_target
from neuronjax.ir.instruction import Block, Instruction, InstructionProgram
from neuronjax.ir.instruction_set import Call, Loop
from neuronjax.timing.kernel_schedule import schedule_kernel
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.schedule import schedule
from neuronjax.timing.trips import static_trips, writers
from neuronjax.timing.work import Core

Make = Callable[[], tuple[Callable[..., Any], Any]]
TARGET = "trn2"
MICROSECONDS = 10.0
KERNEL_SECONDS = 10.0


def llama_step(
    layers: int = 32, tokens: int = 4096, *, in_scan: bool = True
) -> tuple[Callable[..., Any], Any]:
    """Return loss and gradients of a decoder shaped like Llama-3-8B, and arguments.

    Layers are in one scan or unrolled. The model has grouped queries, SwiGLU, RMSNorm,
    rematerialised layers and BF16, without rotary embedding."""
    width, heads, groups, hidden, vocabulary = 4096, 32, 8, 14336, 128_256
    size = width // heads
    struct = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)  # noqa: E731

    def norm(x: jax.Array, w: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        y *= lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)
        return y.astype(x.dtype) * w

    def layer(x: jax.Array, p: Mapping[str, jax.Array]) -> tuple[jax.Array, None]:
        y = norm(x, p["norm1"])
        q = (y @ p["q"]).reshape(tokens, heads, size)
        k, v = ((y @ p[n]).reshape(tokens, groups, size) for n in "kv")
        k, v = (jnp.repeat(z, heads // groups, 1) for z in (k, v))
        scores = jnp.einsum("qhd,khd->hqk", q, k, preferred_element_type=jnp.float32)
        seen = jnp.tril(jnp.ones((tokens, tokens), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores * size**-0.5, -jnp.inf), -1)
        mixed = jnp.einsum("hqk,khd->qhd", weights.astype(x.dtype), v)
        x = x + mixed.reshape(tokens, width) @ p["o"]
        y = norm(x, p["norm2"])
        return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], None

    def loss(params: Any, text: jax.Array) -> jax.Array:
        x, weights = params["embed"][text], params["layers"]
        if in_scan:
            x, _ = lax.scan(jax.checkpoint(layer), x, weights)
        else:
            for own in weights:
                x, _ = jax.checkpoint(layer)(x, own)
        logits = (norm(x, params["norm"]) @ params["out"]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, text).mean()

    shapes = {
        "norm1": (width,),
        "norm2": (width,),
        "q": (width, width),
        "k": (width, groups * size),
        "v": (width, groups * size),
        "o": (width, width),
        "gate": (width, hidden),
        "up": (width, hidden),
        "down": (hidden, width),
    }
    stacked = {name: struct(layers, *shape) for name, shape in shapes.items()}
    single = {name: struct(*shape) for name, shape in shapes.items()}
    params = {
        "embed": struct(vocabulary, width),
        "norm": struct(width),
        "out": struct(width, vocabulary),
        "layers": stacked if in_scan else [single] * layers,
    }
    text = jax.ShapeDtypeStruct((tokens,), jnp.int32)
    return jax.value_and_grad(loss), (params, text)


def gpt_step() -> tuple[Callable[..., Any], Any]:
    """Return a train step of the quickstart's transformer with unrolled layers."""
    graphdef, params = model.create(model.GPTConfig())
    optimizer = optax.adamw(1e-3)
    loss = functools.partial(model.loss, graphdef)

    def step(params: Any, state: Any, batch: jax.Array) -> Any:
        grads = jax.grad(loss)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    batch = jax.ShapeDtypeStruct((8, 129), jnp.int32)
    return step, (params, jax.eval_shape(optimizer.init, params), batch)


def executed(program: InstructionProgram) -> int:
    """Return the number of instructions that a core executes, with turns of loops."""
    written: dict[int, Instruction] = {}
    for block in (program.main, *program.functions.values()):
        written |= writers(block)

    def count(block: Block) -> int:
        return sum(map(of, block.instructions))

    def of(i: Instruction) -> int:
        if isinstance(i, Call):
            return count(program.functions[i.callee])
        turns = 1
        if isinstance(i, Loop):
            turns = static_trips(i, written, program.functions) or 1
        return 1 + turns * sum(map(count, i.blocks))

    return count(program.main)


def pricing(
    make: Callable[[], tuple[Callable[..., Any], Any]], effort: Effort
) -> Result:
    """Measure CPU time per executed instruction of a new plan and schedule."""
    function, arguments = make()
    lowered = nj.jit(function, target=TARGET, policy="bf16").lower(*arguments)
    program, target = lowered.captured.instructions, resolve_target(TARGET)
    core, count = Core.of(target), executed(program)
    predicted, seconds, start = 0.0, [], time.perf_counter()
    while effort.goes_on(len(seconds), start):
        begin = time.process_time()
        plan = plan_memory(program, core, lowered.program.argument_names)
        predicted = schedule(program, core, target, plan=plan).total_seconds
        seconds.append(time.process_time() - begin)
    written = sum(1 for _ in program.walk())
    return Result(
        value=Samples(tuple(s / count * 1e6 for s in seconds)),
        unit="us",
        sizes={"instructions": written, "executed": count, "on": TARGET},
        details={
            "total_seconds": Samples(tuple(seconds)).median,
            "written_instruction_us": Samples(tuple(seconds)).median / written * 1e6,
            "predicted_seconds": predicted,
        },
    )


@functools.cache
def _kernel_priced() -> Result:
    x = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16)
    begin = time.process_time()
    program = tiled.with_target(TARGET).trace(x, x)
    spent = time.process_time() - begin
    count = sum(1 for _ in program.body.walk())
    begin = time.process_time()
    predicted = schedule_kernel(program, resolve_target(TARGET), lnc=1).total_seconds
    scheduled = time.process_time() - begin
    return Result(
        value=Samples((spent + scheduled,)),
        unit="s",
        sizes={"instructions": count, "on": TARGET},
        details={
            "trace_us": spent / count * 1e6,
            "schedule_us": scheduled / count * 1e6,
            "predicted_seconds": predicted,
            "largest_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        },
    )


def kernel_pricing(effort: Effort) -> Result:
    """Measure once the CPU time to trace and price a tiled matmul of 8192^3."""
    return _kernel_priced()


def kernel_scheduling(effort: Effort) -> Result:
    """Measure the CPU time per instruction of the same kernel's schedule."""
    found = _kernel_priced()
    return replace(found, value=Samples((found.details["schedule_us"],)), unit="us")


row("timing/kernel-200k", target=KERNEL_SECONDS)(kernel_pricing)
row("timing/kernel-schedule", target=MICROSECONDS)(kernel_scheduling)
row("timing/llama-3-8b-shaped", target=MICROSECONDS)(
    functools.partial(pricing, llama_step)
)
row("timing/llama-3-8b-unrolled", target=None)(
    functools.partial(pricing, functools.partial(llama_step, in_scan=False))
)
row("timing/gpt-step", target=None)(functools.partial(pricing, gpt_step))
