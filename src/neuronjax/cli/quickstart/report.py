"""What the quickstart shows: two tables, a picture, and the same as JSON.

The tables fit 80 columns. The lower half of the picture is the difference from the
native run, where the curves themselves lie on top of each other.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Sequence
from pathlib import Path

import jax
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

import neuronjax as nj
from neuronjax.cli.quickstart.data import Corpus
from neuronjax.cli.quickstart.experiment import QuickstartRun
from neuronjax.cli.quickstart.train import TrainingRecipe
from neuronjax.report.plots_study import COLOURS
from neuronjax.report.tables import NAME, RIGHT, WORD, new_table

_ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma", "sync")
_MACHINE = {"target": NAME, "policy": WORD}


def results_table(runs: Sequence[QuickstartRun]) -> Table:
    """Losses and host times, one row per run; the first run is the native one."""
    losses = dict.fromkeys(("training", "held out", "perplexity"), RIGHT)
    times = dict.fromkeys(("s/step", "× native", "compile s"), RIGHT | {"style": "dim"})
    rows = (
        (
            run.machine.target,
            run.machine.policy,
            f"{run.train_loss:.4f}",
            f"{run.heldout_loss:.4f}",
            f"{run.heldout_perplexity:.3f}",
            f"{run.seconds_per_step:.3f}",
            f"{run.seconds_per_step / runs[0].seconds_per_step:.2f}",
            f"{run.compile_seconds:.1f}",
        )
        for run in runs
    )
    title = "Loss in nats per character; seconds are this computer's"
    return new_table(title, _MACHINE | losses | times, rows, min_width=None)


def engines_table(runs: Sequence[QuickstartRun]) -> Table:
    """Instructions of the train step by engine, one row per emulated run."""
    columns = dict.fromkeys(_ENGINES, RIGHT) | {"matmuls in": {"style": "dim"}}
    rows = (
        (
            run.machine.target,
            run.machine.policy,
            *(str(run.instructions.get(engine, 0)) for engine in _ENGINES),
            ", ".join(map(_short, run.matmul_dtypes)),
        )
        for run in runs
        if run.instructions
    )
    title = "Instructions of the train step (a loop's body counts once)"
    return new_table(title, _MACHINE | columns, rows, min_width=None)


def _short(dtype: str) -> str:
    """ "float8_e4m3" as "e4m3", "bfloat16" as "bf16"."""
    return dtype.removeprefix("float8_").replace("bfloat", "bf").replace("float", "fp")


def plot(runs: Sequence[QuickstartRun], corpus: Corpus, path: Path) -> None:
    """Draws the loss curves, and their distance from the first run's, as a PNG."""
    figure, (top, bottom) = plt.subplots(
        2, sharex=True, figsize=(8, 6), height_ratios=(2, 1), layout="constrained"
    )
    entropy = corpus.unigram_entropy()
    top.axhline(entropy, color="grey", linestyle="--", linewidth=1)
    top.annotate(
        f"unigram entropy {entropy:.2f}",
        (1, entropy),
        xycoords=("axes fraction", "data"),
        xytext=(-4, 3),
        textcoords="offset points",
        ha="right",
        color="grey",
    )
    native = np.array(runs[0].losses)
    for index, run in enumerate(runs):
        # Earlier runs are wider, so that an equal later one does not hide them.
        width = 1 + 0.6 * (len(runs) - 1 - index)
        style = dict(color=COLOURS[index % len(COLOURS)], linewidth=width)
        steps = np.arange(1, len(run.losses) + 1)
        label = f"{run.machine}: {run.heldout_perplexity:.3f}"
        top.plot(steps, run.losses, label=label, **style)
        bottom.plot(steps, np.array(run.losses) - native, **style)
    top.legend(title="held-out perplexity", frameon=False)
    _dress(top, "training loss [nats/char]")
    _dress(bottom, "minus native")
    bottom.set_xlabel("step")
    top.set_title("One GPT, one seed, one text: native and on emulated Trainium")
    figure.savefig(path, dpi=150, format="png")
    plt.close(figure)


def _dress(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def as_json(
    runs: Sequence[QuickstartRun], recipe: TrainingRecipe, corpus: Corpus
) -> str:
    """Everything measured, with the recipe and the versions that made it."""
    document = {
        "versions": {
            "neuronjax": nj.__version__,
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
        "recipe": dataclasses.asdict(recipe),
        "unigram_entropy_nats": corpus.unigram_entropy(),
        "runs": [
            {
                **dataclasses.asdict(run),
                "train_loss": run.train_loss,
                "heldout_perplexity": run.heldout_perplexity,
                "ratio_to_native": run.seconds_per_step / runs[0].seconds_per_step,
            }
            for run in runs
        ],
    }
    return json.dumps(document, indent=2)
