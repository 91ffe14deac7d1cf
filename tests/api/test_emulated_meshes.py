"""Programs for many devices as they stand, in a scope of `nj.emulated`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, use_abstract_mesh

import neuronjax as nj

X = np.random.default_rng(0).standard_normal((8, 2)).astype(np.float32)
W = jnp.ones((2, 3))
MESH = nj.make_mesh((4,), ("dp",))
NAMES = ("make_mesh", "jit", "pmap")


def loss(w, x):
    return ((x @ w) ** 2).mean()


def total(x):
    return jax.lax.psum(x.sum(0), "dp")


def program(kind):
    """As a program for four devices is written."""
    mesh = jax.make_mesh((4,), ("dp",), (kind,))
    with jax.set_mesh(mesh):
        w = jax.device_put(W, NamedSharding(mesh, P()))
        x = jax.device_put(X, P("dp"))
        shardings = {"in_shardings": (P(), P("dp")), "out_shardings": P()}
        gradient = jax.jit(jax.grad(loss), **shardings)(w, x)
        by_hand = jax.shard_map(total, in_specs=P("dp"), out_specs=P())
        sums = jax.jit(by_hand)(x)
    assert jax.sharding.get_abstract_mesh().empty
    return gradient, sums


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_program_for_many_devices_runs_as_it_stands(kind):
    """With the bits of the same two functions of `nj.jit`, on a mesh of none."""
    with nj.emulated(policy="bf16"):
        gradient, sums = program(kind)
    assert gradient.sharding.is_fully_replicated
    assert len(gradient.sharding.device_set) == len(sums.sharding.device_set) == 4
    placed = (NamedSharding(MESH, P()), NamedSharding(MESH, P("dp")))
    options = {"in_shardings": placed, "out_shardings": placed[0], "policy": "bf16"}
    np.testing.assert_array_equal(gradient, nj.jit(jax.grad(loss), **options)(W, X))
    by_hand = jax.shard_map(total, mesh=MESH, in_specs=P("dp"), out_specs=P())
    np.testing.assert_array_equal(sums, nj.jit(by_hand, policy="bf16")(X))


def test_a_mesh_is_set_for_good():
    with nj.emulated():
        jax.set_mesh(jax.make_mesh((4,), ("dp",)))
        try:
            assert jax.sharding.get_abstract_mesh().shape == {"dp": 4}
            assert jax.typeof(jnp.ones((8, 2))).sharding.spec == P(None, None)
        finally:
            jax.set_mesh(None)
    assert jax.sharding.get_abstract_mesh().empty


@pytest.mark.slow
def test_a_partition_spec_is_over_the_mesh_around_it():
    doubled = nj.jit(lambda x: x * 2, in_shardings=P("dp"))
    with use_abstract_mesh(MESH):
        np.testing.assert_array_equal(doubled(X), 2 * X)
        text = doubled.lower(X).as_text()
    assert "tensor<2x2xf32>" in text


def test_axis_types_and_devices_are_the_programs():
    with nj.emulated():
        explicit = jax.make_mesh((2,), ("x",))
        auto = jax.make_mesh((2,), ("x",), (AxisType.Auto,))
        real = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
    assert explicit.axis_types == (AxisType.Explicit,)
    assert auto.axis_types == (AxisType.Auto,)
    assert real.devices.item() == jax.devices()[0]


def test_what_means_the_host_is_jaxs_own():
    device = jax.devices()[0]
    with nj.emulated():
        on_host = jax.device_put(X, device)
        mesh = jax.make_mesh((4,), ("dp",))
        tree = jax.device_put({"a": X, "b": 1.0}, NamedSharding(mesh, P()))
    assert on_host.sharding.device_set == {device}
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree))


def test_the_names_are_jaxs_again():
    native = [getattr(jax, name) for name in NAMES]
    with nj.emulated():
        assert all(getattr(jax, n) is not f for n, f in zip(NAMES, native, strict=True))
    assert [getattr(jax, name) for name in NAMES] == native


# -- where results lie -----------------------------------------------------------------


def column(x):
    return jax.lax.with_sharding_constraint(jnp.sin(x), P(None, "dp"))


PLACED = {
    "by the partitioner": lambda mesh: jax.jit(lambda x: (x * 2, x.T, x.sum(0))),
    "by a constraint": lambda mesh: jax.jit(column),
    "as the program says": lambda mesh: jax.jit(
        lambda x: {"a": x.T * 2, "b": x.sum()},
        out_shardings={"a": NamedSharding(mesh, P(None, "dp")), "b": None},
    ),
    "by a shard_map": lambda mesh: jax.jit(
        jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
    ),
    "of no arguments": lambda mesh: jax.jit(
        lambda *_: jnp.arange(8.0), out_shardings=NamedSharding(mesh, P("dp"))
    ),
}


# Along Explicit axes JAX takes a constraint for a check of the type.
CASES = [(name, AxisType.Auto) for name in PLACED]
CASES += [(name, AxisType.Explicit) for name in PLACED if "constraint" not in name]


@pytest.mark.slow_except("of no arguments-*")
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_results_lie_where_jax_places_them(name, kind):
    with nj.emulated():
        mesh = jax.make_mesh((4,), ("dp",), (kind,))
        emulated = PLACED[name](mesh)
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    with jax.set_mesh(mesh):
        x = jax.device_put(x, P("dp"))
        got, want = emulated(x), PLACED[name](mesh)(x)
    for ours, native in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jax.typeof(ours) == jax.typeof(native)
        assert ours.sharding.is_equivalent_to(native.sharding, ours.ndim)
        np.testing.assert_allclose(ours, native, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "is_set"),
    [(AxisType.Auto, True), (AxisType.Auto, False), (AxisType.Explicit, True)],
)
def test_transformations_outside_of_a_function(kind, is_set):
    def wave(x, w):
        return jnp.sin(x @ w)

    with nj.emulated():
        mesh = jax.make_mesh((4,), ("dp",), (kind,))
        emulated = jax.jit(wave)
    x, w = (
        jax.device_put(a, NamedSharding(mesh, s)) for a, s in ((X, P("dp")), (W, P()))
    )
    with jax.set_mesh(mesh if is_set else None):
        results = [
            [
                *jax.grad(lambda *a: of(*a).sum(), (0, 1))(x, w),
                jax.vmap(of, (None, 2))(x, w[:, :, None]),
            ]
            for of in (emulated, wave)
        ]
    for ours, native in zip(*results, strict=True):
        np.testing.assert_allclose(ours, native, rtol=2e-5, atol=1e-6)
        if kind is AxisType.Explicit:
            assert jax.typeof(ours) == jax.typeof(native)


@pytest.mark.slow
def test_arrays_of_every_process_and_by_callback():
    with nj.emulated():
        mesh = jax.make_mesh((4,), ("dp",))
        doubled = jax.jit(lambda x: x * 2)
    rows = NamedSharding(mesh, P("dp"))
    own = jax.make_array_from_process_local_data(rows, X)
    asked = jax.make_array_from_callback(X.shape, rows, lambda index: X[index])
    for x in (own, asked, jax.jit(lambda x: x, out_shardings=rows)(X)):
        np.testing.assert_array_equal(doubled(x), 2 * X)
        assert jax.typeof(doubled(x)) == jax.typeof(x)


@pytest.mark.slow
def test_the_mesh_of_a_with_block():
    with nj.emulated():
        mesh = jax.make_mesh((4,), ("dp",), (AxisType.Auto,))
        constrained = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, P("dp")))
    with pytest.warns(DeprecationWarning, match="with mesh"), mesh:
        found = constrained(X)
    assert found.sharding == NamedSharding(mesh, P("dp"))


@pytest.mark.slow
def test_a_compiled_program_takes_arrays_in_parts():
    with nj.emulated():
        mesh = jax.make_mesh((4,), ("dp",))
        emulated = jax.jit(lambda x, power: x**power, static_argnums=1)
    x = jax.device_put(X, NamedSharding(mesh, P("dp")))
    compiled = emulated.lower(x, 2).compile()
    np.testing.assert_array_equal(compiled(x, 2), X * X)
    assert jax.typeof(compiled(x, 2)) == jax.typeof(x)
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=x.sharding)
    assert emulated.lower(shape, 2).as_text() == emulated.lower(x, 2).as_text()
    with jax.disable_jit():
        np.testing.assert_array_equal(emulated(x, 2), X * X)


@pytest.mark.slow
def test_transformations_around_a_mesh_without_devices():
    spread = nj.jit(loss, in_shardings=(P(), P("dp")))
    with use_abstract_mesh(MESH):
        gradient = jax.grad(spread)(W, X)
        rows = jax.vmap(spread, (None, 0))(W, X[None])
    np.testing.assert_allclose(gradient, jax.grad(loss)(W, X), rtol=1e-5)
    np.testing.assert_allclose(rows, [loss(W, X)], rtol=1e-6)


@pytest.mark.slow
def test_axes_of_both_kinds():
    with nj.emulated():
        kinds = AxisType.Explicit, AxisType.Auto
        mesh = jax.make_mesh((2, 2), ("a", "b"), kinds)
        doubled = jax.jit(lambda x: x * 2)
    x = jax.device_put(X, NamedSharding(mesh, P("a", "b")))
    np.testing.assert_array_equal(doubled(x), 2 * X)
    assert jax.typeof(doubled(x)).sharding.spec == P("a", None)


@pytest.mark.slow_except("AxisType.Explicit")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_print_in_a_shard_map_of_an_array_in_parts(kind, capfd):
    def printing(x):
        jax.debug.print("sum {}", x.sum())
        return x

    with nj.emulated():
        mesh = jax.make_mesh((2,), ("dp",), (kind,))
        rows: dict = {"in_specs": P("dp"), "out_specs": P("dp"), "mesh": mesh}
        printed = jax.jit(jax.shard_map(printing, **rows))
    x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("dp")))
    np.testing.assert_array_equal(printed(x), x)
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == ["sum", "6.0", "sum", "22.0"]


@pytest.mark.slow
def test_reports_under_a_mesh_that_is_set():
    """They run outside of the mesh, as the emulation does."""
    with nj.emulated(policy="bf16"):
        mesh = jax.make_mesh((4,), ("d",))
        with jax.set_mesh(mesh):
            x = jax.device_put(jnp.ones((8, 6)), NamedSharding(mesh, P("d")))
            step = jax.jit(lambda x: jnp.tanh(x @ jnp.ones((6, 4))).sum())
            for verb in (nj.compare, nj.profile, nj.check):
                assert "policy bf16" in str(verb(step)(x)).splitlines()[0]


@pytest.mark.slow
def test_auto_axes_of_one_device_change_no_program():
    """Rounding keys count instructions, so that constraints would change the bits."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    x = jax.random.normal(jax.random.key(0), (8, 6))
    lies = jax.device_put(x, NamedSharding(mesh, P("d")))
    inside: dict = {"in_specs": P("dp"), "out_specs": P(), "check_vma": False}
    mapped = jax.shard_map(
        lambda x: jax.lax.psum(x @ x.T, "dp"),
        mesh=nj.make_mesh((4,), ("dp",)),
        **inside,
    )
    policy = "bf16,rounding=stochastic"
    step = nj.jit(mapped, target="trn2.48xlarge", policy=policy)
    assert (step.with_rounding_seed(1)(lies) == step.with_rounding_seed(1)(x)).all()
    names = [[i.name for i in step.lower(a).instructions] for a in (x, lies)]
    assert names[0] == names[1]
