"""The quickstart itself: its recipe, a tiny whole run, and that the recipe learns."""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from neuronjax import cli
from neuronjax.cli.quickstart import data, model
from neuronjax.cli.quickstart.experiment import EMULATED, NATIVE, Setup
from neuronjax.cli.quickstart.train import TINY, TrainingRecipe, train
from neuronjax.errors import InvalidProgramError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """What a tiny run leaves: output, results, picture, what is said meanwhile."""
    folder = tmp_path_factory.mktemp("quickstart")
    picture, results = folder / "curves.png", folder / "results.json"
    options = ("--targets", "trn2/bf16", "--output", picture, "--json", results)
    command = ["quickstart", "--tiny", *map(str, options)]
    result = CliRunner().invoke(cli.app, command, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout, json.loads(results.read_text()), picture, result.stderr


@pytest.mark.slow
def test_output(tiny):
    stdout, _, picture, stderr = tiny
    table = stdout[stdout.index("Loss in nats") : stdout.index("Loss curves:")]
    assert max(map(len, table.splitlines())) <= 80
    assert str(picture) in stdout
    assert re.search(r"neuronjax run --policy bf16 train.py\n$", stdout)
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    native, emulated = stderr.splitlines()  # no terminal: one line for each run
    assert re.fullmatch(r"host/fp32: loss [\d.]+ in [\d.]+ m?s", native)
    assert re.fullmatch(r"trn2/bf16: loss [\d.]+ in [\d.]+ m?s", emulated)


@pytest.mark.slow
def test_runs_are_comparable(tiny):
    native, emulated = tiny[1]["runs"]
    assert native["machine"] == {"target": "host", "policy": "fp32"}
    assert len(native["losses"]) == len(emulated["losses"]) == TINY.steps
    # BF16 keeps 8 significant bits; at the start nothing is amplified yet.
    assert emulated["losses"] == pytest.approx(native["losses"], rel=2**-8)
    assert emulated["losses"] != native["losses"]
    assert emulated["heldout_loss"] == pytest.approx(native["heldout_loss"], rel=2**-8)


@pytest.mark.slow
def test_engines_are_counted(tiny):
    native, emulated = tiny[1]["runs"]
    assert native["instructions"] == {}
    # Forward, and backward for both operands: the head, 4 dense layers, 2 of attention.
    assert emulated["instructions"]["tensor"] == 3 * (1 + 4 + 2)
    assert emulated["matmul_dtypes"] == ["bfloat16"]


def test_default_recipe_is_of_a_million_parameters():
    shapes = jax.eval_shape(lambda: model.create(TrainingRecipe().model)[1])
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)]
    assert sum(sizes) == 1_037_696


@pytest.mark.slow
def test_training_learns():
    """A short native run of a small model falls below what letter counts can reach."""
    corpus = data.load()
    small = model.GPTConfig(layers=1, width=64, hidden=128)
    recipe = TrainingRecipe(model=small, steps=100, peak_rate=1e-2)
    losses = []
    trained = train(jax.jit, recipe, corpus, losses.append)
    assert losses == trained.losses
    assert trained.heldout_loss < corpus.unigram_entropy() - 0.3
    assert len(trained.step_seconds) == recipe.steps


@pytest.mark.parametrize("text", [*EMULATED, "trn2.48xlarge/tf32"])
def test_machines_are_read_and_written(text):
    assert str(Setup.parse(text)) == text


@pytest.mark.parametrize("text", ["trn2", "trn2/", "/bf16", "host/fp32", "trn2/fp8/x"])
def test_bad_machines_are_refused(text):
    with pytest.raises(InvalidProgramError):
        Setup.parse(text)


SHOWN = {"neuronjax.cli.application"}


def test_it_is_an_application():
    """Of neuronjax its files import the public package, one another, and how the
    command draws tables and a study's curves."""
    for path in Path(model.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            inside = [name for name in names if name.startswith("neuronjax.")]
            own = ("neuronjax.cli.quickstart", "neuronjax.report.")
            assert {n for n in inside if not n.startswith(own)} <= SHOWN, path


def test_native_is_jax():
    assert NATIVE.jit is jax.jit


@pytest.mark.slow_cases("2")
@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("steps", [1, 2, 11])
def test_any_number_of_steps_has_a_schedule(steps):
    optimizer, weights = TrainingRecipe(steps=steps).optimizer(), jnp.ones(3)
    state = optimizer.init(weights)
    for _ in range(steps):
        updates, state = optimizer.update(weights, state, weights)
        assert jnp.isfinite(jnp.asarray(updates)).all()
