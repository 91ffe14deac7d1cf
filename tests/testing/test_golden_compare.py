"""Ten edits that a golden refuses, ten refactorings that it lets pass, and why."""

from __future__ import annotations

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.testing import (
    GoldenMismatch,
    ProgramChangedWarning,
    ProgramsDiffer,
    assert_same_program,
    golden,
    golden_compare,
    golden_file,
)
from tests.testing.edited_model import edited_line, step_of

slow = pytest.mark.slow
MODEL = """\
import jax
import jax.numpy as jnp

def norm(x, weight):
    variance = jnp.mean(x * x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(variance + 1e-5) * weight

def block(p, x):
    hidden = jax.nn.gelu(norm(x, p["scale"]) @ p["up"])
    return x + hidden @ p["down"]

def step(p, x):
    y = block(p, x)
    loss = jnp.mean(jnp.square(y))
    return {"loss": loss, "y": y}
"""
# The line of the edit, and the leaf that changes most.
EDITS = {
    "epsilon": ("variance + 1e-5", "variance + 1e-3", "y"),
    "mean": ("jnp.mean(x * x", "jnp.sum(x * x", "y"),
    "axis": ("axis=-1, keepdims", "axis=0, keepdims", "y"),
    "function": ("jax.nn.gelu(", "jax.nn.silu(", "y"),
    "residual": ("return x + hidden", "return hidden", "y"),
    "sign": ("return x + hidden", "return x - hidden", "y"),
    "weight": ("* weight", "* weight * weight", "y"),
    "loss": ("jnp.square(y)", "jnp.abs(y)", "loss"),
    "factor": ('"y": y}', '"y": 2 * y}', "y"),
    "dtype": ('hidden @ p["down"]', '(hidden @ p["down"]).astype("bfloat16")', "y"),
}
REFACTORINGS = {
    "comment": ("def block(p, x):", "# The block.\n\ndef block(p, x):"),
    "moved lines": ("import jax\n", "\n\n\nimport jax\n"),
    "renamed local": ("hidden", "inner"),
    "renamed function": ("norm(", "rms_norm("),
    "renamed argument": ("weight", "scale"),
    "renamed leaf": ('p["up"]', 'p["wide"]'),
    "renamed result": ('"loss": loss', '"cost": loss'),
    "extracted": ("jnp.mean(jnp.square(y))", "mse(y)"),
    "remat": ("y = block(p, x)", "y = jax.checkpoint(block)(p, x)"),
    "inner jit": ("y = block(p, x)", "y = jax.jit(block)(p, x)"),
}
MSE = "def mse(y):\n    return jnp.mean(jnp.square(y))\n\ndef step("


def arguments():
    draw = np.random.default_rng(0).standard_normal
    shapes = {"scale": (16,), "up": (16, 32), "down": (32, 16)}
    p = {name: draw(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    return p, draw((8, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def guard(tmp_path_factory):
    """Return what checks the golden of the model, whatever its text is now."""
    folder = tmp_path_factory.mktemp("edited")

    def check(text=MODEL, given=None, **options):
        options = {"policy": "bf16", "update": False, "directory": folder, **options}
        step = step_of(text, folder / "model.py")
        return golden("step", step, **options)(*(given or arguments()))

    check(update=True)
    return check


@pytest.mark.slow_except("epsilon")
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_fails(guard, name):
    """By default; the edited line comes first, and the worst leaf."""
    before, after, worst = EDITS[name]
    with pytest.raises(GoldenMismatch, match="other bits") as caught:
        guard(MODEL.replace(before, after))
    lines = str(caught.value).splitlines()
    line = edited_line(MODEL, (before, after))
    assert lines[1] == f"  the source was edited, model.py:{line}"
    [first, *others] = caught.value.leaves
    assert first.path == worst
    assert all(first.badness >= leaf.badness for leaf in others)
    assert first.what or "relative L2" in str(first)


@pytest.mark.slow_except("renamed leaf")
@pytest.mark.parametrize("name", REFACTORINGS)
def test_a_refactoring_passes(guard, name):
    """A warning at most, with the same bits."""
    text = MODEL.replace(*REFACTORINGS[name])
    assert text != MODEL
    given = arguments()
    if name == "extracted":
        text = text.replace("def step(", MSE)
    if name == "renamed leaf":
        given[0]["wide"] = given[0].pop("up")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ProgramChangedWarning)
        report = guard(text, given)
    assert report.leaves == report.drift == ()
    assert report.today in ("", "same bits")
    assert all(
        "with same bits" in str(t.message)
        for t in told
        if t.category is ProgramChangedWarning
    )
    if name == "renamed leaf":
        assert report.renamed == ("p/up -> p/wide",)


def moved(guard, by=1):
    """Return the arguments with one weight moved by so many ULP."""
    p, x = arguments()
    p["up"].view(np.uint32)[3, 4] += by
    return p, x


def newer(monkeypatch):
    """As if another JAX had captured the golden."""
    versions = golden_file.provenance() | {"jax": "0.0.1"}
    monkeypatch.setattr(golden_file, "provenance", lambda: versions)


def test_arguments_that_moved_do_not_hide_the_function(guard, monkeypatch):
    """The stored ones are in the file: the function is compared on them."""
    with pytest.raises(
        GoldenMismatch, match="function gives the stored bits"
    ) as caught:
        guard(given=moved(guard))
    assert caught.value.kind == "arguments"
    [leaf] = caught.value.leaves
    assert (leaf.path, leaf.index, leaf.size.max_ulp) == ("p/up", (3, 4), 1)
    newer(monkeypatch)
    with pytest.warns(ProgramChangedWarning, match="function gives the stored bits"):
        report = guard(given=moved(guard))
    assert (report.program, report.leaves) == ("same", ())
    assert [leaf.path for leaf in report.drift] == ["p/up"]


@slow
def test_an_edit_beside_moved_arguments_fails(guard, monkeypatch):
    newer(monkeypatch)
    text = MODEL.replace("1e-5", "1e-3")
    with pytest.raises(GoldenMismatch, match="of the arguments") as caught:
        guard(text, moved(guard))
    assert (caught.value.kind, caught.value.leaves[0].path) == ("program", "y")


@slow
def test_other_bits_are_held_against_the_tolerance(guard):
    """What would be a warning fails where no legal implementation gives it."""
    for text, is_legal in (
        (MODEL.replace("jnp.mean(x * x", "jnp.mean((x * x)[:, ::-1]"), True),
        (MODEL.replace("x + hidden", "x + 0.5 * hidden"), False),
    ):
        asked = {"changed_program": "warn", "tolerance": "legal"}
        if is_legal:
            with pytest.warns(ProgramChangedWarning):
                guard(text, **asked)
            continue
        with pytest.raises(GoldenMismatch, match=r"results beyond neuronjax.tolerance"):
            guard(text, **asked)


def test_results_that_are_handed_through_do_not_count(guard, tmp_path):
    """A module's state that comes back as it went in, as `nnx.remat` returns it."""
    step = step_of(MODEL, tmp_path / "model.py")
    golden("step", step, policy="bf16", directory=tmp_path, update=True)(*arguments())
    stored = golden_file.read(tmp_path / "step")
    [_, _, up, x] = golden_compare.stored_inputs(stored)
    paths = ["loss", "p/up", "y", "x"]
    outputs = [stored.outputs[0], up, stored.outputs[1], x]
    outputs[0], outputs[2] = (
        leaf.array(stored.arrays[f"output/{i}"]).reshape(leaf.shape)
        for i, leaf in enumerate(stored.outputs)
    )
    assert golden_compare._results(stored, paths, outputs).differences == ()
    outputs[1] = up + 1
    [found] = golden_compare._results(stored, paths, outputs).differences
    assert "3, expected 2: with p/up" in found.what
    held = dataclasses.replace(stored, outputs=stored.outputs[:1])
    assert golden_compare._results(held, paths[:1], outputs[:1]).differences == ()


# -- programs alone --------------------------------------------------------------------


def layers(x):
    def inner(x):
        return jax.scipy.special.erf(x) + 2.0

    return jax.jit(inner)(x) * jnp.arange(4.0)


def renamed(y):
    def other_name(y):
        two = 2.0
        return jax.scipy.special.erf(y) + two

    return jax.jit(other_name)(y) * jnp.arange(4.0)


def test_names_and_lines_do_not_matter():
    assert_same_program(layers, renamed)(np.ones(4, np.float32))


def test_the_first_differing_op_is_shown():
    message = r"(?s)first here \(- expected\).*- .*multiply.*\+ .*sine"
    with pytest.raises(ProgramsDiffer, match=message):
        assert_same_program(lambda x: jnp.sin(x), layers)(jnp.ones(4))
    with pytest.raises(ProgramsDiffer, match=r"test_golden_compare\.py:\d+"):
        assert_same_program(lambda x: x + 1, lambda x: x + 2)(jnp.ones(4))
