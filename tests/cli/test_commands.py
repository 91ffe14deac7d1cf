"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import pytest
from typer.testing import CliRunner

import neuronjax as nj
from docs.made.operations import NAMES
from neuronjax import cli
from neuronjax.cli import about
from neuronjax.cli.hardware import neighbours
from neuronjax.hardware import INSTANCES, TARGETS
from neuronjax.report.operations import operations


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a command in an empty folder and a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *arguments: CliRunner().invoke(cli.app, arguments)


def fits(text: str) -> bool:
    """In 80 columns, with nothing cut off."""
    return max(map(len, text.splitlines())) <= 80 and "…" not in text


def test_version(run):
    result = run("version")
    assert result.exit_code == 0
    assert f"neuronjax {nj.__version__}\n" in result.stdout
    assert f"jax {jax.__version__}," in result.stdout
    assert json.loads(run("version", "--json").stdout)["jax"] == jax.__version__


def test_help_teaches(run):
    assert 'nj.jit(train_step, target="trn2"' in run("--help").stdout
    assert "--targets trn2/fp8" in run("quickstart", "--help").stdout
    assert "neuronjax ls trn2" in run("ls", "--help").stdout
    assert "--tiny" not in run("quickstart", "--help").stdout


COMMANDS = ("quickstart", "run", "check", "ls", "ops", "exactness", "bench", "version")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples(run, command):
    assert command in run("--help").stdout
    text = run(command, "--help").stdout
    assert fits(text)
    assert f"neuronjax {command}" in text


# -- ls --------------------------------------------------------------------------------


def test_ls_lists_every_target(run):
    text = run("ls").stdout
    first_words = {line.split()[0] for line in text.splitlines() if line.split()}
    assert set(TARGETS) <= first_words
    assert fits(text)


@pytest.mark.slow_cases(
    "trn1.32xlarge",
    "trn3-ultraserver-gen2",
    "trn2-ultraserver",
    "trn3-ultraserver-gen1",
)
@pytest.mark.parametrize("name", TARGETS)
def test_ls_describes_a_target(run, name):
    result = run("ls", name)
    assert result.exit_code == 0, result.output
    assert fits(result.stdout)
    for engine in TARGETS[name].core.engines:
        assert engine.name in result.stdout


def test_ls_json_holds_the_hardware(run):
    trn2 = json.loads(run("ls", "trn2", "--json").stdout)
    assert trn2["chip"]["core"]["tensor"]["clock_hz"] == 2_400_000_000
    assert "fp8_double_row" in trn2["chip"]["core"]["capabilities"]
    assert "neuron_devices" not in trn2
    names = [target["name"] for target in json.loads(run("ls", "--json").stdout)]
    assert names == list(TARGETS)


def test_ls_json_of_an_instance_is_that_of_neuron_ls(run):
    data = json.loads(run("ls", "trn2.48xlarge", "--json").stdout)
    assert data["instance_type"] == "trn2.48xlarge"
    devices = data["neuron_devices"]
    assert [device["neuron_device"] for device in devices] == list(range(16))
    second = devices[1]
    # A 4 x 4 torus: beside device 1 are 0 and 2, 13 above and 5 below.
    assert second["connected_to"] == [0, 2, 5, 13]
    assert second["nc_count"] == 4
    assert second["logical_neuroncore_config"] == 2
    assert second["neuroncore_ids"] == [4, 5, 6, 7]
    assert second["memory_size"] == 103_079_215_104
    assert second["neuron_processes"] == []


@pytest.mark.parametrize("name", INSTANCES)
def test_links_go_both_ways(name):
    topology = INSTANCES[name].topology
    chips = range(INSTANCES[name].chips)
    links = {index: neighbours(topology, index) for index in chips}
    for index, others in links.items():
        assert index not in others
        assert all(index in links[other] for other in others)
    degrees = {len(others) for others in links.values()}
    assert degrees == {"single": {0}, "ring": {2}, "chain": {1, 2}}.get(
        topology.kind, degrees
    )


def test_links_of_a_torus_and_a_switch():
    assert neighbours(INSTANCES["trn2-ultraserver"].topology, 0) == [
        1,
        3,
        4,
        12,
        16,
        48,
    ]
    switch = neighbours(INSTANCES["trn3-ultraserver-gen1"].topology, 17)
    assert switch == sorted({1, 33, 49} | set(range(16, 32)) - {17})


# -- ops -------------------------------------------------------------------------------


def test_ops_lists_every_op(run):
    text = run("ops").stdout
    assert fits(text)
    assert set(NAMES) <= set(text.split())


def test_ops_can_be_filtered(run):
    text = run("ops", "reduce_w").stdout
    assert "stablehlo.reduce_window" in text
    assert "stablehlo.add" not in text
    assert "1 ops" in text or "(1 op" in text
    missing = run("ops", "--missing").stdout
    assert fits(missing)
    assert "emulated:" not in missing
    assert "stablehlo.infeed" in missing
    assert run("ops", "no_such_op").exit_code == 2


def test_ops_json(run):
    rows = json.loads(run("ops", "--json").stdout)
    assert [row["name"] for row in rows] == list(NAMES)
    by_name = {row["name"]: row for row in rows}
    add = by_name["stablehlo.add"]
    assert add["status"] == "emulated"
    assert {"float32", "bfloat16", "int32"} <= set(add["dtypes"])
    assert "float8_e4m3fn" not in add["dtypes"]
    (row,) = json.loads(run("ops", "log_plus_one", "--json", "--target", "trn3").stdout)
    assert "float8_e4m3fn" in row["dtypes"]
    assert "int32" not in row["dtypes"]
    assert len(operations()) == len(rows)


# -- exactness, bench ------------------------------------------------------------------


def test_exactness(run):
    assert fits(run("exactness").stdout)
    assert "# What is exact" in run("exactness", "--markdown").stdout


def test_bench_passes_options_and_status_on(run, monkeypatch):
    commands = []

    def record(command, check):
        commands.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", record)
    monkeypatch.setattr(about.Path, "is_file", lambda path: True)
    assert run("bench", "--some", "option").exit_code == 3
    assert commands[0][0] == sys.executable
    assert commands[0][1].endswith("benchmarks/run.py")
    assert commands[0][2:] == ["--some", "option"]


def test_bench_outside_the_repository_says_how(run, monkeypatch):
    monkeypatch.setattr(about.Path, "is_file", lambda path: False)
    result = run("bench")
    assert result.exit_code == 2
    assert "make bench" in result.stderr


# -- errors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("ls", "tnr2"), "unknown target 'tnr2'"),
        (("quickstart", "--targets", "trn9/bf16"), "unknown target 'trn9'"),
        (("quickstart", "--targets", "trn2/fp9"), "'fp9'"),
        (("quickstart", "--targets", "trn2"), "a slash between"),
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


@pytest.mark.slow
def test_module_is_the_command():
    command = [sys.executable, "-m", "neuronjax", "ls", "tnr2"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("error: unknown target 'tnr2'")
