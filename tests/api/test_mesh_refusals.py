"""Meshes, axes and shardings that cannot be: errors with the line and what to do; and
arrays that lie on a mesh of the host's devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, use_abstract_mesh

import neuronjax as nj

MESH = nj.make_mesh((4,), ("dp",))
X = np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((256, 8)).astype(np.float32)


def constrained(x):
    return jax.lax.with_sharding_constraint(x * 2, P("tp"))


def doubled(x):
    return x * 2


def mapped(**specs):
    return jax.shard_map(doubled, mesh=MESH, **{"in_specs": P("dp"), **specs})


UNKNOWN = {
    "in_shardings": nj.jit(doubled, in_shardings=P("tp")),
    "out_shardings": nj.jit(doubled, out_shardings=P("tp")),
    "in_specs": nj.jit(mapped(in_specs=P("tp"), out_specs=P("dp"))),
    "out_specs": nj.jit(mapped(out_specs=P("tp"))),
}


OTHER_AXES = r"tp(.|\n)*remedy: (in the specs, use only|name) axes"


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_axis_that_the_mesh_has_not(name):
    first = test_an_axis_that_the_mesh_has_not.__code__.co_firstlineno
    with (
        use_abstract_mesh(MESH),
        pytest.raises(nj.InvalidProgramError, match=OTHER_AXES) as e,
    ):
        UNKNOWN[name](X)
    file, _, number = str(e.value.location).rpartition(":")
    assert file == __file__
    assert first < int(number) < first + 10


def test_the_line_of_a_constraint():
    with (
        use_abstract_mesh(MESH),
        pytest.raises(nj.InvalidProgramError, match="'tp'") as raised,
    ):
        nj.jit(constrained)(X)
    first = constrained.__code__.co_firstlineno
    assert raised.value.location == f"{__file__}:{first + 1}"


@pytest.mark.slow_cases("in", "constraint", "out")
@pytest.mark.parametrize(
    "make",
    [
        lambda: nj.jit(doubled, in_shardings=P("dp")),
        lambda: nj.jit(doubled, out_shardings=P("dp")),
        lambda: nj.jit(lambda x: jax.lax.with_sharding_constraint(x * 2, P("dp"))),
        lambda: nj.jit(jax.shard_map(doubled, in_specs=P("dp"), out_specs=P("dp"))),
    ],
    ids=["in", "out", "constraint", "shard_map"],
)
def test_the_remedies_where_no_mesh_is_set_work(make):
    """A `shard_map` keeps the mesh that it was first called under, hence `make`."""
    function = make()
    with pytest.raises(nj.InvalidProgramError, match="use_abstract_mesh") as raised:
        function(X)
    assert "set_mesh" not in raised.value.what
    with use_abstract_mesh(MESH):
        np.testing.assert_array_equal(function(X), 2 * X)
    with nj.emulated():
        mesh = jax.make_mesh((4,), ("dp",), (AxisType.Auto,))
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(make()(X), 2 * X)


def test_more_entries_than_dimensions_and_another_number_of_shardings():
    many, two = NamedSharding(MESH, P(None, None, "dp")), (P(), P())
    with pytest.raises(nj.InvalidProgramError, match="no more entries than"):
        nj.jit(doubled, in_shardings=many)(X)
    with use_abstract_mesh(MESH), pytest.raises(nj.InvalidProgramError, match="prefix"):
        nj.jit(doubled, in_shardings=two)(X)


def test_reshard_over_auto_axes():
    with (
        use_abstract_mesh(MESH),
        pytest.raises(nj.InvalidProgramError, match="with_sharding_constraint"),
    ):
        nj.jit(lambda x: jax.reshard(x, P("dp")))(X)


def test_what_is_not_about_meshes_is_left_alone():
    with pytest.raises(TypeError, match="evenly divide"):
        nj.jit(lambda x: x.reshape(3, -1))(X)
    with pytest.raises(ValueError, match="no matter"):
        nj.jit(raising)(X)


def raising(_):
    raise ValueError("no matter")


def test_device_put_in_a_scope_knows_the_axes():
    """Outside of functions it is JAX's own, and so is its error."""
    with nj.emulated(), jax.set_mesh(jax.make_mesh((4,), ("dp",))):
        with pytest.raises(ValueError, match=r"tp.*not found in mesh"):
            jax.device_put(X, P("tp"))
        assert jax.typeof(jax.device_put(X, P("dp"))).sharding.spec == P("dp", None)


# -- devices of the host ---------------------------------------------------------------


@pytest.mark.slow_cases(
    "P('x',)-AxisType.Auto",
    "P()-AxisType.Explicit",
    "P('x',)-AxisType.Explicit",
    "P()-AxisType.Auto",
    "P(None, 'x')-AxisType.Explicit",
)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()], ids=str)
def test_arrays_on_a_mesh_of_the_host(kind, spec):
    """Along Explicit axes their types say how they lie, of which operations of the
    emulation itself know nothing."""
    mesh = jax.make_mesh((1,), ("x",), (kind,))
    function = nj.jit(lambda x, w: jax.nn.softmax(x @ w), policy="bf16")
    expected = function(X, W)
    x, w = (jax.device_put(a, NamedSharding(mesh, spec)) for a in (X, W))
    np.testing.assert_array_equal(function(x, w), expected)
    np.testing.assert_array_equal(jax.jit(function)(x, w), expected)
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(function(x, w), expected)
    with jax.disable_jit():
        np.testing.assert_array_equal(function(x, w), expected)


@pytest.mark.slow
def test_reports_of_arrays_on_explicit_axes():
    mesh = jax.make_mesh((1,), ("x",), (AxisType.Explicit,))
    x, w = (jax.device_put(a, NamedSharding(mesh, P("x"))) for a in (X, W))
    function = nj.jit(jnp.matmul, policy="bf16")
    assert nj.compare(function)(x, w).ops
    profile = nj.profile(function)(x, w)
    np.testing.assert_array_equal(profile.outputs, function(X, W))
