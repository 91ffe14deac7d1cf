"""`neuronjax silicon-kit` and `silicon-check`: test a real Trainium."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from neuronjax.cli.application import JsonOption, show
from neuronjax.testing import check_silicon, write_silicon_kit


def silicon_kit(
    folder: Annotated[Path, typer.Argument(help="Made if it does not exist.")] = Path(
        "silicon-kit"
    ),
) -> None:
    """Writes small kernels that show what a real Trainium does.

    Copy the folder to an instance with the vendor's SDK and run `python run.py` there,
    ten minutes at most; it needs NumPy and the vendor's package alone. What it leaves
    in results/ is for `neuronjax silicon-check`.

    Examples:

        neuronjax silicon-kit
        neuronjax silicon-kit ~/probes
    """
    for path in write_silicon_kit(folder):
        Console(soft_wrap=True).print(f"{path}  {path.stat().st_size:,} bytes")


def silicon_check(
    folder: Annotated[Path, typer.Argument(help="The results/ that run.py wrote.")],
    as_json: JsonOption = False,
) -> None:
    """Says what a real Trainium confirms, contradicts and leaves undecided.

    Lists, for every question, the alternatives that agree with the chip in all bits.
    Status 1 if the chip contradicts something that neuronjax says.

    Examples:

        neuronjax silicon-check results/
        neuronjax silicon-check results/ --json
    """
    report = check_silicon(folder)
    show(report, lambda: report.records, as_json)
    if report.contradicted:
        raise typer.Exit(1)
