"""`neuronjax search`: the lowest precision within a tolerance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from neuronjax.api.keep_compiled import keep_compiled
from neuronjax.api.search_precision import search_precision
from neuronjax.cli.application import (
    CacheOption,
    JsonOption,
    OwnTargetOption,
    check_folders,
    print_json,
)
from neuronjax.cli.options import CommandConsole, Offer, options_of
from neuronjax.cli.sources import (
    InputsOption,
    SeedOption,
    ShapesOption,
    SourceArgument,
    answered,
)


@options_of(
    search_precision,
    *("tolerance", "groups", "strategy", "objective", "metric"),
    *("max_evaluations", "margin", "variations"),
    outputs=Offer(metavar="PATTERN"),
    candidates=Offer(metavar="PRESET,...", read=lambda given: given.split(",")),
)
def search(
    source: SourceArgument,
    target: OwnTargetOption = None,
    shapes: ShapesOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    *,
    plot: Annotated[
        Path | None, typer.Option(help="Draws predicted time against error.")
    ] = None,
    cache: CacheOption = True,
    as_json: JsonOption = False,
    **keywords: Any,
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
    if cache:
        keep_compiled()
    keywords.update(target=target, progress=not as_json)
    result = answered(search_precision, source, (shapes, inputs, seed), **keywords)
    if plot is not None:
        result.plot().savefig(plot)
    if as_json:
        print_json(result.to_json_dict())
        return
    console = CommandConsole()
    console.print(result)
    console.print(result.as_code(), highlight=False, markup=False)
