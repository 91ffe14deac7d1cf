"""State of NNX modules: what is lost and told, and what a jitted step keeps."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neuronjax as nj
from neuronjax.api.nnx_state import in_place

X = jnp.linspace(-1, 1, 4)


class Cached(nnx.Module):
    """Reads a weight, writes a counter and a cache."""

    def __init__(self):
        self.weight = nnx.Param(jnp.full(4, 2.0))
        self.count = nnx.Variable(jnp.zeros((), jnp.int32))
        self.cache = nnx.Cache(jnp.zeros(4))

    def __call__(self, x):
        self.count[...] += 1
        self.cache[...] = self.cache[...] + self.weight[...] * x
        return jnp.sum(self.cache[...])


def told(function, *arguments):
    """What the warning names; "" without one."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        jax.block_until_ready(jax.tree.leaves(nj.jit(function)(*arguments)))
    text = "".join(str(w.message) for w in found)
    return text.partition("jax.jit: ")[2].partition("\n")[0]


# -- what is returned is not lost ------------------------------------------------------


def module(m, x):
    return m(x), m


def in_a_tree(m, x):
    return {"loss": m(x), "found": [(m.cache, m.count)]}


def as_a_state(m, x):
    y = m(x)
    return y, nnx.split(m)[1]


def reset(m, x):
    m.count.set_value(jnp.int32(0))
    m.cache.set_value(jnp.zeros(4))
    return x, m


def by_an_inner_jit(m, x):
    return nnx.jit(module)(m, x)


def of_a_pure_inner_jit(m, x):
    def added(cache, x):
        total = cache + x
        return total, total

    after = jax.jit(added, inline=False)(m.cache[...], x)
    m.cache.set_value(after[0])
    return after[1]


def under_nnx_grad(m, x):
    return nnx.grad(lambda m: m(x))(m), m


def under_remat(m, x):
    return nnx.remat(lambda m, x: m(x))(m, x), m


def under_vmap(m, x):
    y = jax.vmap(lambda x: x @ m.weight[...])(jnp.stack([x, x]))
    return y, m(x), m


def in_a_scan(m, x):
    def turn(carry, x):
        m, total = carry
        return (m, total + m(x)), x

    (after, total), _ = jax.lax.scan(turn, (m, 0.0), jnp.stack([x, x]))
    nnx.update(m, nnx.state(after))
    return total, after


RETURNED = [
    module, in_a_tree, as_a_state, reset, by_an_inner_jit, of_a_pure_inner_jit,
    under_nnx_grad, under_remat, under_vmap, in_a_scan,
]  # fmt: skip


@pytest.mark.slow_except("in_a_tree", "reset", "under_remat")
@pytest.mark.parametrize("function", RETURNED, ids=lambda f: f.__name__)
def test_what_is_returned_is_not_lost(function):
    assert told(function, Cached(), X) == ""


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: nnx.remat(lambda m, x: m.weight[...] * x)(m, x),
        lambda m, x: jax.checkpoint(nnx.jit(lambda m, x: m.weight[...] * x))(m, x),
        lambda m, x: nnx.vmap(
            lambda m, x: m.weight[...] * x, in_axes=(None, 0)
        )(m, jnp.stack([x, x])),
    ],
    ids=["remat", "checkpoint", "vmap"],
)  # fmt: skip
def test_what_is_only_read_is_not_lost(function):
    assert told(function, Cached(), X) == ""


# -- what is not returned is written back ----------------------------------------------


@pytest.mark.parametrize(
    ("returned", "kept"),
    [
        (lambda m: None, {"cache", "count"}),
        (lambda m: m.count, {"cache"}),
        (lambda m: {"cache": m.cache[...]}, {"count"}),
        (lambda m: (m.count, m.cache[...] * 2), {"cache"}),
    ],
)
@pytest.mark.parametrize("native", [False, True], ids=["emulated", "native"])
def test_what_is_not_returned_is_written_back(returned, kept, native):
    def step(m, x):
        y = m(x)
        return y, returned(m)

    model, step = Cached(), nj.jit(step)
    run = in_place(step.native, step.__wrapped__) if native else step
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(model, X)
    changed = {
        name
        for name in ("weight", "count", "cache")
        if np.any(getattr(model, name)[...] != getattr(Cached(), name)[...])
    }
    assert changed == kept


def test_a_donated_module_has_its_variables_afterwards():
    model = Cached()
    step = nj.jit(lambda m, x: m(x), donate_argnums=0)
    for _ in range(2):
        step(model, X)
    assert int(model.count[...]) == 2
    np.testing.assert_array_equal(model.weight[...], np.full(4, 2.0))


def test_a_variable_that_is_new_is_lost_and_told():
    def sows(m, x):
        y = m(x)
        m.late = nnx.Variable(x)
        return y

    model = Cached()
    assert told(sows, model, X) == "m/late/value"
    assert int(model.count[...]) == 1
    assert not hasattr(model, "late")


@pytest.mark.parametrize("as_decorator", [False, True])
def test_jaxs_own_jit_loses_it_in_a_scope_too(as_decorator):
    model = Cached()
    with nj.emulated():
        step = (
            jax.jit()(lambda m, x: m(x)) if as_decorator else jax.jit(lambda m, x: m(x))
        )
        with pytest.warns(nj.NotEmulatedWarning, match=r"m/count(.|\n)*nnx\.jit"):
            step(model, X)
    assert int(model.count[...]) == 0


@pytest.mark.slow
def test_under_an_outer_vmap():
    many = nnx.vmap(lambda _: Cached(), axis_size=3)(jnp.arange(3))
    xs = jnp.stack([X] * 3)
    assert told(jax.vmap(module), many, xs) == ""


# -- what nnx.jit has made keeps what it writes ----------------------------------------


class Net(nnx.Module):
    """With the counts of dropout, and statistics."""

    def __init__(self, rngs):
        self.embed = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.25, rngs=rngs)
        self.again = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x):
        return self.again(self.drop(nnx.relu(self.norm(self.embed(x)))))


def made(is_tied=True):
    model = Net(nnx.Rngs(0))
    if is_tied:
        model.again.bias = model.embed.bias
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def train_step(model, optimizer, x, *, scale=1.0):
    def loss(model):
        return jnp.mean((model(x) - scale) ** 2)

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


BATCH = jnp.asarray(np.random.default_rng(0).standard_normal((16, 4)), jnp.float32)


def trained(step, steps=4, is_tied=True):
    model, optimizer = made(is_tied)
    losses = [float(step(model, optimizer, BATCH)) for _ in range(steps)]
    return losses, jax.tree.leaves(nnx.state((model, optimizer)))


def emulated_as_nnx_has_it(graph):
    with nj.emulated(policy="bf16"):
        return trained(nnx.jit(train_step, graph=graph), is_tied=graph)


@pytest.mark.slow
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"donate_argnums": (0, 1)}], ids=["", "donates"]
)
def test_steps_are_those_of_nnx_jit_around_ours(graph, options):
    step = nj.jit(nnx.jit(train_step, graph=graph), policy="bf16", **options)
    losses, state = trained(step, is_tied=graph)
    expected, after = emulated_as_nnx_has_it(graph)
    assert losses == expected
    assert losses[-1] < losses[0]
    for one, other in zip(state, after, strict=True):
        np.testing.assert_array_equal(*map(_plain, (one, other)))
    assert isinstance(step, nj.Emulated)


def _plain(array):
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)


@pytest.mark.slow
def test_every_way_of_calling_keeps_it():
    step = nj.jit(nnx.jit(train_step), policy="bf16")
    expected, _ = trained(step, 2)
    model, optimizer = made()
    compiled = step.lower(model, optimizer, BATCH).compile()
    assert [float(compiled(model, optimizer, BATCH)) for _ in range(2)] == expected
    model, optimizer = made()
    collecting = step.with_options(collect=True)
    loss, _ = collecting(model, optimizer, BATCH)
    assert float(loss) == expected[0]
    assert float(step(model, optimizer, BATCH)) == expected[1]
    assert step.eval_shape(*made(), BATCH).shape == ()


@pytest.mark.slow
def test_inside_another_function():
    inner = nj.jit(nnx.jit(train_step), policy="bf16")

    def twice(model, optimizer, x):
        return inner(model, optimizer, x), inner(model, optimizer, x)

    model, optimizer = made()
    first, second = nj.jit(nnx.jit(twice), policy="bf16")(model, optimizer, BATCH)
    assert [float(first), float(second)] == trained(inner, 2)[0]
    assert float(inner(model, optimizer, BATCH)) == trained(inner, 3)[0][2]


def test_nothing_is_told_of_what_is_kept():
    assert told(nnx.jit(lambda m, x: m(x)), Cached(), X) == ""


def test_reports_have_what_is_written_among_their_results():
    emulated = nj.jit(nnx.jit(lambda m, x: m(x)), policy="bf16")
    found = nj.profile(emulated)(Cached(), X).outputs
    assert set(found.state) == {"m/cache/value", "m/count/value"}


class Growing(nnx.Module):
    def __init__(self):
        self.turns = 0
        self.total = nnx.Variable(jnp.zeros(4))


def grows(m, x):
    m.late = nnx.Variable(x)


def counts_in_python(m, x):
    m.turns += 1


@pytest.mark.parametrize(
    ("change", "named"), [(grows, "m/late/value"), (counts_in_python, "static")]
)
def test_what_is_no_array_is_refused_by_name(change, named):
    def step(m, x):
        m.total[...] += x
        change(m, x)
        return x

    with pytest.raises(nj.UnsupportedError, match=named):
        nj.jit(nnx.jit(step))(Growing(), X)


@jax.tree_util.register_pytree_node_class
class WithTable:
    """A pytree with a static array, which Python cannot compare."""

    def __init__(self, x, table):
        self.x, self.table = x, table

    def tree_flatten(self):
        return (self.x,), self.table

    @classmethod
    def tree_unflatten(cls, table, children):
        return cls(*children, table)


def test_reports_do_not_compare_static_fields_of_arguments():
    report = nj.compare(lambda tree: tree.x + 1, policy="fp32")
    for _ in range(2):
        assert report(WithTable(jnp.ones(2), np.arange(3))).faults == ()
