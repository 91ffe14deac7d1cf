"""Meshes, shardings and collectives of a module, decoded as plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from neuronjax.capture.decode import decode_module
from neuronjax.capture.trace import capture
from neuronjax.ir.program import AxisGroups, Mesh, Op, Program, Sharding

MODULE = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @moved = <["x"=4], device_ids=[3, 2, 1, 0]>
sdy.mesh @one = <[], device_ids=[3]>
func.func @main(
    %a: tensor<8x4xf32> {
      sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2, "y"}, {?}],
                                   replicated={"x":(2)2}>},
    %b: tensor<8xf32>,
    %c: tensor<8x4xf32> {
      sdy.sharding = #sdy.sharding<mesh<["z"=2]>, [{"z"}, {}]>})
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = sdy.manual_computation(%a, %c)
      in_shardings=[<@mesh, [{"x", "y"}, {}]>, <@mesh, [{}, {"x", ?}]>]
      out_shardings=[<mesh<["x"=4, "y"=2]>, [{"x"}, {}], replicated={"y"}>]
      manual_axes={"x", "y"} (%p: tensor<1x4xf32>, %q: tensor<8x1xf32>) {
    OPS
    sdy.return %r : tensor<2x4xf32>
  } : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
"""
GATHER = """%r = "stablehlo.all_gather"(%p) <{all_gather_dim = 0 : i64,
  channel_handle = #stablehlo.channel_handle<handle = 7, type = 1>,
  replica_groups = GROUPS, use_global_device_ids}>
  : (tensor<1x4xf32>) -> tensor<2x4xf32>"""


def decoded(ops: str) -> Program:
    with make_ir_context():
        return decode_module(ir.Module.parse(MODULE.replace("OPS", ops)))


def only(program: Program, name: str) -> Op:
    [found] = [op for op in program.walk() if op.name == name]
    return found


TABLE = "dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>"


@pytest.fixture(scope="module")
def program() -> Program:
    return decoded(GATHER.replace("GROUPS", TABLE))


def test_meshes(program):
    assert program.meshes == {
        "mesh": Mesh((("x", 4), ("y", 2))),
        "moved": Mesh((("x", 4),), (3, 2, 1, 0)),
        "one": Mesh((), (3,)),
    }


def test_shardings_of_main(program):
    first, second, third = program.argument_shardings
    assert first == Sharding("mesh", (("x:(1)2", "y"), ()), ("x:(2)2",))
    assert second is None
    assert third == Sharding(Mesh((("z", 2),)), (("z",), ()))
    assert program.result_shardings == (Sharding("mesh", (("x",), ())),)


PLAIN = "func.func @main(%a: tensor<f32>) -> tensor<f32> {return %a : tensor<f32>}"


def test_a_module_without_shardings():
    with make_ir_context():
        program = decode_module(ir.Module.parse(PLAIN))
    assert program.meshes == {}
    assert program.argument_shardings == program.result_shardings == (None,)


def test_manual_computation(program):
    op = only(program, "sdy.manual_computation")
    assert op.attributes["in_shardings"] == (
        Sharding("mesh", (("x", "y"), ())),
        Sharding("mesh", ((), ("x",))),
    )
    inlined = Mesh((("x", 4), ("y", 2)))
    assert op.attributes["out_shardings"] == (
        Sharding(inlined, (("x",), ()), replicated=("y",)),
    )
    assert op.attributes["manual_axes"] == ("x", "y")
    assert [v.type.shape for v in op.regions[0].arguments] == [(1, 4), (8, 1)]


def test_groups_in_a_table(program):
    attributes = only(program, "stablehlo.all_gather").attributes
    table = attributes.pop("replica_groups")
    assert table.dtype == np.int64
    assert table.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert attributes == {
        "all_gather_dim": 0,
        "channel_handle": 7,
        "use_global_device_ids": True,
    }


AXES = "#stablehlo.replica_group_mesh_axes<mesh = {}, axes = [{}]>"
Y, HALF_X = (
    '#stablehlo.axis_ref<name = "y">',
    '#stablehlo.axis_ref<name = "x", sub_axis_info = (1)2>',
)


@pytest.mark.parametrize(
    ("mesh", "axes", "expected"),
    [
        ("@mesh", Y, AxisGroups("mesh", ("y",))),
        ("@mesh", f"{Y}, {HALF_X}", AxisGroups("mesh", ("y", "x:(1)2"))),
    ],
)
def test_groups_by_axes(mesh, axes, expected):
    program = decoded(GATHER.replace("GROUPS", AXES.format(mesh, axes)))
    attributes = only(program, "stablehlo.all_gather").attributes
    assert attributes["replica_groups"] == expected


# -- what JAX writes -------------------------------------------------------------------


def captured(function: Callable[..., Any]) -> Program:
    mesh = nj.make_mesh((4, 2), ("x", "y"))
    split = P("x", "y")
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=split, out_specs=split, check_vma=False
    )
    leaf = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    return capture(lambda *x: [mapped(*x)], (leaf,), ("a",)).program


CALLS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "all_reduce": (lambda x: lax.psum(x, "y"), {}),
    "reduce_scatter": (
        lambda x: lax.psum_scatter(x, "y", scatter_dimension=1, tiled=True),
        {"scatter_dimension": 1},
    ),
    "all_gather": (
        lambda x: lax.all_gather(x, "y", axis=1, tiled=True),
        {"all_gather_dim": 1},
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "y", 1, 0, tiled=True),
        {"split_dimension": 1, "concat_dimension": 0, "split_count": 2},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_collectives_of_jax(name):
    function, expected = CALLS[name]
    program = captured(function)
    op = only(program, f"stablehlo.{name}")
    groups = op.attributes["replica_groups"]
    assert expected.items() <= op.attributes.items()
    assert op.attributes["channel_handle"] > 0
    # JAX 0.10 writes a table, 0.12 the axes.
    if isinstance(groups, AxisGroups):
        assert groups.axes == ("y",)
        assert program.meshes[groups.mesh] == Mesh((("x", 4), ("y", 2)))
    else:
        assert groups.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_permutation_of_jax():
    program = captured(lambda x: lax.ppermute(x, "x", [(0, 1), (3, 0)]))
    op = only(program, "stablehlo.collective_permute")
    pairs = op.attributes["source_target_pairs"]
    assert sorted(pairs.tolist()) == [[0, 2], [1, 3], [6, 0], [7, 1]]


def test_the_manual_computation_of_jax():
    program = captured(lambda x: x + lax.axis_index("x").astype(x.dtype))
    op = only(program, "sdy.manual_computation")
    (sharding,) = op.attributes["in_shardings"]
    assert sharding.dimensions == (("x",), ("y",))
    assert program.meshes[sharding.mesh] == Mesh((("x", 4), ("y", 2)))
    assert op.attributes["manual_axes"] == ("x", "y")
    assert only(program, "stablehlo.partition_id").operands == ()
