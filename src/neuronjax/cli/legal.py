"""`neuronjax tolerance`: how far off results may be, and still be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuronjax.api.load import load
from neuronjax.api.tolerance import tolerance as tolerance_of
from neuronjax.cli.application import JsonOption, PolicyOption, TargetOption, show
from neuronjax.cli.options import options_of
from neuronjax.cli.sources import (
    InputsOption,
    SeedOption,
    ShapesOption,
    SourceArgument,
    find,
    saved_values,
)


@options_of(tolerance_of, "functions", "failure")
def tolerance(
    source: SourceArgument,
    target: TargetOption = "trn2",
    policy: PolicyOption = None,
    shapes: ShapesOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    *,
    as_json: JsonOption = False,
    **keywords: Any,
) -> None:
    """Says how far off a program's results may be on a chip, and still be right.

    Inside the bounds is every order of addition and every table of elementary
    functions; a term that is missing is outside.

    Examples:

        neuronjax tolerance train.py:step --policy bf16 --args 'f32[8,16] i32[8]'
        neuronjax tolerance model.mlirbc --policy fp8 --json
    """
    found = find(source)
    if isinstance(found, Path):
        program = load(str(found), target=target, policy=policy)
        result = tolerance_of(program, **keywords)(*saved_values(found, inputs, seed))
    else:
        bounded = tolerance_of(found.function, target=target, policy=policy, **keywords)
        result = bounded(*found.values(shapes, inputs, seed))
    show(result, result.to_json_dict, as_json)
