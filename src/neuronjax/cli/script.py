"""`neuronjax run script.py`: runs an unmodified program on an emulated chip."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy
from neuronjax.report.setting import setting_line

SUFFIX = ".py"
# The key of the arguments after the script's name in `Context.meta`.
ARGUMENTS = "neuronjax.script_arguments"


class ScriptCommand(TyperCommand):
    """A command that passes arguments after a script's name to the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        scripts = (n for n, text in enumerate(args, 1) if text.endswith(SUFFIX))
        end = next(scripts, len(args))
        ctx.meta[ARGUMENTS] = args[end:]
        return super().parse_args(ctx, args[:end])


def run_script(
    path: Path, arguments: Sequence[str], target: str, policy: str | None
) -> None:
    """Run a file like `python path arguments...`, but emulate what it jits."""
    if not path.is_file():
        raise nj.InvalidProgramError(f"{path}: no such file", remedy="check the path")
    before = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    setting = setting_line(resolve_target(target), Policy.resolve(policy))
    print(f"neuronjax: {path.name} on {setting}", file=sys.stderr)
    try:
        with nj.emulated(target=target, policy=policy):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
