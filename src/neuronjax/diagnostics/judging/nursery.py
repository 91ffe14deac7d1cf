"""A process that has loaded what tracing takes and forks for every candidate.

Loading it takes a second or two, a fork some milliseconds. The process itself never
runs what is not ours: each candidate has a fork of its own and ends with it. Run as
`python -m`, with the number of a socket, on which `sandbox` asks.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

from neuronjax.diagnostics.judging import tracing_child
from neuronjax.diagnostics.judging.sandbox import WORD

_LONGEST_PATH_BYTES = 4096
_LOOK_SECONDS = 0.01


def main() -> None:
    """Forks until the other end is closed."""
    wire = socket.socket(fileno=int(sys.argv[1]))
    while True:
        folder, files, *_ = socket.recv_fds(wire, _LONGEST_PATH_BYTES, 1)
        if not folder:
            return
        child = os.fork()
        if not child:
            _become(os.fsdecode(folder), files[0], wire)
            tracing_child.main()  # does not return
        os.close(files[0])
        wire.sendall(WORD.pack(child))
        wire.sendall(WORD.pack(_status(child, wire)))


def _become(folder: str, out: int, wire: socket.socket) -> None:
    """A process group, a folder and an output of its own."""
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
    """How it ended; if who asked is gone before, it is ended."""
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
