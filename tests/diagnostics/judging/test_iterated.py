"""Of references that iterate no wrong kernel is accepted, and no right one refused."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from neuronjax.diagnostics.judging import mutants
from neuronjax.diagnostics.judging.case import ReferenceCase
from neuronjax.diagnostics.judging.comparing import compared, decided
from tests.diagnostics.judging.iterated_cases import CASES, text_of
from tests.diagnostics.judging.kernels import written

SEED = 5


@functools.cache
def reference(name: str) -> ReferenceCase:
    with tempfile.TemporaryDirectory() as folder:
        return ReferenceCase.of(written(Path(folder), text_of(CASES[name])))


@functools.cache
def tried(name: str) -> tuple:
    case = reference(name)
    return mutants.tried(case, SEED, case.tolerances(SEED, None))


def word(name: str, change: tuple[str, str], folder: Path) -> str:
    """The verdict on what NumPy computes in FP32 with the change."""
    candidate = ReferenceCase.of(written(folder, text_of(CASES[name], change)))
    case = reference(name)
    actual = candidate.expected(SEED)
    found = compared(SEED, actual, case.tolerances(SEED, None))
    correct, undecided = decided([found], tried(name))
    return "undecided" if undecided else {True: "accepted", False: "refused"}[correct]


WAYS = [(n, way) for n, case in CASES.items() for way in case.ways]
WRONG = [(n, wrong) for n, case in CASES.items() for wrong in case.wrong]


@pytest.mark.parametrize("name", CASES)
def test_the_reference_itself_is_accepted(name: str, tmp_path: Path) -> None:
    assert word(name, ("return", "return"), tmp_path) == "accepted"


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_another_way_is_accepted(name: str, way: str, tmp_path: Path) -> None:
    assert word(name, CASES[name].ways[way], tmp_path) == "accepted"


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_a_wrong_kernel_is_refused(name: str, wrong: str, tmp_path: Path) -> None:
    assert word(name, CASES[name].wrong[wrong], tmp_path) == "refused"


def test_there_are_fifty_wrong_kernels() -> None:
    assert len(WRONG) >= 50
