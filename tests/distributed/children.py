"""Python processes of a test, none of which outlives it.

Each is the leader of a process group of its own, which is killed in the end, and has a
time limit. Output goes to files: a pipe that nobody reads would stop the process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 120.0


@dataclass
class Child:
    """A running process and the file that it writes to."""

    process: subprocess.Popen
    output: Path

    def lines(self) -> list[str]:
        """What it has written so far."""
        return self.output.read_text().splitlines()

    def wait_for(self, found: Callable[[list[str]], bool], deadline: float) -> None:
        """Waits until its output is as it should be."""
        while not found(self.lines()):
            assert time.monotonic() < deadline, self.story("too slow")
            assert self.process.poll() is None, self.story("ended early")
            time.sleep(0.01)

    def finish(self, deadline: float) -> list[str]:
        """Its output, once it has ended well."""
        left = max(deadline - time.monotonic(), 0.1)
        try:
            code = self.process.wait(left)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.story("too slow")) from None
        assert code == 0, self.story(f"exit code {code}")
        return self.lines()

    def kill(self) -> None:
        """SIGKILL for it and all that it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # they have ended
        self.process.wait()

    def story(self, what: str) -> str:
        """For a failed test."""
        return f"{what}:\n" + "\n".join(self.lines()[-40:])


@contextmanager
def children(
    folder: Path, commands: Sequence[Sequence[str]]
) -> Iterator[tuple[list[Child], float]]:
    """Starts `python command...` for each command.

    Args:
        folder: for what they write.
        commands: of module or file and arguments.

    Yields:
        The processes, and the `time.monotonic()` by which they must have ended.
    """
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    folder.mkdir(parents=True, exist_ok=True)
    started: list[Child] = []
    try:
        for number, command in enumerate(commands):
            output = folder / f"{number}.txt"
            with output.open("w") as file:
                process = subprocess.Popen(
                    [sys.executable, *command],
                    cwd=ROOT,
                    env=environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            started.append(Child(process, output))
        yield started, time.monotonic() + LIMIT_SECONDS
    finally:
        for child in started:
            child.kill()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
