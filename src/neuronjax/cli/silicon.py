"""`neuronjax silicon-kit`, `silicon-check`: compare neuronjax with a real Trainium."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from neuronjax.cli.application import JsonOption, show
from neuronjax.testing import check_silicon, write_silicon_kit


def silicon_kit(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")] = Path(
        "silicon-kit"
    ),
) -> None:
    """Generate small kernels that test neuronjax when they run on a real Trainium.

    Copy the folder to an instance with AWS's SDK and run `python run.py` there.
    The run takes at most ten minutes and needs only NumPy and AWS's compiler. It
    writes the folder results/, the input of `neuronjax silicon-check`.

    Examples:

        neuronjax silicon-kit
        neuronjax silicon-kit ~/probes
    """
    for path in write_silicon_kit(folder):
        Console(soft_wrap=True).print(f"{path}  {path.stat().st_size:,} bytes")


def silicon_check(
    folder: Annotated[Path, typer.Argument(help="The folder that run.py wrote.")],
    as_json: JsonOption = False,
) -> None:
    """List which claims of neuronjax a real Trainium confirms or contradicts.

    For every question about the chip, the table has the answers that agree with all its
    results. The exit status is 1 if the chip contradicts a claim of neuronjax.

    Examples:

        neuronjax silicon-check results/
        neuronjax silicon-check results/ --json
    """
    report = check_silicon(folder)
    show(report, lambda: report.records, as_json)
    raise typer.Exit(1 if report.contradicted else 0)
