"""`neuronjax quickstart`: a GPT, natively and on emulated chips."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import neuronjax as nj
from neuronjax.cli.application import CacheOption, check_folders
from neuronjax.execution import stages
from neuronjax.report.progress import StudyProgress


def quickstart(
    targets: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET/POLICY",
            help="What to emulate; repeatable. "
            "Default: trn1/bf16, trn2/fp8, trn3/mxfp8.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps. Default: 100.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the parameters and batches.")] = 0,
    output: Annotated[
        Path, typer.Option(dir_okay=False, help="Where the picture goes.")
    ] = Path("neuronjax-quickstart.png"),
    json_path: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, help="Also write the results as JSON."),
    ] = None,
    cache: CacheOption = True,
    tiny: Annotated[bool, typer.Option("--tiny", hidden=True)] = False,
) -> None:
    """Trains a GPT natively and on emulated chips, and compares.

    A Flax transformer of a million parameters learns English from the documentation
    that Python carries: with FP32 `jax.jit`, and with the numbers of each chip. Same
    initial parameters, same batches. Takes one and a half to three minutes on two
    cores.

    Examples:

        neuronjax quickstart
        neuronjax quickstart --targets trn2/fp8 --targets trn2/bf16 --steps 200
        neuronjax quickstart --json results.json --output curves.png
    """
    # Flax, Optax and matplotlib take seconds to import and only this command uses them.
    with stages.watching("Flax, Optax and Matplotlib", "loading"):
        from neuronjax.cli.quickstart import data, experiment, report, train

    chosen = train.TINY if tiny else train.TrainingRecipe()
    chosen = dataclasses.replace(chosen, seed=seed, steps=steps or chosen.steps)
    emulated = map(experiment.Setup.parse, targets or experiment.EMULATED)
    machines = [experiment.NATIVE, *emulated]
    if cache:
        nj.keep_compiled()
    corpus = data.load()
    console = Console()
    check_folders([output, json_path])
    progress = StudyProgress(len(machines), steps=chosen.steps, logs=True)
    with progress as bars:
        runs = [experiment.run_on(each, chosen, corpus, bars) for each in machines]
    console.print(report.results_table(runs), report.engines_table(runs))
    report.plot(runs, corpus, output)
    console.print(f"Loss curves: {output}", highlight=False, soft_wrap=True)
    if json_path:
        json_path.write_text(report.as_json(runs, chosen, corpus) + "\n")
        console.print(f"Results: {json_path}", highlight=False, soft_wrap=True)
    console.print(
        f"Your own script, as it stands: {_command()} run --policy bf16 train.py",
        highlight=False,
        soft_wrap=True,
    )


def _command() -> str:
    """How this command is reached: `make quickstart` puts nothing on the PATH."""
    if shutil.which("neuronjax"):
        return "neuronjax"
    return os.path.relpath(Path(sys.executable).with_name("neuronjax"))
