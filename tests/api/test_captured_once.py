"""A function is not captured again while its arguments keep their types."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj


def counted(function):
    def called(*args, **kwargs):
        called.calls += 1
        return function(*args, **kwargs)

    called.calls = 0
    return called


def ones(*shape):
    return np.ones(shape, np.float32)


def test_compare_traces_once():
    f = counted(lambda x, w: {"y": jnp.tanh(x @ w)})
    compared = nj.compare(f, policy="bf16")
    first = compared(ones(4, 8), ones(8, 2))
    second = compared(2 * ones(4, 8), ones(8, 2))
    assert f.calls == 1
    assert [r.source for r in first.ops] == [r.source for r in second.ops]
    again = nj.compare(f, policy="bf16")(2 * ones(4, 8), ones(8, 2))
    assert second.ops == again.ops
    assert second.results == again.results


def test_other_types_are_traced():
    f = counted(lambda x: (x + 1, x) if x.ndim == 1 else {"only": x * 2})
    step = nj.jit(f)
    for shape, tree in [((3,), 2), ((3, 2), 1), ((3,), 2), ((3,), 2)]:
        captured = step.captured(ones(*shape))
        assert captured.out_tree.num_leaves == tree
        assert [o.shape for o in captured.outputs] == [shape] * tree
        assert captured.inputs[0].shape == shape
    assert f.calls == 3  # only the last captured program is kept


def test_a_setting_of_jax_is_obeyed():
    step = nj.jit(f := counted(lambda x: x @ x))
    for precision, is_same in [(None, False), ("highest", False), ("highest", True)]:
        before = f.calls
        with jax.default_matmul_precision(precision):
            text = step.captured(ones(3, 3)).program.text()
        assert ("HIGHEST" in text) == (precision == "highest")
        assert (f.calls == before) == is_same


def test_a_policy_scope_is_obeyed():
    compared = nj.compare(lambda x: x @ x)
    x = np.full((8, 8), 1.001, np.float32)
    errors = []
    for policy in ("bf16", "fp32", "bf16"):
        with nj.policy_scope(policy):
            errors.append(compared(x).results[0]["rel_l2"])
    assert errors[0] == errors[2] > 100 * errors[1]


def test_static_arguments():
    f = counted(lambda x, n, **named: x * n + len(named))
    step = nj.jit(f, static_argnums=1, static_argnames="extra")
    programs = [step.captured(ones(3), n).program for n in (2, 3, 3)]
    assert programs[0] is not programs[1]
    assert programs[1] is programs[2]
    assert step.captured(ones(3), 3, extra="a").program is not programs[2]
    assert f.calls == 3


@pytest.mark.parametrize("pair", [(2, 2.0), (1, True)])
def test_equal_static_arguments_of_two_types(pair):
    step = nj.jit(lambda x, n: x + 1 if n is True else x * n, static_argnums=1)
    x = np.arange(3, dtype=np.int32)
    for n in pair:
        [found] = step.captured(x, n).outputs
        assert found.dtype == step(x, n).dtype
    one, two = (step.captured(x, n).program.text() for n in pair)
    assert one != two


def test_clear_cache():
    factor = [2.0]
    step = nj.jit(f := counted(lambda x: x * factor[0]))
    before = step.captured(ones(3)).program.text()
    factor[0] = 5.0
    assert step.captured(ones(3)).program.text() == before
    step.clear_cache()
    assert step.captured(ones(3)).program.text() != before
    assert f.calls == 2


def test_notes_are_those_of_the_call():
    def host(x):
        return jax.pure_callback(lambda x: np.asarray(x) * 2, x, x)

    def branching(p, x):
        return jax.lax.cond(p > 0, host, lambda x: x * 2, x)

    compared = nj.compare(branching, policy=nj.Policy(callbacks="host"))
    notes = [compared(np.float32(p), ones(3)).notes for p in (-1, 1, -1)]
    assert notes[0] == notes[2] == ()
    assert "host_call" in notes[1][0]


def test_static_arguments_without_a_hash_are_captured_anew():
    f = counted(lambda x, sizes: x * sizes[0])
    step = nj.jit(f, static_argnums=1)
    one, two = (step.captured(ones(3), [n]).program for n in (2, 3))
    assert one is not two
    assert f.calls == 2


def test_arguments_are_not_kept():
    step, x = nj.jit(lambda x: x * 2), jnp.ones(3)
    step.captured(x)
    freed = weakref.ref(x)
    del x
    gc.collect()
    assert freed() is None


def test_an_error_of_the_function_is_raised_each_time():
    def refused(x):
        raise TypeError("refused")

    step = nj.jit(refused)
    for _ in range(2):
        with pytest.raises(TypeError, match="refused"):
            step.captured(ones(3))


def test_written_modules():
    nnx = pytest.importorskip("flax.nnx")

    class Counter(nnx.Module):
        def __init__(self):
            self.count = nnx.Variable(jnp.zeros(()))

        def __call__(self, x):
            self.count[...] += x.sum()
            return x * self.count[...]

    compared = nj.compare(lambda module, x: module(x), policy="bf16")
    counter = Counter()
    reports = [compared(counter, n * ones(3)) for n in (1, 2)]
    assert [len(r.results) for r in reports] == [2, 2]
    assert float(counter.count[...]) == 0.0
