"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import pytest
from typer.testing import CliRunner

import neuronjax as nj
from neuronjax import cli
from neuronjax.hardware import TARGETS


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a command in an empty folder and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *arguments: CliRunner().invoke(cli.app, arguments)


def test_version(run):
    result = run("version")
    assert result.exit_code == 0
    assert f"neuronjax {nj.__version__}\n" in result.stdout
    assert f"jax {jax.__version__}," in result.stdout


def test_help_teaches(run):
    assert 'nj.jit(train_step, target="trn2"' in run("--help").stdout
    assert "--targets trn2/fp8" in run("quickstart", "--help").stdout
    assert "neuronjax ls trn2" in run("ls", "--help").stdout
    assert "--tiny" not in run("quickstart", "--help").stdout


def test_ls_lists_every_target(run):
    lines = run("ls").stdout.splitlines()
    first_words = {line.split()[0] for line in lines if line.split()}
    assert set(TARGETS) <= first_words
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", TARGETS)
def test_ls_describes_a_target(run, name):
    result = run("ls", name)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    for engine in TARGETS[name].core.engines:
        assert engine.name in result.stdout


def test_ls_json_holds_the_hardware(run):
    trn2 = json.loads(run("ls", "trn2", "--json").stdout)
    assert trn2["chip"]["core"]["tensor"]["clock_hz"] == 2_400_000_000
    assert "fp8_double_row" in trn2["chip"]["core"]["capabilities"]
    names = [target["name"] for target in json.loads(run("ls", "--json").stdout)]
    assert names == list(TARGETS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("ls", "tnr2"), "unknown target 'tnr2'"),
        (("quickstart", "--targets", "trn9/bf16"), "unknown target 'trn9'"),
        (("quickstart", "--targets", "trn2/fp9"), "'fp9'"),
        (("quickstart", "--targets", "trn2"), "with a slash between"),
        (("quickstart", "--output", "nowhere/curves.png"), "no folder nowhere"),
    ],
)
def test_an_error_is_a_message_and_status_2(run, arguments, expected):
    result = run(*arguments)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "remedy: " in result.stderr
    assert "Traceback" not in result.output


def test_an_unknown_option_is_status_2(run):
    assert run("quickstart", "--no-such-option").exit_code == 2


def test_bench_passes_options_and_status_on(run, monkeypatch):
    commands = []

    def record(command, check):
        commands.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", record)
    monkeypatch.setattr(cli.Path, "is_file", lambda path: True)
    assert run("bench", "--some", "option").exit_code == 3
    assert commands[0][0] == sys.executable
    assert commands[0][2:] == ["--some", "option"]


def test_bench_outside_the_repository_says_how(run, monkeypatch):
    monkeypatch.setattr(cli.Path, "is_file", lambda path: False)
    result = run("bench")
    assert result.exit_code == 2
    assert "make bench" in result.stderr


def test_module_is_the_command():
    command = [sys.executable, "-m", "neuronjax", "ls", "tnr2"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("error: unknown target 'tnr2'")
