"""Processes that parse and partition, when they misbehave: nothing of them is left."""

import os
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import neuronjax as nj
from neuronjax.capture import parsing, partition

TARGET = "trn2.48xlarge"
#: Its limits as the real one sets them, then what it does wrong.
LIMITED = f"""
import os, sys, time
sys.path.append({str(Path(parsing.CHILD).parent)!r})
from parse_child import limit_files
limit_files(1 << 20)
sys.stdin.buffer.read()
"""
FLOODS = """
try:
    while True:
        os.write(2, b"x" * (1 << 16))
except OSError:
    sys.exit(3)
"""
#: What it starts goes on, with the answer's file and the log open.
LEAVES = """
if not os.fork():
    with open({note!r}, "w") as note:
        note.write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists({note!r}):
    time.sleep(0.01)
os.open(os.devnull, os.O_RDONLY)
"""


@pytest.fixture
def lower():
    """Lowers a program that needs the partitioner, another one each time."""
    mesh = nj.make_mesh((4,), ("dp",))
    over = NamedSharding(mesh, PartitionSpec("dp"))

    def lowered(scale):
        sharded = nj.jit(lambda x: x * scale, target=TARGET, in_shardings=over)
        return sharded.lower(jnp.ones((8, 8)))

    return lowered


@pytest.fixture
def nothing_left(monkeypatch, tmp_path):
    """As many descriptors after the test as before, and an empty temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = len(os.listdir("/proc/self/fd"))
    yield
    parsing.stop()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_a_partitioner_that_floods_its_log(monkeypatch, tmp_path, lower, nothing_left):
    child = tmp_path / "child.py"
    child.write_text(LIMITED + FLOODS)
    monkeypatch.setattr(partition, "CHILD", child)
    with pytest.raises(nj.UnsupportedError, match=r"crashes \(exit status 3\)"):
        lower(2.25)


def test_a_partitioner_that_leaves_a_process(
    monkeypatch, tmp_path, lower, nothing_left
):
    child, note = tmp_path / "child.py", tmp_path / "pid"
    child.write_text(LIMITED + LEAVES.format(note=str(note)))
    monkeypatch.setattr(partition, "CHILD", child)
    start = time.monotonic()
    with pytest.raises(nj.UnsupportedError, match="crashes"):
        lower(3.25)
    assert time.monotonic() - start < 60
    left = Path(f"/proc/{int(note.read_text())}")
    # A process that nobody waits for is a zombie until init does.
    assert not left.exists() or "Z (zombie)" in (left / "status").read_text()


def test_parsers_that_die_leave_no_descriptors(monkeypatch, tmp_path, nothing_left):
    child = tmp_path / "child.py"
    child.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    parsing.stop()
    monkeypatch.setattr(parsing, "CHILD", child)
    for _ in range(20):
        with pytest.raises((nj.InvalidProgramError, nj.InternalError)):
            parsing.parse(b"module {}", "MLIR text")
