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
from typing import Any

import jax
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from rich import box
from rich.table import Table

import neuronjax as nj
from neuronjax.cli.quickstart.data import Corpus
from neuronjax.cli.quickstart.experiment import QuickstartRun
from neuronjax.cli.quickstart.train import TrainingRecipe

_ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma", "sync")
# Okabe and Ito's colours, told apart by all readers; the native run is black.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def results_table(runs: Sequence[QuickstartRun]) -> Table:
    """Losses and host times, one row per run; the first run is the native one."""
    table = _table("Loss in nats per character; seconds are this computer's")
    for heading in ("training", "held out", "perplexity"):
        table.add_column(heading, justify="right")
    for heading in ("s/step", "× native", "compile s"):
        table.add_column(heading, justify="right", style="dim")
    for run in runs:
        table.add_row(
            run.machine.target,
            run.machine.policy,
            f"{run.train_loss:.4f}",
            f"{run.heldout_loss:.4f}",
            f"{run.heldout_perplexity:.3f}",
            f"{run.seconds_per_step:.3f}",
            f"{run.seconds_per_step / runs[0].seconds_per_step:.2f}",
            f"{run.compile_seconds:.1f}",
        )
    return table


def engines_table(runs: Sequence[QuickstartRun]) -> Table:
    """Instructions of the train step by engine, one row per emulated run."""
    table = _table("Instructions of the train step (a loop's body counts once)")
    for engine in _ENGINES:
        table.add_column(engine, justify="right")
    table.add_column("matmuls in", style="dim")
    for run in runs:
        if run.instructions:
            counts = (str(run.instructions.get(engine, 0)) for engine in _ENGINES)
            dtypes = ", ".join(map(_short, run.matmul_dtypes))
            table.add_row(run.machine.target, run.machine.policy, *counts, dtypes)
    return table


def _table(title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("target", style="bold", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    return table


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
        style = dict(color=_COLOURS[index % len(_COLOURS)], linewidth=width)
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
        "runs": [_run_as_dict(run, runs[0]) for run in runs],
    }
    return json.dumps(document, indent=2)


def _run_as_dict(run: QuickstartRun, native: QuickstartRun) -> dict[str, Any]:
    return {
        **dataclasses.asdict(run),
        "train_loss": run.train_loss,
        "heldout_perplexity": run.heldout_perplexity,
        "ratio_to_native": run.seconds_per_step / native.seconds_per_step,
    }
