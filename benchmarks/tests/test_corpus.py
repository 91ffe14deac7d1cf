"""Measured kernels of public repositories, tested with a repository made here."""

import dataclasses

import pytest

from benchmarks import validate_kernels
from benchmarks.validation import corpus as corpora

KERNEL = """
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nisa.activation(op=nl.silu, data=nl.load(x)))
    return out
"""
REFERENCE = """
import numpy as np


def get_inputs():
    return [np.random.rand(128, 1024).astype(np.float32)]


def transform_to_nki_inputs(inputs):
    return inputs
"""


@pytest.fixture
def corpus(tmp_path):
    """Return a folder with one kernel of a baseline and no candidates."""
    bench = tmp_path / "AccelOpt" / "NKIBench"
    (bench / "kernels").mkdir(parents=True)
    (bench / "reference").mkdir()
    (bench / "kernels" / "silu_M4096_N7168_0.py").write_text(KERNEL)
    (bench / "reference" / "silu_M4096_N7168_numpy_0.py").write_text(REFERENCE)
    return tmp_path


def test_times_are_those_of_a_core():
    rows = {(r.name, r.chip): r for r in corpora.rows()}
    assert len(rows) == 90
    assert rows["silu_v1", "trn2"].seconds == pytest.approx(2 * 0.3009e-3)
    assert rows["silu_v2_pingpong", "trn2"].seconds == pytest.approx(0.5889e-3)
    before = rows["silu_M4096_N7168_0", "trn1"]
    assert before.seconds == pytest.approx(1.333232e-3)
    assert before.active["vector"] == pytest.approx(0.7388, rel=1e-3)
    assert before.read_bytes == 117440512


def test_a_row_is_predicted_and_the_others_are_named(corpus, capsys):
    assert validate_kernels.main([str(corpus), "--only", "silu_M", "silu_v1"]) == 0
    printed = capsys.readouterr().out
    assert "kda-for-trainium is missing" in printed
    assert "AccelOpt is no clone of git" in printed
    assert "silu_v1                            trn2 not priced: no file" in printed
    assert printed.count("silu_M4096_N7168_0 ") == 2
    (op,) = (line for line in printed.splitlines() if line[:5] == "silu ")
    assert op.split()[1] == "1"
    assert len(op.split()) == 4  # one kernel has no order


def test_without_a_corpus_it_says_what_to_fetch(tmp_path, capsys):
    assert validate_kernels.main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    for address, commit in corpora.REPOSITORIES.values():
        assert address in said
        assert commit in said


def test_the_order_of_variants():
    """Check six variants, of which the model predicts the second best to be the
    fastest."""
    row = corpora.rows()[0]
    found = [
        validate_kernels.Prediction(
            dataclasses.replace(row, op="x", chip="trn2", seconds=float(n + 10)),
            seconds,
            {},
            0.0,
            0.0,
            0.0,
        )
        for n, seconds in enumerate([11.0, 10.0, 12.0, 13.0, 14.0, 20.0])
    ]
    last = next(
        line
        for line in validate_kernels.summary(found).splitlines()
        if line[:2] == "x "
    )
    assert last.split() == ["x", "6", "5%", "83%", "0.94", "10.0%", "93%"]
