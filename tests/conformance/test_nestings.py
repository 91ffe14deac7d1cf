"""Emulated functions nested in JAX's transformations, loops and calls, and the reverse.

What tests/conformance/test_transformations.py leaves open: every nesting is a pair, the
same construction around `nj.jit` and around `jax.jit`, whose results are close, of one
structure, and the same bits compiled and op by op.
"""

from __future__ import annotations

import copy
import functools
import threading

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax

import neuronjax as nj
from neuronjax.capture.trace import with_closure
from tests.conformance import bits
from tests.real.pairs import KEY, ROW, W, X, agree, assert_close, energy, jitted, layer
from tests.zoo.program import uniform

WS = jnp.stack([W, -W])

# ---- Reverse mode and vmap.


def _vjp_with_aux(jit):
    def run(x):
        out, pull, aux = jax.vjp(jit(lambda x: (jnp.sin(x), x * 2)), x, has_aux=True)
        return out, pull(out), aux

    return run


def _value_grad_and_aux(jit):
    def loss(x, w):
        return energy(x, w), {"logits": x @ w, "nothing": None}

    return jax.value_and_grad(jit(loss), has_aux=True, argnums=(0, 1))


def _vmap_of_grad_of_vmap(jit):
    def total(x, w):
        return jax.vmap(jit(energy), in_axes=(None, 0))(x, w).sum()

    return jax.vmap(jax.grad(total), in_axes=(0, None))


def _saveable(jit):
    policy = jax.checkpoint_policies.dots_saveable
    return jax.grad(jit(lambda x, w: jax.checkpoint(layer, policy=policy)(x, w).sum()))


def _scan_of_checkpoint(jit):
    def loss(x, w):
        body = jax.checkpoint(lambda c, w: (jnp.tanh(c @ w), None))
        return lax.scan(body, x, w)[0].sum()

    return jax.grad(jit(loss), argnums=(0, 1))


SQUARES = uniform(9, (3, 5, 5))

REVERSE = {
    "value, grad and aux": (_value_grad_and_aux, ROW, W),
    "vjp with aux": (_vjp_with_aux, ROW),
    "jacrev of both": (lambda jit: jax.jacrev(jit(layer), argnums=(0, 1)), ROW, W),
    "vmap of grad of vmap": (_vmap_of_grad_of_vmap, X, WS),
    "checkpoint with a policy": (_saveable, X, W),
    "scan of checkpoint": (_scan_of_checkpoint, X, SQUARES),
    "unused argument": (lambda jit: jax.grad(jit(lambda x, y: x.sum()), 1), X, W),
    "stop gradient": (
        lambda jit: jax.grad(jit(lambda x: (lax.stop_gradient(x) * x).sum())),
        ROW,
    ),
    "of the emulation inside": (
        lambda jit: jit(lambda x: jax.grad(jit(energy))(x, W) * 2),
        ROW,
    ),
    "forward mode inside": (
        lambda jit: jit(
            lambda x: (jax.hessian(energy)(x, W), jax.jvp(jnp.sin, (x,), (x,)))
        ),
        ROW,
    ),
}


#: Deep nests, and more of the same.
SLOW = {
    "checkpoint with a policy", "scan of checkpoint", "vmap of grad of vmap",
    "jacrev of both", "forward mode inside", "associative scan", "grad of scan",
    "map", "switch",
}  # fmt: skip


def quick(table):
    """The names of a table, the slow ones marked."""
    marks = {True: pytest.mark.slow, False: ()}
    return [pytest.param(name, marks=marks[name in SLOW]) for name in table]


@pytest.mark.slow_except("stop gradient")
@pytest.mark.parametrize("name", quick(REVERSE))
def test_reverse_mode(name):
    agree(REVERSE[name][0], *REVERSE[name][1:])


@pytest.mark.slow
def test_third_derivative():
    agree(lambda jit: jax.grad(jax.grad(jax.grad(jit(jnp.sin)))), jnp.float32(0.3))


BATCHES = {
    "no argument": (dict(in_axes=None, axis_size=4), lambda x: x + 1, X),
    "dictionary": (
        dict(in_axes=({"x": 0, "w": None},), out_axes={"y": 1}),
        lambda d: {"y": d["x"] * d["w"]},
        {"x": X, "w": ROW},
    ),
    "keys": (
        {},
        lambda k: (jax.random.split(k), jax.random.bits(k, (2,))),
        jax.random.split(KEY, 3),
    ),
    "zero rows": ({}, jnp.tanh, jnp.zeros((0, 5))),
}


@pytest.mark.slow_cases("dictionary", "keys")
@pytest.mark.parametrize(("options", "function", "arg"), BATCHES.values(), ids=BATCHES)
def test_vmap(options, function, arg):
    agree(lambda jit: jax.vmap(jit(function), **options), arg)


@pytest.mark.slow
def test_vmap_of_keyword_arguments():
    agree(lambda jit: jax.vmap(jit(lambda x, *, w: x * w)), X, w=2 * X)


@pytest.mark.slow
def test_a_collective_of_a_vmap_inside():
    centred = lambda x: x - lax.pmean(x, "i")  # noqa: E731
    agree(lambda jit: jit(jax.vmap(centred, axis_name="i")), X)


# ---- Control flow over an emulated function, and sandwiches.


def _step(carry, x):
    return jnp.tanh(carry + x), carry * x


CONTROL = {
    "scan": (lambda jit: lambda x: lax.scan(jit(_step), ROW, x), X),
    "grad of scan": (
        lambda jit: jax.grad(lambda x: lax.scan(jit(_step), ROW, x)[0].sum()),
        X,
    ),
    "fori": (
        lambda jit: lambda x: lax.fori_loop(0, 3, jit(lambda i, c: jnp.sin(c) * i), x),
        X,
    ),
    "while": (
        lambda jit: lambda x: lax.while_loop(
            jit(lambda s: s[0] < 3),
            jit(lambda s: (s[0] + 1, jnp.sin(s[1]))),
            (jnp.int32(0), x),
        ),
        X,
    ),
    "cond": (
        lambda jit: lambda x: lax.cond(x[0, 0] > 0, jit(jnp.sin), jit(jnp.cos), x),
        X,
    ),
    "switch": (
        lambda jit: lambda x: lax.switch(1, [jit(jnp.sin), jit(jnp.cos)], x),
        X,
    ),
    "map": (lambda jit: lambda x: lax.map(jit(jnp.sin), x, batch_size=2), X),
    "associative scan": (
        lambda jit: lambda x: lax.associative_scan(jit(lambda a, b: a * b + a), x),
        X,
    ),
    "emulated in native in emulated": (
        lambda jit: jit(
            lambda x: jax.jit(lambda y: jit(jnp.tanh)(y) * 2 + 1)(x) @ W
        ),
        X,
    ),
    "vmap inside": (
        lambda jit: jit(lambda x: jax.vmap(jit(energy), in_axes=(0, None))(x, W)),
        X,
    ),
    "of an emulation": (lambda jit: jit(jit(layer)), X, W),
    "of a native jit": (lambda jit: jit(jax.jit(layer)), X, W),
    "optimization barrier": (
        lambda jit: jit(lambda x: lax.optimization_barrier((x, x * 2))),
        X,
    ),
    "names": (
        lambda jit: jit(lambda x: jax.named_call(jnp.sin, name="a")(x)),
        X,
    ),
}  # fmt: skip


@pytest.mark.slow_except("optimization barrier")
@pytest.mark.parametrize("name", quick(CONTROL))
def test_control_flow_and_calls(name):
    agree(CONTROL[name][0], *CONTROL[name][1:])


@pytest.mark.slow
def test_a_function_that_calls_itself():
    def build(jit):
        @functools.partial(jit, static_argnums=1)
        def nested(x, n):
            return x if n == 0 else nested(jnp.sin(x), n - 1) + 1

        return nested

    agree(build, X, 3)


# ---- Custom derivatives.


def _custom_jvp(jit):
    @jax.custom_jvp
    def sine(x):
        return jnp.sin(x)

    sine.defjvp(lambda p, t: (sine(p[0]), 3 * t[0]))
    return jax.grad(lambda x: jit(sine)(x).sum())


def _nondifferentiable_argument(jit):
    @functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
    def scaled(x, n):
        return x * n

    scaled.defvjp(lambda x, n: (x * n, x), lambda n, x, g: (g * x * n,))
    return jax.grad(lambda x: jit(lambda x: scaled(x, 3.0))(x).sum())


def _around(jit):
    @jax.custom_vjp
    def sine(x):
        return jit(jnp.sin)(x)

    sine.defvjp(lambda x: (sine(x), x), lambda x, g: (jit(jnp.cos)(x) * g,))
    return jax.grad(lambda x: sine(x).sum())


def _custom_vmap(jit):
    @jax.custom_batching.custom_vmap
    def sine(x):
        return jnp.sin(x)

    sine.def_vmap(lambda size, batched, x: (jnp.cos(x), True))
    return jax.vmap(jit(sine))


def _custom_root(jit):
    def newton(g, y):
        return lax.fori_loop(0, 20, lambda i, y: y - g(y) / (3 * y * y), y)

    def cube_root(x):
        solve = lambda g, y: y / g(1.0)  # noqa: E731
        return lax.custom_root(lambda y: y**3 - x, jnp.float32(1), newton, solve)

    return jax.grad(jit(lambda x: cube_root(x[0])))


CUSTOM = (
    _custom_jvp, _nondifferentiable_argument, _around, _custom_vmap, _custom_root,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("build", CUSTOM, ids=lambda build: build.__name__)
def test_custom_rules(build):
    agree(build, jnp.abs(X) if build is _custom_vmap else jnp.abs(ROW))


# ---- Closures.

CLOSURES = {
    "vmap": lambda jit: lambda: jax.vmap(lambda r: jit(lambda w: w @ r)(W.T))(X),
    "grad": lambda jit: lambda: jax.grad(
        lambda a: jit(lambda w: (w * a).sum())(W)
    )(jnp.float32(2)),
    "jit": lambda jit: lambda: jax.jit(lambda i: jit(lambda w: w[i])(W))(2),
    "jit of vmap and a key": lambda jit: lambda: jax.jit(
        lambda x, k: jax.vmap(
            lambda r: jit(lambda w: w * r + jax.random.uniform(k))(W[0, 0])
        )(x)
    )(X, KEY),
}  # fmt: skip


@pytest.mark.slow_cases("vmap", "jit of vmap and a key")
@pytest.mark.parametrize("name", CLOSURES)
def test_closures_over_tracers(name):
    assert_close(CLOSURES[name](jitted)(), CLOSURES[name](jax.jit)())


@pytest.mark.slow
def test_an_inner_jit_of_a_closure_is_a_scope():
    inner = nj.jit(lambda x, w: jnp.tanh(x @ w), policy="bf16")

    def closing(x, w):
        converted, closure = with_closure(lambda x: [inner(x, w) * 3], [x])
        return converted(*closure, x)[0]

    # Emulated, it would be hundreds of integer operations.
    text = str(jax.make_jaxpr(closing)(X, W))
    assert "tanh" in text
    assert "xor" not in text
    outer = nj.jit(lambda x, w: inner(x, w) * 3, policy="fp32")
    through = jax.jit(lambda x, w: nj.jit(lambda x: inner(x, w) * 3, policy="fp32")(x))
    bits.assert_same(through(X, W), outer(X, W))


# ---- What is refused.

FORWARD = {
    "jvp": lambda e: jax.jvp(e, (ROW, W), (ROW, W)),
    "jvp of grad": lambda e: jax.jvp(jax.grad(e), (ROW, W), (ROW, W)),
    "jacfwd of vmap": lambda e: jax.jacfwd(jax.vmap(e, in_axes=(0, None)))(X, W),
    "hessian": lambda e: jax.hessian(e)(ROW, W),
}


@pytest.mark.slow_cases("jvp", "hessian")
@pytest.mark.parametrize("name", FORWARD)
def test_forward_mode_is_refused_by_name(name):
    with pytest.raises(nj.UnsupportedError, match="jacrev"):
        FORWARD[name](jitted(energy))


# ---- JAX's tools, and threads.


def test_abstract_evaluation_through_transformations():
    step, gradient = jitted(layer), jax.grad(jitted(energy))
    mapped = functools.partial(jax.vmap, in_axes=(0, None))
    assert jax.eval_shape(gradient, X, W) == jax.eval_shape(jax.grad(energy), X, W)
    expected = jax.eval_shape(mapped(layer), X, W)
    assert jax.eval_shape(mapped(step), X, W) == expected
    assert len(jax.make_jaxpr(gradient)(X, W).out_avals) == 1


@pytest.mark.slow
def test_lowering_by_keyword_and_for_keys_and_trees():
    shaped = jax.ShapeDtypeStruct
    lowered = jitted(layer).lower(shaped((3, 5), jnp.float32), w=W)
    bits.assert_same(lowered.compile()(X, w=W), jitted(layer)(X, W))
    key = jax.eval_shape(lambda: KEY)
    drawn = jitted(jax.random.bits).lower(key).compile()(KEY)
    bits.assert_same(drawn, jax.random.bits(KEY))
    tree = {"a": shaped((3, 5), jnp.float32)}
    times = jitted(lambda d, n: d["a"] * n, static_argnums=1)
    bits.assert_same(times.lower(tree, 2).compile()({"a": X}, 2), X * 2)


@pytest.mark.slow
def test_ahead_of_time_compilation_of_a_native_jit():
    compiled = jax.jit(jax.grad(jitted(energy))).lower(X, W).compile()
    bits.assert_same(compiled(X, W), jax.grad(jitted(energy))(X, W))


@pytest.mark.slow
def test_export_of_a_native_jit():
    """Nothing of this processor's or of this XLA's own is in it, if that is said."""
    with nj.exportable():
        exported = export.export(jax.jit(jitted(layer)))(X, W)
    bits.assert_same(exported.call(X, W), jitted(layer)(X, W))


def test_shardings_of_a_mesh_of_one():
    mesh = jax.make_mesh((1,), ("a",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    out = jitted(lambda x: x * 2)(jax.device_put(X, spec))
    bits.assert_same(jax.block_until_ready(out), X * 2)


def test_copies_compute_the_same():
    step = jitted(layer)
    for other in (copy.copy(step), copy.deepcopy(step)):
        bits.assert_same(other(X, W), step(X, W))
    assert {step: 1}[step] == 1


@pytest.mark.slow
def test_threads_at_once():
    """Four policies, each compiled and op by op, all called at the same time."""
    policies = ("fp32", "bf16", "fp8", "tf32")
    steps = [nj.jit(lambda x, w: x @ w, policy=policy) for policy in policies]
    calls = [
        functools.partial(way, step, X, W)
        for step in steps
        for way in (lambda step, *args: step(*args), bits.op_by_op)
    ]
    found = [None] * len(calls)

    def run(number):
        found[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, out in enumerate(found):
        bits.assert_same(out, calls[number](), f"call {number}")


@pytest.mark.slow
def test_results_are_as_weakly_typed_as_natively():
    """A number of Python in, and what it makes of a BF16 array it meets later."""

    def doubled(scalar):
        return scalar * 2, 1

    for scalar in (1.5, jnp.float32(1.5)):
        outs = [jit(doubled)(scalar) for jit in (jax.jit, nj.jit)]
        assert bits.shapes(outs[0]) == bits.shapes(outs[1])
        weak = [[leaf.weak_type for leaf in out] for out in outs]
        assert weak[0] == weak[1]
    narrow = jnp.ones(3, jnp.bfloat16)
    assert (narrow * nj.jit(doubled)(1.5)[0]).dtype == jnp.bfloat16


@pytest.mark.slow
def test_vmap_leaves_what_depends_on_no_batch_without_axis():
    step = nj.jit(lambda x, y: (x * y, y + 1))
    batched, single = jax.vmap(step, (0, None), (0, None))(X, 2.0)
    bits.assert_same((batched, single), (step(X, 2.0)[0], jnp.float32(3)))


def test_what_else_a_jitted_function_has():
    step = nj.jit(layer)
    assert step.eval_shape(X, W) == jax.jit(layer).eval_shape(X, W)
    first = step(X, W)
    step.clear_cache()
    bits.assert_same(step(X, W), first)
    assert "layer" in repr(step)
