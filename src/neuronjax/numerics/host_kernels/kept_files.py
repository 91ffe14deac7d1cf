"""Files in the user's cache folder: what costs time to find out again, never a result.

The folder is `NEURONJAX_CACHE_DIR`, else `$XDG_CACHE_HOME/neuronjax`, else
`~/.cache/neuronjax`. Who reads a file says how he knows it for his own.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import platform
import shutil
import stat
import tempfile
from pathlib import Path

import jax


def cache_folder() -> Path:
    """Where this package keeps what it found out; without a home, for this run only."""
    if chosen := os.environ.get("NEURONJAX_CACHE_DIR"):
        return Path(chosen)
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # no HOME, and no such user
        return _passing_folder()
    return base / "neuronjax"


@functools.cache
def _passing_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="neuronjax-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def read(path: Path, most_bytes: int) -> bytes:
    """What a plain file of a sane size holds.

    Raises:
        OSError: there is none.
        ValueError: something else is there.
    """
    # Opening a pipe would wait for who writes to it.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most_bytes:
            raise ValueError(f"{path} is none of this package's files")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def replace(path: Path, content: bytes) -> None:
    """Writes a file at once: who reads it sees the former one or this one, whole.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


@functools.cache
def host_fingerprint() -> str:
    """Return a short hash of what of the host may change the order or speed of XLA's
    code. It asks for no device: a program may still say how many there are."""
    parts = (
        jax.__version__,
        jax.lib.__version__,
        platform.machine(),
        _processor(),
        str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0),
        os.environ.get("XLA_FLAGS", ""),
    )
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.processor()} {platform.version()}"  # a Mac's names its chip
    wanted = ("model name", "flags", "Features", "CPU ")
    return "\n".join(sorted({x for x in lines if x.startswith(wanted)}))
