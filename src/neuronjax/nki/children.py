"""Commands and packages for the processes that a script starts, in place of the
vendor's.

Harnesses run `python candidate.py` and `neuron-profile view` as separate processes.
`python -m neuronjax.nki` prepends two folders to their environment: PATH gets one with
`neuron-profile`, `neuron-ls` and `python` (this interpreter), and PYTHONPATH gets the
packages of `stand_ins`, which install neuronjax when they are imported.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HERE = Path(__file__).parent
STAND_INS = _HERE / "stand_ins"

# -I keeps the folder of these files, which has a `typing.py`, off the module path.
_COMMANDS = {
    "neuron-profile": (sys.executable, "-I", _HERE / "neuron_profile.py"),
    "neuron-ls": (sys.executable, "-I", _HERE / "neuron_ls.py"),
    "python": (sys.executable,),
    "python3": (sys.executable,),
}


@contextmanager
def for_children() -> Iterator[None]:
    """Make these commands and packages available to processes started in the block."""
    before = {name: os.environ.get(name) for name in ("PATH", "PYTHONPATH")}
    with tempfile.TemporaryDirectory(prefix="neuronjax-") as folder:
        for name, words in _COMMANDS.items():
            command = Path(folder) / name
            line = " ".join(shlex.quote(str(word)) for word in words)
            command.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
            command.chmod(0o755)
        _prepend("PATH", folder)
        _prepend("PYTHONPATH", str(STAND_INS))
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def _prepend(name: str, folder: str) -> None:
    folders = os.environ.get(name, "").split(os.pathsep)
    rest = [part for part in folders if part and part != folder]
    os.environ[name] = os.pathsep.join([folder, *rest])


def is_stand_in(origin: str | None) -> bool:
    """Return whether the file `origin` of a package is in `stand_ins`."""
    return origin is not None and STAND_INS in Path(origin).parents
