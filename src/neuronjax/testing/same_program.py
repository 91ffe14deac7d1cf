"""`assert_same_program`: two functions, or a function and a golden, are one program."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuronjax.api.asked import Asked
from neuronjax.diagnostics.edits.canonical_text import fingerprint, first_difference
from neuronjax.ir.program import Program
from neuronjax.testing import golden_file
from neuronjax.testing.golden_run import Today, stored_program


class ProgramsDiffer(AssertionError):
    """Raised by `assert_same_program`."""


def assert_same_program(
    function: Callable[..., Any],
    expected: Callable[..., Any] | str | os.PathLike[str],
) -> Callable[..., None]:
    """Asserts that two functions are captured as the same StableHLO.

    Source lines, names of functions and arguments, and where constants stand do not
    count; see `diagnostics.edits.canonical_text`.

    Args:
        function: as `neuronjax.compare`.
        expected: another such function, or the path of a golden without its ending.

    Returns:
        A function of the arguments (arrays or ShapeDtypeStructs) that returns nothing.

    Raises:
        ProgramsDiffer: (when called) shows the first ops that differ.
    """

    def check(*args: Any, **kwargs: Any) -> None:
        def of(function: Any) -> Program:
            return Today.of(Asked.of(function), args, kwargs, with_inputs=False).program

        now = of(function)
        if isinstance(expected, str | os.PathLike):
            wanted = stored_program(golden_file.read(Path(expected)))
        else:
            wanted = of(expected)
        if fingerprint(now) == fingerprint(wanted):
            return
        lines = first_difference(wanted, now).split("\n")
        raise ProgramsDiffer(
            "\n  ".join(["the programs differ, first here (- expected):", *lines])
        )

    return check
