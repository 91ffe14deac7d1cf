"""The walk through a call that docs/architecture.md tells is the one that is taken."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import jax.numpy as jnp

import neuronjax as nj

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
PACKAGE = str(Path(nj.__file__).parent) + "/"
#: A step of the table: the file, and the function that is called there.
STEP = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
MOST_FILES = 12


def calls() -> list[tuple[str, str]]:
    """(file, function) of every call inside the package, in order."""
    found = []

    def heard(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            name = code.co_qualname.rpartition("<locals>.")[2]
            found.append((code.co_filename.removeprefix(PACKAGE), name))

    emulated = nj.jit(lambda x, w: x @ w, policy="bf16")
    x, w = jnp.ones((6, 40)), jnp.ones((40, 5))
    sys.setprofile(heard)
    try:
        emulated(x, w)
    finally:
        sys.setprofile(None)
    return found


def test_a_call_goes_the_way_that_is_told():
    told = STEP.findall(PAGE.read_text())
    taken = iter(calls())
    assert [step for step in told if step not in taken] == []
    assert 8 < len({file for file, _ in told}) <= MOST_FILES
