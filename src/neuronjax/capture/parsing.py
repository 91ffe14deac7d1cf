"""Parses untrusted programs in another process, from the caller's side.

One process runs `parse_child` for all requests, because a start takes about 0.3 s and a
request a few milliseconds; after a crash or a timeout it is started again. A file gets
0.4 s of processor time plus ten seconds per megabyte; a program of 10,000 ops is 0.1 MB
and takes 0.2 s. The limit of wall clock time is far higher, because a good file must
not fail on a busy machine.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from neuronjax.capture.child_process import death, last_words, started
from neuronjax.errors import InternalError, InvalidProgramError, UnsupportedError
from neuronjax.ir.json_text import json_object

CHILD = Path(__file__).with_name("parse_child.py")
#: Limit of the processor time for one file.
SECONDS, SECONDS_PER_MEGABYTE = 0.4, 10.0
#: Limit of the child's address space: jaxlib maps about 1 GB.
BYTES, BYTES_PER_BYTE = 6 << 30, 20
#: Limits of wall clock time before the child counts as hung: for a request, a
#: multiple of its processor time; for the start, seconds.
PATIENCE, START_SECONDS = 20, 120
#: Most bytes of the frame that reports the start.
START_BYTES = 4096
_LENGTH = struct.Struct("<Q")
_MALFORMED = "write the file again: it is malformed, or is no saved program"
_OTHER_SIZES = "give arrays whose sizes fit the symbolic sizes of the saved program"
_KINDS = {"invalid": InvalidProgramError, "unsupported": UnsupportedError}


def parse(
    data: bytes,
    form: str,
    platform_index: int | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
) -> bytes:
    """Return the program in `data` as normalized MLIR bytecode.

    `form` is a key of `parse_child.FORMATS`; `platform_index` and `shapes` are those of
    `parse_child.normalized`.

    Raises:
        InvalidProgramError: the data is malformed, crashes or stalls the parser, or has
            no program for these shapes.
        UnsupportedError: another version of jaxlib could read it.
    """
    megabytes = len(data) / 1e6
    header = {
        "format": form,
        "platform_index": platform_index,
        "shapes": shapes,
        "seconds": SECONDS + SECONDS_PER_MEGABYTE * megabytes,
        "bytes": BYTES + BYTES_PER_BYTE * len(data),
    }
    with _lock:
        answer, program = _worker().request(header, data)
    if "what" not in answer:
        return program
    raise _KINDS[answer["kind"]](
        f"this {form} cannot be read: {answer['what']}",
        remedy=answer.get("remedy", _MALFORMED if shapes is None else _OTHER_SIZES),
    )


class _Stalled(Exception):
    """Raised if the child does not answer in time."""


class _Garbled(Exception):
    """Raised if the child's answer is malformed; the text is a verb phrase."""


class _Worker:
    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()
        pipes: dict[str, Any] = dict(log=self._log, buffer_bytes=0)
        self._process = started([str(CHILD)], "parse", "parsed", **pipes)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._started = False

    def _await_start(self) -> None:
        """Wait for the child's first frame, sent when it has imported jaxlib."""
        try:
            self._receive(time.monotonic() + START_SECONDS, START_BYTES)
        except (EOFError, _Stalled, _Garbled) as error:
            raise InternalError(
                f"the process that parses programs did not start{self._last_words()}",
                remedy=f"see why `{sys.executable} {CHILD}` fails",
            ) from error
        self._started = True

    def request(self, header: dict, data: bytes) -> tuple[dict[str, Any], bytes]:
        """Send one frame and return the answer; replace a child that died or was too
        slow."""
        if not self._started:
            self._await_start()
        deadline = time.monotonic() + PATIENCE * header["seconds"]
        line = json.dumps(header).encode() + b"\n"
        self._log.seek(self._log.truncate(0))  # the child shares this position
        try:
            head = _LENGTH.pack(len(line) + len(data)) + line
            for part in (head, data):
                self._send(memoryview(part), deadline)
            return self._receive(deadline, header["bytes"])
        except (EOFError, BrokenPipeError, _Stalled, _Garbled) as error:
            self._refuse(header, error)

    def _refuse(self, header: dict, error: Exception) -> NoReturn:
        """Replace the child, which has failed, and raise an error with the reason."""
        stalled = isinstance(error, _Stalled)
        if stalled or isinstance(error, _Garbled):
            self._process.kill()
        code = self._process.wait()
        if isinstance(error, _Garbled):
            reason = f"confuses jaxlib's parser, which {error}"
        elif stalled or code == -signal.SIGPROF:
            reason = f"takes the parser more than {header['seconds']:.1f} CPU seconds"
        else:
            reason = f"crashes jaxlib's parser ({death(code)}){self._last_words()}"
        stop()
        _workers.append(_Worker())  # it starts while the user reads the error
        raise InvalidProgramError(
            f"this {header['format']} {reason}", remedy=_MALFORMED
        ) from None

    def _send(self, data: memoryview, deadline: float) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        while data:
            _wait(pipe, selectors.EVENT_WRITE, deadline)
            data = data[os.write(pipe.fileno(), data[: 1 << 20]) :]

    def _receive(self, deadline: float, most: int) -> tuple[dict[str, Any], bytes]:
        """Return the child's next frame, or refuse it if it has more than `most` bytes,
        because a malformed program may control the child."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > most:
            raise _Garbled(f"answers with {length} bytes")
        header, _, data = self._read(length, deadline).partition(b"\n")
        try:
            return json_object(header), data
        except ValueError as error:
            raise _Garbled(f"answers {header[:60]!r}") from error

    def _read(self, count: int, deadline: float) -> bytes:
        pipe = self._process.stdout
        assert pipe is not None
        parts = []
        while count:
            _wait(pipe, selectors.EVENT_READ, deadline)
            part = os.read(pipe.fileno(), min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _last_words(self) -> str:
        """Return what jaxlib wrote about this request before it died."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4000))
        return last_words(self._log.read(), 200)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self.forget()

    def forget(self) -> None:
        for file in (self._process.stdin, self._process.stdout, self._log):
            assert file is not None
            file.close()


def _wait(pipe: Any, event: int, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise _Stalled


_lock = threading.Lock()
_workers: list[_Worker] = []


def _worker() -> _Worker:
    """Return the running child, or start one; the caller has the lock."""
    if _workers and _workers[0]._process.poll() is None:
        return _workers[0]
    stop()
    _workers.append(_Worker())
    return _workers[0]


def stop() -> None:
    """Kill the child, if there is one; the next `parse` starts another."""
    while _workers:
        _workers.pop().close()


def _after_fork() -> None:
    """Drop the copied pipes in a forked process; the parser belongs to the parent."""
    global _lock
    _lock = threading.Lock()
    while _workers:
        _workers.pop().forget()


atexit.register(stop)
os.register_at_fork(after_in_child=_after_fork)
