"""Files in the user's cache folder, for data that takes long to compute.

The folder is `NEURONJAX_CACHE_DIR`, else `$XDG_CACHE_HOME/neuronjax`, else
`~/.cache/neuronjax`. Code that reads a file must check that neuronjax wrote it.
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
    """Return the package's cache folder; if the user has no home folder, a folder that
    is deleted when the process ends."""
    if chosen := os.environ.get("NEURONJAX_CACHE_DIR"):
        return Path(chosen)
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # HOME is not set, and the system does not know the user
        return _passing_folder()
    return base / "neuronjax"


@functools.cache
def _passing_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="neuronjax-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def read(path: Path, most_bytes: int) -> bytes:
    """Return the content of a plain file of at most `most_bytes`.

    Raises:
        OSError: there is no such file.
        ValueError: it is not a plain file, or too large.
    """
    # Opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most_bytes:
            raise ValueError(f"{path} is not a file of this package")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def replace(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the whole old or the whole new content.

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
    """Return a short hash of host properties that may change the order or speed of
    XLA's code. It does not ask JAX for devices, because that would fix their number."""
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
        return f"{platform.processor()} {platform.version()}"  # on a Mac, its chip
    wanted = ("model name", "flags", "Features", "CPU ")
    return "\n".join(sorted({x for x in lines if x.startswith(wanted)}))
