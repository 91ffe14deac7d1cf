"""`neuronjax compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

from neuronjax.api.compare import compare as compare_function, compare_saved
from neuronjax.capture.artifacts import read_artifact
from neuronjax.cli.application import JsonOption, PolicyOption, TargetOption, print_json
from neuronjax.cli.sources import (
    FunctionSource,
    InputsOption,
    SeedOption,
    ShapesOption,
    SourceArgument,
    find,
    with_values,
)
from neuronjax.diagnostics.comparison import Comparison

ReferenceOption = Annotated[
    str,
    typer.Option(
        "--reference",
        help="float32, float64, float64_rounded, or a policy.",
    ),
]


def compare(
    source: SourceArgument,
    target: TargetOption = "trn2",
    policy: PolicyOption = None,
    reference: ReferenceOption = "float32",
    shapes: ShapesOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Relative L2 error from which on a run has diverged."),
    ] = None,
    sort: Annotated[
        str, typer.Option(help="isolation, accumulation or order.")
    ] = "isolation",
    as_json: JsonOption = False,
) -> None:
    """Says which op errs, and where the errors begin, against a reference.

    Every op runs emulated and in the reference: in isolation, fed the reference's
    values, and in the run, where errors propagate. The exit status is 0 without a
    divergence, 1 with one, 2 where the program cannot be read.

    Examples:

        neuronjax compare train.py:step --policy fp8 --args 'f32[8,16] i32[8]'
        neuronjax compare model.mlirbc --policy bf16 --reference float64 --json
    """
    options: dict[str, Any] = dict(
        target=target, policy=policy, reference=reference, tolerance=tolerance
    )
    found = find(source)
    if isinstance(found, Path):
        result = _saved(found, inputs, seed, options)
    else:
        result = _function(found, shapes, inputs, seed, options)
    if as_json:
        print_json(result.to_json_dict())
    else:
        console = Console()
        console.print(result)
        if sort != "isolation":
            console.print(result.table(sort))
    raise typer.Exit(1 if result.first_divergence else 0)


def _saved(
    path: Path, inputs: Path | None, seed: int, options: dict[str, Any]
) -> Comparison:
    program = read_artifact(path).program
    types = [v.type for v in program.entry.body.arguments]
    shapes = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    arrays = with_values(shapes, program.argument_names, inputs, seed)
    return compare_saved(path, arrays, **options)


def _function(
    found: FunctionSource,
    shapes: str | None,
    inputs: Path | None,
    seed: int,
    options: dict[str, Any],
) -> Comparison:
    return compare_function(found.function, **options)(
        *found.values(shapes, inputs, seed)
    )
