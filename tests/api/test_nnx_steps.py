"""Reports of a step that writes into Flax NNX modules: what it writes is a result.

The oracle is the same step as a function that returns its state.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neuronjax as nj
from neuronjax.api.nnx_state import Stepped

X = jnp.asarray(np.random.default_rng(0).standard_normal((8, 16)), jnp.float32)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(16, 16, rngs=rngs) for _ in range(2)])
        self.norm = nnx.RMSNorm(16, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return self.norm(x)


def loss_of(model, x):
    return jnp.mean((model(x) - 1) ** 2)


def healthy(model, optimizer, x):
    loss, gradients = nnx.value_and_grad(loss_of)(model, x)
    optimizer.update(model, gradients)
    return loss


def faulty(model, optimizer, x):
    loss, gradients = nnx.value_and_grad(loss_of)(model, x)
    gradients = jax.tree.map(lambda g: 1e-6 * g, gradients)
    gradients = jax.tree.map(lambda g: g.astype(jnp.float16), gradients)
    optimizer.update(model, gradients)
    return loss


def made():
    model = Net(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


def returning(step):
    """The step as a function of states, and its arguments."""
    graph, state = nnx.split(made())

    def pure(state, x):
        model, optimizer = nnx.merge(graph, state)
        loss = step(model, optimizer, x)
        return nnx.state((model, optimizer)), loss

    return pure, state


ARRAYS = len(jax.tree.leaves(nnx.state(made())))
KERNEL = "model/layers/0/kernel/value"


# -- compare ---------------------------------------------------------------------------


def verdict_of(report):
    assert report.verdict is not None
    return report.verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    "jitted", [nnx.jit, lambda step: step], ids=["nnx.jit", "as is"]
)
def test_what_a_step_writes_is_judged(jitted):
    report = nj.compare(jitted(faulty), policy="bf16")(*made(), X)
    pure, state = returning(faulty)
    expected = nj.compare(pure, policy="bf16")(state, X)
    assert verdict_of(report).results == verdict_of(expected).results == ARRAYS + 1
    assert len(verdict_of(report).wrong) == len(verdict_of(expected).wrong) > 0
    assert report.faults[0].record.source == expected.faults[0].record.source
    assert "nothing wrong" not in str(report)
    names = {wrong.name for wrong in verdict_of(report).wrong}
    assert all(name.startswith(("model/", "optimizer/")) for name in names)


@pytest.mark.slow
def test_a_healthy_step_is_not_accused():
    report = nj.compare(nnx.jit(healthy), policy="bf16")(*made(), X)
    assert f"nothing wrong: all {ARRAYS + 1} results" in str(report)


@pytest.mark.slow
def test_a_step_of_the_scope_is_judged_too():
    with nj.emulated(policy="bf16"):
        step = nnx.jit(faulty)
    assert verdict_of(nj.compare(step, policy="bf16")(*made(), X)).wrong


@pytest.mark.parametrize("graph", [True, False])
def test_what_is_only_read_is_no_result(graph):
    forward = nnx.jit(lambda model, x: model(x), graph=graph)
    assert verdict_of(nj.compare(forward)(made()[0], X)).results == 1


@pytest.mark.slow
def test_what_is_written_besides_parameters():
    class Noisy(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(16, rngs=rngs)

    step = nnx.jit(lambda model, x: model.norm(x))
    lowered = nj.profile(step)(Noisy(nnx.Rngs(0)), X).outputs
    assert isinstance(lowered, Stepped)
    assert set(lowered.state) == {"model/norm/mean/value", "model/norm/var/value"}
    mean = 0.01 * np.mean(X, axis=0)
    np.testing.assert_allclose(lowered.state["model/norm/mean/value"], mean, rtol=1e-5)


@pytest.mark.slow
def test_a_step_against_its_edit():
    report = nj.compare(nnx.jit(healthy), against=nnx.jit(faulty))(*made(), X)
    assert KERNEL in str([output.path for output in report.outputs])


# -- the other doors -------------------------------------------------------------------


def test_hbm_holds_what_is_written():
    pure, state = returning(healthy)
    found = nj.profile(nnx.jit(healthy))(*made(), X).memory.hbm.categories
    expected = nj.profile(pure)(state, X).memory.hbm.categories
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert found["outputs"] == expected["outputs"] == size + 4
    assert found == expected
    assert found["inputs"] == X.nbytes


@pytest.mark.slow
def test_bounds_of_what_is_written():
    bounds = nj.tolerance(nnx.jit(healthy))(*made(), X)
    assert len(bounds.outputs) == ARRAYS + 1
    assert KERNEL in {output.path for output in bounds.outputs}


def searched(outputs, **options):
    return nj.search_precision(
        nnx.jit(healthy),
        tolerance=1.0,
        outputs=outputs,
        candidates=("bf16", "fp32"),
        variations=0,
        progress=False,
        **options,
    )(*made(), X)


@pytest.mark.slow
def test_a_search_measures_what_is_written():
    assert searched("^model/layers").elements == 2 * (16 * 16 + 16)
    assert searched("^result$").elements == 1
    assert searched(lambda found: found.state[KERNEL]).elements == 16 * 16


def steps_of(run, model, optimizer, x):
    losses = [run(model, optimizer, x) for _ in range(3)]
    return losses, nnx.state(model)


def steps_of_states(run, state, x):
    losses = []
    for _ in range(3):
        state, loss = run(state, x)
        losses.append(loss)
    return losses, state[0]


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_what_is_evaluated_has_the_steps_behind_it(compiled):
    """As the function of states that a search carries on by hand; the module that was
    given is as it was."""
    options = {"tolerance": 1.0, "candidates": ("bf16", "fp32"), "variations": 0}
    options |= {"progress": False, "compiled": compiled, "objective": "preference"}
    model, optimizer = made()
    before = jax.tree.map(np.asarray, nnx.state(model))
    search = nj.search_precision(nnx.jit(healthy), evaluate=steps_of, **options)
    found = search(model, optimizer, X)
    pure, state = returning(healthy)
    by_hand = nj.search_precision(pure, evaluate=steps_of_states, **options)(state, X)
    assert found.error == by_hand.error > 0
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), before)


@pytest.mark.slow
def test_the_native_reference_is_evaluated_likewise():
    seen = []

    def losses(run, *arguments):
        seen.append(steps_of(run, *arguments)[0])
        return seen[-1]

    options = {"tolerance": 1.0, "candidates": ("bf16", "fp32"), "variations": 0}
    nj.search_precision(
        nnx.jit(healthy),
        evaluate=losses,
        reference="native",
        progress=False,
        **options,
    )(*made(), X)
    model, optimizer = made()
    native = [nnx.jit(healthy)(model, optimizer, X) for _ in range(3)]
    np.testing.assert_allclose(seen[0], native, rtol=1e-5)
    assert seen[0][0] > seen[0][1] > seen[0][2]


def test_a_search_for_no_output_names_those_there_are_and_runs_nothing(monkeypatch):
    ran = []
    monkeypatch.setattr(
        "neuronjax.api.searched_program.SearchedProgram.op_by_op", ran.append
    )
    with pytest.raises(nj.InvalidProgramError, match=f"result, {KERNEL[:14]}") as found:
        searched("mdoel")
    assert "mdoel" in str(found.value)
    assert not ran


# -- names -----------------------------------------------------------------------------


@pytest.mark.slow
def test_parts_do_not_depend_on_how_the_state_is_passed():
    pure, state = returning(healthy)
    of_modules = nj.profile(nnx.jit(healthy))(*made(), X).by_module()
    of_states = nj.profile(pure)(state, X).by_module()
    names = {label.partition(" (")[0] for label in of_modules}
    assert {"layers/0", "layers/1", "norm"} <= names
    assert names == {label.partition(" (")[0] for label in of_states}
    rule = nj.Rule(module="^layers/1$", auto_cast="matmult")
    nj.jit(pure, policy=nj.Policy(rules=(rule,))).lower(state, X)
