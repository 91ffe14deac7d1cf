"""`neuronjax check`: what the real compiler would refuse."""

from __future__ import annotations

from typing import Any

import typer

from neuronjax.api.check import check as check_function
from neuronjax.cli.application import JsonOption, OwnTargetOption, PolicyOption
from neuronjax.cli.options import CommandConsole, options_of
from neuronjax.cli.sources import ShapesOption, SourceArgument, program


@options_of(check_function, "sdk")
def check(
    source: SourceArgument,
    target: OwnTargetOption = None,
    policy: PolicyOption = None,
    shapes: ShapesOption = None,
    *,
    as_json: JsonOption = False,
    **keywords: Any,
) -> None:
    """Says what Trainium's own compiler would refuse or change in a program.

    Nothing is run. Every finding has a severity, the line of your program, and what to
    write instead. The exit status is 0 without errors, 1 with at least one (warnings
    and infos do not count), 2 where the program cannot be read.

    Examples:

        neuronjax check model.mlirbc --target trn1
        neuronjax check train.py:step --args 'f32[8,16] i32[8]'
        neuronjax check package.model:forward --sdk 2.29 --json
    """
    keywords.update(target=target, policy=policy)
    function, arguments = program(source, shapes)
    report = check_function(function, **keywords)(*arguments)
    if as_json:
        print(report.to_json())
    else:
        CommandConsole().print(report)
    raise typer.Exit(0 if report.ok else 1)
