"""JAX's transformations, pytrees and tools around `nj.jit`.

Values are held against native JAX, within the tolerance of FP32 arithmetic in another
order, and compiled against op by op, by bits (section 4 of the design).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax import lax

import neuronjax as nj
from tests.conformance import bits
from tests.zoo.program import uniform

jitted = functools.partial(nj.jit, target="trn2", policy="fp32")

X = uniform(1, (3, 5))
W = uniform(2, (5, 4))
ROW = X[0]


def layer(x, w):
    """[..., 5] and [5, 4] to [..., 4]."""
    return jnp.tanh(x @ w) / (1 + jnp.square(w).sum(0))


def energy(x, w):
    """A scalar with derivatives of every order."""
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def agree(function, native, *args):
    """Equal bits both ways, and values close to `native`; returns them."""
    out = bits.same_both_ways(function, *args)
    expected = native(*args)
    assert jax.tree.structure(out) == jax.tree.structure(expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6),
        out,
        expected,
    )
    return out


# ---- Everything known to the compiler.

NARROW = jnp.asarray(uniform(3, (96, 40)), jnp.bfloat16)


def of_constants():
    """No array comes in: XLA could evaluate all of it, by arithmetic of its own."""
    x, w = uniform(4, (64, 96)), uniform(5, (96, 40))
    y = jax.nn.softmax(x * 1.7 + 0.3) @ w
    z = jnp.tanh(y) * 2.3 + jnp.exp(y)
    return z, z / z.sum(1, keepdims=True), x @ NARROW, jnp.var(z, 0)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fp32", "bf16_stochastic"])
def test_a_program_without_inputs(policy):
    step = bits.emulated(of_constants, policy)
    out = bits.same_both_ways(step)
    bits.assert_same(jax.jit(step)(), out)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fp32", "bf16"])
def test_inputs_that_are_constants_of_an_outer_jit(policy):
    step = bits.emulated(layer, policy)
    x, w = uniform(6, (70, 300)), uniform(7, (300, 50))
    out = bits.op_by_op(step, x, w)
    bits.assert_same(jax.jit(lambda: step(x, w))(), out)
    bits.assert_same(jax.jit(lambda: jax.jit(step)(x, w))(), out)


@pytest.mark.slow
def test_sums_of_constants_of_an_outer_jit():
    """Long enough for every kind of kernel, along the first and the last axis."""
    x = uniform(8, (600, 1100))
    step = jitted(lambda x: (x.sum(0), x.sum(1), x.mean(), jnp.exp(x).sum(1)))
    bits.assert_same(jax.jit(lambda: step(x))(), bits.op_by_op(step, x))


@pytest.mark.slow
def test_sums_of_constant_signed_zeros():
    """0 + -0 is 0, also where XLA knows both and would leave the addition out."""
    x = jnp.asarray([[0.0, -0.0, -0.0], [-0.0, -0.0, 0.0]] * 3)
    zero = jnp.float32(0)
    step = jitted(
        lambda x, zero: (x.sum(0), x.sum(1), lax.reduce(-x, zero, lax.add, [0]))
    )
    bits.assert_same(jax.jit(lambda: step(x, zero))(), bits.op_by_op(step, x, zero))


# ---- vmap.

BATCHES = {
    "first": (dict(in_axes=(0, None)), (X, W)),
    "both": (dict(in_axes=(0, 0)), (X, jnp.stack([W, 2 * W, -W]))),
    "last axis": (dict(in_axes=(1, None)), (X.T, W)),
    "weights alone": (dict(in_axes=(None, 2)), (X, jnp.stack([W, -W], 2))),
    "out axis": (dict(in_axes=(0, None), out_axes=1), (X, W)),
    "out axis from the end": (dict(in_axes=(0, None), out_axes=-1), (X, W)),
    "axis size": (dict(in_axes=(0, None), axis_size=3), (X, W)),
    "axis name": (dict(in_axes=(0, None), axis_name="batch"), (X, W)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("options", "args"), BATCHES.values(), ids=BATCHES)
def test_vmap_of_the_emulation_is_the_emulation_of_vmap(options, args):
    outside = jax.vmap(jitted(layer), **options)
    out = agree(outside, jax.vmap(layer, **options), *args)
    bits.assert_same(out, jitted(jax.vmap(layer, **options))(*args))


@pytest.mark.slow
def test_vmap_of_vmap():
    pairs = jax.vmap(jax.vmap(jitted(layer), in_axes=(0, None)), in_axes=(None, 0))
    inside = jax.vmap(jax.vmap(layer, in_axes=(0, None)), in_axes=(None, 0))
    out = agree(pairs, inside, X, jnp.stack([W, -W]))
    bits.assert_same(out, jitted(inside)(X, jnp.stack([W, -W])))


@pytest.mark.slow
def test_vmap_over_a_pytree_and_an_output_without_the_batch():
    def function(batch, scale):
        return {"scaled": batch["x"] * scale + batch["n"], "scale": scale + 1}

    batch, axes = {"x": X, "n": jnp.arange(3)}, {"x": 0, "n": 0}
    mapped = functools.partial(jax.vmap, in_axes=(axes, None))
    out = agree(mapped(jitted(function)), mapped(function), batch, jnp.float32(3))
    assert out["scale"].shape == (3,)


# ---- Reverse mode.

DERIVATIVES = {
    "grad": lambda f: jax.grad(f),
    "grad of both": lambda f: jax.grad(f, argnums=(0, 1)),
    "value and grad": lambda f: jax.value_and_grad(f, argnums=1),
    "grad of grad": lambda f: jax.grad(lambda x, w: jnp.sum(jax.grad(f)(x, w) ** 2)),
    "jacrev": lambda f: jax.jacrev(f),
    "jacrev of jacrev": lambda f: jax.jacrev(jax.jacrev(f)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f, argnums=1), in_axes=(0, None)),
    "grad of vmap": lambda f: jax.grad(
        lambda x, w: jax.vmap(f, in_axes=(0, None))(x, w).sum()
    ),
    "vmap of jacrev of grad": lambda f: jax.vmap(
        jax.jacrev(jax.grad(f)), in_axes=(0, None)
    ),
    "vjp": lambda f: lambda x, w: jax.vjp(f, x, w)[1](jnp.float32(2)),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
}


#: Deep nests: as many programs as levels.
SLOW = {"checkpoint", "vmap of jacrev of grad"}


@pytest.mark.slow_except("jit of grad")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in DERIVATIVES],
)
def test_derivatives(name):
    derive = DERIVATIVES[name]
    args = (X, W) if "vmap" in name else (ROW, W)
    agree(derive(jitted(energy)), derive(energy), *args)


@pytest.mark.slow
def test_remat_inside_the_function_repeats_the_forward_bits():
    def loss(x, w):
        hidden = jax.checkpoint(layer)(x, w)
        return jnp.sum(hidden * hidden)

    agree(jax.grad(jitted(loss), argnums=1), jax.grad(loss, argnums=1), X, W)


@pytest.mark.slow
def test_grad_with_aux_and_arguments_without_gradients():
    def loss(w, labels, key):
        noise = jax.random.uniform(key, X.shape)
        logits = (X + noise) @ w
        each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return each.mean(), {"logits": logits, "next": jax.random.split(key)[0]}

    labels, key = jnp.array([0, 3, 1]), jax.random.key(5)
    grad = functools.partial(jax.value_and_grad, has_aux=True)
    out = bits.same_both_ways(grad(jitted(loss)), W, labels, key)
    expected = grad(loss)(W, labels, key)
    assert jax.tree.structure(out) == jax.tree.structure(expected)
    assert max(bits.relative_errors(out[1], expected[1]).values()) < 1e-5
    (value, aux), (wanted, wanted_aux) = out[0], expected[0]
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    bits.assert_same(aux["next"], wanted_aux["next"])


@pytest.mark.slow
def test_gradient_of_an_integer_argument_is_float0():
    loss = lambda n, x: jnp.sum(x * n)  # noqa: E731
    grad = functools.partial(jax.grad, argnums=(0, 1), allow_int=True)
    zero, of_x = grad(jitted(loss))(jnp.int32(3), ROW)
    assert zero.dtype == jax.dtypes.float0
    bits.assert_same(of_x, jnp.full_like(ROW, 3))


@pytest.mark.slow
def test_custom_derivatives_of_the_function_are_kept():
    @jax.custom_vjp
    def doubled_gradient(x):
        return jnp.sin(x)

    doubled_gradient.defvjp(
        lambda x: (jnp.sin(x), x), lambda x, g: (2 * jnp.cos(x) * g,)
    )
    loss = lambda x: doubled_gradient(x).sum()  # noqa: E731
    agree(jax.grad(jitted(loss)), jax.grad(loss), ROW)


@pytest.mark.slow
def test_closed_over_tracers():
    def outer(transform):
        def loss(w):
            scale = jnp.exp(w.sum() / 8)
            inner = transform(lambda x: jnp.tanh(x @ w) * scale)
            return inner(X).sum()

        return loss

    plain = outer(lambda f: f)
    for derive in (lambda f: f, jax.grad):
        out = jax.jit(derive(outer(jitted)))(W)
        np.testing.assert_allclose(out, derive(plain)(W), rtol=2e-5, atol=1e-6)
        bits.assert_same(derive(outer(jitted))(W).shape, out.shape)


# ---- Policy scopes.


def casts(lowered) -> int:
    """In how many lines of instructions operands become BF16."""
    text = lowered.as_text("instructions")
    return sum("bfloat16" in line or "bf16" in line for line in text.splitlines())


@pytest.mark.slow
def test_an_inner_jit_is_a_policy_scope():
    inner = nj.jit(lambda x, w: x @ w, policy="bf16")
    function = lambda x, w: (inner(x, w), x @ w)  # noqa: E731
    outer, plain = jitted(function), jitted(lambda x, w: (x @ w, x @ w))
    low, high = bits.same_both_ways(outer, X, W)
    assert casts(outer.lower(X, W)) > casts(plain.lower(X, W)) == 0
    bits.assert_same(low, nj.jit(lambda x, w: x @ w, policy="bf16")(X, W))
    bits.assert_same(high, plain(X, W)[0])
    assert (low != high).any()


@pytest.mark.slow
def test_policy_scope_reaches_gradients_and_loop_bodies():
    def loss(w):
        def body(x, _):
            with nj.policy_scope("bf16"):
                return jnp.tanh(x @ w @ w.T), None

        return jax.lax.scan(body, X, None, length=2)[0].sum()

    step = jitted(jax.grad(loss))
    gradient = bits.same_both_ways(step, W)
    assert casts(step.lower(W)) >= 4
    assert (gradient != jitted(jax.grad(lambda w: _unscoped(w)))(W)).any()


def _unscoped(w):
    body = lambda x, _: (jnp.tanh(x @ w @ w.T), None)  # noqa: E731
    return jax.lax.scan(body, X, None, length=2)[0].sum()


@pytest.mark.slow
def test_policy_scope_around_a_call_that_was_traced_without():
    step = jitted(lambda x, w: x @ w)
    before = step(X, W)
    with nj.policy_scope("bf16"):
        within = step(X, W)
    bits.assert_same(within, nj.jit(lambda x, w: x @ w, policy="bf16")(X, W))
    bits.assert_same(step(X, W), before)


# ---- Signatures.


def power(x, n, bias=0.0, *, negate=False):
    y = sum(x**k for k in range(n))
    return {"y": -y if negate else y, "bias": y + bias}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        dict(static_argnums=1, static_argnames="negate"),
        dict(static_argnames=("n", "negate")),
        dict(static_argnums=(-2,), static_argnames=["negate"]),
    ],
    ids=["argnums", "argnames", "from the end"],
)
def test_static_arguments(options):
    def check(*args, **kwargs):
        step = functools.partial(jitted(power, **options), **kwargs)
        agree(step, functools.partial(power, **kwargs), *args)

    check(X, 3)
    check(X, 2, negate=True)
    check(X, n=3, bias=X)


def test_decorator():
    @nj.jit(target="trn1", policy="bf16")
    def step(x):
        """Doubles."""
        return 2 * x

    assert (step.__name__, step.__doc__) == ("step", "Doubles.")
    bits.assert_same(step(X), 2 * X)
    bits.assert_same(nj.jit(lambda x: 2 * x)(X), 2 * X)


@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
def test_donated_arguments_are_gone():
    step = jitted(lambda state, x: (state + x, x), donate_argnums=0)
    state = jnp.ones_like(X)
    out, _ = step(state, X)
    bits.assert_same(out, X + 1)
    assert state.is_deleted()


@pytest.mark.slow
def test_pytrees_of_any_kind():
    def function(tree, nothing):
        assert nothing is None
        return {"sum": tree["a"][0] + tree["b"].x, "none": None, "empty": ()}

    point = jax.tree_util.register_dataclass(_Point, ["x"], ["name"])
    tree = {"a": [X, 3], "b": point(x=X, name="p")}
    out = bits.same_both_ways(jitted(function), tree, None)
    assert out["none"] is None
    assert out["empty"] == ()
    bits.assert_same(out["sum"], X + X)


class _Point:
    def __init__(self, x, name):
        self.x, self.name = x, name


@pytest.mark.slow
def test_python_scalars_keep_their_weak_type():
    step = jitted(lambda x, s: x * s)
    out = step(X.astype(jnp.bfloat16), 2.0)
    assert out.dtype == jnp.bfloat16
    bits.assert_same(out, X.astype(jnp.bfloat16) * 2.0)


# ---- Flax and Optax.


@pytest.mark.slow
def test_flax_linen_and_optax_train():
    model = linen.Sequential([linen.Dense(8), linen.relu, linen.Dense(1)])
    params = model.init(jax.random.key(0), X)
    optimizer = optax.adam(1e-2)

    def step(params, state):
        loss = lambda p: jnp.mean(jnp.square(jnp.asarray(model.apply(p, X)) - 1))  # noqa: E731
        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    emulated, state = jitted(step), optimizer.init(params)
    params, state, first = agree(emulated, jax.jit(step), params, state)
    for _ in range(4):
        params, state, _ = emulated(params, state)
    params, state, last = emulated(params, state)
    assert last < first
    assert int(optax.tree.get(state, "count")) == 6


@pytest.mark.slow
def test_flax_nnx_split_and_merge():
    graphdef, state = nnx.split(nnx.Linear(5, 4, rngs=nnx.Rngs(0)))
    apply = lambda state, x: nnx.merge(graphdef, state)(x)  # noqa: E731
    agree(jitted(apply), apply, state, X)


# ---- Lowered, compiled, and what JAX's tools see.


def test_lower_takes_shapes_alone_and_compiles_to_a_callable():
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (X, W)]
    lowered = jitted(layer).lower(*shapes)
    assert "stablehlo.dot_general" in lowered.as_text()
    assert "nc_matmul" in lowered.as_text("instructions")
    assert lowered.as_text() == lowered.as_text("stablehlo") == str(lowered.program)
    compiled = lowered.compile()
    bits.assert_same(compiled(X, W), jitted(layer)(X, W))
    assert compiled.instructions == lowered.instructions
    assert "nc_matmul" in compiled.as_text()
    with pytest.raises(nj.InvalidProgramError, match="legal values: 'stablehlo'"):
        lowered.as_text("hlo")


def test_compiled_takes_static_and_keyword_arguments():
    step = jitted(power, static_argnames=("n", "negate"))
    compiled = step.lower(X, n=3, bias=X, negate=True).compile()
    out = compiled(X, n=3, bias=X, negate=True)
    bits.assert_same(out, step(X, n=3, bias=X, negate=True))


def test_compiled_refuses_other_shapes():
    compiled = jitted(layer).lower(X, W).compile()
    with pytest.raises(TypeError):
        compiled(X[:2], W)


@pytest.mark.slow
def test_eval_shape_and_make_jaxpr():
    step = jitted(layer)
    assert jax.eval_shape(step, X, W) == jax.eval_shape(layer, X, W)
    closed = jax.make_jaxpr(step)(X, W)
    assert closed.out_avals[0].shape == (3, 4)
    bits.assert_same(jax.jit(jax.extend.core.jaxpr_as_fun(closed))(X, W)[0], step(X, W))


def test_a_second_call_does_not_trace_again():
    traced = []

    def function(x, n):
        traced.append(n)
        return x * n

    step = jitted(function, static_argnums=1)
    for _ in range(3):
        step(X, 2)
    count = len(traced)
    step(2 * X, 2)
    assert len(traced) == count > 0
    step(X, 3)
    step(X[:2], 2)
    assert len(traced) > count


def test_a_gradient_does_not_trace_again():
    traced = []

    def loss(w):
        traced.append(None)
        return energy(ROW, w)

    gradient = jax.jit(jax.grad(jitted(loss)))
    gradient(W)
    count = len(traced)
    gradient(2 * W)
    assert len(traced) == count


@pytest.mark.slow
def test_an_emulated_function_in_the_arguments_of_scan_and_cond():
    step = jitted(lambda x: jnp.tanh(x) * 0.5 + x)

    def program(x):
        x, _ = jax.lax.scan(lambda c, _: (step(c), c.sum()), x, None, length=3)
        return jax.lax.cond(x[0] > 0, step, lambda x: x, x)

    expected = ROW
    for _ in range(3):
        expected = bits.op_by_op(step, expected)
    expected = bits.op_by_op(step, expected) if expected[0] > 0 else expected
    bits.assert_same(jax.jit(program)(ROW), expected)
