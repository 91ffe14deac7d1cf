"""XLA's partitioner in a process of its own: what goes in, what comes back."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context
from jax.sharding import NamedSharding, PartitionSpec as P

import neuronjax as nj
from neuronjax.capture import child_process, partition
from neuronjax.capture.decode import decode_module
from neuronjax.capture.partition import DeviceTiling, find_mesh, split_over
from neuronjax.ir.collective_set import AllReduce, Spmd, groups_along
from neuronjax.ir.program import Mesh, Program

TARGET = "trn2.48xlarge"
MESH = nj.make_mesh((4, 2), ("dp", "tp"))


def over(*spec):
    return NamedSharding(MESH, P(*spec))


def mlp(x, w1, w2):
    h = lax.with_sharding_constraint(jnp.maximum(x @ w1, 0), over("dp", "tp"))
    y = h @ w2
    return y, jax.scipy.special.gammaln(y).sum()


SHARDED = nj.jit(
    mlp,
    target=TARGET,
    in_shardings=(over("dp"), over(None, "tp"), over("tp")),
    out_shardings=(over("dp"), over()),
)
SHAPES = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((8, 16), (16, 32), (32, 16))]


@pytest.fixture(scope="module")
def lowered():
    return SHARDED.lower(*SHAPES)


def only(lowered, kind):
    return [i for i in lowered.instructions if isinstance(i, kind)]


# -- what comes back -------------------------------------------------------------------


@pytest.mark.slow
def test_arguments_and_results_are_split_as_asked(lowered):
    (spmd,) = only(lowered, Spmd)
    assert spmd.mesh.axes == (("dp", 4), ("tp", 2))
    assert spmd.splits == ((("dp",), ()), ((), ("tp",)), (("tp",), ()))
    assert spmd.joins == ((("dp",), ()), ())


def test_all_reduces_stay_in_bfloat16(lowered):
    first, second = only(lowered, AllReduce)
    assert first.operands[0].type.dtype == jnp.bfloat16
    assert first.groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert second.groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert second.operands[0].type.dtype == np.float32


def test_source_lines_and_names_survive(lowered):
    reductions = only(lowered, AllReduce)
    assert all("test_partition.py" in i.location.source for i in reductions)
    assert lowered.program.argument_names == ("x", "w1", "w2")
    assert "all_reduce" in lowered.as_text()


ARITHMETIC = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
    -> (tensor<8xf32>) {
  %c = stablehlo.constant dense<0.7> : tensor<f32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.constant dense<3> : tensor<i32>
  %b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8xf32>
  %0 = stablehlo.sine %b : tensor<8xf32>
  %1 = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<8xf32>
  %2 = stablehlo.add %1, %0 : tensor<8xf32>
  %3 = chlo.square %1 : tensor<8xf32> -> tensor<8xf32>
  %4 = stablehlo.convert %n : (tensor<i32>) -> tensor<f32>
  %5 = chlo.lgamma %4 : tensor<f32> -> tensor<f32>
  %6 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<f32>) -> tensor<8xf32>
  %7 = chlo.lgamma %a : tensor<8xf32> -> tensor<8xf32>
  %8 = chlo.digamma %a : tensor<8xf32> -> tensor<8xf32>
  %9 = stablehlo.cbrt %a : tensor<8xf32>
  %10 = chlo.next_after %7, %8 : tensor<8xf32>, tensor<8xf32> -> tensor<8xf32>
  %11 = stablehlo.add %2, %3 : tensor<8xf32>
  %12 = stablehlo.add %11, %6 : tensor<8xf32>
  %13 = stablehlo.add %12, %9 : tensor<8xf32>
  %14 = stablehlo.custom_call @own.function(%13) {api_version = 4 : i32,
      backend_config = {axis = 1 : i64}} : (tensor<8xf32>) -> tensor<8xf32>
  %15 = stablehlo.subtract %13, %10 : tensor<8xf32>
  %16 = stablehlo.multiply %15, %14 : tensor<8xf32>
  return %16 : tensor<8xf32>
}
"""


def partitioned(text: str) -> tuple[Program, Program]:
    with make_ir_context():
        module = ir.Module.parse(text)
        program = decode_module(module)
        return program, partition.partition(program, module)


@pytest.mark.slow
def test_arithmetic_stays_as_it_is_written():
    """Nothing is folded, dropped or written out; unknown custom calls are replicated"""
    before, after = partitioned(ARITHMETIC)
    names = Counter(op.name for op in after.walk())
    extra = names - Counter(op.name for op in before.walk())
    moves = {"all_gather", "constant", "dynamic_slice", "partition_id", "reshape"}
    allowed = {f"stablehlo.{name}" for name in moves} | {"sdy.manual_computation"}
    assert extra.keys() <= allowed
    assert not Counter(op.name for op in before.walk()) - names
    (call,) = (op for op in after.walk() if op.name == "stablehlo.custom_call")
    assert call.attributes["call_target_name"] == "own.function"


# -- which programs --------------------------------------------------------------------


@pytest.fixture
def no_process(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def test_other_programs_start_no_process(no_process):
    x = jnp.ones((8, 8))
    nj.jit(lambda x: x * 2).lower(x)
    mapped = jax.shard_map(
        lambda x: lax.psum(x, ("dp", "tp")),
        mesh=MESH,
        in_specs=P("dp", "tp"),
        out_specs=P(),
    )
    nj.jit(mapped, target=TARGET).lower(x)
    alone = NamedSharding(nj.make_mesh((1,), ("x",)), P("x"))
    nj.jit(jnp.sin, in_shardings=alone).lower(x)


def test_a_program_is_partitioned_once(lowered, no_process):
    again = SHARDED.lower(*SHAPES)
    assert again.as_text() == lowered.as_text()


# -- errors ----------------------------------------------------------------------------


def fresh(scale):
    """A sharded program of its own, not yet partitioned."""
    sharded = nj.jit(lambda x: x * scale, target=TARGET, in_shardings=over("dp"))
    return sharded.lower(jnp.ones((8, 8)))


def test_a_crash_is_named(monkeypatch, tmp_path):
    child = tmp_path / "child.py"
    child.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setattr(partition, "CHILD", child)
    with pytest.raises(
        nj.UnsupportedError, match=r"crashes \(SIGSEGV\)(.|\n)*shard_map"
    ):
        fresh(2.5)


def test_a_process_that_hangs_is_ended(monkeypatch, tmp_path):
    child = tmp_path / "child.py"
    child.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(partition, "CHILD", child)
    monkeypatch.setattr(partition, "SECONDS", 0.2)
    with pytest.raises(nj.UnsupportedError, match=r"takes more than 0 s"):
        fresh(3.5)


def test_an_interpreter_that_is_not_there(monkeypatch):
    monkeypatch.setattr(child_process.sys, "executable", "/nowhere/python")
    with pytest.raises(nj.InternalError, match=r"cannot start"):
        fresh(4.5)


def test_what_xla_refuses_is_named():
    done = subprocess.CompletedProcess([], 0, b'{"what": "Invalid mesh"}\n', b"")
    with pytest.raises(nj.InvalidProgramError, match=r"cannot partition.*Invalid mesh"):
        partition._read(done)
    died = subprocess.CompletedProcess([], -signal.SIGABRT, b"", b"Check failed: x\n")
    with pytest.raises(nj.UnsupportedError, match=r"SIGABRT\): Check failed: x"):
        partition._read(died)


def test_an_axis_that_does_not_divide():
    sharded = nj.jit(jnp.sin, target=TARGET, in_shardings=over("dp"))
    what = r"evenly divide(.|\n)*pad sharded dimensions"
    with pytest.raises(nj.InvalidProgramError, match=what):
        sharded.lower(jnp.ones((6, 2)))


@pytest.mark.slow
def test_a_mesh_larger_than_the_target():
    sharded = nj.jit(mlp, target="trn2", in_shardings=over("dp"))
    with pytest.raises(nj.InvalidProgramError, match=r"8 devices.* 4 logical"):
        sharded.lower(*SHAPES)


# -- devices in an order of their own --------------------------------------------------

IDS = [3, 1, 0, 2]
PERMUTED = """
sdy.mesh @mesh = <["x"=4], device_ids=[3, 1, 0, 2]>
func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
  %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}]>]
      out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%p: tensor<2xf32>) {
    %i = stablehlo.partition_id : tensor<ui32>
    %f = stablehlo.convert %i : (tensor<ui32>) -> tensor<f32>
    %b = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %q = "stablehlo.collective_permute"(%p) <{
        source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}>
        : (tensor<2xf32>) -> tensor<2xf32>
    %r = stablehlo.add %q, %b : tensor<2xf32>
    sdy.return %r : tensor<2xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
"""


@pytest.mark.slow
def test_a_mesh_whose_devices_are_in_another_order():
    x = np.arange(8, dtype=np.float32) * 10
    got = nj.load(PERMUTED.encode()).compile()(x)
    sent = dict(zip(IDS, x.reshape(4, 2), strict=True))
    np.testing.assert_array_equal(
        got, np.concatenate([sent[(device - 1) % 4] + device for device in IDS])
    )


# -- tiles as splits -------------------------------------------------------------------


def tiling(*places, counts):
    return DeviceTiling.of(counts, places)


def test_whole_axes_in_both_orders():
    mesh = Mesh((("x", 2), ("y", 3)))
    rows = tiling(*[(d,) for d in range(6)], counts=(6,))
    assert split_over(mesh, rows) == (("x", "y"),)
    columns = tiling(*[(d % 3 * 2 + d // 3,) for d in range(6)], counts=(6,))
    assert split_over(mesh, columns) == (("y", "x"),)
    both = tiling(*[(d % 3, d // 3) for d in range(6)], counts=(3, 2))
    assert split_over(mesh, both) == (("y",), ("x",))
    copies = tiling(*[(0, d % 3) for d in range(6)], counts=(1, 3))
    assert split_over(mesh, copies) == ((), ("y",))


def test_a_split_over_part_of_an_axis_cuts_it():
    mesh = Mesh((("x", 4), ("y", 1)))
    halves = tiling((0,), (0,), (1,), (1,), counts=(2,))
    assert split_over(mesh, halves) is None
    found = find_mesh([halves, tiling((0,), (1,), (2,), (3,), counts=(4,))], [mesh])
    cut = Mesh((("x.1", 2), ("x.2", 2)))
    assert found == (cut, [(("x.1",),), (("x.1", "x.2"),)])


@pytest.mark.parametrize(
    ("counts", "places"), [((2,), (0, 1, 1, 0)), ((3,), (0, 1, 2, 0))]
)
def test_find_mesh_returns_none_for_irregular_tilings(counts, places):
    strange = tiling(*[(p,) for p in places], counts=counts)
    assert find_mesh([strange], [Mesh((("x", 4),))]) is None


@pytest.mark.parametrize(
    ("axes", "groups"),
    [
        (("x",), ((0, 2, 4, 6), (1, 3, 5, 7))),
        (("y", "x"), ((0, 2, 4, 6, 1, 3, 5, 7),)),
        (("x:(1)2",), ((0, 4), (1, 5), (2, 6), (3, 7))),
        (("x:(2)2", "y"), ((0, 1, 2, 3), (4, 5, 6, 7))),
    ],
)
def test_groups_along_axes(axes, groups):
    assert groups_along(Mesh((("x", 4), ("y", 2))), axes) == groups


def test_groups_along_axes_of_a_permuted_mesh():
    mesh = Mesh((("x", 2), ("y", 2)), (3, 1, 0, 2))
    assert groups_along(mesh, ("x",)) == ((3, 0), (1, 2))
