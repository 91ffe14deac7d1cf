"""The command says that it loads, to who waits in front of a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import neuronjax_command

COMMAND = (
    "import sys, neuronjax_command as command; assert 'jax' not in sys.modules; "
    "command._PATIENCE_SECONDS = 0; sys.argv[1:] = ['check', '--help']; command.main()"
)
#: However fast the machine is.
SLOW = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        time.sleep(2 * (name == "jax"))

sys.meta_path.insert(0, Slow())
"""
LINE = "neuronjax: loading JAX"


def shown(stderr, **environment):
    """What the command prints; its error output goes there."""
    source = str(Path(neuronjax_command.__file__).parent)
    return subprocess.run(
        [sys.executable, "-c", COMMAND],
        env={**os.environ, "PYTHONPATH": source, **environment},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=True,
    )


@pytest.mark.slow
def test_a_terminal_is_told_and_cleared():
    ours, theirs = pty.openpty()
    done = shown(theirs)
    os.close(theirs)
    assert os.read(ours, 1000).decode() == f"{LINE}\r\x1b[K"
    os.close(ours)
    assert "loading" not in done.stdout


@pytest.mark.slow
def test_the_module_tells_it_too(tmp_path):
    """The file of a command imports JAX."""
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    paths = (str(tmp_path), str(Path(neuronjax_command.__file__).parent))
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "neuronjax", "check", "--help"],
        env={**os.environ, **environment},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        check=True,
    )
    os.close(theirs)
    assert os.read(ours, 1000).decode() == f"{LINE}\r\x1b[K"
    os.close(ours)


@pytest.mark.slow
def test_a_log_is_not_told():
    assert LINE not in shown(subprocess.PIPE).stderr
