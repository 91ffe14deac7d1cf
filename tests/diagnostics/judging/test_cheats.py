"""The judge is not fooled: every cheat gets the verdict that names it.

Whatever it tries, nothing of it is left: no file, no process.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import neuronjax as nj
from tests.diagnostics.judging import kernels
from tests.diagnostics.judging.bug_cases import WRONG
from tests.diagnostics.judging.cheat_cases import CHEATS, text_of
from tests.diagnostics.judging.in_process import judged_here

SECONDS = 15.0


def judged(name: str, folder: Path) -> nj.KernelVerdict:
    return nj.judge(
        kernels.written(folder, text_of(CHEATS[name], str(folder))),
        reference=kernels.reference(folder),
        timeout=SECONDS,
    )


def told(verdict: nj.KernelVerdict) -> dict[str, str]:
    """By rule what was found; of a result that is only wrong, why."""
    found = {p.rule: p.message for p in (*verdict.limits, *verdict.hazards)}
    wrong = [s.why for s in verdict.seeds if not s.correct]
    return found | ({WRONG: wrong[0]} if wrong and not found else {})


def processes() -> Iterator[str]:
    """The folders that processes work in."""
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            yield os.readlink(link)


@pytest.mark.slow_except("a replaced numpy.allclose")
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "temporary"
    own.mkdir()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    verdict = judged(name, tmp_path)
    assert not verdict.accepted
    found = told(verdict)
    assert CHEATS[name].said in found[CHEATS[name].verdict]
    assert not list(own.iterdir())
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"candidate.py", "reference.py", "temporary"}
    assert not [p for p in processes() if p.startswith(str(own))]


@pytest.mark.slow
def test_results_noted_for_known_seeds_do_not_fit_one_that_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_here(monkeypatch)
    verdict = judged("the constants of all known seeds", tmp_path)
    assert [s.correct for s in verdict.seeds] == [True] * 5 + [False]
    assert verdict.correct is False


def test_there_are_twenty() -> None:
    assert len(CHEATS) >= 20
