"""What a candidate tries beside instructions: each ends in a verdict that names it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
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


@pytest.mark.slow_except("process", "reading")
@pytest.mark.parametrize("name", TRIED)
def test_what_is_tried_is_refused_and_named(name: str, tmp_path: Path) -> None:
    statement, said = (s.replace("{folder}", str(tmp_path)) for s in TRIED[name])
    found = refused(tmp_path, f"{statement}\n{kernels.RIGHT}")
    assert [p.rule for p in found.problems][:1] == ["forbidden"]
    assert said in found.problems[0].message
    assert {p.name for p in tmp_path.iterdir()} == {"candidate.py", "reference.py"}


@pytest.mark.slow_except("exit")
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


def parent(folder: Path) -> int:
    """The process that candidates are forks of."""
    asks = kernels.first("raise KeyError(__import__('os').getppid())")
    found = refused(folder, asks + kernels.REFERENCE)
    return int(re.findall(r"\d+", found.problems[0].message)[0])


@pytest.mark.slow
def test_candidates_are_forks_of_one_process_which_may_be_ended(tmp_path: Path) -> None:
    first = parent(tmp_path)
    assert parent(tmp_path) == first != os.getpid()
    os.kill(first, signal.SIGKILL)
    assert parent(tmp_path) != first


def test_one_candidate_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    leaves = kernels.first("__import__('numpy').left = 1; raise KeyError('left')")
    found = refused(tmp_path, leaves + kernels.REFERENCE)
    assert "'left'" in found.problems[0].message
    finds = kernels.first("raise KeyError(hasattr(__import__('numpy'), 'left'))")
    found = refused(tmp_path, finds + kernels.REFERENCE)
    assert "False" in found.problems[0].message


@pytest.mark.slow
def test_nothing_stays_when_the_judge_ends(tmp_path: Path) -> None:
    kernels.reference(tmp_path)
    asks = kernels.first("raise KeyError(__import__('os').getppid())")
    kernels.written(tmp_path, asks)
    call = "neuronjax.judge('candidate.py', reference='reference.py').limits[0].message"
    done = subprocess.run(
        [sys.executable, "-c", f"import neuronjax; print({call})"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    process = int(re.findall(r"\d+", done.stdout)[0])
    end = time.monotonic() + 30
    while time.monotonic() < end and Path(f"/proc/{process}").exists():
        time.sleep(0.05)
    assert not Path(f"/proc/{process}").exists()
