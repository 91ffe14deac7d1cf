"""`nj.emulated`: programs that know nothing of us, and what says when the hook moves.

Under bf16 the product of `X` with itself has other bits than JAX's own, which tells
what was emulated.
"""

from __future__ import annotations

import functools
import gc
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neuronjax as nj

X = jnp.asarray(np.random.default_rng(0).standard_normal((8, 8)), jnp.float32)


def product(x):
    return x @ x


# As a program jits at import, before any scope.
jitted_before = jax.jit(product)


def bf16(function, *args):
    return np.asarray(nj.jit(function, policy="bf16")(*args))


@pytest.fixture(scope="module", autouse=True)
def emulated_product():
    """Made before any scope; its bits are not the host's."""
    EMULATED.append(bf16(product, X))
    assert not np.array_equal(EMULATED[0], jax.jit(product)(X))


EMULATED = []


def is_bf16(found) -> bool:
    return np.array_equal(found, EMULATED[0])


@pytest.mark.slow
def test_what_a_program_jits_is_emulated_and_stays_so():
    native = jax.jit
    with nj.emulated(target="trn1", policy="bf16"):
        function = jax.jit(product)
        assert is_bf16(function(X))
    assert jax.jit is native
    assert is_bf16(function(X))
    assert function.target.name == "trn1"
    assert not is_bf16(jax.jit(product)(X))


@pytest.mark.slow_cases("<lambda>0", "<lambda>2")
@pytest.mark.parametrize(
    "decorate",
    [
        lambda f: functools.partial(jax.jit, static_argnums=1)(f),
        lambda f: jax.jit(f, static_argnames=("power",)),
        lambda f: jax.jit(static_argnums=(1,), donate_argnums=0)(f),
    ],
)
def test_options_of_decorators_are_kept(decorate):
    def powered(x, power):
        for _ in range(power - 1):
            x = x @ X
        return x

    with nj.emulated(policy="bf16"):
        function = decorate(powered)
        assert is_bf16(function(X + 0, 2))
        assert "dot_general" in function.lower(X, 2).as_text()


@pytest.mark.slow
def test_nested_functions_are_one_program():
    def outer(x):
        return jax.jit(product)(jitted_before(x))

    expected = bf16(lambda x: product(product(x)), X)
    with nj.emulated(policy="bf16"), warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(jax.jit(outer)(X), expected)


@pytest.mark.slow
def test_transformations_go_through():
    def loss(x):
        return product(x).sum()

    expected = jax.grad(nj.jit(loss, policy="bf16"))(X)
    with nj.emulated(policy="bf16"):
        np.testing.assert_array_equal(jax.grad(jax.jit(loss))(X), expected)
        np.testing.assert_array_equal(jax.jit(jax.grad(loss))(X), expected)
        assert is_bf16(jax.vmap(jax.jit(product))(X[None])[0])


@pytest.mark.slow
def test_pmap_over_so_many_devices_as_the_program_names():
    def centred(x):
        return x - jax.lax.pmean(x, "i")

    x = jnp.arange(8.0).reshape(4, 2)
    expected = nj.pmap(centred, "i", devices=4)(x)
    with nj.emulated():
        function = jax.pmap(centred, axis_name="i", devices=[None] * 4)
        np.testing.assert_array_equal(function(x), expected)
    np.testing.assert_array_equal(expected, x - np.asarray(x).mean(0))


def train_step(model, optimizer, x):
    def loss(model):
        return jnp.mean((model(x) - 1) ** 2)

    value, gradient = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradient)
    return value


def nnx_state():
    model = nnx.Linear(8, 3, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)


@pytest.mark.slow_except("False")
@pytest.mark.parametrize("graph", [True, False])
def test_nnx_jit_trains_emulated(graph):
    """By the state that Flax lifts; the oracle splits and merges by hand."""
    model, optimizer = nnx_state()
    definition, state = nnx.split((model, optimizer))

    @functools.partial(nj.jit, policy="bf16")
    def pure(state, x):
        model, optimizer = nnx.merge(definition, state)
        value = train_step(model, optimizer, x)
        return nnx.state((model, optimizer)), value

    with nj.emulated(policy="bf16"):
        step = nnx.jit(train_step, graph=graph)
    losses = []
    for _ in range(3):
        state, expected = pure(state, X)
        losses.append(float(step(model, optimizer, X)))
        assert losses[-1] == float(expected)
    assert losses[2] < losses[0]


@pytest.mark.slow
def test_equinox():
    eqx = pytest.importorskip("equinox")
    assert not is_bf16(eqx.filter_jit(product)(X))  # which Equinox remembers
    with nj.emulated(policy="bf16"):
        assert is_bf16(eqx.filter_jit(product)(X))
    assert not is_bf16(eqx.filter_jit(product)(X))


def test_what_was_jitted_before_and_runs_is_said():
    gc.unfreeze()  # tests freeze what they import, and this module is among it
    with (
        pytest.warns(nj.NotEmulatedWarning, match=r"product \(.*test_emulated\.py:\d+"),
        nj.emulated(policy="bf16"),
    ):
        jitted_before(X)


def test_threads_are_inside():
    found = []
    with nj.emulated(policy="bf16"):
        thread = threading.Thread(target=lambda: found.append(jax.jit(product)(X)))
        thread.start()
        thread.join()
    assert is_bf16(found[0])


@pytest.mark.slow
def test_scopes_nest_and_end_in_any_order():
    native = jax.jit, jax.pmap
    outer, inner = nj.emulated(policy="fp32"), nj.emulated(policy="bf16")
    outer.__enter__()
    inner.__enter__()
    assert is_bf16(jax.jit(product)(X))
    inner.__exit__(None, None, None)
    assert not is_bf16(jax.jit(product)(X))
    outer.__exit__(None, None, None)
    assert (jax.jit, jax.pmap) == native


def fail():
    with nj.emulated():
        ours = jax.jit
        raise KeyError(ours)


def test_an_exception_ends_the_scope():
    native = jax.jit
    with pytest.raises(KeyError) as raised:
        fail()
    assert jax.jit is native
    # A name that was imported inside is JAX's own outside.
    [ours] = raised.value.args
    assert type(ours(product)) is type(native(product))


def test_an_unknown_policy_opens_nothing():
    native = jax.jit
    with pytest.raises(nj.InvalidProgramError), nj.emulated(policy="bf61"):
        pass
    assert jax.jit is native


def test_a_policy_scope_around_a_native_function_is_said():
    with pytest.warns(nj.NotEmulatedWarning, match=r"nj\.jit") as found:
        with nj.policy_scope("bf16"):
            jitted_before(X)
    assert found[0].filename == __file__


def test_a_policy_scope_that_counts_is_silent():
    def scoped(x):
        with nj.policy_scope("bf16"):
            return product(x)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_bf16(nj.jit(scoped)(X))
        with nj.policy_scope("bf16"):
            assert is_bf16(nj.jit(product)(X))
        jax.eval_shape(scoped, X)


def test_the_hook_is_where_it_was():
    """What `api.emulated` asks of others: if one of these moves, so must it."""
    with nj.emulated():
        assert isinstance(nnx.jit(train_step).jitted_fn, nj.Emulated)
    counted = jax.jit(lambda x: x)
    assert counted._cache_size() == 0
    jax.jit(lambda x: counted(x))(1.0)
    assert counted._cache_size() == 0  # part of another program
    counted(1.0)
    assert counted._cache_size() == 1


@pytest.mark.slow_cases("partial")
@pytest.mark.parametrize(
    "put",
    [
        functools.partial(nj.jit, policy="bf16"),
        lambda function, **options: nj.jit(function, policy="bf16", **options),
    ],
    ids=["partial", "function"],
)
def test_nj_jit_in_the_place_of_jaxs_own(monkeypatch, put):
    """Our own calls of `jax.jit` get JAX's."""
    monkeypatch.setattr(jax, "jit", put)
    fresh = jax.random.normal(jax.random.key(7), (5, 7))  # compiled for the first time
    gradient = jax.grad(jax.jit(lambda x: product(x @ x.T).sum()))(fresh)
    assert gradient.shape == fresh.shape
    assert is_bf16(jax.jit(product)(X))
    assert is_bf16(nj.profile(product, policy="bf16")(X).outputs)
