"""The application with which the commands register, and the code that they share."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from neuronjax.cli.options import CommandConsole
from neuronjax.errors import InvalidProgramError, NeuronJaxError, is_library
from neuronjax.report.tables import Look, new_table
from neuronjax_command import loading

#: The module of every command, by name. A module may have `SETTINGS`, with which its
#: commands are registered.
COMMANDS: dict[str, str] = {}


class _Commands(TyperGroup):
    """A group of commands, in which a script in place of a command means `run`. The
    traceback of an error in the user's program starts at the user's first line."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.commands: Any = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        with loading():
            module = import_module(COMMANDS[cmd_name])
        settings = getattr(module, "SETTINGS", {}).get(name, {})
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        alone.command(cmd_name, **settings)(getattr(module, name))
        return typer.main.get_command(alone)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {o for p in self.get_params(ctx) for o in (*p.opts, *p.secondary_opts)}
        option = args[:1] and args[0].startswith("-") and args[0] not in known
        if option or (args and args[0].endswith(".py")):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except NeuronJaxError as error:
            message = Text.assemble(("error: ", "bold red"), str(error))
            Console(stderr=True, soft_wrap=True).print(message)
            raise typer.Exit(2) from None
        except Exception as error:  # an error of the user's program
            trace = error.__traceback__
            while trace is not None and is_library(trace.tb_frame.f_code.co_filename):
                trace = trace.tb_next
            if trace is None and not isinstance(error, SyntaxError):
                raise
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Commands,
    name="neuronjax",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        print(importlib.metadata.version("neuronjax"))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version of neuronjax and exit.",
        ),
    ] = False,
) -> None:
    """Run JAX programs with the arithmetic of AWS Trainium, without a Trainium.

    Start with the command **neuronjax quickstart**. Then, in Python, write:

    ```python
    import neuronjax as nj
    step = nj.jit(train_step, target="trn2", policy="fp8")
    ```

    Or apply a command to a script, a function or a saved StableHLO program:

    ```sh
    neuronjax run --policy bf16 train.py
    neuronjax check model.mlirbc --target trn1
    neuronjax run train.py:step --args 'f32[8,16]' --policy bf16
    ```
    """


TargetOption = Annotated[
    str, typer.Option("--target", help="The chip, instance or UltraServer.")
]
OwnTargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="A chip, instance or UltraServer, as `neuronjax ls` lists them. Default: "
        "the function's target, or trn2.",
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="fp32, bf16, fp16, tf32, fp8, mxfp8 or mxfp4; or one of these with fields "
        "of Policy changed: bf16,rounding=stochastic. Default: the function's policy, "
        "else fp32.",
    ),
]
CacheOption = Annotated[
    bool,
    typer.Option("--cache/--no-cache", help="Keep compiled programs for later runs."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(data: Any) -> None:
    """Print data as JSON, sets as sorted lists."""
    print(json.dumps(data, indent=2, default=sorted))


def show(found: Any, data: Callable[[], Any], as_json: bool) -> None:
    """Print a result for people, or its data for programs."""
    if as_json:
        print_json(data())
    else:
        CommandConsole().print(found)


def table(
    title: str,
    columns: Mapping[str, Look],
    rows: Iterable[Sequence[RenderableType]] = (),
    **style: Any,
) -> Table:
    """Return a `new_table` in which a long title is folded."""
    return new_table(title, columns, rows, min_width=None, **style)


def check_folders(paths: Sequence[Path | None]) -> None:
    """Check, before any work, that the folders of output files exist."""
    for path in filter(None, paths):
        if not path.parent.is_dir():
            raise InvalidProgramError(
                f"{path}: there is no folder {path.parent}",
                remedy="make the folder first",
            )
