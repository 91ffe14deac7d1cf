"""`neuronjax estimate` and `estimate-serving`."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from neuronjax import cli
from neuronjax.cli.money import estimate_serving
from tests.cli.test_commands import fits

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


def test_estimate_compares_instances_policies_and_machines(run):
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
    assert "wait: starting the next call" in result.stdout
    assert "one jax.lax.scan need only one launch" in " ".join(result.stdout.split())


def test_estimate_prints_rows_as_json(run):
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
        (
            ("--instance", "trn3-ultraserver-gen1"),
            "give --price trn3-ultraserver-gen1=USD, dollars for the whole machine",
        ),
        (
            ("--instance", "trn1.2xlarge", "--instance", "inf2.xlarge", "--price", "3"),
            "give prices by name: --price trn1.2xlarge=3.0; machines without",
        ),
        (
            ("--tokens", "1e9"),
            "--tokens-per-step",
        ),
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


SERVER = """
import jax, jax.numpy as jnp

def attend(w, cache, x, at):
    cache = jax.lax.dynamic_update_slice(cache, x @ w, (0, at, 0))
    scores = jax.nn.softmax(jnp.einsum("btd,bsd->bts", x, cache))
    return scores @ cache, cache

def prefill(w, cache, x):
    return attend(w, cache, x, 0)

def decode(w, cache, x, at):
    return attend(w, cache, x, at)

decode.example_args = tuple(
    jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (
        ((256, 256), "float32"), ((4, 512, 256), "float32"), ((4, 1, 256), "float32"),
        ((), "int32"))
)
"""
SERVING = (
    *("server.py:prefill", "server.py:decode", "--batch", "4"),
    *("--prompt-tokens", "128", "--output-tokens", "64"),
    *("--prefill-args", "f32[256,256] f32[1,512,256] f32[1,128,256]"),
)


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """Runs the serving command in a folder with two programs."""
    (tmp_path / "server.py").write_text(SERVER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    app = typer.Typer()
    app.command("estimate-serving")(estimate_serving)
    return lambda *options: CliRunner().invoke(app, [*SERVING, *options])


def test_serving_side_by_side(serve):
    machines = ("--instance", "inf2.xlarge", "--instance", "trn2.48xlarge")
    options = ("--price", "trn2.48xlarge=40", "--watts", "500", "--policy", "bf16")
    result = serve(*machines, *options)
    assert result.exit_code == 0, result.output
    assert fits(result.stdout)
    for part in ("TTFT", "kWh/Mtok", "answers of 64, batch 4", "40.00 USD/h (given)"):
        assert part in result.stdout


def test_a_machine_without_such_cores_is_refused(serve):
    result = serve(
        *("--instance", "inf2.xlarge", "--instance", "trn2.48xlarge"), "--lnc", "2"
    )
    assert "refused: inf2.xlarge" in result.stdout


def test_serving_json(serve):
    result = serve("--instance", "trn1.2xlarge", "--price", "2", "--json")
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["machine"], row["usd_per_hour"]) == ("trn1.2xlarge", 2.0)
    assert row["kwh_per_million_tokens"] is None
    assert row["requests_per_second"] > 0
