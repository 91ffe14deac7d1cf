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

import jax

FOLDER = Path(__file__).parent.parent / ".cache" / "xla"
#: Every change of a program leaves its former entries; past this, all are forgotten.
MOST_BYTES = 2 * 10**9
#: For the environment of a process that has to compile what it runs.
WITHOUT = {"JAX_ENABLE_COMPILATION_CACHE": "false"}


def use() -> None:
    """For this process and its children, unless the user has chosen otherwise."""
    chosen = {
        "jax_compilation_cache_dir": str(FOLDER / _processor()),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in chosen.items():
        if name.upper() not in os.environ:
            os.environ[name.upper()] = str(value)
            jax.config.update(name, value)


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
