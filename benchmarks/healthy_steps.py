"""Alarms on healthy steps of real models: `python -m benchmarks.healthy_steps`.

The models are those of `tests/strangers` that need no other library than Flax. Each is
trained by five optimizers of Optax; its first, second and tenth step are compared with
float64 under four policies. Nothing is wrong with any of these steps, so whatever
`compare` finds there is an alarm. A line is printed for every step, then the alarms by
model, optimizer, step and policy. The command fails where there are more than is aimed
at (`benchmarks.faults.targets`). `--sample 15` draws some of the steps; `--model vit
--policy bf16` chooses.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import optax
from flax import nnx
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.faults.targets import REFERENCE, TARGETS
from benchmarks.training import train_step
from neuronjax import NeuronJaxError, compare
from neuronjax.execution.interpreter import forget_kernels
from tests import compilation_cache
from tests.strangers import program

PyTree = Any

_MODULES = (
    "flax_networks",
    "vision_models",
    "vision_transformers",
    "language_models",
    "encoder_models",
)
#: The loss cannot be read from this model's step, which is a function of JAX.
_LEFT_OUT = {"linen_batch_norm"}
_ADAMW = optax.adamw(1e-3, weight_decay=0.01)
OPTIMIZERS: dict[str, optax.GradientTransformation] = {
    "momentum": optax.sgd(0.05, momentum=0.9, nesterov=True),
    "adam": optax.adam(1e-3),
    "adamw": optax.chain(optax.clip_by_global_norm(1.0), _ADAMW),
    "lion": optax.lion(1e-4),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=8),
}
STEPS = (1, 2, 10)
#: The chip for each policy: trn2 has no matmuls of MX.
POLICIES = {"fp32": "trn2", "bf16": "trn2", "fp8": "trn2", "mxfp8": "trn3"}
FIELDS = ("model", "optimizer", "step", "policy")


@dataclass(frozen=True)
class Case:
    """One step of one model."""

    model: str
    optimizer: str
    step: int
    policy: str


@dataclass(frozen=True)
class Said:
    """The alarms that `compare` reports for a step, or why it refuses the step."""

    case: Case
    alarms: tuple[str, ...] = ()
    refused: str = ""


@cache
def models() -> dict[str, Callable[[], program.Call]]:
    """Return the programs that train a model of Flax, by their builders' names."""
    for module in _MODULES:
        importlib.import_module(f"tests.strangers.{module}")
    found = (p for p in program.PROGRAMS if p.library == "flax")
    steps = {p.build.__name__: p.build for p in found if "one step" in p.title}
    return {name: build for name, build in steps.items() if name not in _LEFT_OUT}


@cache
def model(name: str) -> tuple[Callable[..., jax.Array], PyTree, tuple[PyTree, ...]]:
    """Return the loss, its initial parameters, and its other arguments.

    The programs are steps with their own optimizer; the loss is a variable of the
    function around them."""
    step, (state, *batch) = models()[name]()
    around = inspect.getclosurevars(step).nonlocals
    loss = around["loss"]
    if "graph" not in around:
        return loss, state, tuple(batch)
    trained, _ = nnx.merge(around["graph"], state)
    graph, params, rest = nnx.split(trained, nnx.Param, ...)

    def of_parameters(params: PyTree, rest: PyTree, *batch: PyTree) -> jax.Array:
        return loss(nnx.merge(graph, params, rest, copy=True), *batch)

    return of_parameters, params, (rest, *batch)


def step_of(case: Case) -> tuple[Callable[..., PyTree], tuple[PyTree, ...]]:
    """Return a step and its arguments, after the earlier steps ran natively."""
    loss, params, batch = model(case.model)
    optimizer = OPTIMIZERS[case.optimizer]

    step, state = train_step(loss, optimizer), jax.jit(optimizer.init)(params)
    native = jax.jit(step)
    for _ in range(case.step - 1):
        params, state, _ = native(params, state, *batch)
    return step, (params, state, *batch)


def said_of(case: Case) -> Said:
    """Return the result of `compare` on a step."""
    step, arguments = step_of(case)
    settings: dict[str, Any] = {"target": POLICIES[case.policy], "policy": case.policy}
    asked = compare(step, **settings, reference=REFERENCE, explain=False)
    try:
        faults = asked(*arguments).faults
    except NeuronJaxError as error:
        return Said(case, refused=str(error).split("\n")[0])
    named = (f"{f.record.source.rpartition('/')[2]} {f.kind}" for f in faults)
    return Said(case, alarms=tuple(dict.fromkeys(named)))


def table(field: str, every: Sequence[Said]) -> Table:
    """Return a table of the steps that raise an alarm, by one of `FIELDS`."""
    out = Table(box=box.SIMPLE_HEAD)
    for column in (field, "steps", "with an alarm", "refused"):
        out.add_column(column, justify="left" if column == field else "right")
    for value in dict.fromkeys(getattr(s.case, field) for s in every):
        own = [s for s in every if getattr(s.case, field) == value]
        counts = len(own), sum(bool(s.alarms) for s in own), sum(map(_refused, own))
        out.add_row(str(value), *map(str, counts))
    return out


def _refused(said: Said) -> bool:
    return bool(said.refused)


def _answers(cases: Sequence[Case]) -> Iterator[Said]:
    """Yield the result of every step after its line is printed."""
    for number, case in enumerate(cases, 1):
        start = time.perf_counter()
        said = said_of(case)
        text = said.refused or ", ".join(said.alarms) or "nothing wrong"
        names = f"{case.model}, {case.optimizer}, step {case.step}, {case.policy}"
        print(f"{names}: {text} [{time.perf_counter() - start:.0f} s]", flush=True)
        yield said
        if number % 20 == 0:
            jax.clear_caches()  # hundreds of programs do not fit into memory
            forget_kernels()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every step and the tables; fail if there are too many alarms."""
    known: list[tuple[Any, ...]]
    known = [tuple(models()), tuple(OPTIMIZERS), STEPS, tuple(POLICIES)]
    parser = argparse.ArgumentParser(description=__doc__)
    for field, choices in zip(FIELDS, known, strict=True):
        kind = type(choices[0])
        parser.add_argument(f"--{field}", action="append", choices=choices, type=kind)
    parser.add_argument("--sample", type=int, help="draw so many of the steps")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing")
    options = parser.parse_args(arguments)
    chosen = (getattr(options, f) or c for f, c in zip(FIELDS, known, strict=True))
    cases = [Case(*names) for names in itertools.product(*chosen)]
    if options.sample:
        cases = random.Random(options.seed).sample(cases, options.sample)
    compilation_cache.use()
    every = list(_answers(cases))
    for field in FIELDS:
        Console().print(table(field, every))
    alarms, compared = sum(bool(s.alarms) for s in every), len(every)
    compared -= sum(map(_refused, every))
    summary = f"{alarms} alarms on {compared} healthy steps"
    print(summary)
    if alarms > TARGETS["alarms"] * compared:
        raise SystemExit(f"{summary}; {TARGETS['alarms']:.0%} are aimed at")


if __name__ == "__main__":
    main()
