"""No right kernel is refused, and each of them is when it is made wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnostics.judging.bug_cases import text_of
from tests.diagnostics.judging.in_process import judged_here
from tests.diagnostics.judging.right_cases import CASES
from tests.diagnostics.judging.test_bugs import judged


@pytest.mark.slow_except("matmul older bfloat16")
@pytest.mark.parametrize("name", CASES)
def test_it_is_accepted_and_a_wrong_one_is_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_here(monkeypatch)
    case = CASES[name]
    text = text_of(case.kernel)
    right = judged(tmp_path, case.kernel, text)
    assert right.accepted, str(right)
    assert right.tolerance.startswith("derived from the reference")
    assert text.count(case.before) == 1
    wrong = judged(tmp_path, case.kernel, text.replace(case.before, case.after))
    assert not wrong.accepted
    assert wrong.correct is False
    assert not wrong.limits


def test_there_are_a_hundred() -> None:
    assert len(CASES) >= 100
