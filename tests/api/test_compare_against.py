"""`compare(f, against=g)` on edits that are known."""

import functools
import itertools
import json
import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from typer.testing import CliRunner

import neuronjax as nj
from neuronjax.cli import app
from neuronjax.diagnostics.edits.alignment import common
from neuronjax.errors import InvalidProgramError
from tests.arrays import normal

SIZE = 16


P = {name: normal(SIZE, SIZE, seed=n) / 4 for n, name in enumerate("abc")}
X = normal(8, SIZE, seed=9)


def network(epsilon=1e-6, activation=jnp.tanh, head="b", more=False, rows=8):
    """A function, or the same one after an edit."""

    def step(p, x):
        with jax.named_scope("encoder"):
            h = activation(x @ p["a"])
        with jax.named_scope("norm"):
            h = h * lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + epsilon)
        if more:
            with jax.named_scope("scale"):
                h = h * 1.0001
        total, sums = lax.scan(
            lambda c, r: (jnp.tanh(c + r), c.sum()), jnp.zeros(SIZE), h[:rows]
        )
        return {"y": jax.nn.softmax(h @ p[head]), "total": total, "sums": sums}

    return step


def compared(**edit):
    return nj.compare(network(), against=network(**edit), policy="bf16")(P, X)


@pytest.mark.slow
def test_the_same_program_has_no_edits():
    found = compared()
    assert found.is_same
    assert found.edits == ()
    assert found.first is None
    assert found.differing == 0
    assert [o.path for o in found.outputs] == ["sums", "total", "y"]
    assert "no bit differs" in str(found)


@pytest.mark.slow
def test_another_constant_is_named_where_it_is_read():
    found = compared(epsilon=1e-2)
    [edit] = found.edits
    assert edit.kind == "changed"
    assert edit.after is not None
    assert edit.after.op == "constant"
    assert edit.after.module == "norm"
    assert "test_compare_against.py" in edit.after.source
    assert found.first is not None
    assert found.first.is_edit
    assert not found.is_same
    assert max(map(len, str(found).splitlines())) <= 80


@pytest.mark.slow
def test_another_op_in_its_place():
    found = compared(activation=jnp.sin)
    [edit] = found.edits
    assert edit.kind == "replaced"
    assert edit.before is not None
    assert (edit.before.op, edit.before.module) == ("tanh", "encoder")
    assert edit.differs
    assert found.first is not None
    assert found.first.after.op == "sine"
    assert "replaced: tanh -> sine in encoder" in str(found)


def test_the_same_op_of_another_value():
    found = compared(head="c")
    [edit] = found.edits
    assert edit.kind == "rewired"
    assert found.first is not None
    assert found.first.after.op == "dot_general"
    assert found.first.is_edit
    differs = {o.path: o.differs for o in found.outputs}
    assert differs == {"sums": False, "total": False, "y": True}


@pytest.mark.slow
def test_what_is_added_has_consequences_in_a_loop_too():
    found = compared(more=True)
    assert {e.kind for e in found.edits} == {"added"}
    assert "multiply" in {e.after.op for e in found.edits if e.after}
    first = found.first
    assert first is not None
    assert not first.is_edit
    assert first.iteration == (0,)
    assert {e.kind for e in first.because} == {"added"}
    shown = " ".join(str(found).split())
    assert "a cause: added on test_compare_against.py:" in shown
    assert "constant 1.0001" in shown
    back = nj.compare(network(more=True), against=network())(P, X)
    assert {e.kind for e in back.edits} == {"removed"}
    assert back.first is not None
    assert {e.kind for e in back.first.because} == {"removed"}


def test_an_edit_without_an_effect_says_so():
    def before(x):
        return jnp.maximum(x, x) + 1

    def after(x):
        return jnp.minimum(x, x) + 1

    found = nj.compare(before, against=after)(X)
    [edit] = found.edits
    assert edit.differs is False
    assert found.is_same
    assert "with the same values" in " ".join(str(found).split())


@pytest.mark.slow
def test_outputs_of_other_shapes_and_names():
    found = compared(rows=4)
    notes = {o.path: o.note for o in found.outputs}
    assert notes["sums"] == "float32[8] -> float32[4]"
    assert not found.is_same

    def fewer(p, x):
        return {"y": network()(p, x)["y"]}

    found = nj.compare(network(), against=fewer)(P, X)
    assert {o.path: o.note for o in found.outputs}["total"] == "only before"


@pytest.mark.slow
def test_a_tolerance_hides_what_is_smaller():
    edit = functools.partial(nj.compare, network(), against=network(more=True))
    assert edit(tolerance=1e-2)(P, X).first is None
    assert edit(tolerance=1e-6)(P, X).first is not None


@pytest.mark.slow
def test_gradients_and_calls_are_aligned():
    def loss(epsilon):
        step = jax.checkpoint(network(epsilon))
        return jax.grad(lambda p, x: step(p, x)["y"][:, 0].sum())

    same = nj.compare(loss(1e-6), against=loss(1e-6))(P, X)
    assert same.is_same
    assert not same.edits
    found = nj.compare(loss(1e-6), against=loss(1e-2))(P, X)
    assert {e.kind for e in found.edits} == {"changed"}
    assert {e.after.op for e in found.edits if e.after} == {"constant"}
    assert not found.is_same


def test_against_has_no_reference():
    cases: list[dict[str, Any]] = [{"reference": "float32"}, {"baseline": "float32"}]
    for options in cases:
        with pytest.raises(InvalidProgramError, match="without a reference"):
            nj.compare(network(), against=network(), **options)


@pytest.mark.slow
def test_the_command(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        "import jax.numpy as jnp\n"
        "def step(x):\n    return jnp.tanh(x) * 2\n"
        "def other(x):\n    return jnp.sin(x) * 2\n"
    )

    def run(name, *options):
        words = ["compare", f"{path}:step", "--against", f"{path}:{name}"]
        return CliRunner().invoke(app, [*words, "--args", "f32[8]", *options])

    same = run("step")
    assert same.exit_code == 0, same.output
    wrong = run("other", "--json")
    assert wrong.exit_code == 1
    assert json.loads(wrong.output)["edits"][0]["kind"] == "replaced"


def test_the_subsequence_is_a_longest_one():
    """By trying all of them."""
    generator = random.Random(0)
    for _ in range(60):
        left, right = (
            [generator.choice("abcd") for _ in range(generator.randrange(8))]
            for _ in range(2)
        )
        pairs = common(left, right)
        assert all(left[i] == right[j] for i, j in pairs)
        assert pairs == sorted(set(pairs))
        assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
        longest = max(
            n
            for n in range(len(left) + 1)
            for chosen in itertools.combinations(left, n)
            if _is_within(chosen, right)
        )
        assert len(pairs) == longest


def _is_within(short, long):
    rest = iter(long)
    return all(any(x == y for y in rest) for x in short)
