"""The classic pmap loop: three lines away from JAX's, and with its losses."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import pmap_example

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "examples" / "pmap_example_jax.py"


def code(path: Path) -> list[str]:
    """The lines below the module docstring that are not blank."""
    text = path.read_text()
    end = ast.parse(text).body[0].end_lineno
    return [line for line in text.splitlines()[end:] if line.strip()]


def test_three_lines_differ():
    native, emulated = code(NATIVE), code(Path(pmap_example.__file__))
    assert len(native) == len(emulated)
    assert len(set(native) - set(emulated)) == 3
    assert len(set(emulated) - set(native)) == 3


def losses(printed: str) -> list[float]:
    found = re.findall(r"step (\d+): loss (\S+)", printed)
    assert [int(step) for step, _ in found] == [20, 40, 60, 80, 100]
    return [float(loss) for _, loss in found]


@pytest.mark.slow
def test_both_learn_the_same(capsys):
    """JAX on eight host devices, the emulation on four: BF16 changes little here."""
    flags = "--xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, str(NATIVE)],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    pmap_example.main()
    emulated, native = losses(capsys.readouterr().out), losses(done.stdout)
    assert emulated[-1] < emulated[0] - 0.5
    assert emulated == pytest.approx(native, abs=0.02)
