"""Sharded scripts that begin as public runners do, and how one is judged.

A script is a file of `scripts/`. Python runs it on as many devices of the host as it
asks for, and `neuronjax run` runs it as it stands. What both print must be equal, but
for numbers with a point, which may lie `BOUND` apart: these are results in FP32, of few
layers. The shardings that a script prints are part of the text.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.strangers.program import Verdict

#: Relative, of a printed number; of those below 1 absolute.
BOUND = 1e-4
SECONDS = 600
#: For a script that leaves the number of devices to whoever starts it.
DEVICES = "--xla_force_host_platform_device_count=8"
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?")
# XLA's collectives greet each other on the standard output, several at once.
_GREETING = re.compile(r".*(?:Gloo|peer ranks|is connected).*\n")


@dataclasses.dataclass(frozen=True)
class Script:
    """A script for many devices.

    Attributes:
        path: the file.
    """

    path: Path
    library: str = "jax"

    @property
    def title(self) -> str:
        """The first line of its docstring."""
        text = ast.get_docstring(ast.parse(self.path.read_text())) or ""
        return text.split("\n")[0].removesuffix(".")

    @property
    def version(self) -> str:
        """JAX's."""
        return importlib.metadata.version(self.library)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs it by a command line of Python, with warnings off."""
        environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
        text = self.path.read_text()
        if "device_count=" not in text and "num_cpu_devices" not in text:
            environment["XLA_FLAGS"] = DEVICES
        return subprocess.run(
            [sys.executable, "-W", "ignore", *command, str(self.path)],
            env={**environment, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )


SCRIPTS = [Script(p) for p in sorted((Path(__file__).parent / "scripts").glob("*.py"))]


def judge_script(script: Script) -> Verdict:
    """Runs a script natively and emulated."""
    native = script.run()
    if native.returncode:
        return Verdict("broken", _last_line(native))
    options = ("--target", "trn2.48xlarge", "--policy", "fp32")
    ours = script.run("-m", "neuronjax", "run", *options)
    if ours.returncode:
        refused = "remedy:" in ours.stderr
        return Verdict("refused" if refused else "crashed", _last_line(ours))
    return compare_texts(ours.stdout, native.stdout)


def _last_line(run: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in run.stderr.splitlines() if "rror" in line]
    return lines[-1] if lines else f"exit status {run.returncode}"


def compare_texts(actual: str, expected: str) -> Verdict:
    """The verdict on what two runs of a script have printed."""
    texts = [_GREETING.sub("", text) for text in (actual, expected)]
    words = [_NUMBER.sub("#", text).split() for text in texts]
    if "".join(words[0]) != "".join(words[1]):
        pairs = zip(*map(str.splitlines, texts), strict=False)
        masked = (
            pair for pair in pairs if len({_NUMBER.sub("#", x) for x in pair}) > 1
        )
        found = next(masked, ("more or fewer lines", ""))
        return Verdict("differs", "prints {!r}, natively {!r}".format(*found))
    pairs = list(zip(*map(_NUMBER.findall, texts), strict=True))
    worst = max((_distance(*pair) for pair in pairs), default=0.0)
    if not worst <= BOUND:
        return Verdict("differs", f"by {worst:.1e} in a printed number, of {BOUND}")
    return Verdict("agrees", f"within {worst:.1e} of {BOUND}, {len(pairs)} numbers")


def _distance(actual: str, expected: str) -> float:
    """Relative, and absolute below 1; of integers infinite, where they differ."""
    if "." not in expected:
        return 0.0 if actual == expected else float("inf")
    return abs(float(actual) - float(expected)) / max(1.0, abs(float(expected)))
