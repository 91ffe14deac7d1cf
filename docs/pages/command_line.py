"""The commands with their arguments, options and examples, as Typer lists them."""

from __future__ import annotations

import re
import subprocess
import sys

_INTRODUCTION = """# Command line

`neuronjax COMMAND --help` prints the same text in a terminal. If a command's input is
wrong, it prints a message with the remedy and exits with status 2. `check`, `compare`
and `conformance` exit with status 1 if they find a fault. A program is a saved file
(StableHLO, `jax.export`, HLO), `module:function` or `file.py:function`.
"""
_TYPER = ("-m", "typer", "neuronjax.cli", "utils", "docs", "--name", "neuronjax")
_HELP = "* `--help`: Show this message and exit.\n"


def page() -> str:
    """The page; the commands' own text is Markdown."""
    made = subprocess.run(
        (sys.executable, *_TYPER), check=True, capture_output=True, text=True
    )
    _, _, commands = made.stdout.partition("\n## ")
    text = f"## {commands}".replace(_HELP, "")
    text = text.replace("**Options**:\n\n\n", "").replace("```console", "```sh")
    # A folder of this machine says nothing to others.
    text = re.sub(r"  \[default: /[^\]]*\]", "", text)
    text = re.sub(r"^\$ neuronjax", "neuronjax", text, flags=re.MULTILINE)
    return f"{_INTRODUCTION}\n{_examples(text)}"


def _examples(text: str) -> str:
    """Indented examples as blocks of shell."""
    block = re.compile(r"(?:^    neuronjax .*\n)+", re.MULTILINE)

    def fenced(found: re.Match[str]) -> str:
        lines = re.sub(r"^    ", "", found[0], flags=re.MULTILINE)
        return f"```sh\n{lines}```\n"

    return block.sub(fenced, text)
