"""What lowered programs, changes and places look like in a terminal and a notebook."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj
from neuronjax.diagnostics.limits import Changes
from neuronjax.report.places import cell_place, place, places


def double_then_sum(x):
    return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ y), x).sum()


@pytest.fixture(scope="module")
def lowered():
    emulated = nj.jit(double_then_sum, target="trn2", policy="bf16")
    return emulated.lower(jnp.ones((16, 16)))


def test_the_listing_has_every_instruction_with_engine_label_and_line(lowered):
    lines = str(lowered).splitlines()
    count = len(lowered.instructions)
    head = "double_then_sum on trn2, LNC 2, policy bf16 (matmuls in BF16), SDK "
    assert lines[0].startswith(head)
    assert " ".join(lines[:2]).split(": ")[1].startswith(f"{count} instructions")
    rows = [line for line in lines if line.startswith(" %")]
    assert len(rows) == count
    matmul = next(row for row in rows if "nc_matmul" in row)
    assert "f32[16,16]" in matmul
    assert "tensor.nc_matmul" in matmul
    assert "modelled" in matmul
    assert "test_program_display.py:" in matmul or "…" in matmul
    assert max(map(len, lines)) <= 80


def test_blocks_are_indented(lowered):
    rows = str(lowered).splitlines()
    (loop,) = [row.index("sync.loop") for row in rows if "sync.loop" in row]
    inside = [row.index("tensor.nc_matmul") for row in rows if "nc_matmul" in row]
    assert all(start > loop for start in inside)


def test_what_changes_numbers_is_named():
    policy = nj.Policy(auto_cast="matmult", auto_cast_type="bf16", psum_dtype="float32")
    fp32 = nj.jit(lambda x: x @ x, policy="fp32").lower(jnp.ones((4, 4)))
    bf16 = nj.jit(lambda x: x @ x, policy=policy).lower(jnp.ones((4, 4)))
    assert "passes=4" in str(fp32)
    assert "passes" not in str(bf16)


def test_a_long_program_is_cut_and_says_so():
    def long(x):
        for _ in range(60):
            x = jnp.sin(x)
        return x

    text = str(nj.jit(long).lower(jnp.ones(4)))
    assert "as_text('instructions')" in text
    assert text.count("activation") == 40


@pytest.mark.slow
def test_compiled_and_lowered_show_the_same(lowered):
    compiled = lowered.compile()
    assert compiled._repr_html_() == lowered._repr_html_()
    assert repr(lowered).startswith("<neuronjax.Lowered double_then_sum on trn2")
    assert repr(compiled).startswith("<neuronjax.Compiled double_then_sum on trn2")


def test_limits_are_a_tuple_that_prints():
    profiled = nj.profile(double_then_sum, policy="fp32")(jnp.ones((512, 512)))
    found = profiled.limits()
    assert isinstance(found, Changes)
    assert tuple(found) == found
    assert "× faster" in str(found)
    assert found[0].what in repr(found)
    assert "<table" in found._repr_html_()


def test_a_report_of_check_shows_itself():
    report = nj.check(lambda x: jnp.argmax(x))(jnp.ones(4))
    assert "1 error" in repr(report)
    assert "variadic-reduction" in report._repr_html_()
    assert str(report).splitlines()[0].startswith("<lambda> on trn2")


def test_places(monkeypatch):
    assert place("/a/b/model.py:12") == "model.py:12"
    assert place("") == "(no line)"
    assert cell_place("/a/b/model.py:12") == ""

    def name_of(file: str) -> tuple[str, str] | None:
        return ("Cell", "In[3]") if file == "/x/ipykernel_1/2.py" else None

    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=name_of))
    python = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", python)
    assert place("/x/ipykernel_1/2.py:7") == "In[3]:7"
    assert place("/a/b/model.py:12") == "model.py:12"
    x = jnp.ones(4)
    from_cell = compile("def f(x): return jnp.exp(x)", "/x/ipykernel_1/2.py", "exec")
    names: dict[str, Any] = {"jnp": jnp}
    exec(from_cell, names)
    assert "In[3]:1" in nj.profile(names["f"])(x).by_source()
    assert (
        nj.jit(names["f"]).lower(x).as_text("instructions").count("  # modelled In[3]")
    )


def test_places_that_would_be_alike_keep_a_folder():
    paths = ["/a/b/model.py:12", "/a/c/model.py:12", "/a/b/train.py:3", "model.py:12"]
    short = ["b/model.py:12", "c/model.py:12", "train.py:3", "model.py:12"]
    assert places(paths) == dict(zip(paths, short, strict=True))
