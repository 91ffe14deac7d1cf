"""Progress: bars in a terminal, HTML without widgets in a notebook, lines in a log."""

from __future__ import annotations

import contextlib
import functools
import io
import re

import jax.numpy as jnp
import pytest
from rich.console import Console

import neuronjax as nj
from neuronjax.execution import stages
from neuronjax.report import progress, waiting
from neuronjax.report.progress import VARIABLE, SearchProgress, StudyProgress

CONTROL = re.compile(r"\x1b\[[?\d;]*[a-zA-Z]|\r")
X = jnp.ones((4, 4))


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


@pytest.fixture
def terminal(monkeypatch):
    """What is written to a terminal of 80 columns, where nobody has patience."""
    out = io.StringIO()
    found = functools.partial(Console, file=out, force_terminal=True, width=80)
    for module in (progress, waiting):
        monkeypatch.setattr(module, "Console", lambda stderr: found())
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    return out


def test_bars_of_a_study_are_replaced_and_end_full(place, capsys):
    with StudyProgress(2, shown=True) as bars:
        for run in ("native seed 0", "bf16 seed 0"):
            bars.begin(run)
            for loss in (2.0, 1.5):
                bars.advance({"loss": loss})
    assert "0/2" in place.pages[0]
    assert "2/2" in place.pages[-1]
    assert "bf16 seed 0" in place.pages[-1]
    assert "loss 1.5" in place.pages[-1]
    told = capsys.readouterr()
    assert not told.out
    assert not told.err


def test_bars_say_that_an_error_stopped_them(place):
    with contextlib.suppress(KeyboardInterrupt), StudyProgress(2, shown=True) as bars:
        bars.begin("native seed 0")
        raise KeyboardInterrupt
    assert "stopped" in place.pages[-1]


def test_the_bar_of_a_search_ends_with_its_last_error(place):
    with SearchProgress(shown=True) as bar:
        bar.heard(3, 0.0125, 2e-3)
        assert bar._bars.tasks[0].total is None  # nobody knows how many there will be
    assert bar._bars.finished
    assert re.search(r"\b3\b", place.pages[-1])
    assert "3/" not in place.pages[-1]
    assert "error 0.013, predicted 2 ms" in place.pages[-1]


@pytest.mark.parametrize(("done", "shown"), [(2, True), (0, False)])
def test_nothing_is_shown_if_there_is_nothing_to_wait_for(place, done, shown):
    with StudyProgress(2, done=done, shown=shown):
        pass
    assert place.pages == []


# -- one display -----------------------------------------------------------------------


class Listening(StudyProgress):
    """Keeps what it is told."""

    heard = ()

    def stage(self, name):
        self.heard = (*self.heard, name.partition(",")[0])
        super().stage(name)


def test_what_is_compiled_below_a_bar_is_said_in_it(terminal, capsys):
    with Listening(1) as bars:
        bars.begin("bf16 seed 0")
        nj.jit(lambda x: jnp.tanh(x @ x), target="trn2", policy="bf16")(X)
        bars.advance({"loss": 1.5})
    # Then what was done before, which is nothing, and the end.
    assert bars.heard[-4:] == ("emulating", "compiling", "", "")
    text = CONTROL.sub("", terminal.getvalue())
    assert "bf16 seed 0: loss 1.5 in " in text
    assert "on trn2" not in text
    assert not capsys.readouterr().err
    assert stages._owner is None


def test_a_stage_stands_beside_the_last_error(terminal):
    with SearchProgress(shown=True) as bar:
        bar.heard(40, 0.0125, 357e-6)
        stages.stage("verifying dots, 3 in this process")
        bar._bars.refresh()
    assert "40 verifying " in CONTROL.sub("", terminal.getvalue())
    last = CONTROL.sub("", terminal.getvalue()).rpartition("programs run")[2].strip()
    assert re.search(r"40 +error 0.013, predicted 357 µs 0:00:0", last)
    assert len(f"programs run {last}") <= 80


def test_bars_inside_another_display_are_not_drawn(terminal):
    with StudyProgress(1) as outer:
        outer.begin("native seed 0")
        with SearchProgress(shown=True) as inner:
            inner.heard(3, 0.5, 1.0)
            assert stages._owner is outer
    assert "programs run" not in terminal.getvalue()
    assert "1/1" in terminal.getvalue()


def test_a_wait_inside_a_wait_returns_to_it(monkeypatch):
    said = []

    class Watch:
        def __init__(self, name):
            said.append(name)

        def stage(self, name):
            said.append(name)

        def end(self):
            said.append("end")

    monkeypatch.setattr(stages, "watch", Watch)
    with stages.watching("step.py", "loading"):
        with stages.watching("step on trn2"):
            stages.stage("compiling")
        stages.stage("judging")
    wanted = ["starting, step on trn2", "compiling, step on trn2", "loading", "judging"]
    assert said == ["step.py", "loading", *wanted, "end"]
    assert not stages._within


def test_what_is_printed_below_a_bar_goes_where_it_went(terminal, capsys):
    with StudyProgress(1):
        print("mine")
    assert capsys.readouterr().out == "mine\n"
    assert "mine" not in terminal.getvalue()


# -- logs ------------------------------------------------------------------------------


def two_runs():
    with StudyProgress(2) as bars:
        bars.begin("host/fp32")
        bars.advance({"loss": 2.2137})
        bars.begin("trn2/fp8")
        bars.advance({})
        bars.advance({})


def test_a_log_has_a_line_for_each_run(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "1")
    two_runs()
    told = capsys.readouterr()
    first, second = told.err.splitlines()
    assert re.fullmatch(r"host/fp32: loss 2.214 in [\d.]+ .?s", first)
    assert re.fullmatch(r"trn2/fp8: 2 steps in [\d.]+ .?s", second)
    assert not told.out


def test_a_log_has_nothing_if_it_asks_for_nothing(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "0")
    two_runs()
    assert not capsys.readouterr().err


def test_a_search_is_silent_in_a_log_that_does_not_ask(monkeypatch, capsys):
    for asked in ("", "1"):
        monkeypatch.setenv(VARIABLE, asked)
        with SearchProgress(shown=True) as bar:
            bar.heard(3, 0.0125, 2e-3)
    assert capsys.readouterr().err == "program 3: error 0.013, predicted 2 ms\n"
