"""`neuronjax cc-test`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from neuronjax import cli
from neuronjax.timing.assumptions import COLLECTIVE_CONSTANTS as CONSTANTS


@pytest.fixture
def run(monkeypatch):
    """Runs a command in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *arguments: CliRunner().invoke(cli.app, ("cc-test", *arguments))


def test_a_table(run):
    found = run("all_reduce", "--max", "4K")
    assert found.exit_code == 0
    lines = found.stdout.splitlines()
    assert lines[0].startswith("all_reduce, 64 ranks of trn2.48xlarge")
    assert [line.split()[0] for line in lines[2:5]] == ["1024", "2048", "4096"]
    assert max(map(len, lines)) <= 80


def test_options(run):
    found = run(
        "all_gather",
        *("--target", "trn2.48xlarge:4", "--ranks", "256", "--min", "1M"),
        *("--max", "1G", "--factor", "32", "--dtype", "fp32"),
        *("--algorithm", "kangaring+ring", "--json"),
    )
    data = json.loads(found.stdout)
    assert [r["size_bytes"] for r in data["records"]] == [2**20, 2**25, 2**30]
    assert {r["algorithm"] for r in data["records"]} == {"kangaring+ring"}
    assert data["dtype"] == "float32"


@pytest.mark.parametrize(
    "arguments",
    [(), ("all_reduce", "--target", "trn9"), ("sum",), ("all_reduce", "--min", "x")],
)
def test_errors_are_messages(run, arguments):
    found = run(*arguments)
    assert found.exit_code == 2
    assert "error:" in found.stderr
    assert "remedy:" in found.stderr


def test_constants(run):
    text = run("--constants").stdout
    assert all(name in text for name in CONSTANTS)
    assert max(map(len, text.splitlines())) <= 80
    listed = json.loads(run("--constants", "--json").stdout)
    assert [constant["name"] for constant in listed] == list(CONSTANTS)


def test_help_has_examples(run):
    text = run("--help").stdout
    assert "neuronjax cc-test all_reduce" in text
    assert max(map(len, text.splitlines())) <= 80
