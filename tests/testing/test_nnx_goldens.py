"""Goldens of a step that writes into Flax NNX modules hold what it writes."""

from __future__ import annotations

import jax
import pytest
from flax import nnx

import neuronjax as nj
from neuronjax.testing import GoldenMismatch, assert_same_program, golden, golden_file
from tests.api.test_nnx_steps import ARRAYS, KERNEL, X, faulty, healthy, made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a golden of the healthy step."""
    found = tmp_path_factory.mktemp("golden")
    options = {"directory": found, "policy": "bf16", "update": True}
    golden("step", nnx.jit(healthy), **options)(*made(), X)
    return found


@pytest.fixture
def kept(folder):
    """Whether the golden holds of a step."""
    options = {"directory": folder, "policy": "bf16"}
    return lambda step, **more: golden("step", step, **options, **more)(*made(), X)


@pytest.mark.slow
def test_a_golden_holds_what_a_step_writes(kept, folder):
    stored = golden_file.read(folder / "step")
    assert len(stored.outputs) == ARRAYS + 1
    assert KERNEL in {leaf.path for leaf in stored.outputs}
    assert kept(nnx.jit(healthy)).program == "same"


@pytest.mark.slow
def test_an_edit_of_what_is_written_is_seen(kept):
    """The loss that the step returns is the same."""
    with pytest.raises(GoldenMismatch, match="optimizer/opt_state/0/mu") as raised:
        kept(nnx.jit(faulty), changed_program="bits")
    paths = {leaf.path for leaf in raised.value.leaves}
    assert KERNEL in paths
    assert "result" not in paths


@pytest.mark.slow
def test_a_step_against_its_golden(folder):
    saved = folder / "step.mlirbc"
    same = nj.compare(nnx.jit(healthy), against=saved, policy="bf16")(*made(), X)
    assert len(same.outputs) == ARRAYS + 1
    assert not same.edits
    edited = nj.compare(nnx.jit(faulty), against=saved, policy="bf16")(*made(), X)
    assert edited.edits
    assert KERNEL in {output.path for output in edited.outputs}


def test_a_step_against_a_program_without_its_state(tmp_path):
    """As `jax.jit` has it, the results alone."""
    saved, step = tmp_path / "loss.mlirbc", nnx.jit(healthy)
    with pytest.warns(nj.NotEmulatedWarning, match="lost"):
        saved.write_bytes(nj.jit(step).captured(*made(), X).portable())
    with pytest.warns(nj.NotEmulatedWarning, match="lost"):
        report = nj.compare(step, against=saved)(*made(), X)
    assert len(report.outputs) == 1
    assert not report.edits


@pytest.mark.slow
def test_programs_that_differ_in_what_they_write(folder):
    assert_same_program(nnx.jit(healthy), folder / "step")(*made(), X)
    with pytest.raises(AssertionError, match="programs differ"):
        assert_same_program(nnx.jit(healthy), nnx.jit(forgetful))(*made(), X)


def forgetful(model, optimizer, x):
    model, optimizer = jax.tree.map(lambda leaf: leaf, (model, optimizer))
    return healthy(model, optimizer, x)
