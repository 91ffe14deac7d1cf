"""What users pass to an emulated function, and how they call it, as with `jax.jit`.

Pytrees of any library, signatures, methods, keys, arrays without elements, JAX's
contexts; each against `jax.jit`, and the same bits compiled and op by op.
"""

from __future__ import annotations

import collections
import dataclasses
import functools

import chex
import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training import train_state
from jax import lax
from jax.experimental import io_callback

import neuronjax as nj
from tests.conformance import bits
from tests.real.pairs import KEY, ROW, W, X, agree, energy, jitted, layer

# ---- Pytrees.

Pair = collections.namedtuple("Pair", "a b")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    """With a static field."""

    x: jax.Array
    n: int = dataclasses.field(metadata=dict(static=True), default=2)


class Struct(flax.struct.PyTreeNode):
    """Flax's."""

    x: jax.Array
    n: int = flax.struct.field(pytree_node=False, default=1)


@chex.dataclass
class Chex:
    """Chex's."""

    x: jax.Array


PYTREES = {
    "namedtuple": (lambda p: Pair(p.a + 1, p), Pair(X, None)),
    "dataclass": (lambda d: Registered(d.x * d.n, d.n), Registered(X, 3)),
    "flax struct": (lambda s: s.replace(x=s.x + s.n), Struct(x=X, n=4)),
    "frozen dict": (lambda d: d["w"] * 2, flax.core.freeze({"w": W})),
    "chex dataclass": (lambda c: Chex(x=c.x * 2), Chex(x=X)),
    "partial": (lambda p: p(X), jax.tree_util.Partial(jnp.multiply, X)),
    "empty": (lambda t: {"a": [], "b": (None,), "t": t}, {}),
    "numpy results": (lambda x: (np.ones(3, np.float32), np.arange(3), x), X),
    "twice the same": (lambda x: (x, x), X),
}


@pytest.mark.slow_cases("frozen dict", "chex dataclass", "numpy results")
@pytest.mark.parametrize(("function", "tree"), PYTREES.values(), ids=PYTREES)
def test_pytrees(function, tree):
    agree(lambda jit: jit(function), tree)


@pytest.mark.slow
def test_gradients_in_the_structure_of_the_argument():
    loss = lambda d: jnp.sum(d.x**2) * d.n  # noqa: E731
    out = agree(lambda jit: jax.grad(jit(loss)), Registered(X, 3))
    assert isinstance(out, Registered)


@pytest.mark.slow
def test_train_state_of_flax():
    def step(state, x):
        loss = lambda p: jnp.square(state.apply_fn(p, x)).sum()  # noqa: E731
        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    state = train_state.TrainState.create(
        apply_fn=lambda p, x: x @ p["w"], params={"w": W}, tx=optax.sgd(0.1, 0.9)
    )
    agree(lambda jit: jit(step), state, X)


def test_no_arguments_and_no_results():
    agree(lambda jit: jit(lambda: ()))
    agree(lambda jit: jit(lambda x: None), X)


# ---- Signatures.


def _variadic(a, *args, b=2.0, **kwargs):
    return a + sum(args) + b + sum(kwargs.values())


def _keywords(a, *, mode="twice", n=2):
    return a * n if mode == "twice" else a


def _positional(a, /, b):
    return a - b


SIGNATURES = {
    "variadic": (_variadic, {}, (X, X, 2 * X), dict(b=X, c=X, d=3.0)),
    "variadic defaults": (_variadic, {}, (X,), {}),
    "static keyword": (_keywords, dict(static_argnames="mode"), (X,), dict(mode="x")),
    "static defaults": (_keywords, dict(static_argnames=("mode", "n")), (X,), {}),
    "positional only": (_positional, {}, (X,), dict(b=ROW)),
    "static variadic": (
        lambda a, *args: a * args[0] ** args[1],
        dict(static_argnums=(1, 2)),
        (X, 2, 3),
        {},
    ),
    "partial": (functools.partial(layer, w=W), {}, (X,), {}),
    "ufunc": (jnp.add, {}, (X, ROW), {}),
    "softmax": (jax.nn.softmax, {}, (X,), {}),
}


@pytest.mark.slow_cases("positional only", "partial", "softmax")
@pytest.mark.parametrize(
    ("function", "options", "args", "kwargs"), SIGNATURES.values(), ids=SIGNATURES
)
def test_signatures(function, options, args, kwargs):
    """Static arguments are bound before the pair is compared."""
    agree(lambda jit: jit(function, **options), *args, **kwargs)


class Model:
    """Methods of every kind."""

    factor = 3.0

    @functools.partial(nj.jit, policy="fp32", static_argnums=0)
    def by_number(self, x):
        return x * self.factor

    @nj.jit(policy="fp32", static_argnames="self")
    def by_name(self, x):
        return x * self.factor

    @staticmethod
    @nj.jit(policy="fp32")
    def static(x):
        return x * 3

    def plain(self, x):
        return x * self.factor

    def __call__(self, x):
        return x * self.factor


@pytest.mark.slow
def test_methods_and_callable_objects():
    model = Model()
    calls = (
        model.by_number, model.by_name, model.static, Model.static,
        jitted(model.plain), jitted(model),
    )  # fmt: skip
    for call in calls:
        bits.assert_same(call(X), X * 3)
    gradient = jax.grad(lambda x: model.by_number(x).sum())(X)
    bits.assert_same(gradient, jnp.full_like(X, 3))


@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
def test_donation_by_name_and_of_trees():
    step = jitted(
        lambda state, x: (state["a"] + x, state["n"]), donate_argnames="state"
    )
    for call in (lambda s: step(s, X), lambda s: step(state=s, x=X)):
        state = {"a": jnp.ones_like(X), "n": jnp.arange(3)}
        bits.assert_same(call(state)[0], X + 1)
        assert all(leaf.is_deleted() for leaf in state.values())


def test_static_arguments_must_hash():
    with pytest.raises(ValueError, match="Non-hashable"):
        jitted(lambda x, n: x, static_argnums=1)(X, [1])


ARRAYS = (2, 2.0, True, np.float32(2), np.arange(3), np.ones(2, np.float16), X)


@pytest.mark.slow_except("int", "bool", "ArrayImpl")
@pytest.mark.parametrize("x", ARRAYS, ids=lambda x: type(x).__name__)
def test_what_counts_as_an_array(x):
    agree(lambda jit: jit(lambda x: x * 2), x)


# ---- Random keys, integers, closures, no elements.


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation",
    [
        "rbg",
        pytest.param("threefry2x32", marks=pytest.mark.slow),
        pytest.param("unsafe_rbg", marks=pytest.mark.slow),
    ],
)
def test_keys_come_and_go(implementation):
    def function(key):
        chain = lambda k, _: (jax.random.fold_in(k, 1), jax.random.bits(k))  # noqa: E731
        last, drawn = lax.scan(chain, key, None, length=2)
        return key, last, drawn, jax.random.split(key)

    key = jax.random.key(3, impl=implementation)
    out = bits.same_both_ways(jitted(function), key)
    bits.assert_same(out, jax.jit(function)(key))
    assert out[1].dtype == key.dtype


@pytest.mark.slow
def test_raw_keys_and_keys_from_outside():
    raw = jax.random.PRNGKey(0)
    bits.assert_same(jitted(jax.random.split)(raw), jax.random.split(raw))
    drawn = jitted(lambda x: jax.random.bits(KEY, x.shape))(X)
    bits.assert_same(drawn, jax.random.bits(KEY, X.shape))


@pytest.mark.slow
def test_gradient_beside_a_key():
    def loss(x, key):
        return (x * jax.random.bernoulli(key, 0.5, x.shape)).sum()

    agree(lambda jit: jax.grad(jit(loss)), X, KEY)


@pytest.mark.slow
def test_cotangent_of_an_integer_is_float0():
    product = lambda x, n: (x * n).sum()  # noqa: E731
    pull = jax.vjp(jitted(product), X, jnp.arange(5))[1]
    of_x, of_n = pull(jnp.float32(1))
    bits.assert_same(of_x, jnp.broadcast_to(jnp.arange(5.0), X.shape))
    assert (of_n.dtype, of_n.shape) == (jax.dtypes.float0, (5,))


def _without_elements(z):
    return {
        "dot": z @ W,
        "gram": z.T @ z,
        "sum": z.sum(0),
        "maximum": z.max(1),
        "softmax": jax.nn.softmax(z, 1),
        "concatenated": jnp.concatenate([z, X]),
        "scattered": X.at[jnp.zeros((0,), jnp.int32)].add(z),
        "gathered": X[jnp.zeros((0,), jnp.int32)],
        "sorted": jnp.sort(z, 0),
        "cumulative": jnp.cumsum(z, 0),
        "scan": lax.scan(lambda c, r: (c + r, c), ROW, z),
        "narrow": z.astype(jnp.bfloat16),
    }


@pytest.mark.slow
def test_arrays_without_elements():
    agree(lambda jit: jit(_without_elements), jnp.zeros((0, 5)))
    agree(lambda jit: jax.grad(jit(energy), argnums=(0, 1)), jnp.zeros((0, 5)), W)


# ---- JAX's contexts.

CONTEXTS = {
    "debug_nans": lambda: jax.debug_nans(True),
    "checking_leaks": jax.checking_leaks,
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "default device": lambda: jax.default_device(jax.devices("cpu")[0]),
    "transfer guard": lambda: jax.transfer_guard("disallow"),
    "enable_x64": lambda: jax.enable_x64(True),
}


@pytest.mark.slow_cases("checking_leaks", "enable_x64")
@pytest.mark.parametrize("name", CONTEXTS)
def test_contexts(name):
    expected = jitted(energy)(X, W)
    with CONTEXTS[name]():
        bits.assert_same(jitted(energy)(X, W), expected)


def test_x64_arguments_are_refused_by_name():
    with jax.enable_x64(True), pytest.raises(nj.UnsupportedError, match="argument x"):
        jitted(lambda x: x * 2)(np.ones(3))


CALLBACKS = {
    "io_callback": lambda x: io_callback(lambda a: a, x, x),
    "pure_callback": lambda x: jax.pure_callback(lambda a: a, x, x),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_are_refused_by_name(name):
    with pytest.raises(nj.UnsupportedError, match=rf"{name}(.|\n)*test_calls.py"):
        jitted(CALLBACKS[name])(X)


def test_errors_of_the_function_are_its_own():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        jitted(fails)(X)
    with pytest.raises(TypeError, match="contracting dimensions"):
        jitted(layer)(X, X)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jitted(lambda x: x if x.sum() > 0 else -x)(X)
