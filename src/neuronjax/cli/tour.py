"""`neuronjax quickstart`: tests whether a GPT trains on emulated chips, and prices
it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import neuronjax as nj
from neuronjax.api.study import study
from neuronjax.cli.application import CacheOption, check_folders
from neuronjax.execution import stages

_MACHINES = ("trn2/bf16", "trn2/fp8", "trn3/mxfp8")
_PRICED = {"instance": "trn2.48xlarge", "steps": 100_000}


def quickstart(
    targets: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET/POLICY",
            help="A chip and a policy to emulate. Repeatable. "
            "Default: trn2/bf16, trn2/fp8, trn3/mxfp8.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="The number of steps. Default: 45.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per policy.")] = 3,
    output: Annotated[
        Path, typer.Option(dir_okay=False, help="The file of the plot.")
    ] = Path("neuronjax-quickstart.png"),
    json_path: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, help="Also write the results as JSON."),
    ] = None,
    cache: CacheOption = True,
    tiny: Annotated[bool, typer.Option("--tiny", hidden=True)] = False,
) -> None:
    """Train a GPT in plain JAX and on emulated chips, and compare the losses.

    A Flax transformer of a million parameters learns English from the documentation
    that Python contains: with FP32 `jax.jit`, and with each chip's arithmetic. All runs
    with the same seed start from the same parameters and see the same batches. The cost
    of training a GPT of 124 million parameters is predicted from its shapes.

    Examples:

        neuronjax quickstart
        neuronjax quickstart --targets trn2/fp8 --targets trn1/bf16 --steps 200
        neuronjax quickstart --json results.json --output curves.png
    """
    # Flax and Optax take seconds to import and only this command uses them.
    with stages.watching("Flax and Optax", "loading"):
        from neuronjax.cli.quickstart import data, train

    recipe = train.TINY if tiny else train.TrainingRecipe()
    recipe = dataclasses.replace(recipe, steps=steps or recipe.steps)
    machines = [_checked(text) for text in targets or _MACHINES]
    check_folders([output, json_path])
    if cache:
        nj.keep_compiled()
    priced = {} if targets else {"at": train.priced(), **_PRICED}
    results = study(
        train.train,
        policies=["native", *machines],
        seeds=seeds,
        options={"recipe": recipe, "corpus": data.load()},
        **priced,
    )
    console = Console(soft_wrap=True, highlight=False)
    Console().print(results)
    results.plot(smooth=max(1, recipe.steps // 20)).savefig(output)
    console.print(f"Loss curves: {output}")
    if json_path:
        document = {
            "versions": {"neuronjax": nj.__version__},
            "recipe": dataclasses.asdict(recipe),
            "records": results.records,
            **results.as_dict(),
        }
        json_path.write_text(json.dumps(document, indent=2, default=sorted) + "\n")
        console.print(f"Results: {json_path}")
    console.print(f"Your model: {_command()} study train.py --policies native,bf16,fp8")


def _checked(text: str) -> str:
    if "/" not in text:
        raise nj.InvalidProgramError(
            f"{text!r} does not name a target and a policy",
            remedy='write a slash between target and policy: "trn2/fp8"',
        )
    return text


def _command() -> str:
    """Return the command's name or path, because `make quickstart` sets no PATH."""
    if shutil.which("neuronjax"):
        return "neuronjax"
    return os.path.relpath(Path(sys.executable).with_name("neuronjax"))
