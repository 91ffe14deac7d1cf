"""Progress in a notebook: HTML that is replaced, without widgets."""

from __future__ import annotations

import functools

import pytest
from rich.console import Console

from neuronjax.report import progress
from neuronjax.report.progress import SearchProgress, StudyProgress


class Place:
    """Stands in for the handle of a notebook's output."""

    def __init__(self):
        self.pages = []

    def update(self, data, *, raw):
        assert raw
        self.pages.append(data["text/html"])


@pytest.fixture
def place(monkeypatch):
    ipython = pytest.importorskip("IPython")
    found = Place()
    monkeypatch.setattr(ipython.display, "display", lambda *args, **kwargs: found)
    notebook = functools.partial(Console, force_jupyter=True)
    monkeypatch.setattr(progress, "Console", notebook)
    return found


def test_bars_of_a_study_are_replaced_and_end_full(place, capsys):
    with StudyProgress(2, done=0, shown=True) as bars:
        for run in ("native seed 0", "bf16 seed 0"):
            bars.begin(run)
            for loss in (2.0, 1.5):
                bars.advance({"loss": loss})
    assert "0/2" in place.pages[0]
    assert "2/2" in place.pages[-1]
    assert "bf16 seed 0" in place.pages[-1]
    assert "loss 1.5" in place.pages[-1]
    assert capsys.readouterr().out == ""


def test_the_bar_of_a_search_ends_with_its_last_error(place):
    with SearchProgress(8, shown=True) as bar:
        bar.heard(3, 0.0125, 2e-3)
    assert "3/8" in place.pages[-1]
    assert "error 0.013 at 2 ms" in place.pages[-1]


@pytest.mark.parametrize(("done", "shown"), [(2, True), (0, False)])
def test_nothing_is_shown_if_there_is_nothing_to_wait_for(place, done, shown):
    with StudyProgress(2, done=done, shown=shown):
        pass
    assert place.pages == []
