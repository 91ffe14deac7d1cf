"""`neuronjax compare`: which op errs, and where the errors begin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from neuronjax.api.compare import compare as compare_function, compare_saved
from neuronjax.api.keep_compiled import keep_compiled
from neuronjax.cli.application import (
    CacheOption,
    JsonOption,
    PolicyOption,
    TargetOption,
    print_json,
    show,
)
from neuronjax.cli.options import CommandConsole, options_of
from neuronjax.cli.sources import (
    FunctionSource,
    InputsOption,
    SeedOption,
    ShapesOption,
    SourceArgument,
    find,
    saved_values,
)
from neuronjax.errors import InvalidProgramError


@options_of(compare_function, "reference", "tolerance")
def compare(
    source: SourceArgument,
    target: TargetOption = "trn2",
    policy: PolicyOption = None,
    shapes: ShapesOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    *,
    against: Annotated[
        str | None,
        typer.Option(help="The function after an edit, file.py:name, or a program."),
    ] = None,
    sort: Annotated[
        str, typer.Option(help="isolation, accumulation or order.")
    ] = "isolation",
    cache: CacheOption = True,
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
        neuronjax compare train.py:step --against train.py:faster --args 'f32[8,16]'
        neuronjax compare train.py:step --against golden/step.mlirbc --args 'f32[8,16]'
    """
    keywords.update(target=target, policy=policy)
    if cache:
        keep_compiled()
    found = find(source)
    if against is not None:
        other = find(against)
        keywords["against"] = other if isinstance(other, Path) else other.function
        before = _function(found, source)
        compared = compare_function(before.function, **keywords)
        edited = compared(*before.values(shapes, inputs, seed))
        show(edited, edited.to_json_dict, as_json)
        raise typer.Exit(0 if edited.is_same else 1)
    if isinstance(found, Path):
        result = compare_saved(found, saved_values(found, inputs, seed), **keywords)
    else:
        compared = compare_function(found.function, **keywords)
        result = compared(*found.values(shapes, inputs, seed))
    if as_json:
        print_json(result.to_json_dict())
    else:
        console = CommandConsole()
        console.print(result)
        if sort != "isolation":
            console.print(result.table(sort))
    raise typer.Exit(1 if result.faults or result.first_divergence else 0)


def _function(found: Path | FunctionSource, source: str) -> FunctionSource:
    if isinstance(found, Path):
        raise InvalidProgramError(
            f"{source} is a saved program, and --against begins with a function",
            remedy="name it first, train.py:step, and the program after --against",
        )
    return found
