"""A child process for somebody's code: bounded, without secrets, gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from neuronjax.diagnostics.judging.guard import Limits

_KEPT_CHARACTERS = 4000
_CHUNK_BYTES = 1 << 16
_LATE = "did not end within"
#: What of the parent's environment a child gets; nothing in it is a secret.
_PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "SYSTEMROOT", "LD_LIBRARY_PATH")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended.

    Attributes:
        how: "" if it did its work; else one clause: "did not end within 5 s".
        files: what it left in its folder, by name.
        printed: the end of what it printed.
        seconds: how long it took.
    """

    how: str
    files: Mapping[str, bytes]
    printed: str
    seconds: float

    @property
    def is_late(self) -> bool:
        """Whether it was ended because its time was over."""
        return self.how.startswith(_LATE)

    def described(self, name: str) -> Any:
        """A JSON file of it; None if it is not there or is none."""
        try:
            return json.loads(self.files[name])
        except (KeyError, ValueError):
            return None


def run_child(
    module: str,
    job: Mapping[str, Any],
    wanted: tuple[str, ...],
    limits: Limits,
    given: Mapping[str, bytes] = MappingProxyType({}),
) -> Ended:
    """Runs `python -m module job.json` in a folder of its own.

    Args:
        module: the child, which limits itself before it runs what is not ours.
        job: its task, which it finds as job.json in its working folder.
        wanted: the files of its folder that are read when it has ended.
        limits: after their seconds the child and all it started are killed.
        given: files that it finds there too.
    """
    with _folder() as folder:
        (folder / "job.json").write_text(json.dumps(job))
        for name, data in given.items():
            (folder / name).write_bytes(data)
        start = time.monotonic()
        how, printed = _watched(module, folder, limits)
        files = {
            name: path.read_bytes()
            for name in wanted
            if (path := folder / name).is_file() and not path.is_symlink()
        }
        return Ended(
            how=how, files=files, printed=printed, seconds=time.monotonic() - start
        )


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="neuronjax-judge-", ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


def _environment(folder: Path) -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    package = str(Path(__file__).parents[3])  # src, or site-packages
    own = {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONPATH": package,
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return passed | own


def _watched(module: str, folder: Path, limits: Limits) -> tuple[str, str]:
    """How the child ended, and the end of what it printed."""
    child = subprocess.Popen(
        # The package has imported the module that runs here, which is no harm.
        [sys.executable, "-W", "ignore:'neuronjax:RuntimeWarning", "-m", module],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        how, printed = _listened(child, child.stdout, limits)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.stdout.close()
        status = child.wait()
    return how or _status(status, limits), printed


def _listened(
    child: subprocess.Popen[bytes], out: IO[bytes], limits: Limits
) -> tuple[str, str]:
    """Reads what the child prints until it ends or must be ended."""
    end = time.monotonic() + limits.seconds
    printed, total = b"", 0
    with selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if not selector.select(min(left, 0.1)):
                if child.poll() is not None:
                    return "", _text(printed)
                continue
            chunk = os.read(out.fileno(), _CHUNK_BYTES)
            if not chunk:
                return _waited(child, end, limits), _text(printed)
            total += len(chunk)
            printed = (printed + chunk)[-_KEPT_CHARACTERS:]
            if total > limits.file_bytes:
                return f"printed more than {limits.file_bytes >> 20} MiB", ""
    return _too_long(limits), _text(printed)


def _waited(child: subprocess.Popen[bytes], end: float, limits: Limits) -> str:
    try:
        child.wait(max(end - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return _too_long(limits)
    return ""


def _too_long(limits: Limits) -> str:
    return f"{_LATE} {limits.seconds:g} s"


def _text(printed: bytes) -> str:
    return printed.decode(errors="replace")


def _status(status: int, limits: Limits) -> str:
    if status == 0:
        return ""
    if status > 0:
        return f"ended the process by itself, with status {status}"
    if -status == signal.SIGXCPU:
        return _too_long(limits)
    with contextlib.suppress(ValueError):
        return f"crashed with {signal.Signals(-status).name}"
    return f"crashed with signal {-status}"
