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


def test_a_table_has_a_row_per_size(run):
    found = run("all_reduce", "--max", "4K")
    assert found.exit_code == 0
    lines = found.stdout.splitlines()
    assert lines[0].startswith("all_reduce, 64 ranks of trn2.48xlarge")
    assert [line.split()[0] for line in lines[4:7]] == ["1024", "2048", "4096"]
    assert max(map(len, lines)) <= 80


def test_sizes_and_algorithm_follow_the_options(run):
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


#: As nccom-test writes it, and as this command did before.
SAME = {
    "-r 32 -b 64K -e 1M -f 4 -d bf16 allr": "all_reduce --ranks 32 --min 64K --max 1M "
    "--factor 4 --dtype bf16",
    "--minbytes 1M --maxbytes 1M --stepfactor 2 allg": "all_gather --min 1M --max 1M",
    "redsct -b 1M -e 1M": "reduce_scatter --min 1M --max 1M",
    "alltoall -b 1M -e 1M -d fp32": "all_to_all --min 1M --max 1M --dtype fp32",
}


@pytest.mark.parametrize("line", SAME)
def test_a_line_of_nccom_test_means_the_same(run, line):
    found, other = run(*line.split()), run(*SAME[line].split())
    assert found.exit_code == 0
    assert found.stdout == other.stdout


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
