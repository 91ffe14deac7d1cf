"""What a candidate tries beside instructions: each ends in a verdict that names it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from neuronjax.diagnostics.judging.guard import Limits
from neuronjax.diagnostics.judging.tracing import CandidateRefused, trace
from tests.diagnostics.judging import kernels

LIMITS = Limits(seconds=30.0)

# What is done at import or while the kernel is traced -> what the verdict says.
TRIED = {
    "process": ("import subprocess; subprocess.run(['true'])", "starts a process"),
    "shell": ("import os; os.system('true')", "starts a process"),
    "fork bomb": ("import os\nwhile True: os.fork()", "starts a process"),
    "connection": ("import socket; socket.socket()", "opens a connection"),
    "machine code": ("import ctypes; ctypes.CDLL('libc.so.6')", "calls machine code"),
    "a signal": ("import os; os.kill(os.getppid(), 9)", "sends a signal"),
    "a file": ("open('{folder}/left', 'w').write('x')", "writes {folder}/left"),
    "deleting": ("import os; os.remove('{folder}/reference.py')", "changes"),
    "reading": ("open('{folder}/reference.py').read()", "reads the reference"),
    "importing": ("import reference", "reads the reference"),
    "caught": ("try: open('/left', 'w')\nexcept Exception: pass", "writes /left"),
}
ENDS = {
    "exit": ("import os; os._exit(3)", "by itself, with status 3"),
    "segfault": ("import faulthandler; faulthandler._sigsegv()", "SIGSEGV"),
    "memory": ("np.ones(100 << 27)", "memory"),
    "raises": ("raise KeyError('x')", "KeyError: 'x'"),
    "leaves": ("raise SystemExit(1)", "SystemExit: 1"),
    "endless": ("while True: pass", "did not end within 6 s"),
    "gigabyte": ("while True: print('x' * 1000000)", "printed more than 64 MiB"),
}


def refused(folder: Path, text: str, limits: Limits = LIMITS) -> CandidateRefused:
    """How the tracing of a candidate ends."""
    reference = kernels.reference(folder)
    path = kernels.written(folder, text)
    with pytest.raises(CandidateRefused) as caught:
        trace(
            path, kernel=None, target="trn2", grid=(),
            arguments=None, hidden={str(reference): "the reference"}, limits=limits,
        )  # fmt: skip
    return caught.value


@pytest.mark.parametrize("name", TRIED)
def test_what_is_tried_is_refused_and_named(name: str, tmp_path: Path) -> None:
    statement, said = (s.replace("{folder}", str(tmp_path)) for s in TRIED[name])
    found = refused(tmp_path, f"{statement}\n{kernels.RIGHT}")
    assert [p.rule for p in found.problems][:1] == ["forbidden"]
    assert said in found.problems[0].message
    assert {p.name for p in tmp_path.iterdir()} == {"candidate.py", "reference.py"}


@pytest.mark.parametrize("name", ENDS)
def test_however_it_ends_there_is_a_verdict(name: str, tmp_path: Path) -> None:
    statement, said = ENDS[name]
    limits = Limits(seconds=6.0 if name == "endless" else 30.0, file_bytes=64 << 20)
    start = time.monotonic()
    found = refused(tmp_path, f"import numpy as np\n{statement}\n", limits)
    assert said in f"{found.problems[0].rule} {found.problems[0].message}"
    assert time.monotonic() - start < limits.seconds + 10


def test_a_candidate_has_no_secrets_and_no_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    asked = "raise KeyError(sorted(__import__('os').environ), str(x)[:60])"
    found = refused(tmp_path, kernels.first(asked) + kernels.REFERENCE)
    assert "AWS_SECRET_ACCESS_KEY" not in found.problems[0].message
    assert "HOME" in found.problems[0].message
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "secret"
