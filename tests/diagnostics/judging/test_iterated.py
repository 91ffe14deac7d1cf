"""Of references that iterate no wrong kernel is accepted, and no right one refused."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

import neuronjax as nj
from neuronjax.diagnostics.judging import mutants
from neuronjax.diagnostics.judging.case import ReferenceCase
from neuronjax.diagnostics.judging.comparing import compared, decided
from tests.diagnostics.judging.in_process import judged_here
from tests.diagnostics.judging.iterated_cases import CASES, text_of
from tests.diagnostics.judging.kernels import written
from tests.diagnostics.judging.more_iterated_cases import MORE

SEED = 5
EVERY = CASES | MORE


@functools.cache
def reference(name: str) -> ReferenceCase:
    with tempfile.TemporaryDirectory() as folder:
        return ReferenceCase.of(written(Path(folder), text_of(EVERY[name])))


@functools.cache
def tried(name: str) -> tuple:
    case = reference(name)
    return mutants.tried(case, SEED, case.tolerances(SEED, None))


def word(name: str, change: tuple[str, str], folder: Path) -> str:
    """The verdict on what NumPy computes in FP32 with the change."""
    candidate = ReferenceCase.of(written(folder, text_of(EVERY[name], change)))
    case = reference(name)
    actual = candidate.expected(SEED)
    found = compared(SEED, actual, case.tolerances(SEED, None))
    correct, undecided = decided([found], tried(name))
    return "undecided" if undecided else {True: "accepted", False: "refused"}[correct]


def changes(kind: str) -> list:
    """The changes of a kind, "ways" or "wrong", of every reference."""
    return [
        pytest.param(name, what, marks=[pytest.mark.slow] if name in MORE else [])
        for name, case in EVERY.items()
        for what in getattr(case, kind)
    ]


@pytest.mark.slow_except(
    "a reciprocal by Newton", "rows and columns of sum 1", "a mean that runs"
)
@pytest.mark.parametrize("name", EVERY)
def test_the_reference_itself_is_accepted(name: str, tmp_path: Path) -> None:
    assert word(name, ("return", "return"), tmp_path) == "accepted"


@pytest.mark.parametrize(("name", "way"), changes("ways"))
def test_another_way_is_accepted(name: str, way: str, tmp_path: Path) -> None:
    assert word(name, EVERY[name].ways[way], tmp_path) == "accepted"


@pytest.mark.parametrize(("name", "wrong"), changes("wrong"))
def test_a_wrong_kernel_is_refused(name: str, wrong: str, tmp_path: Path) -> None:
    assert word(name, EVERY[name].wrong[wrong], tmp_path) == "refused"


def test_there_are_a_hundred_wrong_kernels() -> None:
    assert len(changes("wrong")) >= 120
    assert len(MORE) >= 20


STEPS = """
import nki
import nki.isa as nisa
import nki.language as nl


def product(stationary, moving):
    sums = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(sums, stationary, moving)
    tile = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=sums)
    return tile


@nki.jit
def kernel(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.load(a)
    for _ in range(5):
        turned = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=x)
        rows = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=rows, src=turned)
        g = product(rows, rows)
        both = nl.add(nl.multiply(g, -4.7750), nl.multiply(product(g, g), 2.0315))
        x = nl.add(nl.multiply(x, 3.4445), product(both, x))
    nisa.dma_copy(dst=out, src=x)
    return out
"""
KERNELS = {
    "right": (" ", " ", "accepted"),
    "a copy": ("range(5)", "range(0)", "refused"),
    "a step less": ("range(5)", "range(4)", "refused"),
    "another constant": ("2.0315", "2.1", "refused"),
}


@pytest.mark.slow_except("a copy", "right")
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_five_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_here(monkeypatch)
    before, after, wanted = KERNELS[name]
    case = CASES["five Newton-Schulz steps"]
    text = text_of(case._replace(inputs="unit(draw(64, 64))"))
    verdict = nj.judge(
        written(tmp_path, STEPS.replace(before, after)),
        reference=written(tmp_path, text, "reference.py"),
        seeds=(0,),
    )
    assert verdict.word == wanted, str(verdict)
    assert "16 runs of it with random roundings" in verdict.tolerance
    assert all(m.caught for m in verdict.mutants)
    assert len(verdict.mutants) >= 8
