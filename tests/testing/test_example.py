"""The example repository: its own pytest run, and what its CI would catch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import neuronjax_pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "golden_ci"


def run(folder, *options):
    source = str(Path(neuronjax_pytest.__file__).parent)
    command = [sys.executable, "-m", "pytest", "-p", "neuronjax_pytest", *options]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def example(tmp_path):
    """A copy, as a user's repository."""
    return shutil.copytree(EXAMPLE, tmp_path / "example")


def test_the_workflow_runs_what_the_readme_says():
    workflow = (EXAMPLE / ".github" / "workflows" / "numerics.yml").read_text()
    readme = (EXAMPLE / "README.md").read_text()
    assert "run: pytest" in workflow
    assert "pytest --neuronjax-update-golden" in readme
    assert len(readme.splitlines()) <= 24


@pytest.mark.slow
def test_the_goldens_hold(example):
    done = run(example, "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@pytest.mark.slow
def test_a_changed_model_fails(example):
    model = example / "model.py"
    model.write_text(model.read_text().replace("0.125", "0.126"))
    done = run(example, "-q", "-k", "train_step and bf16")
    assert done.returncode == 1
    assert "has become another program, with other bits" in done.stdout
    assert "parameters/bias[" in done.stdout or "0/bias[" in done.stdout
    assert "model.py" in done.stdout
