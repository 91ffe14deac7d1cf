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
from neuronjax.cli.sources import find
from neuronjax.execution import stages
from neuronjax.report import waiting
from neuronjax.report.progress import VARIABLE
from neuronjax.report.waiting import Waiting, summary

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


@pytest.mark.slow
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


def test_the_line_at_the_end_has_every_stage_that_took_long(monkeypatch):
    monkeypatch.setattr(waiting, "WORTH_SAYING_SECONDS", 0.1)
    stages = [
        ("starting", 0.0),
        ("capturing", 1.7),
        ("lowering", 2.302),
        ("emulating", 2.439),
        ("verifying dots, 1 in this process", 3.0),
        ("emulating", 3.05),
        ("compiling", 7.42),
    ]
    line = summary("train_step on trn2", stages, 27.2)
    assert line == (
        "train_step on trn2: 27.2 s (starting 1.70 s, capturing 602 ms, "
        "lowering 137 ms, emulating 4.93 s, compiling 19.8 s)"
    )
    assert summary("step", [("starting", 0.0)], 0.05) == "step: 50 ms"


@pytest.fixture
def pages(monkeypatch):
    """What a notebook's cell shows, one page in the place of the other."""
    ipython, found = pytest.importorskip("IPython"), []

    class Place:
        def update(self, data, *, raw):
            found.append(data)

    monkeypatch.setattr(ipython.display, "display", lambda *a, **k: Place())
    return found


def test_a_notebooks_line_is_replaced_by_the_summary(pages):
    shown = Waiting("step_on trn2", Console(force_jupyter=True))
    shown.stage("compiling")
    shown.end()
    assert re.match(r"step_on trn2: [\d.]+ .?s", pages[-1]["text/plain"])
    assert "compiling" not in pages[-1]["text/plain"].partition("(")[0]
    assert "step_on trn2" in pages[-1]["text/html"]


def test_what_was_stopped_is_said_and_the_next_call_is_shown(monkeypatch, capsys):
    train = call(monkeypatch, "1")
    jitted = train._jitted

    def interrupted(*args, **kwargs):
        jitted.lower(*args, **kwargs)  # JAX keeps the trace
        stages.stage("compiling")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(train, "_jitted", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(X)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "train on trn2: stopped in compiling after " in last
    assert last.endswith("XLA may go on compiling in the background")
    train(X)
    assert "train on trn2: compiling" in capsys.readouterr().err
    train(X)
    assert not capsys.readouterr().err


# -- what is not compiled --------------------------------------------------------------


@pytest.fixture
def said(monkeypatch):
    """What those who wait are told, from "+name" to "end"."""
    found = []

    class Watch:
        def __init__(self, name):
            found.append(f"+{name}")

        def stage(self, name):
            found.append(name)

        def end(self):
            found.append("end")

    monkeypatch.setattr(stages, "watch", Watch)
    return found


def turning(x):
    def body(carry, _):
        return jnp.tanh(carry @ carry), None

    inner = jax.jit(lambda x: x + 1)
    return inner(inner(jax.lax.scan(body, x, length=3)[0]))


def test_a_comparison_says_at_which_op_it_is(said):
    found = nj.compare(turning, policy="bf16")(X)
    comparing = [s for s in said if s.startswith("comparing")]
    assert said[0] == "+turning on trn2"
    assert said[1:4] == ["starting", "capturing", "lowering"]
    assert said[-2:] == ["judging", "end"]
    # The loop itself is a record, for how often it turns.
    count = sum(op.op != "stablehlo.while" for op in found.ops)
    assert comparing[0].startswith(f"comparing with float64, op 1 of {count}")
    assert comparing[-1] == f"comparing with float64, op {count} of {count}"
    turns = {s.rpartition(", ")[2] for s in comparing if "iteration" in s}
    assert turns == {f"iteration {n}" for n in (1, 2, 3, 4)}  # the last time it ends


def amplifying(x):
    return jnp.sin(1e3 * (x @ x))


@pytest.mark.slow
def test_so_does_one_with_an_edit_or_a_divergence(said):
    nj.compare(turning, against=lambda x: turning(x * 2), policy="bf16")(X)
    assert any(s.startswith("running, op 2 of ") for s in said)
    x = jax.random.normal(jax.random.key(0), (8, 8))
    nj.compare(amplifying, policy="bf16", reference="float32")(x)
    assert any(s.startswith("comparing with float32, op 2 of ") for s in said)
    assert any(s.startswith("explaining, op 1 of ") for s in said)
    assert said.count("end") == 2


def test_a_comparison_that_fails_is_over(said):
    with pytest.raises(TypeError):
        nj.compare(turning)(X, X)
    assert said[-1] == "end"
    assert stages._owner is None


def test_a_profile_says_what_it_is_at(said):
    nj.profile(turning)(X)
    assert said[0] == "+turning on trn2"
    assert "lowering" in said
    assert said[-2:] == ["pricing", "end"]


def test_the_users_file_is_loaded(said, tmp_path):
    path = tmp_path / "step.py"
    path.write_text("import neuronjax as nj\n\n\ndef step(x):\n    return x\n")
    find(f"{path}:step")
    assert said == ["+step.py", "loading", "end"]


def test_a_log_is_told_of_a_comparison(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "1")
    nj.compare(turning, policy="bf16")(X)
    lines = capsys.readouterr().err.splitlines()
    assert "turning on trn2: comparing with float64" in lines
    assert re.fullmatch(r"turning on trn2: .*comparing with float64 .*\)", lines[-1])
    monkeypatch.delenv(VARIABLE)
    nj.compare(turning, policy="bf16")(X)
    assert not capsys.readouterr().err


def test_what_is_compiled_ahead_says_so_though_jax_has_traced_it_before(said):
    lowered = nj.jit(turning).lower(X)
    for program in (lowered, lowered, nj.load(str(lowered.program).encode())):
        said.clear()
        program.compile()
        assert said[0].endswith(" on trn2")
        assert "compiling" in said
        assert said[-1] == "end"
