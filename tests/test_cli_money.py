"""`neuronjax estimate`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from neuronjax import cli
from tests.test_cli import fits

PROGRAM = """
import jax, jax.numpy as jnp

def step(w, x):
    value, g = jax.value_and_grad(lambda w: jnp.tanh(x @ w).mean())(w)
    return w - g, value
"""
ARGS = ("estimate", "cli_money.py:step", "--args", "f32[512,256] f32[128,512]")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command in a folder with a program and a terminal of 80 columns."""
    (tmp_path / "cli_money.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *arguments: CliRunner().invoke(cli.app, [*ARGS, *arguments])


def test_side_by_side(run):
    result = run(
        *("--instance", "trn1.2xlarge", "--instance", "inf2.xlarge"),
        *("--policy", "bf16", "--policy", "fp32", "--tokens", "1e9"),
        *("--tokens-per-step", "128", "--against", "H100 x 8=0.21,55,4096"),
        *("--price", "inf2.xlarge=1.5", "--watts", "500"),
    )
    assert result.exit_code == 0, result.output
    assert fits(result.stdout)
    for part in ("trn1.2xlarge", "fp32", "H100 x 8", "$/Mtok", "kWh", "1.34 USD/h"):
        assert part in result.stdout
    assert "inf2.xlarge, 1.50 USD/h (given)" in result.stdout
    assert "inf2.xlarge is sold for serving" in result.stdout
    assert "Warning" not in result.output


def test_json(run):
    result = run(
        "--instance", "trn1.2xlarge", "--steps", "100", "--price", "2", "--json"
    )
    data = json.loads(result.stdout)
    (row,) = data["rows"]
    assert (row["machine"], row["steps"], row["usd_per_hour"]) == (
        "trn1.2xlarge",
        100,
        2.0,
    )
    assert row["dollars"] == pytest.approx(100 * row["step_seconds"] / 3600 * 2.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--instance", "trn3-ultraserver-gen1"), "no list price"),
        (("--price", "cheap"), "'cheap' is no number"),
        (("--price", "1", "--price", "2"), "INSTANCE=USD for each"),
        (("--against", "H100=1"), "NAME=SECONDS,USD"),
        (("--utilization", "0"), "a utilization of 0"),
    ],
)
def test_mistakes_are_messages(run, options, message):
    result = run(*options)
    assert result.exit_code == 2
    assert message in result.stderr
