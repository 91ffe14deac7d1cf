"""What commands print of a verb's result names options, not keywords of Python."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from neuronjax.cli import app
from neuronjax.cli.options import in_options

MODEL = """
import jax
import jax.numpy as jnp

def step(w, x):
    def loss(w):
        return jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"])
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w))

w = {"a": jnp.ones((256, 256)), "b": jnp.ones((256, 256))}
step.example_args = (w, jnp.ones((128, 256)))
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return f"{path}:step"


def printed(*arguments):
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


def test_notes_and_changes_of_a_profile(source):
    found = printed("profile", source, "--policy", "bf16")
    assert "--policy tf32" in found
    assert "--lnc 1: 1 physical core" in found
    assert "policy=" not in found
    assert "lnc=" not in found


@pytest.mark.slow
def test_lines_of_a_search(source):
    found = printed(
        "search", source, "--tolerance", "0.01", "--objective", "preference"
    )
    assert "--objective time avoids this" in found


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("try policy='tf32'", "try --policy tf32"),
        ('policy="bf16,callbacks=host"', "--policy bf16,callbacks=host"),
        ("profile it without policy=", "profile it without --policy"),
        ("policy=, target= say", "--policy, --target say"),
        ('policy="tf32" (--policy tf32) or', "--policy tf32 or"),
    ],
)
def test_keywords_with_and_without_a_value(message, words):
    flags = {"policy": "--policy", "target": "--target"}
    assert in_options(message, flags) == words


PRODUCT = """
import jax.numpy as jnp

def product(w, x):
    return jnp.tanh(w.T @ x)

product.example_args = (jnp.ones((512, 512)), jnp.ones((512, 512)))
"""


@pytest.mark.slow
def test_a_search_says_why_a_narrower_type_is_no_faster(tmp_path):
    (tmp_path / "product.py").write_text(PRODUCT)
    source = f"{tmp_path / 'product.py'}:product"
    found = printed("search", source, "--tolerance", "0.01")
    line = "bf16 saves no time: TensorE is as fast in TF32, which needs no cast of FP32"
    assert line in " ".join(found.split())
