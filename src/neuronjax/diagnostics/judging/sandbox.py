"""Child processes for untrusted code, with limits and without the parent's secrets."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from neuronjax.diagnostics.judging.guard import Limits
from neuronjax.ir.json_text import json_object

#: The module of the process that forks children; it is not imported here.
_MODULE = "neuronjax.diagnostics.judging.nursery"
#: Format of a message from `_MODULE`: a child's process id, or its `os.waitpid` status.
WORD = struct.Struct("=i")
#: A request to `_MODULE`: the name of a child's module, this separator, and its folder.
SEPARATOR = b"\0"
_KEPT_CHARACTERS = 4000
_CHUNK_BYTES = 1 << 16
_LATE = "did not end within"
#: Environment variables that a child gets; their values are no secrets.
_PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "SYSTEMROOT", "LD_LIBRARY_PATH")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a child process.

    Attributes:
        how: a clause such as "did not end within 5 s"; "" for an exit status of 0.
        files: contents of the requested files in the child's folder, by name.
        printed: the last characters of the child's output.
    """

    how: str
    files: Mapping[str, bytes]
    printed: str

    @property
    def is_late(self) -> bool:
        """Return whether the child was killed because it exceeded its time limit."""
        return self.how.startswith(_LATE)

    def described(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in the file `name`; None if there is none."""
        try:
            return json_object(self.files[name])
        except (KeyError, ValueError):
            return None


def run_child(
    module: str,
    job: Mapping[str, Any],
    wanted: tuple[str, ...],
    limits: Limits,
    given: Mapping[str, bytes] = MappingProxyType({}),
) -> Ended:
    """Run `main` of `module` in a child process, in a new folder.

    The process that forks children lives until this process ends; see `nursery`.

    Args:
        module: name of a module of this package.
        job: the child's task, given as job.json in its working folder.
        wanted: names of files in the folder, to read when the child has ended.
        limits: limits of the child; after `limits.seconds` its process group is killed.
        given: contents of more files for the folder, by name.
    """
    with tempfile.TemporaryDirectory(
        prefix="neuronjax-judge-", ignore_cleanup_errors=True
    ) as home:
        folder = Path(home)
        (folder / "job.json").write_text(json.dumps(job))
        for name, data in given.items():
            (folder / name).write_bytes(data)
        how, printed = _watched(module, folder, limits)
        files = {
            name: path.read_bytes()
            for name in wanted
            if (path := folder / name).is_file() and not path.is_symlink()
        }
        return Ended(how=how, files=files, printed=printed)


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    package = str(Path(__file__).parents[3])  # src, or site-packages
    ones = ("PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    own = {"PYTHONPATH": package, "JAX_PLATFORMS": "cpu"} | dict.fromkeys(ones, "1")
    return passed | own


class _Nursery:
    """The process that runs `nursery` and forks children, with a socket to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._has_child = False
        self._wire, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                cwd=os.sep,  # so that all other folders can be removed
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )

    def fork(self, module: str, folder: Path, out: int) -> int | None:
        """Start `module` in a child; return the child's id, None if `_process` died."""
        asked = module.encode() + SEPARATOR + os.fsencode(folder)
        with contextlib.suppress(OSError):
            socket.send_fds(self._wire, [asked], [out])
            child = self._word()
            self._has_child = child is not None
            return child
        return None

    def status(self, seconds: float) -> int | None:
        """Return the child's `os.waitpid` status; None if not within `seconds`."""
        if select.select([self._wire], [], [], max(seconds, 0.0))[0]:
            word = self._word()
            self._has_child = False
            return signal.SIGKILL if word is None else word
        return None

    def end(self, child: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if self._has_child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            self._word()
            self._has_child = False

    def _word(self) -> int | None:
        received = self._wire.recv(WORD.size, socket.MSG_WAITALL)
        return WORD.unpack(received)[0] if len(received) == WORD.size else None

    def close(self) -> None:
        self._wire.close()
        self._process.wait()


_nursery: _Nursery | None = None
_one_at_a_time = threading.Lock()


def prepare() -> None:
    """Start the process that forks children; it imports while the caller continues."""
    with _one_at_a_time:
        _present()


def _present() -> _Nursery:
    global _nursery
    if _nursery is None or _nursery.owner != os.getpid():
        _nursery = _Nursery()
    return _nursery


def _watched(module: str, folder: Path, limits: Limits) -> tuple[str, str]:
    """Run a child; return (how the child ended, the last characters of its output)."""
    with _one_at_a_time:
        nursery, child, out = _born(module, folder)
        with out:
            try:
                how, printed = _listened(nursery, out, limits)
            finally:
                nursery.end(child)
        return how, printed


def _born(module: str, folder: Path) -> tuple[_Nursery, int, IO[bytes]]:
    """Start a child. Return (the process that forked it, the child's id, its output).
    Raises:
        RuntimeError: the process that forks children cannot be started.
    """
    global _nursery
    for _ in range(2):  # the process that forks children may have been killed
        nursery = _present()
        reads, writes = os.pipe()
        child = nursery.fork(module, folder, writes)
        os.close(writes)
        if child is not None:
            return nursery, child, os.fdopen(reads, "rb", buffering=0)
        os.close(reads)
        nursery.close()
        _nursery = None
    raise RuntimeError(f"python -m {_MODULE} does not start")


def _listened(nursery: _Nursery, out: IO[bytes], limits: Limits) -> tuple[str, str]:
    """Read the child's output until the child ends or exceeds a limit. Return (how the
    child ended, the last characters of its output)."""
    end = time.monotonic() + limits.seconds
    printed, total = b"", 0
    while (left := end - time.monotonic()) > 0:
        if not select.select([out], [], [], left)[0]:
            break
        chunk = os.read(out.fileno(), _CHUNK_BYTES)
        if not chunk:
            status = nursery.status(end - time.monotonic())
            return _how(status, limits), printed.decode(errors="replace")
        total += len(chunk)
        printed = (printed + chunk)[-_KEPT_CHARACTERS:]
        if total > limits.file_bytes:
            return f"printed more than {limits.file_bytes >> 20} MiB", ""
    return _how(None, limits), printed.decode(errors="replace")


def _how(status: int | None, limits: Limits) -> str:
    """Return how a child ended; a `status` of None means that it exceeded its time."""
    code = -signal.SIGXCPU if status is None else os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended the process by itself, with status {code}" if code else ""
    if -code == signal.SIGXCPU:
        return f"{_LATE} {limits.seconds:g} s"
    with contextlib.suppress(ValueError):
        return f"crashed with {signal.Signals(-code).name}"
    return f"crashed with signal {-code}"
