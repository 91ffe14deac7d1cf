"""`neuronjax conformance`: tests an implementation with the published vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from neuronjax.cli.application import JsonOption, show
from neuronjax.testing import conformance as vectors


def conformance(
    runner: Annotated[
        str, typer.Argument(help="Code to test: neuronjax, ml_dtypes or module:object.")
    ] = "neuronjax",
    folder: Annotated[
        Path, typer.Option("--vectors", help="The folder of the test vectors.")
    ] = vectors.PUBLISHED,
    write: Annotated[
        Path | None,
        typer.Option("--write", help="Test nothing; copy the vectors to this folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Test your implementation of Trainium's arithmetic bit for bit against ours.

    The tests use vectors: stored arguments and results. Your implementation is a
    *runner*, an object with some or all of the methods cast, quantize_mx, sparsify,
    matmul, matmul_mx, matmul_sparse and reduce. manifest.json, beside the vectors,
    describes the methods' arguments and rules. The exit status is 1 if a case fails.

    Examples:

        neuronjax conformance mysimulator.vectors:Runner
        neuronjax conformance --write vectors/
    """
    if write is not None:
        for path in vectors.write(write):
            Console(soft_wrap=True).print(f"{path}  {path.stat().st_size:,} bytes")
        return
    implementation, cases = vectors.load_runner(runner), vectors.read(folder)
    report = vectors.run(implementation, cases, runner, progress=not as_json)
    show(report, lambda: report.records, as_json)
    raise typer.Exit(1 if report.failed else 0)
