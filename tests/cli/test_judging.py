"""`neuronjax judge` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from neuronjax import cli
from tests.diagnostics.judging import kernels


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kernels.reference(tmp_path)
    kernels.written(tmp_path, kernels.RIGHT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, typed: str = "") -> Result:
    given = ("judge", *arguments, "--reference", "reference.py", "--seeds", "0")
    return CliRunner().invoke(cli.app, given, input=typed)


def test_every_line_has_an_answer(folder: Path) -> None:
    kernels.written(folder, kernels.changed("op=nl.add", "op=nl.multiply"), "wrong.py")
    result = run("--serve", typed="candidate.py\nnowhere.py\nwrong.py\n")
    first, second, third = map(json.loads, result.stdout.splitlines())
    assert result.exit_code == 0
    assert (first["accepted"], first["correct"]) == (True, True)
    assert "no file nowhere.py" in second["error"]
    assert (third["accepted"], third["correct"]) == (False, False)


def test_a_candidate_or_a_line(folder: Path) -> None:
    assert "no candidate" in run().stderr
    assert "a candidate and --serve" in run("candidate.py", "--serve").stderr
