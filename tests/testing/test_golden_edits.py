"""Goldens name the line that the user edited, and who changed the program."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.testing import GoldenMismatch, ProgramChangedWarning, golden, golden_file
from neuronjax.testing.golden_run import Today
from neuronjax.testing.program_change import ProgramChange
from neuronjax.testing.source_lines import EditedLines, SourceBlock, SourceLines
from tests.testing.edited_model import MODELS, edited_line, step_of

JAX = tuple(map(int, jax.__version__.split(".")[:2]))
#: Edits whose op has the first line of a statement of several, or another's.
ON_ANOTHER_LINE = {
    "residual_left_out": 28,
    "gate_bias": 8,
    "gate_input": 8,
    "start": 33 if JAX < (0, 12) else 7,  # where JAX has put a constant of that value
    "reverse": 24,
}
VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "neuronjax": "1", "numpy": "2"}


def today(model, edit, path):
    text, edits, arguments = MODELS[model]
    if edit:
        assert text.count(edits[edit][0]) == 1
        text = text.replace(*edits[edit])
    return Today.of(nj.jit(step_of(text, path), policy="bf16"), arguments(), {})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """One file, edited again and again: JAX remembers where it first saw a loop."""
    return tmp_path_factory.mktemp("models") / "model.py"


@pytest.fixture(scope="module")
def stored(path):
    return {model: today(model, "", path) for model in MODELS}


def change(before, now, sources=..., versions=VERSIONS):
    kept = before.sources if sources is ... else sources
    return ProgramChange.between(
        (before.program, now.program), (kept, now.sources), (VERSIONS, versions)
    )


@pytest.mark.slow_except(
    "recurrent-gate_bias",
    "recurrent-reset_gate",
    "recurrent-start",
    "recurrent-pooling",
)
@pytest.mark.parametrize(
    ("model", "edit"), [(model, edit) for model in MODELS for edit in MODELS[model][1]]
)
def test_the_edited_line_is_named_first(stored, path, model, edit):
    text, edits, _ = MODELS[model]
    line = edited_line(text, edits[edit])
    found = change(stored[model], today(model, edit, path))
    assert found.cause == "source"
    assert found.because == f"the source was edited, model.py:{line}"
    shown = [*found.report()]
    assert shown[0] == found.because
    was, now = (t.splitlines()[line - 1] for t in (text, text.replace(*edits[edit])))
    assert shown[1:3] == [
        f"  - {was.strip()}  (model.py:{line})",
        f"  + {now.strip()}  (model.py:{line})",
    ]
    assert shown[3].startswith("first op that changed: ")
    at = ON_ANOTHER_LINE.get(edit, line)
    assert found.edits[0].op.source == f"model.py:{at}"


@pytest.mark.slow
def test_values_of_constants_are_shown(stored, path):
    shown = {
        edit: str(change(stored["block"], today("block", edit, path)).edits[0])
        for edit in ("epsilon", "softmax_axis", "clip")
    }
    assert shown == {
        "epsilon": "constant, model.py:9: value 1e-05 -> 1e-06",
        "softmax_axis": "reduce, model.py:17: dimensions (1,) -> (0,)",
        "clip": "call, model.py:39: reads -1.0 -> -0.5, reads 1.0 -> 0.5",
    }


@pytest.mark.slow
def test_who_changed_the_program(stored, path):
    """The same two programs, with what else is known of their making."""
    before, now = stored["block"], today("block", "scale", path)
    newer = VERSIONS | {"jax": "0.12.0", "numpy": "3"}
    assert change(before, now).cause == "source"
    both = change(before, now, versions=newer)
    assert both.cause == "source or jax"
    assert both.because.endswith("model.py:14, and jax 0.10.2 -> 0.12.0")
    by_jax = change(before, now, sources=now.sources, versions=newer)
    assert by_jax.cause == "jax"
    assert "the source is the same, and jax 0.10.2 -> 0.12.0" in by_jax.because
    assert change(before, now, sources=now.sources).cause == "values"
    assert change(before, now, sources=None).cause == "unknown"
    assert "JAX is the same" in change(before, now, sources=None).because


@pytest.mark.slow
def test_a_function_that_reads_another_value(tmp_path):
    def reading(scale):
        return lambda x: x * scale

    guard = dict(directory=tmp_path, policy="bf16")
    golden("read", reading(2.0), update=True, **guard)(np.ones(4, np.float32))
    check = golden("read", reading(3.0), update=False, changed_program="fail", **guard)
    with pytest.raises(GoldenMismatch, match="a value or a library that the") as caught:
        check(np.ones(4, np.float32))
    assert caught.value.change is not None
    assert caught.value.change.cause == "values"
    assert "value 2.0 -> 3.0" in str(caught.value)


@pytest.mark.slow
def test_results_in_another_order(tmp_path):
    """No op is another, and yet the program is."""
    guard = dict(directory=tmp_path, policy="bf16")
    x = np.ones(4, np.float32)
    golden("pair", lambda x: (x + 1, x * 2), update=True, **guard)(x)
    swapped = golden(
        "pair",
        lambda x: (x + 1, x * 2)[::-1],
        update=False,
        changed_program="fail",
        **guard,
    )
    with pytest.raises(GoldenMismatch, match=r"- results %3 %5") as caught:
        swapped(x)
    assert caught.value.change is not None
    assert caught.value.change.edits == ()


@pytest.fixture
def guard(tmp_path):
    """A golden of the block, and the check after an edit."""
    text, edits, arguments = MODELS["block"]
    path = tmp_path / "model.py"

    def check(edit="", **options):
        edited = text.replace(*edits[edit]) if edit else text
        options = {"policy": "bf16", "update": False, **options}
        step = step_of(edited, path)
        return golden("step", step, directory=tmp_path, **options)(*arguments())

    check(update=True)
    return check


@pytest.mark.slow
def test_a_failure_and_a_warning_say_all_this(guard, tmp_path):
    with pytest.raises(GoldenMismatch, match="program, with other bits") as caught:
        guard("penalty", changed_program="bits")
    lines = str(caught.value).splitlines()
    assert lines[1] == "  the source was edited, model.py:34"
    assert "value 0.0625 -> 0.03125" in lines[4]
    program = tmp_path / "step.mlirbc"
    assert f'neuronjax.compare(function, against="{program}")' in str(caught.value)
    with pytest.warns(ProgramChangedWarning, match="was edited, model.py:34") as told:
        report = guard("penalty", changed_program="warn")
    assert "JAX" not in str(told[0].message)
    assert report.change is not None
    assert report.change.cause == "source"


def newer(monkeypatch):
    """As if another JAX had captured the golden."""
    versions = golden_file.provenance() | {"jax": "0.0.1"}
    monkeypatch.setattr(golden_file, "provenance", lambda: versions)


@pytest.mark.slow
def test_an_edit_fails_and_another_jax_alone_warns(guard, tmp_path, monkeypatch):
    with pytest.raises(GoldenMismatch, match="the source was edited"):
        guard("penalty")
    newer(monkeypatch)
    with pytest.raises(GoldenMismatch, match=r"was edited, .*, and jax .* -> 0.0.1"):
        guard("penalty")
    # The same source, and a program that another JAX would have made.
    stored = golden_file.read(tmp_path / "step")
    text, edits, arguments = MODELS["block"]
    edited = step_of(text.replace(*edits["penalty"]), tmp_path / "model.py")
    now = Today.of(nj.jit(edited, policy="bf16"), arguments(), {})
    dataclasses.replace(stored, sources=now.sources).write(tmp_path / "step")
    with pytest.warns(ProgramChangedWarning, match=r"jax .* -> 0.0.1: this JAX makes"):
        assert guard("penalty").today == "other bits"
    with pytest.raises(GoldenMismatch, match="this JAX makes another program"):
        guard("penalty", changed_program="bits")


@pytest.mark.slow
def test_a_golden_without_lines_is_read(guard, tmp_path):
    stored = golden_file.read(tmp_path / "step")
    assert stored.sources is not None
    dataclasses.replace(stored, sources=None).write(tmp_path / "step")
    assert golden_file.read(tmp_path / "step").sources is None
    with pytest.raises(GoldenMismatch, match="JAX is the same: the source, or"):
        guard("penalty")
    assert guard(update=True).written
    assert golden_file.read(tmp_path / "step").sources == stored.sources


@pytest.mark.slow
def test_a_stored_program_is_compared_op_by_op(tmp_path):
    def f(x):
        return {"y": jnp.tanh(x) * 2.0}

    x = np.linspace(-1, 1, 8, dtype=np.float32)
    golden("f", f, directory=tmp_path, update=True)(x)
    path = tmp_path / "f.mlirbc"
    same = nj.compare(f, against=path)(x)
    assert same.is_same
    assert same.edits == ()
    other = nj.compare(lambda x: {"y": jnp.sin(x) * 2.0}, against=path)(x)
    [edit] = other.edits
    assert (edit.kind, other.outputs[0].path) == ("replaced", "y")
    with pytest.raises(
        nj.InvalidProgramError, match="takes 8xfloat32, but the function"
    ):
        nj.compare(f, against=str(path))(x[:4])


# ---- Lines of source.

TEXT = """\
scale = (
    2
)

def outer(x):
    # a remark
    y = (x
         + 1)

    def inner(z):
        return z

    for n in range(
        3
    ):
        y = inner(y)
    return y
"""


@pytest.fixture
def source(tmp_path):
    def lines(text, *numbers):
        path = tmp_path / "text.py"
        path.write_text(text)
        return SourceLines.of((str(path), n) for n in numbers)

    return lines


def test_blocks_are_functions_and_statements(source):
    found = source(TEXT, 2, 7, 11)
    statement, outer = found.files["text.py"]
    assert statement == SourceBlock(1, "scale = (\n    2\n)\n")
    assert (outer.first, len(outer.lines)) == (5, 13)
    inner = source(TEXT, 11).files["text.py"]
    assert inner == (SourceBlock(10, "def inner(z):\n    return z\n"),)
    assert found.statement("text.py:8") == {"text.py:7", "text.py:8"}
    assert found.statement("text.py:11") == {"text.py:11"}
    assert found.statement("text.py:14") == {f"text.py:{n}" for n in (13, 14, 15)}
    assert found.statement("other.py:8") == set()
    assert source("this is no Python\n", 1).files["text.py"][0].first == 1
    assert source(TEXT, 99).files == {}


def test_remarks_and_places_are_no_edits(source):
    before = source(TEXT, 7)
    moved = "\n\n" + TEXT.replace("# a remark", "# another\n    # one")
    assert not EditedLines.between(before, source(moved, 11))
    edited = EditedLines.between(before, source(moved.replace("+ 1", "+ 2"), 11))
    assert edited.before == {"text.py:8": "         + 1)"}
    assert edited.after == {"text.py:11": "         + 2)"}
