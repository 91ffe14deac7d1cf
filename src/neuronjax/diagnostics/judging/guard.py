"""A guard that forbids and records actions of a candidate kernel while it is traced.

Python calls an audit hook before it starts a process, connects, loads a library or
opens a file (PEP 578), and a hook cannot be removed. The operating system limits time,
memory and files. Hook and limits protect against mistakes and shortcuts; to protect
against a determined attacker, use a container.
"""

from __future__ import annotations

import functools
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_STARTS = "subprocess. os.system os.fork os.posix_spawn os.exec os.spawn pty.spawn"
#: Prefix of a refused audit event -> what the candidate does, in words of a verdict.
_REFUSED = {
    **dict.fromkeys(_STARTS.split(), "starts a process"),
    "socket.": "opens a connection",
    "ctypes.": "calls machine code",
    **dict.fromkeys(("os.kill", "signal.pthread_kill"), "sends a signal"),
}
#: Audit events of changes to files; their first one or two arguments are paths.
_CHANGES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown",
    "os.link", "os.symlink", "os.truncate", "os.utime", "os.setxattr",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NOWHERE = ("/dev/null", "/dev/tty")


class ForbiddenError(PermissionError):
    """The error if a candidate does what no kernel needs, such as starting a shell."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper limits on a child process.

    Attributes:
        seconds: elapsed time, and also processor time.
        memory_bytes: size of the address space.
        file_bytes: size of a file that the child writes, and of all that it prints.
        files: number of files that are open at the same time.
    """

    seconds: float = 120.0
    memory_bytes: int = 8 << 30
    file_bytes: int = 256 << 20
    files: int = 256


@dataclass
class Guard:
    """An audit hook that refuses forbidden actions and records them.

    Attributes:
        folder: the folder in which files may change.
        hidden: path of a file that may not be read -> its name in a verdict.
        sealed: names of files in `folder` that the candidate may not write.
        found: the refused actions, each once.
        finished: whether the candidate has ended, so that `sealed` no longer applies.
    """

    folder: Path
    hidden: dict[str, str]
    sealed: Sequence[str] = ()
    found: list[str] = field(default_factory=list)
    finished: bool = False

    def install(self) -> None:
        """Install the audit hook, which stays until the process ends."""
        root = f"{self.folder.resolve()}{os.sep}"

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == "open":
                self._opened(root, *args[:3])
            elif event == "import" and args[1]:
                if os.path.realpath(str(args[1])).startswith(root):
                    self._refuse(f"loads the library {args[1]}")
            elif event in _CHANGES:
                self._changed(root, event, args)
            elif what := _refused(event):
                self._refuse(f"{what} ({event})")

        sys.addaudithook(hook)

    def _opened(self, root: str, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, int):
            return
        name = os.path.realpath(os.fsdecode(path))
        if name in self.hidden:
            self._refuse(f"reads {self.hidden[name]}, {name}")
        if _of_another_process(name):
            self._refuse("reads another process's memory or environment")
        if isinstance(mode, str):
            writes = any(letter in mode for letter in "wax+")
        else:
            writes = bool((flags or 0) & _WRITING)
        if writes and not name.startswith(root) and name not in _NOWHERE:
            self._refuse(f"writes {name}")
        if writes and name.removeprefix(root) in self.sealed and not self.finished:
            self._refuse("writes what only the judge may write")

    def _changed(self, root: str, event: str, args: Sequence[Any]) -> None:
        for path in args[:2]:
            if isinstance(path, str | bytes | os.PathLike):
                name = os.path.realpath(os.fsdecode(path))
                if not name.startswith(root):
                    self._refuse(f"changes {name} ({event})")

    def _refuse(self, what: str) -> None:
        if what not in self.found:
            self.found.append(what)
        raise ForbiddenError(f"the kernel {what}: no kernel needs that")


@functools.lru_cache(1024)  # limited, since a candidate may invent names of events
def _refused(event: str) -> str:
    return next((what for e, what in _REFUSED.items() if event.startswith(e)), "")


def _of_another_process(name: str) -> bool:
    parts = name.split(os.sep)[1:3]
    return parts[0] == "proc" and parts[-1].isdigit() and parts[-1] != str(os.getpid())


def limit_this_process(limits: Limits) -> None:
    """Apply `limits` to this process and its children, through the operating system."""
    bounds = {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_CPU: int(limits.seconds) + 1,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in bounds.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    # If SIGXFSZ is ignored, a write beyond the limit raises an error.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
