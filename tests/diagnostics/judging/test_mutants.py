"""A tolerance is tried on wrong kernels: the reference with one thing otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronjax.diagnostics.judging import mutants
from neuronjax.diagnostics.judging.case import ReferenceCase

TEXT = """
import numpy as np

draw = lambda *shape: np.random.normal(size=shape).astype(np.float32)


def get_inputs():
    return [{inputs}]


def forward({names}):
    {lines}
"""
RECURRENCE = """s = np.zeros_like(x[0])
    for t in range(4):
        s = 0.5 * s + x[t]
    return s"""
WHILE = """s, t = np.zeros_like(x[0]), 0
    while t < 4:
        s, t = 0.5 * s + x[t], t + 1
    return s"""
BREAK = """s, t = np.zeros_like(x[0]), 0
    while True:
        s, t = 0.5 * s + x[t], t + 1
        if t == 4:
            break
    return s"""
ROWS = """s = np.zeros_like(x[0])
    for row in x:
        s = 0.5 * s + row
    return s"""
PAIRS = "return np.stack([a * b for a, b in zip(x, y)][::-1] + [y[0]] * 4)[:4]"
#: Inputs, their names, the reference, and what is tried beside zeros.
CASES = {
    "a sum": ("draw(4, 8)", "x", "return x.sum(1)", {
        "input 0 replaced by its mean", "a sum without its last term, line 12"}),
    "a mean of a row": ("draw(4, 8)", "x", "return x.mean(1, keepdims=True) + x", {
        "the result is input 0", "input 0 replaced by its mean",
        "a sum without its last term, line 12",
        "an addition with the other sign, line 12"}),
    "a product": ("draw(4, 8), draw(8, 4)", "x, w", "return x @ w", {
        "input 0 replaced by its mean", "input 1 replaced by its mean",
        "a sum without its last term, line 12"}),
    "letters": ("draw(4, 8), draw(4, 8)", "x, w",
                "return np.einsum('bk,bk->b', x, w)", {
        "input 0 replaced by its mean", "input 1 replaced by its mean",
        "a sum without its last term, line 12"}),
    "a recurrence": ("draw(4, 8)", "x", RECURRENCE, {
        "input 0 replaced by its mean", "a loop without its last iteration, line 13",
        "an addition with the other sign, line 14"}),
    "a recurrence of while": ("draw(4, 8)", "x", WHILE, {
        "input 0 replaced by its mean", "a loop without its last iteration, line 13",
        "an addition with the other sign, line 14"}),
    "a loop that breaks": ("draw(4, 8)", "x", BREAK, {
        "input 0 replaced by its mean", "a loop without its last iteration, line 13",
        "an addition with the other sign, line 14"}),
    "a loop over rows": ("draw(4, 8)", "x", ROWS, {
        "input 0 replaced by its mean", "a loop without its last iteration, line 13",
        "an addition with the other sign, line 14"}),
    "a loop over pairs": ("draw(4, 8), draw(4, 8)", "x, y", PAIRS, {
        "the result is input 0", "the result is input 1",
        "input 0 replaced by its mean", "input 1 replaced by its mean",
        "a loop without its last iteration, line 12"}),
    "in place": ("draw(4, 8), draw(4, 8)", "x, w", "x -= w\n    return x", {
        "the result is input 0", "the result is input 1",
        "input 0 replaced by its mean", "input 1 replaced by its mean",
        "an addition with the other sign, line 12"}),
    "two results": ("draw(3), draw(3)", "x, w", "return x * 2, w", {
        "result 0 is zeros", "result 1 is zeros", "result 0 is input 0",
        "result 0 is input 1", "result 1 is input 0", "input 0 replaced by its mean",
        "input 1 replaced by its mean"}),
    "a copy": ("draw(4, 8)", "x", "return x.copy()", {"input 0 replaced by its mean"}),
    "zeros": ("draw(4, 8)", "x", "return x * 0", {"the result is input 0"}),
    "no function that is heard of": (
        "draw(3), 2", "x, n", "return np.array([float(v) ** n for v in x])",
        {"the result is input 0", "input 0 replaced by its mean"}),
}  # fmt: skip


def case_of(folder: Path, inputs: str, names: str, lines: str) -> ReferenceCase:
    path = folder / "reference.py"
    path.write_text(TEXT.format(inputs=inputs, names=names, lines=lines))
    return ReferenceCase.of(path)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("relative", [1e-6, 1e9])
def test_what_is_tried_and_caught(name: str, relative: float, tmp_path: Path) -> None:
    *text, wanted = CASES[name]
    case = case_of(tmp_path, *text)
    found = mutants.tried(case, 0, case.tolerances(0, relative))
    zeros = {"the result is zeros"} if name not in ("two results", "zeros") else set()
    assert {m.what for m in found} == wanted | zeros
    assert {m.caught for m in found} == {relative < 1}
    for m in found:
        idle = " is " in m.what and "its mean" not in m.what
        assert m.does_nothing == idle


@pytest.mark.slow
def test_a_large_reference_is_not_run_again(tmp_path: Path) -> None:
    case = case_of(tmp_path, "draw(2048, 2049)", "x", "return x + 1")
    found = mutants.tried(case, 0, case.tolerances(0, 1e-6))
    assert {m.what for m in found} == {"the result is zeros", "the result is input 0"}


def test_the_reference_is_left_as_it_was(tmp_path: Path) -> None:
    case = case_of(tmp_path, "draw(4, 8)", "x", RECURRENCE)
    before = case.expected(0)[0]
    mutants.tried(case, 0, case.tolerances(0, 1e-6))
    assert (case.expected(0)[0] == before).all()
    assert not hasattr(case.module, "range")


def test_the_reference_has_its_own_rules_of_python(tmp_path: Path) -> None:
    """Nothing of the judge's file is inherited: annotations are values here."""
    lines = "def f(a: int): ...\n    assert f.__annotations__['a'] is int\n    return x"
    case = case_of(tmp_path, "draw(4, 8)", "x", lines)
    assert case.expected(0)[0].shape == (4, 8)
    assert case.module.__file__ == str(case.path)


UNTIL = """s = x
    while abs(s).max() > 1e-3:
        s = s - 0.5 * s
    return s"""


def test_a_loop_that_a_change_never_ends_is_left(tmp_path: Path) -> None:
    case = case_of(tmp_path, "draw(4, 8)", "x", UNTIL)
    found = mutants.tried(case, 0, case.tolerances(0, 1e-6))
    names = {m.what for m in found}
    assert "a loop without its last iteration, line 13" in names
    assert not any("other sign" in name for name in names)
