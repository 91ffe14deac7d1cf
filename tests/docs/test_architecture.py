"""The files that docs/architecture.md tells of a first call are those it enters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from neuronjax.numerics.host_kernels import choice

pytestmark = pytest.mark.skipif(
    not choice.usable(), reason="the page tells the way of a host with kernels"
)

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
#: A row of the table: a file, and a function that is called there.
ROW = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
MOST_FILES = 45

#: Prints every (file, function) of the package that the first call of a process enters.
FIRST_CALL = """
import json, pathlib, sys
import jax.numpy as jnp
import neuronjax as nj

package = str(pathlib.Path(nj.__file__).parent) + "/"
found = {}

def heard(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package):
        if code.co_name != "<module>":
            file = code.co_filename.removeprefix(package)
            name = code.co_qualname.rpartition("<locals>.")[2]
            found[f"{file} {name}"] = None

for name in nj.__all__:  # what a module does while it is imported is no call
    getattr(nj, name)
import neuronjax.execution.host_kernels.fold
x, w = jnp.ones((6, 40)), jnp.ones((40, 5))
sys.setprofile(heard)
nj.jit(lambda x, w: x @ w, policy="bf16")(x, w)
sys.setprofile(None)
print(json.dumps(list(found)))
"""


@cache
def entered() -> list[list[str]]:
    """(file, function) of every call inside the package, in a process of its own."""
    command = [sys.executable, "-c", FIRST_CALL]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [call.split(" ", 1) for call in json.loads(done.stdout)]


def test_all_files_of_a_first_call_are_told():
    told = ROW.findall(PAGE.read_text())
    files = {file for file, _ in entered()}
    assert sorted(files) == sorted(file for file, _ in told)
    assert len(files) <= MOST_FILES
    assert f"these {len(files)} files" in PAGE.read_text().replace("\n", " ")


def test_a_call_goes_through_the_functions_that_are_told():
    """But those that the kernels of a host are written with."""
    found = {tuple(call) for call in entered()}
    told = ROW.findall(PAGE.read_text())
    missing = [row for row in told if row not in found]
    assert [file for file, _ in missing if "host_kernels" not in file] == []
