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
import numpy as np
from rich.table import Table

import neuronjax as nj
from neuronjax.cli.application import table
from neuronjax.cli.quickstart.data import Corpus
from neuronjax.cli.quickstart.experiment import QuickstartRun
from neuronjax.cli.quickstart.train import TrainingRecipe
from neuronjax.report.plots_study import draw_study
from neuronjax.report.study_curves import Curve
from neuronjax.report.tables import NUMBER, WORD

_ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma", "sync")
_MACHINE = {"target": {"style": "bold", "no_wrap": True}, "policy": WORD}


def results_table(runs: Sequence[QuickstartRun]) -> Table:
    """Losses and host times, one row per run; the first run is the native one."""
    columns = ("training", "held out", "perplexity", "s/step", "× native", "compile s")
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
    return table(title, _MACHINE | dict.fromkeys(columns, NUMBER), rows)


def engines_table(runs: Sequence[QuickstartRun]) -> Table:
    """Instructions of the train step by engine, one row per emulated run."""
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
    columns = _MACHINE | dict.fromkeys(_ENGINES, NUMBER) | {"matmuls in": WORD}
    return table(
        "Instructions of the train step (a loop's body counts once)", columns, rows
    )


def _short(dtype: str) -> str:
    """ "float8_e4m3" as "e4m3", "bfloat16" as "bf16"."""
    return dtype.removeprefix("float8_").replace("bfloat", "bf").replace("float", "fp")


def plot(runs: Sequence[QuickstartRun], corpus: Corpus, path: Path) -> None:
    """Draw the loss curves, and their distance from the first run's, as a PNG."""
    curves = {
        f"{run.machine}: held-out perplexity {run.heldout_perplexity:.3f}": Curve(
            (0,), np.arange(1, len(run.losses) + 1), np.array([run.losses])
        )
        for run in runs
    }
    figure = draw_study(curves, "training loss", next(iter(curves)), "range", 1)
    top, bottom = figure.axes
    entropy = corpus.unigram_entropy()
    top.axhline(entropy, color="grey", linestyle="--", linewidth=1)
    top.text(1, entropy, f" unigram entropy {entropy:.2f}", color="grey", va="bottom")
    top.set_title("One GPT, one seed, one text: native and on emulated Trainium")
    bottom.set(title="", ylabel="minus native")
    figure.savefig(path, dpi=150, format="png")


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
