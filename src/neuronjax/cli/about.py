"""`neuronjax exactness`, `bench` and `version`."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import neuronjax as nj
from neuronjax.cli.application import JsonOption, print_json, table
from neuronjax.report import exactness as said
from neuronjax.report.tables import TEXT
from neuronjax.testing.golden_file import provenance

#: The benchmark itself reads the arguments that follow `bench`.
_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}
_ON_THE_PAGE = ("source", "sources", "tests", "shown by")
SETTINGS = {"bench": {"context_settings": _ANYTHING}}


def exactness(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all tables as Markdown.")
    ] = False,
) -> None:
    """List which results are exact, modelled or checked on silicon.

    A second table lists public measurements of chips.

    Examples:

        neuronjax exactness
        neuronjax exactness --markdown > exactness.md
    """
    if markdown:
        print(said.page(), end="")
        return
    for title, rows in said.sections().items():
        # Only the page of --markdown says where a claim is from, and what tests it.
        heads = [h for row in rows[:1] for h in row if h not in _ON_THE_PAGE]
        cells = ([row[head] for head in heads] for row in rows)
        if heads:
            Console().print(table(title, dict.fromkeys(heads, TEXT), cells))


def bench(context: typer.Context) -> None:
    """Run the benchmarks of the repository (this takes minutes).

    The command passes its options to `benchmarks/run.py`.

    Example:

        neuronjax bench --list
    """
    script = Path(__file__).parents[3] / "benchmarks" / "run.py"
    if not script.is_file():
        raise nj.UnsupportedError(
            "the benchmarks are not part of the installed package",
            remedy="clone the repository and run `make bench` in it",
        )
    command = [sys.executable, str(script), *context.args]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


def version(as_json: JsonOption = False) -> None:
    """Print the versions of the packages that can change the bits of results.

    These packages are neuronjax, JAX, jaxlib and Python.

    Examples:

        neuronjax version
        neuronjax version --json
    """
    from neuronjax.numerics.host_kernels import choice

    installed = provenance()
    versions = {"neuronjax": nj.__version__}
    versions |= {name: installed[name] for name in ("jax", "jaxlib", "python")}
    versions |= {"machine": platform.machine(), "kernels": choice.described()}
    if as_json:
        print_json(versions)
        return
    print(f"neuronjax {versions['neuronjax']}")
    print(f"jax {versions['jax']}, jaxlib {versions['jaxlib']}")
    print(f"Python {versions['python']}, {versions['machine']}")
    print(f"kernels: {versions['kernels']}")
