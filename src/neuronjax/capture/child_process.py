"""Starts the processes that run jaxlib's parser and partitioner, and describes how
they ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO

from neuronjax.errors import InternalError

#: Longest wait until all processes of a killed group have been reaped.
GONE_SECONDS = 1.0


def started(
    command: Sequence[str],
    doing: str,
    done: str,
    *,
    log: IO[bytes],
    output: IO[bytes] | int = subprocess.PIPE,
    buffer_bytes: int = -1,
) -> subprocess.Popen[bytes]:
    """Return a child process that runs a script of this package, and imports from the
    same paths as this one. Its standard error goes into `log`. `doing` and `done` are
    the words of an error about it, such as "parse" and "parsed"."""
    try:
        return subprocess.Popen(
            [sys.executable, "-P", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stderr=log,
            bufsize=buffer_bytes,
            start_new_session=True,  # Ctrl-C only interrupts the caller
        )
    except OSError as error:
        raise InternalError(
            f"cannot start {sys.executable!r} to {doing} a program: {error}",
            remedy=f"allow a second process, in which programs are {done}",
        ) from error


def ended_with_its_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and the processes of its group; wait for their end."""
    end = time.monotonic() + GONE_SECONDS
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < end:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(0.005)


def death(code: int) -> str:
    """Return how a process ended, by a signal or with an exit status, in words."""
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def last_words(log: bytes, length: int) -> str:
    """Return ": " and the last error of a log, cut to `length` characters, or ""."""
    lines = log.decode(errors="replace").splitlines()
    errors = [line for line in lines if "rror" in line or "Check" in line]
    return f": {errors[-1].strip()[:length]}" if errors else ""
