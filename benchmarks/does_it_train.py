"""Trains small models in every number format, for docs/does-it-train.md.

`python -m benchmarks does-it-train` runs what is missing in
`results/does_it_train.jsonl`: one line for each run, by model, size, row and seed, with
the commit that made it and its seconds of processor time. It may be stopped at any time
and continues later; unfinished rows keep their runs in `.cache`. `--minutes` limits its
processor time, `--only` and `--seeds` restrict it, and `--list` prints what is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from benchmarks.harness import commit
from benchmarks.trained_models import (
    EXAMPLES,
    MODELS,
    SIZES,
    Model,
    Size,
    initial,
    optimizer,
    parameters as parameters,
)

RESULTS = Path(__file__).parent / "results" / "does_it_train.jsonl"
_RUNS = Path(__file__).parents[1] / ".cache" / "does-it-train"
#: The seeds of every cell, by size. At L, a run takes minutes.
SEEDS = {"S": 5, "M": 5, "L": 3}
#: The dtype, loss scale and devices of rows that differ by policy alone.
_PLAIN = ("float32", 1.0, 1)
_DIGITS = 5  # significant digits of a stored loss

_FP8 = nj.Policy.preset("fp8")
_BF16 = nj.Policy.preset("bf16")
#: One device per chip: an UltraServer has 64 chips of four logical cores.
_CHIPS = tuple(range(0, 4 * EXAMPLES, 4))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A way to train: a policy, and changes to the program that go with it.

    Attributes:
        name: the name in tables.
        policy: None for the host.
        target: the emulated machine.
        dtype: data type of parameters and activations.
        loss_scale: factor on the loss, by which the program divides its gradients.
        devices: number of devices that share the batch.
        rules: "head" (parameters that compute the logits) or "blocks" -> fields.
    """

    name: str
    policy: nj.Policy | None
    target: str = "trn2"
    dtype: str = "float32"
    loss_scale: float = 1.0
    devices: int = 1
    rules: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def numerics(self, model: Model) -> nj.Policy | str:
        """Return the policy with its rules for a model."""
        if self.policy is None:
            return "native"
        rules = tuple(
            nj.Rule(param=model.head if part == "head" else part, **fields)
            for part, fields in self.rules.items()
        )
        return dataclasses.replace(self.policy, rules=rules)


def _bf16(**fields: Any) -> nj.Policy:
    return dataclasses.replace(_BF16, **fields)


def _fp8(**fields: Any) -> nj.Policy:
    return dataclasses.replace(_FP8, **fields)


_UNSCALED = _fp8(scaling="none")
_MXFP4 = nj.Policy.preset("mxfp4")
_ULTRA = "trn2-ultraserver"
ROWS = (
    Row(name="native", policy=None),
    Row(name="BF16", policy=_BF16),
    Row(name="FP8, current scaling", policy=_FP8),
    Row(name="FP8, delayed scaling", policy=_fp8(scaling="delayed")),
    Row(
        name="FP8, delayed scaling, saturating",
        policy=_fp8(scaling="delayed", overflow="saturate"),
    ),
    Row(name="MXFP8", policy=nj.Policy.preset("mxfp8"), target="trn3"),
    Row(name="MXFP4 weights", policy=_MXFP4, target="trn3"),
    Row(name="BF16, stochastic rounding", policy=_bf16(rounding="stochastic")),
    Row(name="2:4 sparse", policy=_bf16(sparsity="2:4")),
    Row(name="4:16 sparse", policy=_bf16(sparsity="4:16")),
    # From here on: rows that diverge or lose accuracy, and their remedies.
    Row(name="FP8, unscaled", policy=_UNSCALED),
    Row(name="FP8, unscaled, loss × 4096", policy=_UNSCALED, loss_scale=4096.0),
    Row(name="BF16 weights", policy=_BF16, dtype="bfloat16"),
    Row(
        name="BF16 weights, stochastic rounding",
        policy=_bf16(rounding="stochastic"),
        dtype="bfloat16",
    ),
    Row(
        name="64 chips, BF16 all-reduce",
        policy=_bf16(collective_reduce_dtype="bfloat16", placement=_CHIPS),
        target=_ULTRA,
        devices=EXAMPLES,
    ),
    Row(
        name="4:16 sparse, head dense",
        policy=_BF16,
        rules={"blocks": {"sparsity": "4:16"}},
    ),
    Row(
        name="2:4 sparse, head dense",
        policy=_BF16,
        rules={"blocks": {"sparsity": "2:4"}},
    ),
    Row(
        name="MXFP4 weights, head MXFP8",
        policy=_MXFP4,
        target="trn3",
        rules={"head": {"auto_cast_type": "mxfp8"}},
    ),
)
#: The number of first rows, which are run before all others: formats without pruning.
_FORMATS = 8

# -- a run -----------------------------------------------------------------------------


def train(
    jit: Callable[..., Any], seed: int, *, model: Model, size: Size, row: Row
) -> Iterator[float]:
    """Train from scratch, and yield the loss after every step."""
    step = jit(step_of(model, size, row))
    _, params = initial(model, size, seed, row.dtype)
    state = optimizer(size).init(params)
    delayed = row.policy is not None and row.policy.scaling == "delayed"
    history = None
    for batch in model.batches(size.steps, seed):
        if delayed:
            if history is None:
                history = step.init_amax_history(params, state, *batch)
            found, history = step.with_amax_history(history)(params, state, *batch)
        else:
            found = step(params, state, *batch)
        params, state, loss = found
        yield float(loss)


@functools.cache
def _structure(model: Model, size: Size, dtype: str) -> nnx.GraphDef:
    return initial(model, size, 0, dtype)[0]


@functools.cache
def _step(
    model: Model, size: Size, dtype: str, loss_scale: float, devices: int
) -> Callable[..., Any]:
    graphdef, rule = _structure(model, size, dtype), optimizer(size)

    def loss_of(params: Any, *batch: Any) -> jax.Array:
        return loss_scale * model.loss(nnx.merge(graphdef, params), *batch)

    def train_step(params: Any, state: Any, *batch: Any) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        if devices > 1:
            loss, gradients = jax.lax.pmean((loss, gradients), "dp")
        gradients = jax.tree.map(lambda g: g / loss_scale, gradients)
        updates, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss / loss_scale

    if devices == 1:
        return train_step

    def sharded(params: Any, state: Any, *batch: Any) -> tuple[Any, Any, jax.Array]:
        return jax.shard_map(
            train_step,
            mesh=nj.make_mesh((devices,), ("dp",)),
            in_specs=(P(), P(), *(P("dp") for _ in batch)),
            out_specs=P(),
            check_vma=False,
        )(params, state, *batch)

    return sharded


def step_of(model: Model, size: Size, row: Row) -> Callable[..., Any]:
    """Return (params, state, *batch) -> (params, state, loss), one for all seeds."""
    return _step(model, size, row.dtype, row.loss_scale, row.devices)


# -- all runs --------------------------------------------------------------------------

Key = tuple[str, str, str, int]  # model, size, row, seed


def _lines() -> list[dict[str, Any]]:
    return list(map(json.loads, RESULTS.read_text().splitlines()))


def stored() -> dict[Key, list[float]]:
    """Return the losses of every stored run."""
    runs = _lines() if RESULTS.exists() else []
    return {(r["model"], r["size"], r["row"], r["seed"]): r["loss"] for r in runs}


def seen() -> dict[tuple[str, str, str], str]:
    """Return what statistics showed before a row diverged, by model, size and row."""
    runs = [run for run in _lines() if "seen" in run]
    return {(run["model"], run["size"], run["row"]): run["seen"] for run in runs}


def seconds(model: Model, size: Size) -> list[float]:
    """Return the processor time of every run of a model of which it was stored."""
    key = {"model": model.name, "size": size.name}
    return [
        run["seconds"]
        for run in _lines()
        if key.items() <= run.items() and "seconds" in run
    ]


def studied(model: Model, size: Size) -> nj.Study | None:
    """Return the study of all stored runs of a model; None without native runs."""
    losses: dict[str, dict[int, list[float]]] = {row.name: {} for row in ROWS}
    for (of_model, of_size, name, seed), loss in stored().items():
        if (of_model, of_size) == (model.name, size.name):
            losses[name][seed] = loss
    rows = [row for row in ROWS if losses[row.name]]
    if ROWS[0] not in rows:
        return None
    where = {row.name: {"policy": row.name, "target": row.target} for row in rows}
    policies = {row.name: row.numerics(model) for row in rows}
    return nj.Study(
        records=[
            {**where[name], "seed": seed, "step": step, "loss": loss}
            for name in where
            for seed, run in losses[name].items()
            for step, loss in enumerate(run)
        ],
        labels={(row.name, row.target): row.name for row in rows},
        baseline=ROWS[0].name,
        settings={},
        numerics={
            x: p if isinstance(p, nj.Policy) else None for x, p in policies.items()
        },
        margin=0.02,
        confidence=0.95,
    )


def missing(
    only: str = "", seeds: int | None = None
) -> Iterator[tuple[Model, Size, Row, list[int]]]:
    """Yield the runs that are not stored: formats first, and of these small models.

    Args:
        only: a pattern in the text of a cell, such as "^GPT M (native|BF16)$".
        seeds: how many seeds each cell should have; None for `SEEDS`.
    """
    have = stored()
    formats, others = ROWS[:_FORMATS], ROWS[_FORMATS:]
    order = (itertools.product(SIZES, MODELS, rows) for rows in (formats, others))
    for size, model, row in itertools.chain.from_iterable(order):
        key = (model.name, size.name, row.name)
        wanted = range(seeds or SEEDS[size.name])
        left = [seed for seed in wanted if (*key, seed) not in have]
        if left and re.search(only, " ".join(key)):
            yield model, size, row, left


def run(model: Model, size: Size, row: Row, seeds: list[int]) -> None:
    """Train one row with these seeds, and append the runs to the file."""
    start, made_by = time.process_time(), commit(Path(__file__).parent)
    found = nj.study(
        train,
        policies={row.name: row.numerics(model)},
        target=row.target,
        seeds=seeds,
        options={"model": model, "size": size, "row": row},
        folder=_RUNS / f"{model.name}-{size.name}",
        if_changed="rerun",
        progress=False,
    )
    taken = time.process_time() - start
    losses: dict[int, list[float]] = {}
    seen = {"seen": text for text in found.seen.values()}
    for record in found.records:
        loss = float(f"{record['loss']:.{_DIGITS}g}")
        losses.setdefault(record["seed"], []).append(loss)
    with RESULTS.open("a") as file:
        for seed, loss in losses.items():
            line = {"model": model.name, "size": size.name, "row": row.name}
            cost = {"seconds": round(taken / len(losses), 1)}
            line |= {"seed": seed, "commit": made_by, **cost, "loss": loss} | seen
            file.write(json.dumps(line) + "\n")
    ends = sum(values[-1] for values in losses.values()) / len(losses)
    print(
        f"{model.name} {size.name} {row.name}: {len(seeds)} seeds, {taken:.0f} s of "
        f"processor time, loss {ends:.4g}",
        flush=True,
    )


def largest(model: Model = MODELS[0]) -> dict[str, nj.Study]:
    """Return studies of a model by size, the largest first. Their `numerics` have the
    rows that differ by policy alone, each in the largest size in which it was run."""
    left = [r.name for r in ROWS if (r.dtype, r.loss_scale, r.devices) == _PLAIN]
    found = {}
    for size in SIZES[::-1]:
        study = studied(model, size)
        numerics = {x: p for x, p in study.numerics.items() if p} if study else {}
        numerics = {name: p for name, p in numerics.items() if name in left}
        left = [name for name in left if name not in numerics]
        if study and numerics:
            found[size.name] = dataclasses.replace(study, numerics=numerics)
    return found


def main() -> int:
    """Run the missing rows, or list them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks does-it-train")
    parser.add_argument("--minutes", type=float, help="of processor time, at most")
    parser.add_argument("--only", default="", help="a pattern of 'model size row'")
    parser.add_argument("--seeds", type=int, help="how many, from 0")
    parser.add_argument("--list", action="store_true", help="say what is missing")
    options = parser.parse_args()
    nj.keep_compiled()
    for model, size, row, seeds in missing(options.only, options.seeds):
        if options.list:
            print(f"{model.name} {size.name} {row.name}: {len(seeds)} seeds")
        elif options.minutes and time.process_time() > 60 * options.minutes:
            print(f"stopped after {options.minutes:g} minutes of processor time")
            return 0
        else:
            run(model, size, row, seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
