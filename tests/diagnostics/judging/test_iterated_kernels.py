"""Of kernels that iterate the right ones are accepted, and no wrong one is."""

from __future__ import annotations

import functools
import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import pytest

from neuronjax.diagnostics.judging import mutants
from neuronjax.diagnostics.judging.case import ReferenceCase
from neuronjax.diagnostics.judging.comparing import compared, decided
from tests.diagnostics.judging.iterated_kernels import KERNELS, reference_of, text_of
from tests.diagnostics.judging.kernels import written

SEED = 5
WRONG = [(n, wrong) for n, case in KERNELS.items() for wrong in case.wrong]


@functools.cache
def reference(name: str) -> ReferenceCase:
    with tempfile.TemporaryDirectory() as folder:
        return ReferenceCase.of(written(Path(folder), reference_of(KERNELS[name])))


@functools.cache
def tried(name: str) -> tuple:
    case = reference(name)
    return mutants.tried(case, SEED, case.tolerances(SEED, None))


def result(name: str, text: str, folder: Path) -> np.ndarray:
    """What the kernel of a text computes."""
    path = written(folder, text, "candidate.py")
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return np.asarray(module.kernel(*reference(name).kernel_arguments(SEED)))


def word(name: str, actual: np.ndarray) -> str:
    """The verdict on a result."""
    found = compared(SEED, [actual], reference(name).tolerances(SEED, None))
    correct, undecided = decided([found], tried(name))
    return "undecided" if undecided else {True: "accepted", False: "refused"}[correct]


@pytest.mark.slow_except("a square root by Newton", "a while loop")
@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_is_accepted(name: str, tmp_path: Path) -> None:
    assert word(name, result(name, text_of(KERNELS[name]), tmp_path)) == "accepted"


@pytest.mark.slow_except("a while loop-*")
@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_a_wrong_kernel_is_refused(name: str, wrong: str, tmp_path: Path) -> None:
    text = text_of(KERNELS[name], KERNELS[name].wrong[wrong])
    assert word(name, result(name, text, tmp_path)) == "refused"


@pytest.mark.slow_except("a while loop")
@pytest.mark.parametrize("name", KERNELS)
def test_what_does_nothing_is_refused(name: str) -> None:
    (right,) = reference(name).expected(SEED)
    inputs = [x for x in reference(name).inputs(SEED) if x.size == right.size]
    for idle in (np.zeros_like(right), *inputs):
        assert word(name, np.reshape(idle, right.shape)) == "refused"


def test_there_are_twenty_kernels_and_a_hundred_wrong_ones() -> None:
    assert len(KERNELS) >= 20
    assert len(WRONG) >= 95
