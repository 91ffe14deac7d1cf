"""What the all-reduce does to a loss curve: ring against mesh, over 64 devices.

The tiny transformer of `examples/parallel`, data-parallel on a trn2.48xlarge with one
sequence per device, BF16 matmuls. Gradients travel in BF16, and their sums are rounded
63 times on a ring and twice on a mesh; FP32 on the wire is what both are compared with.
The loss is averaged in FP32, and Adam runs on the host. This is a study and no row of
`make bench`: nothing is timed.

    python benchmarks/bench_loss_curves.py
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Run as a script, `benchmarks` itself is on the path and not the folder that holds it.
sys.path.insert(0, str(HERE.parent))

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax import lax  # noqa: E402
from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import neuronjax as nj  # noqa: E402
from benchmarks.harness import progress  # noqa: E402
from examples.parallel import data_parallel, model, training  # noqa: E402

DEVICES = 64
STEPS, SEEDS = 80, 3
OUTPUT = HERE / "results" / "loss_curves.png"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wire:
    """A way to sum gradients over devices.

    Attributes:
        name: for table and plot.
        algorithm: the policy's `collective_algorithm`.
        dtype: of gradients and their partial sums.
        roundings: to that dtype, of one sum, by the algorithm's definition.
        colour: of Okabe and Ito's, told apart by all readers.
    """

    name: str
    algorithm: str
    dtype: str
    roundings: int
    colour: str

    @property
    def policy(self) -> nj.Policy:
        bf16 = nj.Policy.preset("bf16")
        return dataclasses.replace(bf16, collective_algorithm=self.algorithm)


RING = Wire(
    name="BF16 ring",
    algorithm="ring",
    dtype="bfloat16",
    roundings=63,
    colour="#D55E00",
)
MESH = dataclasses.replace(
    RING, name="BF16 mesh", algorithm="mesh", roundings=2, colour="#0072B2"
)
EXACT = dataclasses.replace(RING, name="FP32 ring", dtype="float32", colour="#000000")
WIRES = (EXACT, RING, MESH)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """What a wire did.

    Attributes:
        losses: nats per character, [seeds, steps].
        gradient_error: of the first step's gradients, |g - FP32's| / |FP32's| in the
            2-norm over all parameters, [seeds].
    """

    losses: np.ndarray
    gradient_error: np.ndarray


@functools.cache
def gradients(wire: Wire) -> nj.Emulated:
    """(params, tokens) -> (loss, gradients) on all devices."""

    def mean(gradient: jax.Array) -> jax.Array:
        total = lax.psum(gradient.astype(wire.dtype), "dp")
        return total.astype(gradient.dtype) / DEVICES

    def value_and_grad(params: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
        loss, grads = jax.value_and_grad(model.loss)(params, tokens)
        return lax.pmean(loss, "dp"), jax.tree.map(mean, grads)

    strategy = dataclasses.replace(
        data_parallel.STRATEGY,
        mesh=nj.make_mesh((DEVICES,), ("dp",)),
        value_and_grad=value_and_grad,
    )
    return training.value_and_grad(strategy, wire.policy)


@jax.jit
def update(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
    updates, state = training.ADAM.update(grads, state)
    return optax.apply_updates(params, updates), state


def losses(wire: Wire, seed: int, steps: int) -> np.ndarray:
    """Of every training step, [steps]."""
    params = model.init(seed)
    state = training.ADAM.init(params)
    found = []
    for tokens in model.batches(steps, seed, DEVICES):
        loss, grads = gradients(wire)(params, tokens)
        params, state = update(params, state, grads)
        found.append(float(loss))
    return np.array(found)


def gradient_error(wire: Wire, seed: int) -> float:
    params = model.init(seed)
    (tokens,) = model.batches(1, seed, DEVICES)
    got, want = (_flat(gradients(w)(params, tokens)[1]) for w in (wire, EXACT))
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def study(wire: Wire, seeds: Sequence[int], steps: int) -> Study:
    progress(f"{wire.name}: {len(seeds)} runs of {steps} steps")
    return Study(
        losses=np.stack([losses(wire, seed, steps) for seed in seeds]),
        gradient_error=np.array([gradient_error(wire, seed) for seed in seeds]),
    )


# ---- The report.


def table(studies: Mapping[Wire, Study]) -> Table:
    """One row per wire."""
    seeds, steps = studies[EXACT].losses.shape
    made = Table(
        title=f"{DEVICES} devices, {seeds} seeds, {steps} steps. Δ: distance from the "
        "FP32 ring, of the\nfirst gradients, and of the loss as a mean over seeds and "
        "the first steps",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    made.add_column("sums", style="bold")
    shown = sorted({min(5, steps), (steps + 1) // 2, steps})
    headings = [f"Δ to {step}" for step in shown]
    for heading in ("roundings", "Δ gradient", "last loss", *headings):
        made.add_column(heading, justify="right")
    for wire, found in studies.items():
        away = np.abs(found.losses - studies[EXACT].losses)
        made.add_row(
            wire.name,
            str(wire.roundings),
            f"{found.gradient_error.mean():.2e}",
            f"{found.losses[:, -10:].mean():.4f}",
            *(f"{away[:, :step].mean():.1e}" for step in shown),
        )
    return made


def plot(studies: Mapping[Wire, Study], path: Path) -> None:
    """Loss curves on the left, their distances from FP32's on the right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    steps = np.arange(1, studies[EXACT].losses.shape[1] + 1)
    styles = dict(zip(WIRES, ("-", "--", ":"), strict=True))
    for wire, found in studies.items():
        line = {"color": wire.colour, "linestyle": styles[wire], "label": wire.name}
        left.plot(steps, found.losses.mean(axis=0), **line)
        if wire is EXACT:
            continue
        away = np.abs(found.losses - studies[EXACT].losses)
        later = steps[1:], away.T[1:]  # the first loss has seen no gradient
        right.plot(*later, color=wire.colour, linewidth=0.5, alpha=0.4)
        right.plot(later[0], later[1].mean(1), color=wire.colour, label=wire.name)
    left.set(xlabel="step", ylabel="nats per character", title="Loss, mean of seeds")
    right.set(xlabel="step", yscale="log", title="Distance from FP32 on the wire")
    right.set_ylabel("|Δ loss|; thin: one seed")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"All-reduce of gradients over {DEVICES} emulated devices (trn2.48xlarge)"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    studies = {w: study(w, range(options.seeds), options.steps) for w in WIRES}
    Console(width=88, highlight=False).print(table(studies))
    plot(studies, options.output)
    print(f"{options.output}")


if __name__ == "__main__":
    main()
