"""Saved programs under transformations, inside emulated functions, on many devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import neuronjax as nj
from neuronjax.errors import NeuronJaxError
from tests.capture import saved
from tests.conformance.bits import assert_same, op_by_op

X = np.linspace(-1, 1, 6 * 16, dtype=np.float32).reshape(6, 16)
W = np.linspace(1, -1, 16 * 16, dtype=np.float32).reshape(16, 16)
BATCH = np.stack([X, 2 * X, X - 1])


def block(x, w):
    return jax.nn.softmax(jnp.sin(x @ w)) * 2


LOADED = {
    "export": lambda **given: nj.load(
        saved.exported(block, X, W, vjp_order=1), **given
    ),
    "text": lambda **given: nj.load(
        saved.FORMATS["mlir"](saved.lowered(block, X, W)), **given
    ),
    "lowered": lambda policy=None: nj.jit(block, policy=policy).lower(X, W),
    "compiled": lambda policy=None: nj.jit(block, policy=policy).lower(X, W).compile(),
}


@pytest.fixture(params=LOADED)
def load(request):
    return LOADED[request.param]


def twice(step):
    return lambda x, w: step(step(x, w), w)


def scanned(step):
    return lambda x, w: jax.lax.scan(lambda c, _: (step(c, w), None), x, None, 3)[0]


@pytest.mark.slow_except("text-twice")
@pytest.mark.parametrize("around", [twice, scanned])
def test_inside_an_emulated_function_it_has_the_functions_policy(load, around):
    found = nj.jit(around(load()), policy="bf16")
    assert_same(found(X, W), nj.jit(around(block), policy="bf16")(X, W))
    assert_same(op_by_op(found, X, W), found(X, W))


@pytest.mark.slow_cases("export", "compiled", "lowered")
def test_inside_an_emulated_function_its_own_policy_is_a_scope(load):
    found = nj.jit(twice(load(policy="fp8")), policy="bf16")(X, W)
    assert_same(found, nj.jit(twice(block), policy="fp8")(X, W))


@pytest.mark.slow_cases("export", "text")
def test_every_verb_of_a_function_that_calls_it(load):
    step, plain = twice(load()), twice(block)
    for verb in (nj.compare, nj.check, nj.tolerance, nj.profile):
        assert str(verb(step)(X, W))
    found = nj.compare(step, policy="bf16", reference="fp32")(X, W)
    wanted = nj.compare(plain, policy="bf16", reference="fp32")(X, W)
    assert found.ops[-1].accumulation == wanted.ops[-1].accumulation


def test_the_users_line_is_named():
    @jax.jit
    def faulty(x):
        return jnp.linalg.eigvals(x @ x.T)

    text = export.export(faulty, platforms=["cpu"], disabled_checks=[
        export.DisabledSafetyCheck.custom_call("lapack_sgeev_ffi")
    ])(X)  # fmt: skip
    with pytest.raises(NeuronJaxError, match=r"test_saved_call.py:\d+"):
        nj.load(bytes(text.serialize()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["export", "text"])
def test_a_batch_is_a_loop(kind):
    program, step = LOADED[kind](policy="bf16"), nj.jit(block, policy="bf16")
    wanted = jnp.stack([step(x, W) for x in BATCH])
    batch = jax.vmap(program, (0, None))
    assert_same(batch(BATCH, W), wanted)
    assert_same(op_by_op(batch, BATCH, W), wanted)
    inner = nj.jit(jax.vmap(LOADED[kind](), (0, None)), policy="bf16")
    assert_same(inner(BATCH, W), wanted)
    both = jax.vmap(jax.vmap(program, (0, None)), (None, 0))(BATCH, W[None])
    assert_same(both[0], wanted)


def gradient(step):
    return jax.grad(lambda x, w: jnp.sum(step(x, w) ** 2), (0, 1))


@pytest.mark.slow
def test_the_saved_derivative():
    program, step = LOADED["export"](policy="bf16"), nj.jit(block, policy="bf16")
    wanted = gradient(step)(X, W)
    assert_same(gradient(program)(X, W), wanted)
    inside = nj.jit(gradient(LOADED["export"]()), policy="bf16")
    assert_same(inside(X, W), nj.jit(gradient(block), policy="bf16")(X, W))
    batch = jax.vmap(gradient(program), (0, None))(BATCH, W)
    assert_same(jax.tree.map(lambda g: g[0], batch), wanted)


@pytest.mark.slow
def test_the_loss_scale_acts_on_a_saved_derivative():
    policy = nj.Policy(loss_scale=2.0**24)
    program = LOADED["export"](policy=policy)
    step = nj.jit(block, policy=policy)
    assert_same(gradient(program)(X, W), gradient(step)(X, W))


@pytest.mark.slow
def test_keys_and_unused_arguments():
    def noise(unused, key, x):
        return x + jax.random.uniform(key, x.shape), key

    arguments = jnp.ones(3), jax.random.key(5), X
    program = nj.load(saved.exported(noise, *arguments))
    wanted, key = program(*arguments)
    found, same = nj.jit(lambda *a: program(*a))(*arguments)
    assert_same(found, wanted)
    assert same.dtype == key.dtype
    assert nj.compare(program)(*arguments).name == "noise"


# -- many devices ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_an_artifact_for_several_devices(kind):
    mesh = AbstractMesh((3,), ("d",), axis_types=(getattr(AxisType, kind),))
    rows = NamedSharding(mesh, P("d"))
    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=rows)
    data = saved.exported(lambda x: (x * 2).sum(0), x)
    program = nj.load(data, target="trn2.48xlarge")
    auto = NamedSharding(nj.make_mesh((3,), ("d",)), P("d"))
    step = nj.jit(lambda x: (x * 2).sum(0), in_shardings=auto, target="trn2.48xlarge")
    assert_same(program(X), step(X))
    assert "all_reduce" in program.as_text("instructions")
    assert_same(nj.jit(lambda x: program(x), target="trn2.48xlarge")(X), step(X))


@pytest.mark.slow
def test_a_shard_map_in_an_artifact():
    mesh = nj.make_mesh((2,), ("d",))
    step = jax.shard_map(
        lambda x: jax.lax.pmax(jnp.cumsum(x, 0), "d"),
        mesh=mesh, in_specs=P("d"), out_specs=P(),
    )  # fmt: skip
    program = nj.load(saved.exported(step, X), target="trn1.32xlarge")
    wanted = nj.jit(step, target="trn1.32xlarge")(X)
    assert_same(program(X), wanted)
    assert_same(nj.jit(lambda x: program(x), target="trn1.32xlarge")(X), wanted)
    assert nj.compare(program)(X).target == "trn1.32xlarge"


# -- symbolic sizes --------------------------------------------------------------------


def symbolic(function, *shapes):
    scope = export.SymbolicScope()
    sizes = (export.symbolic_shape(shape, scope=scope) for shape in shapes)
    types = (jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes)
    return saved.exported(function, *types, vjp_order=1)


def doubled(x):
    return jnp.tanh(jnp.concatenate([x, x[:2]])).sum(0)


@pytest.mark.slow
def test_a_program_with_symbolic_sizes_is_a_function():
    step = nj.load(symbolic(doubled, "n, 16"), policy="bf16")
    assert (step.__name__, step.policy.name) == ("doubled", "bf16")
    for x in (X, X[:3]):
        assert_same(step(x), nj.jit(doubled, policy="bf16")(x))
        assert_same(jax.vmap(step)(x[None])[0], step(x))
    found = jax.grad(lambda x: step(x).sum())(X)
    np.testing.assert_allclose(found, jax.grad(lambda x: doubled(x).sum())(X), 1e-5)


@pytest.mark.slow
def test_a_verb_goes_before_the_policy_of_a_program_with_symbolic_sizes(tmp_path):
    data = symbolic(lambda x, w: x @ w, "n, 16", "16, m")
    step, w = nj.load(data, policy="bf16"), X.T.copy()
    assert "bf16" in str(nj.compare(step)(X, w)).splitlines()[0]
    assert "fp32" in str(nj.compare(step, policy="fp32")(X, w)).splitlines()[0]
    (tmp_path / "product").write_bytes(data)
    found = nj.compare(tmp_path / "product", policy="bf16")(X, w)
    assert found.ops[-1].isolation == nj.compare(step)(X, w).ops[-1].isolation


def test_arguments_that_no_symbolic_size_stands_for():
    step = nj.load(symbolic(lambda x, y: x + y, "n, 16", "n, 16"))
    for arguments in ((X, X[:3]), (X[:, :3], X[:, :3]), (X[0], X[0]), (X,)):
        with pytest.raises(nj.InvalidProgramError, match=r"saved for \(n, 16\)"):
            step(*arguments)
    with pytest.raises(nj.InvalidProgramError, match="saved for"):
        step(X, X.astype(np.int32))
    even = nj.load(symbolic(lambda x: x, "2*n, 16"))
    with pytest.raises(nj.InvalidProgramError, match="sizes fit the symbolic sizes"):
        even(X[:3])


# -- refusals and their remedies -------------------------------------------------------


@pytest.mark.slow
def test_an_exported_function_by_the_remedy_of_its_refusal():
    exported = export.export(jax.jit(block), platforms=["cpu"])(X, W)
    with pytest.raises(nj.UnimplementedError, match=r"nj\.load\(exported\.serialize"):
        nj.jit(lambda x: exported.call(x, W))(X)
    program = nj.load(bytes(exported.serialize()))
    assert_same(nj.jit(lambda x: program(x, W))(X), nj.jit(block)(X, W))


def test_an_artifact_that_was_cut_off_is_told_so():
    whole = saved.exported(block, X, W)
    for part in (0.1, 0.3, 0.5, 0.9, 0.99):
        with pytest.raises(nj.InvalidProgramError, match="was cut off"):
            nj.load(whole[: int(part * len(whole))])
