"""`neuronjax tolerance` and `compare-dump`: what a chip's numbers may be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from neuronjax.api.compare_dump import compare_dump as compare_with_dump
from neuronjax.api.keep_compiled import keep_compiled
from neuronjax.api.tolerance import tolerance as tolerance_of
from neuronjax.cli.application import (
    CacheOption,
    JsonOption,
    OwnTargetOption,
    PolicyOption,
    show,
)
from neuronjax.cli.options import options_of
from neuronjax.cli.sources import (
    InputsOption,
    SeedOption,
    ShapesOption,
    SourceArgument,
    answered,
)


@options_of(tolerance_of, "functions", "failure", "samples")
def tolerance(
    source: SourceArgument,
    target: OwnTargetOption = None,
    policy: PolicyOption = None,
    shapes: ShapesOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    *,
    cache: CacheOption = True,
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
    if cache:
        keep_compiled()
    keywords.update(target=target, policy=policy)
    result = answered(tolerance_of, source, (shapes, inputs, seed), **keywords)
    show(result, result.to_json_dict, as_json)


@options_of(compare_with_dump, "functions", "failure", "samples")
def compare_dump(
    source: SourceArgument,
    dump: Annotated[
        Path,
        typer.Argument(
            help="A .npy, .npz, .safetensors or .parquet file; or a folder."
        ),
    ],
    target: OwnTargetOption = None,
    policy: PolicyOption = None,
    shapes: ShapesOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    *,
    cache: CacheOption = True,
    as_json: JsonOption = False,
    **keywords: Any,
) -> None:
    """Says at which op tensors of a real chip, or of another framework, go wrong.

    Tensors are matched to the program's values by name, else by a unique shape. The
    exit status is 0 where all are legal, 1 where one is not or none was compared, 2
    where something cannot be read.

    Examples:

        neuronjax compare-dump train.py:step device.safetensors --inputs batch.npz
        neuronjax compare-dump model.mlirbc tensors/ --policy bf16 --inputs batch.npz
    """
    if cache:
        keep_compiled()
    keywords.update(dump=dump, target=target, policy=policy)
    result = answered(compare_with_dump, source, (shapes, inputs, seed), **keywords)
    show(result, result.to_json_dict, as_json)
    raise typer.Exit(0 if result.is_legal else 1)
