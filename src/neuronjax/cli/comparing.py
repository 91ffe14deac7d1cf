"""`neuronjax compare`: which op errs, and where the errors begin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from neuronjax.api.compare import compare as compare_function, compare_saved
from neuronjax.cli.application import JsonOption, PolicyOption, TargetOption, print_json
from neuronjax.cli.options import options_of
from neuronjax.cli.sources import (
    InputsOption,
    SeedOption,
    ShapesOption,
    SourceArgument,
    find,
    saved_values,
)


@options_of(compare_function, "reference", "tolerance")
def compare(
    source: SourceArgument,
    target: TargetOption = "trn2",
    policy: PolicyOption = None,
    shapes: ShapesOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    *,
    sort: Annotated[
        str, typer.Option(help="isolation, accumulation or order.")
    ] = "isolation",
    as_json: JsonOption = False,
    **keywords: Any,
) -> None:
    """Says what is wrong, on which line, since when, why, and what to try.

    Every op runs emulated and in the reference: in isolation, fed the reference's
    values, and in the run, where errors propagate. The exit status is 0 where nothing
    is wrong, 1 with a fault or a divergence, 2 where the program cannot be read.

    Examples:

        neuronjax compare train.py:step --policy fp8 --args 'f32[8,16] i32[8]'
        neuronjax compare model.mlirbc --policy bf16 --reference float32 --json
    """
    keywords.update(target=target, policy=policy)
    found = find(source)
    if isinstance(found, Path):
        result = compare_saved(found, saved_values(found, inputs, seed), **keywords)
    else:
        compared = compare_function(found.function, **keywords)
        result = compared(*found.values(shapes, inputs, seed))
    if as_json:
        print_json(result.to_json_dict())
    else:
        console = Console()
        console.print(result)
        if sort != "isolation":
            console.print(result.table(sort))
    raise typer.Exit(1 if result.faults or result.first_divergence else 0)
