"""Compiled programs, kept from run to run: two thirds of a run is XLA's compiler.

JAX's own persistent cache, in `.cache/xla` of the checkout. Its keys hold the program,
the options and the version of jaxlib, so that what changed is compiled anew; the folder
is named after the processor, whose instructions the entries are made of. An entry is
the machine code of the first run, so tests that compare compilations in processes of
their own go without it: `WITHOUT`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from pathlib import Path

FOLDER = Path(__file__).parent.parent / ".cache" / "xla"
#: Every change of a program leaves its former entries; past this, all are forgotten.
MOST_BYTES = 2 * 10**9
#: For the environment of a process that has to compile what it runs.
WITHOUT = {"JAX_ENABLE_COMPILATION_CACHE": "false"}


def use() -> None:
    """For this process and its children, unless the user has chosen a cache."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(FOLDER / _processor()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def forget_if_large() -> None:
    """Before anyone reads: called once a run, by the process that starts the others."""
    if sum(f.stat().st_size for f in FOLDER.rglob("*") if f.is_file()) > MOST_BYTES:
        shutil.rmtree(FOLDER, ignore_errors=True)


def _processor() -> str:
    """A name for what compiled code depends on beside its program."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    about = {line for line in lines if line.startswith(("flags", "Features", "model"))}
    named = "\n".join([platform.machine(), platform.processor(), *sorted(about)])
    return hashlib.sha256(named.encode()).hexdigest()[:16]
