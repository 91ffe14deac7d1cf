"""`neuronjax compare`: which op errs, and where the errors begin."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from neuronjax.api.compare import compare as compare_function
from neuronjax.api.keep_compiled import keep_compiled
from neuronjax.cli.application import (
    CacheOption,
    JsonOption,
    OwnTargetOption,
    PolicyOption,
    print_json,
    show,
)
from neuronjax.cli.options import CommandConsole, options_of
from neuronjax.cli.sources import (
    InputsOption,
    SeedOption,
    ShapesOption,
    SourceArgument,
    answered,
    find,
)


@options_of(compare_function, "reference", "tolerance")
def compare(
    source: SourceArgument,
    target: OwnTargetOption = None,
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
    if against is not None:
        keywords["against"] = find(against).function
    result = answered(compare_function, source, (shapes, inputs, seed), **keywords)
    if against is not None:
        show(result, result.to_json_dict, as_json)
        raise typer.Exit(0 if result.is_same else 1)
    if as_json:
        print_json(result.to_json_dict())
    else:
        console = CommandConsole()
        console.print(result)
        if sort != "isolation":
            console.print(result.table(sort))
    raise typer.Exit(1 if result.faults or result.first_divergence else 0)
