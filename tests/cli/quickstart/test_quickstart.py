"""The quickstart itself: its recipe, a tiny whole run, and that the recipe learns."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from neuronjax import cli
from neuronjax.cli.quickstart import data, model
from neuronjax.cli.quickstart.train import TINY, TrainingRecipe, priced, train


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """What a tiny run leaves: output, results, picture, what is said meanwhile."""
    folder = tmp_path_factory.mktemp("quickstart")
    picture, results = folder / "curves.png", folder / "results.json"
    options = ("--targets", "trn2/bf16", "--seeds", 2)
    files = ("--output", picture, "--json", results)
    command = ["quickstart", "--tiny", *map(str, (*options, *files))]
    result = CliRunner().invoke(cli.app, command, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout, json.loads(results.read_text()), picture, result.stderr


@pytest.mark.slow
def test_quickstart_prints_a_table_and_writes_a_picture(tiny):
    stdout, _, picture, _ = tiny
    table = stdout[stdout.index("final loss") : stdout.index("Loss curves:")]
    assert max(map(len, table.splitlines())) <= 80
    assert str(picture) in stdout
    last = stdout.splitlines()[-1]
    assert last.endswith("neuronjax study train.py --policies native,bf16,fp8")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.slow
def test_runs_are_comparable(tiny):
    records = tiny[1]["records"]
    losses = {
        policy: [r["loss"] for r in records if r["policy"] == policy]
        for policy in ("native", "bf16")
    }
    assert len(losses["native"]) == len(losses["bf16"]) == 2 * TINY.steps
    # BF16 keeps 8 significant bits; at the start nothing is amplified yet.
    assert losses["bf16"] == pytest.approx(losses["native"], rel=2**-8)
    assert losses["bf16"] != losses["native"]
    assert tiny[1]["rows"][0]["verdict"] == "the baseline"
    assert tiny[1]["recipe"]["model"]["width"] == TINY.model.width


def test_default_recipe_is_of_a_million_parameters():
    shapes = jax.eval_shape(lambda: model.create(TrainingRecipe().model)[1])
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)]
    assert sum(sizes) == 1_037_696


def _unigram_entropy(tokens):
    """Loss, in nats, of the best predictor that ignores what came before."""
    counts = np.bincount(tokens)
    probability = counts[counts > 0] / len(tokens)
    return -(probability * np.log(probability)).sum()


@pytest.mark.slow
def test_training_learns():
    """A short native run of a small model falls below what letter counts can reach."""
    corpus = data.load()
    small = model.GPTConfig(layers=1, width=64, hidden=128)
    recipe = TrainingRecipe(model=small, steps=100, batch=16, peak_rate=1e-2)
    records = list(train(jax.jit, 0, recipe=recipe, corpus=corpus))
    assert len(records) == recipe.steps
    assert records[-1]["held out"] < _unigram_entropy(corpus.train) - 0.3
    assert all(record["seconds"] > 0 for record in records)
    again = next(iter(train(jax.jit, 0, recipe=recipe, corpus=corpus)))
    assert again["loss"] == records[0]["loss"]


def test_what_is_priced_is_not_made():
    _, params, state, tokens = priced()
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(params)]
    assert sum(sizes) == pytest.approx(124e6, rel=0.02)
    leaves = jax.tree.leaves((params, state, tokens))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def test_it_is_an_application():
    """Of neuronjax its files import the public package, and one another."""
    for path in Path(model.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            inside = [name for name in names if name.startswith("neuronjax.")]
            own = "neuronjax.cli.quickstart"
            assert all(name.startswith(own) for name in inside), path


@pytest.mark.slow_cases("2")
@pytest.mark.slow_cases("1")
@pytest.mark.parametrize("steps", [1, 2, 11])
def test_any_number_of_steps_has_a_schedule(steps):
    optimizer, weights = TrainingRecipe(steps=steps).optimizer(), jnp.ones(3)
    state = optimizer.init(weights)
    for _ in range(steps):
        updates, state = optimizer.update(weights, state, weights)
        assert jnp.isfinite(jnp.asarray(updates)).all()
