"""`neuronjax judge` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from neuronjax import cli
from neuronjax.diagnostics.judging.verdict import EXIT_STATUS
from tests.api.test_judge import CHAOS, CHAOTIC
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


@pytest.mark.parametrize("turns", [0, 40])
def test_what_is_undecided_has_a_status_of_its_own(folder: Path, turns: int) -> None:
    kernels.written(folder, CHAOS, "reference.py")
    kernels.written(folder, CHAOTIC.replace("TURNS", str(turns)), "chaotic.py")
    result = run("chaotic.py")
    assert result.exit_code == 3
    assert result.stdout.startswith("undecided: chaotic.py")
    assert "--tolerance 0.02" in result.stdout
    answered = json.loads(run("--serve", typed="chaotic.py\n").stdout)
    assert not answered["accepted"]
    assert "--tolerance 0.02" not in answered["undecided"]
    decided = run("chaotic.py", "--tolerance", "0.02")
    assert decided.exit_code == (0 if turns else 1)


@pytest.mark.slow
def test_the_status_of_a_folder_is_that_of_its_best(folder: Path) -> None:
    kernels.written(folder, CHAOS, "reference.py")
    every = folder / "every"
    every.mkdir()
    kernels.written(every, CHAOTIC.replace("TURNS", "3"), "a_chaotic.py")
    kernels.written(every, "import nki", "b_nothing.py")
    result = run("every")
    assert result.exit_code == 3
    words = [word for word in result.stdout.split() if word in EXIT_STATUS]
    assert words == ["undecided", "refused"]


def test_a_candidate_or_a_line(folder: Path) -> None:
    assert "no candidate" in run().stderr
    assert "a candidate and --serve" in run("candidate.py", "--serve").stderr
