"""`neuronjax search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from neuronjax.api.search_precision import search_precision
from neuronjax.cli.application import (
    JsonOption,
    TargetOption,
    check_folders,
    print_json,
)
from neuronjax.cli.sources import (
    FunctionSource,
    InputsOption,
    SeedOption,
    ShapesOption,
    SourceArgument,
    find,
)
from neuronjax.errors import UnsupportedError


def search(
    source: SourceArgument,
    tolerance: Annotated[
        float, typer.Option(help="The largest error.", show_default=False)
    ],
    target: TargetOption = "trn2",
    shapes: ShapesOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    candidates: Annotated[
        str | None,
        typer.Option(
            metavar="PRESETS",
            help="The cheapest first, the baseline last: 'fp8,bf16,fp32'. Default: all "
            "that the target has.",
        ),
    ] = None,
    groups: Annotated[
        str, typer.Option(help="What gets one precision: param, scope, source, op.")
    ] = "param",
    strategy: Annotated[str, typer.Option(help="greedy or bisection.")] = "greedy",
    objective: Annotated[
        str,
        typer.Option(help="preference, or time: only what saves predicted time."),
    ] = "preference",
    metric: Annotated[
        str, typer.Option(help="relative_l2 or max_relative.")
    ] = "relative_l2",
    outputs: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Which outputs count, by path: '^1$'."),
    ] = None,
    max_evaluations: Annotated[
        int, typer.Option(help="How many programs are run at most.")
    ] = 200,
    plot: Annotated[
        Path | None, typer.Option(help="Draws predicted time against error.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Finds the lowest precision of every layer within a tolerance.

    Groups of ops are lowered one after another to cheaper formats as long as the
    outputs stay within the tolerance of the FP32 ones; prints what each group got, why
    not less, and the policy as Python.

    Examples:

        neuronjax search train.py:step --tolerance 0.01 --args 'f32[8,16] i32[8]'
        neuronjax search train.py:loss --tolerance 1e-3 --target trn3 --groups scope
    """
    check_folders([plot])
    function, arguments = _call(find(source), shapes, inputs, seed)
    found = search_precision(
        function,
        tolerance=tolerance,
        target=target,
        candidates=None if candidates is None else candidates.split(","),
        groups=groups,
        strategy=strategy,
        objective=objective,
        metric=metric,
        outputs=outputs,
        max_evaluations=max_evaluations,
        progress=not as_json,
    )(*arguments)
    if plot is not None:
        found.plot().savefig(plot)
    if as_json:
        print_json(found.to_json_dict())
        return
    console = Console()
    console.print(found)
    console.print(found.as_code(), highlight=False, markup=False)


def _call(
    found: FunctionSource | Path, shapes: str | None, inputs: Path | None, seed: int
) -> tuple:
    """The function and its arguments."""
    if isinstance(found, Path):
        raise UnsupportedError(
            f"{found}: a search in a saved program",
            remedy="name the function it was made from: file.py:function",
        )
    return found.function, found.values(shapes, inputs, seed)
