"""Every bug gets the verdict that names it, and the kernel without it is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

import neuronjax as nj
from tests.diagnostics.judging.bug_cases import (
    ADVICE,
    BUGS,
    KERNELS,
    WRONG,
    RightKernel,
    reference_of,
    text_of,
    text_with,
)
from tests.diagnostics.judging.in_process import judged_here
from tests.diagnostics.judging.kernels import written


def judged(folder: Path, kernel: RightKernel, text: str) -> nj.KernelVerdict:
    return nj.judge(
        written(folder, text),
        reference=written(folder, reference_of(kernel), "reference.py"),
        grid=kernel.grid,
        seeds=(0,),
        timeout=kernel.seconds,
    )


@pytest.mark.slow_except("two cores")
@pytest.mark.parametrize("name", KERNELS)
def test_without_the_bug_it_is_accepted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_here(monkeypatch)
    kernel = KERNELS[name]
    verdict = judged(tmp_path, kernel, text_of(kernel))
    assert verdict.accepted, str(verdict)
    assert verdict.tolerance == "derived from the reference"


@pytest.mark.slow_except("a mask one off")
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = BUGS[name]
    if bug.verdict != "ended":
        judged_here(monkeypatch)
    verdict = judged(tmp_path, KERNELS[bug.kernel], text_with(bug))
    found = [p.rule for p in (*verdict.limits, *verdict.hazards, *verdict.advice)]
    if bug.verdict == WRONG:
        assert verdict.correct is False
        assert not found
    else:
        assert bug.verdict in found
    assert verdict.accepted == (bug.verdict in ADVICE)


def test_there_are_thirty_of_both_styles() -> None:
    assert len(BUGS) >= 30
    assert {KERNELS[bug.kernel].older for bug in BUGS.values()} == {True, False}
