"""`does-it-train`: missing runs, stored runs, and the tables made from them."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
from flax import nnx

from benchmarks import does_it_train as runs
from benchmarks.trained_models import CHOSEN, MODELS, SIZES, ExpertBlock
from docs.pages import does_it_train as page
from examples.gpt import GPTConfig

TINY = dataclasses.replace(
    SIZES[0], layers=1, width=32, heads=1, hidden=32, steps=2, rate=1e-3
)
GPT, S = MODELS[0], SIZES[0]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Return a file with three seeds of three rows; the last row is NaN from step 7
    on."""
    path = tmp_path / "results.jsonl"
    names = [row.name for row in runs.ROWS[:3]]
    lines = []
    for n, name in enumerate(names):
        for seed in range(3):
            loss = [3 * 0.9**step + 0.01 * seed for step in range(40)]
            line = {"model": GPT.name, "size": S.name, "row": name, "seed": seed}
            if n == 2:
                loss[7:] = [math.nan] * 33
                line["seen"] = "seed 0, step 6: overflow in dot_general, a.py:1"
            lines.append(json.dumps(line | {"loss": loss}))
    path.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(runs, "RESULTS", path)
    return path


def test_rows_have_names_of_their_own():
    names = [row.name for row in runs.ROWS]
    assert len({*names}) == len(names)
    assert runs.ROWS[0].numerics(GPT) == "native"


def test_only_what_is_missing_is_run(results):
    wanted = {(m.name, s.name, r.name): seeds for m, s, r, seeds in runs.missing()}
    assert len(wanted) == len(MODELS) * len(SIZES) * len(runs.ROWS)
    first, *_, last = (row.name for row in runs.ROWS)
    assert wanted[GPT.name, S.name, first] == [3, 4]
    assert wanted[GPT.name, S.name, last] == [0, 1, 2, 3, 4]
    assert wanted[GPT.name, "L", last] == [0, 1, 2]


def test_cells_and_seeds_can_be_chosen(results):
    names = [row.name for row in runs.ROWS]
    cells = runs.missing(f"^GPT [SM] ({names[0]}|{names[1]})$", seeds=4)
    wanted = [(m.name, s.name, r.name, seeds) for m, s, r, seeds in cells]
    assert wanted == [
        ("GPT", "S", names[0], [3]),
        ("GPT", "S", names[1], [3]),
        ("GPT", "M", names[0], [0, 1, 2, 3]),
        ("GPT", "M", names[1], [0, 1, 2, 3]),
    ]


def test_formats_come_before_pruning_and_remedies(results):
    cells = [(s.name, r.name) for _, s, r, _ in runs.missing()]
    last = max(n for n, cell in enumerate(cells) if cell[1] == "MXFP4 weights")
    assert cells[last][0] == "L"
    first = min(n for n, cell in enumerate(cells) if cell[1] == "2:4 sparse")
    assert last < first


def test_a_row_is_priced_by_the_largest_size_in_which_it_was_run(results, monkeypatch):
    lines = list(map(json.loads, results.read_text().splitlines()))
    names = [row.name for row in runs.ROWS]
    larger = [line | {"size": "M"} for line in lines if line["row"] in names[:2]]
    results.write_text("\n".join(map(json.dumps, [*lines, *larger])))
    found = runs.largest()
    assert {size: [*study.numerics] for size, study in found.items()} == {
        "M": [names[1]],
        "S": [names[2]],
    }

    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((256, 256),) * 2]
    monkeypatch.setattr(page, "priced", lambda: (step, *shapes))
    table, notes = page.prices_table().split("\n\n")
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    assert [row[:2] for row in rows] == [
        [f"| {names[1]}", "GPT M"],
        [f"| {names[2]}", "GPT S"],
    ]
    assert rows[1][3] == "-"
    (note,) = notes.splitlines()
    assert " with fp8 and " in note
    assert note.endswith("so a mixture of both would save nothing")


def test_tables_say_what_was_run_and_what_was_not(results):
    rows = {line.split(" | ")[0]: line for line in page.verdicts_table().splitlines()}
    names = [row.name for row in runs.ROWS]
    assert "like native (3 seeds) | not run" in rows[f"| {names[1]}"]
    assert "**diverges** in 3 runs (3 seeds)" in rows[f"| {names[2]}"]
    assert "like native" not in rows[f"| {names[3]}"]
    losses = page.losses_tables()
    assert "diverges at step 7, in 3 of 3 seeds" in losses
    assert names[3] not in losses
    assert page.faults_list() == (
        f"- GPT S, {names[2]}: seed 0, step 6: overflow in dot_general, a.py:1\n"
    )
    assert "123,200" in page.sizes_table()


def test_a_run_is_stored_with_the_commit_that_made_it(results, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_RUNS", tmp_path / "runs")
    monkeypatch.setattr(runs, "commit", lambda folder: "0123456789ab")
    runs.run(GPT, TINY, runs.ROWS[0], [3, 4])
    stored = [json.loads(line) for line in results.read_text().splitlines()[-2:]]
    assert [(run["seed"], run["commit"]) for run in stored] == [
        (3, "0123456789ab"),
        (4, "0123456789ab"),
    ]
    assert all(len(run["loss"]) == TINY.steps for run in stored)
    assert runs.seconds(GPT, TINY) == [run["seconds"] for run in stored]
    assert all(run["seconds"] > 0 for run in stored)


def test_a_token_goes_to_the_best_experts_alone():
    block = ExpertBlock(GPTConfig(width=16, heads=2, hidden=24), nnx.Rngs(0))
    x = np.random.default_rng(0).normal(size=(2, 5, 16))
    router, gate_up, down = (
        np.asarray(weights[...], np.float64)
        for weights in (block.router.kernel, block.gate_up, block.down)
    )
    wanted = np.zeros_like(x)
    for place in np.ndindex(2, 5):
        chances = np.exp(x[place] @ router)
        chosen = np.argsort(-chances)[:CHOSEN]
        for expert in chosen:
            gate, up = np.split(x[place] @ gate_up[expert], 2)
            share = chances[expert] / chances[chosen].sum()
            wanted[place] += share * (gate / (1 + np.exp(-gate)) * up) @ down[expert]
    np.testing.assert_allclose(block.swiglu(x.astype(np.float32)), wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_models_train(model):
    losses = [*runs.train(jax.jit, 0, model=model, size=TINY, row=runs.ROWS[0])]
    assert len(losses) == TINY.steps
    assert all(map(math.isfinite, losses))
