"""Programs that run in a process of their own: the same bits, and the same errors."""

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.diagnostics.judging import values, values_file
from neuronjax.diagnostics.judging.tracing import TracedCandidate
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.kernels.running import USUAL_MEMORY, FreshMemory
from neuronjax.nki import isa as nisa, language as nl
from neuronjax.nki.stored_kernel import StoredKernel

X = np.random.default_rng(0).normal(size=(16, 32)).astype(nl.bfloat16)
RUNS = [
    values.ValuesRun((X, 2.0)),
    values.ValuesRun((-X, 2.0), FreshMemory(of_floats=1.5)),
]


@nki.jit
def scaled(x, factor):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, factor)
    nl.store(out, tile)
    return out, {"again": out}


def candidate(*arguments):
    kernel = StoredKernel(scaled.traced(*arguments))
    return TracedCandidate(name="scaled", kernel=kernel, arguments=arguments)


def test_elsewhere_is_as_here(monkeypatch):
    found = candidate(X, 2.0)
    here = list(values.computed(found, RUNS, 60.0))
    monkeypatch.setattr(values, "_MOST_HERE", 0)
    elsewhere = list(values.computed(found, RUNS, 60.0))
    assert len(here) == len(elsewhere) == 2
    for (first, more), (other, others) in zip(here, elsewhere, strict=True):
        assert other.dtype == first.dtype
        np.testing.assert_array_equal(other.view("u2"), first.view("u2"))
        np.testing.assert_array_equal(others["again"], more["again"])


@pytest.mark.parametrize(("most_here", "left"), [(1_000_000, 1), (0, 0)])
def test_arguments_are_taken_before_a_result_is_asked_for(monkeypatch, most_here, left):
    monkeypatch.setattr(values, "_MOST_HERE", most_here)
    runs = iter(RUNS)
    results = values.computed(candidate(X, 2.0), runs, 60.0)
    assert len([*runs]) == left
    assert next(results)[0].shape == X.shape


def test_an_error_comes_back_after_the_runs_before_it(monkeypatch):
    monkeypatch.setattr(values, "_MOST_HERE", 0)
    wrong = values.ValuesRun((X[:8], 2.0))
    runs = values.computed(candidate(X, 2.0), [RUNS[0], wrong], 60.0)
    assert next(runs)[0].shape == X.shape
    with pytest.raises(InvalidProgramError, match="traced for"):
        next(runs)


def test_values_are_stored_bit_for_bit():
    nan = np.array([0x7FC1, 0xFF80, 1], np.uint16).view(nl.bfloat16)
    tree = ([nan, 1.5, None], {"b": (np.array([True]), nan)}, list(USUAL_MEMORY))
    (first, *rest), named, memory = values_file.read(*values_file.stored(tree))
    assert rest == [1.5, None]
    assert first is named["b"][1]
    np.testing.assert_array_equal(first.view("u2"), nan.view("u2"))
    np.testing.assert_array_equal(named["b"][0], [True])
    assert FreshMemory(*memory)[1:] == USUAL_MEMORY[1:]
