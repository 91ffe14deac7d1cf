"""`examples/golden_ci/track.py`: errors over the commits of a small repository."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "golden_ci" / "track.py"
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


@pytest.fixture(scope="module")
def track():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("track_example", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", *who, *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_twenty_commits_are_measured_afterwards(tmp_path):
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
    asked = ["model.py:step", "--since", "first", "--append", "errors.jsonl"]
    command = [sys.executable, str(SCRIPT), *asked, "--plot", "errors.png"]

    def run():
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        )

    found = run()
    lines = (tmp_path / "errors.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == 19
    assert "is left out: SyntaxError" in found.stderr
    by_number = {int(r["subject"].split()[1]): r for r in records}
    assert by_number[6]["rel_l2"] > 3 * by_number[5]["rel_l2"]
    assert by_number[5]["rel_l2"] == by_number[1]["rel_l2"]
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")
    # What was measured is not measured again.
    assert run().stdout == ""
    assert len((tmp_path / "errors.jsonl").read_text().splitlines()) == 19


def record(commit, rel_l2, policy="bf16"):
    names = {"commit": commit, "policy": policy, "rel_l2": rel_l2}
    return {"source": "a.py:f", "target": "trn2", **names}


def test_a_rule_is_held_against_the_last_of_the_same_policy(track):
    old = [record("a", 0.1), record("b", 0.2), record("b", 0.01, "fp8")]
    new = record("c", 0.25)
    assert track.refusal("rel_l2 > 1.2x", new, old) == (
        "c bf16: rel_l2 is 0.25, allowed 0.24 (rel_l2 > 1.2x)"
    )
    assert track.refusal("rel_l2 > 1.3x", new, old) == ""
    assert track.refusal("rel_l2 > 0.2", new, [])
    assert track.refusal("rel_l2 > 1.2x", new, []) == ""
    assert track.refusal("rel_l2 > 1.2x", record("c", float("nan")), old)
    # The same commit again is held against the one before it.
    assert track.refusal("rel_l2 > 1x", record("b", 0.15), old)
    for rule in ("worse", "l2 > 1"):
        with pytest.raises(SystemExit, match="write 'rel_l2"):
            track.refusal(rule, new, old)
