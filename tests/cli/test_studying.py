"""`neuronjax study`: a file's loop in, verdicts, a picture, dollars and JSON out."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import neuronjax as nj
from neuronjax import cli
from neuronjax.cli.studying import read_policies

TRAIN = """
import jax
import jax.numpy as jnp


def step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w)
    return w - 0.1 * gradient, loss


step.example_args = (
    jax.ShapeDtypeStruct((8, 8), jnp.float32),
    jax.ShapeDtypeStruct((16, 8), jnp.float32),
)


def train(jit, seed):
    compiled, key = jit(step), jax.random.key(seed)
    x = jax.random.normal(key, (16, 8))
    w = jnp.zeros((8, 8))
    for _ in range(20):
        w, loss = compiled(w, x)
        yield loss
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        options = ("--no-cache", "--seeds", "2")
        words = ["study", *arguments, *options]
        return CliRunner().invoke(cli.app, words, env={"COLUMNS": "80"})

    return invoke


@pytest.mark.slow
def test_a_file_is_studied_and_priced(run, tmp_path):
    options = ("--policies", "native,bf16", "--output", "c.png", "--json")
    priced = ("--at", "train.py:step", "--steps", "100", "--instance", "trn2.48xlarge")
    result = run("train.py", *options, *priced)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["machine"] for row in found["rows"]] == ["native", "bf16"]
    assert found["rows"][1]["verdict"].startswith(("trains like", "undecided: "))
    (cost,) = found["costs"]
    assert cost["policy"] == "bf16"
    assert cost["dollars_low"] <= cost["dollars"] <= cost["dollars_high"]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_policies_are_read_with_their_fields():
    preset, other, changed = read_policies(["native,fp8", "bf16,rounding=stochastic"])
    assert (preset, other) == ("native", "fp8")
    assert changed.name == "bf16,rounding=stochastic"
    assert changed.rounding == nj.Policy.resolve(changed.name).rounding


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train.py:learn",), "has no function learn"),
        (("other.py",), "other.py: no such file"),
        (("train.py", "--policies", "bf17"), "bf17"),
        (("train.py", "--policies", "native", "--steps", "3"), "--at train.py:step"),
        (("train.py", "--policies", "native", "--output", "no/c.png"), "no folder no"),
    ],
)
def test_an_error_is_a_message(run, arguments, message):
    if "--policies" not in arguments:
        arguments = (*arguments, "--policies", "native")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
