"""`neuronjax track`: errors over the commits of a small repository."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import neuronjax as nj
from neuronjax.cli import app, tracking

MODEL = """
import jax
import jax.numpy as jnp

def step(w, x):
    return jnp.mean(jnp.square(jnp.tanh(x @ w)), axis=0)

def example_args():
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], (32, 8)), jax.random.normal(keys[1], (16, 32))

step.example_args = example_args
"""
#: What commits of these numbers edit; the others add a remark.
EDITS = {
    6: ("jnp.tanh(x @ w)", "jnp.tanh((x @ w).astype(jnp.float8_e5m2).astype(x.dtype))"),
    7: ("jnp.float8_e5m2", "jnp.bfloat16"),
    12: ("def step(w, x):", "def step(w, x:"),  # a commit that does not run
    13: ("def step(w, x:", "def step(w, x):"),
    16: ("(32, 8)", "(32, 16)"),
}


def git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", *who, *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def ask(*arguments):
    return CliRunner().invoke(app, ["track", *arguments])


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_twenty_commits_are_measured_afterwards(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONJAX_CACHE_DIR", str(tmp_path / "cache"))
    text = MODEL
    git(tmp_path, "init", "-b", "main")
    for number in range(21):
        text = text.replace(*EDITS[number]) if number in EDITS else text
        text += f"# {number}\n"
        (tmp_path / "model.py").write_text(text)
        git(tmp_path, "add", "model.py")
        git(tmp_path, "commit", "-m", f"commit {number}")
        if number == 0:
            git(tmp_path, "tag", "first")
    command = [sys.executable, "-m", "neuronjax", "track", "model.py:step"]
    command += ["--since", "first", "--append", "errors.jsonl"]
    command += ["--policy", "bf16", "--plot", "errors.png", "--fail-if", "max > 50x"]

    def run():
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        )

    found = run()
    lines = (tmp_path / "errors.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 19
    assert "is skipped: SyntaxError" in found.stderr
    by_number = {int(r["subject"].split()[1]): r for r in records}
    assert by_number[6]["rel_l2"] > 3 * by_number[5]["rel_l2"]
    assert by_number[5]["rel_l2"] == by_number[1]["rel_l2"]
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")
    # What was measured is not measured again.
    assert run().stdout == ""
    assert len((tmp_path / "errors.jsonl").read_text().splitlines()) == 19


@pytest.mark.slow
def test_a_refused_record_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tracked_model.py").write_text(MODEL)
    git(tmp_path, "init", "-b", "main")
    git(tmp_path, "add", "tracked_model.py")
    git(tmp_path, "commit", "-m", "one")
    asked = ("tracked_model.py:step", "--no-cache", "--append", "errors.jsonl")
    found = ask(*asked, "--policy", "bf16", "--policy", "fp8", "--json")
    assert found.exit_code == 0
    records = json.loads(found.stdout)
    assert [record["policy"] for record in records] == ["bf16", "fp8"]
    assert 0 < records[0]["rel_l2"] < records[1]["rel_l2"]
    assert records[0]["results/the result/rel_l2"] == records[0]["rel_l2"]
    scalars = (str, int, float)
    assert all(isinstance(value, scalars) for r in records for value in r.values())
    kept = (tmp_path / "errors.jsonl").read_text()
    assert [json.loads(line) for line in kept.splitlines()] == records
    # An edit that is not committed is held against the commit below it.
    (tmp_path / "tracked_model.py").write_text(MODEL.replace(*EDITS[6]))
    found = ask(*asked, "--policy", "bf16", "--fail-if", "rel_l2 > 1.2x")
    assert found.exit_code == 1
    assert "bf16: rel_l2 is" in found.stderr
    assert (tmp_path / "errors.jsonl").read_text() == kept


def test_what_cannot_be_read_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = ask("model.py:step", "--fail-if", "worse")
    assert found.exit_code == 2
    assert "'rel_l2 > 1.2x' (times the last record)" in found.stderr
    (tmp_path / "errors.jsonl").write_text("<<<<<<< ours\n")
    found = ask("model.py:step", "--append", "errors.jsonl")
    assert "errors.jsonl is no file of records" in found.stderr
    assert "in a repository" in ask("model.py:step", "--since", "v1.0").stderr


def record(commit, rel_l2, policy="bf16"):
    names = {"commit": commit, "policy": policy, "rel_l2": rel_l2}
    return {"source": "a.py:f", "target": "trn2", **names}


def test_a_rule_is_held_against_the_last_of_the_same_policy():
    def refusal(rule, new, old):
        return tracking._refusal(tracking._RULE.fullmatch(rule), new, old)

    old = [record("a", 0.1), record("b", 0.2), record("b", 0.01, "fp8")]
    new = record("c", 0.25)
    assert refusal("rel_l2 > 1.2x", new, old) == (
        "c bf16: rel_l2 is 0.25, the limit 0.24; the last record has 0.2"
    )
    assert refusal("rel_l2>1.3x", new, old) == ""
    assert refusal("rel_l2 > 2e-1", new, [])
    assert refusal("rel_l2 > 1.2x", new, []) == ""
    assert refusal("rel_l2 > 1.2x", record("c", float("nan")), old)
    # The same commit again is held against the one before it.
    assert refusal("rel_l2 > 1x", record("b", 0.15), old)
    with pytest.raises(nj.InvalidProgramError, match=r"choose one of .*rel_l2"):
        refusal("l2 > 1", new, old)
