"""A process that imports what its children need, then forks a child per request.

The imports take a second or two, a fork some milliseconds. Untrusted code runs only in
the children. `sandbox` runs this module by `python -m`, gives it the file descriptor of
a socket, and sends requests on the socket.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys

# Imports for children that trace a kernel; children that compute values import more.
import neuronjax.diagnostics.judging.tracing_child  # noqa: F401
from neuronjax.diagnostics.judging.sandbox import SEPARATOR, WORD

_LONGEST_BYTES = 8192
_LOOK_SECONDS = 0.01


def main() -> None:
    """Fork a child per request until the other end of the socket is closed."""
    wire = socket.socket(fileno=int(sys.argv[1]))
    while True:
        asked, files, *_ = socket.recv_fds(wire, _LONGEST_BYTES, 1)
        if not asked:
            return
        child = os.fork()
        if not child:
            module, _, folder = asked.partition(SEPARATOR)
            _become(os.fsdecode(folder), files[0], wire)
            importlib.import_module(module.decode()).main()  # does not return
        os.close(files[0])
        wire.sendall(WORD.pack(child))
        wire.sendall(WORD.pack(_status(child, wire)))


def _become(folder: str, out: int, wire: socket.socket) -> None:
    os.setpgid(0, 0)
    wire.close()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, given in enumerate((nothing, out, out)):
        os.dup2(given, number)
    os.close(nothing)
    os.close(out)
    os.chdir(folder)
    os.environ["HOME"] = os.environ["TMPDIR"] = folder


def _status(child: int, wire: socket.socket) -> int:
    """Return the child's `os.waitpid` status; if `wire` closes, kill the child."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if select.select([wire], [], [], _LOOK_SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise SystemExit


if __name__ == "__main__":
    main()
