"""What somebody sees who waits for a program to be compiled."""

from __future__ import annotations

import io
import re
import threading

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

import neuronjax as nj
from neuronjax.execution import stages
from neuronjax.report import waiting
from neuronjax.report.waiting import VARIABLE, Waiting

X = jnp.ones((4, 4))


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "WORTH_SAYING_SECONDS", 0.0)


def threads():
    return threading.active_count()


def call(monkeypatch, said):
    monkeypatch.setenv(VARIABLE, said)

    def train(x):
        return jnp.tanh(x @ x) + 1

    return nj.jit(train, target="trn2", policy="bf16")


def test_a_log_is_told_when_asked(monkeypatch, capsys):
    before = threads()
    train = call(monkeypatch, "1")
    train(X)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("train on trn2: ")
    assert re.fullmatch(r"train on trn2: [\d.]+ m?s \(.*, compiling .*\)", lines[-1])
    assert threads() == before
    train(X)  # compiled already
    assert not capsys.readouterr().err


def test_ahead_of_time_too(monkeypatch, capsys):
    call(monkeypatch, "1").lower(X).compile()
    assert "compiling" in capsys.readouterr().err


@pytest.mark.parametrize("said", ["", "0"])
def test_a_log_is_not_told_else(monkeypatch, capsys, said):
    call(monkeypatch, said)(X)
    told = capsys.readouterr()
    assert not told.err
    assert not told.out


def test_what_is_compiled_at_once_shows_nothing(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 1000.0)
    call(monkeypatch, "1")(X)
    assert not capsys.readouterr().err


def test_an_error_ends_it(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "1")
    before = threads()

    def fails(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        nj.jit(fails, target="trn2")(X)
    assert threads() == before
    call(monkeypatch, "1")(X)  # another one is shown again
    assert "train on trn2: " in capsys.readouterr().err


def test_nested_and_transformed_programs_are_one(monkeypatch, capsys):
    train = call(monkeypatch, "1")
    jax.grad(lambda x: jax.vmap(train)(x[None]).sum())(X)
    jax.jit(lambda x: train(x) + train(x))(X)
    names = {line.partition(":")[0] for line in capsys.readouterr().err.splitlines()}
    assert names == {"train on trn2"}
    assert stages._owner is None


def test_a_terminal_has_one_line_that_goes():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60)
    shown = Waiting("step on trn2", console)
    shown.stage("capturing")
    shown.stage("verifying dots, 3 in this process")
    shown.end()
    assert re.search(r"step on trn2: .*s \(starting", out.getvalue())
    assert "verifying dots" in out.getvalue()


@pytest.mark.parametrize(("said", "seen"), [("", True), ("1", True), ("0", False)])
def test_who_is_shown_it(monkeypatch, said, seen):
    monkeypatch.setenv(VARIABLE, said)
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, to Rich
    shown = Waiting.of("step")
    assert (shown is not None) == seen
    if shown is not None:
        shown.end()
