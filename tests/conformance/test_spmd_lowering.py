"""Programs of many devices as instructions: structure, plans, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import neuronjax as nj
from neuronjax.capture.decode import decode_module
from neuronjax.capture.trace import capture
from neuronjax.errors import (
    InvalidProgramError,
    NeuronJaxError,
    UnimplementedError,
    UnsupportedError,
)
from neuronjax.hardware import resolve_target
from neuronjax.ir.collective_set import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    DeviceMesh,
    PartitionId,
    RaggedAllToAll,
    ReduceScatter,
    Spmd,
)
from neuronjax.ir.collectives.algorithms import ALGORITHMS
from neuronjax.ir.instruction import InstructionProgram
from neuronjax.ir.instruction_set import Call, Loop, NcMatmul
from neuronjax.lowering import lower
from neuronjax.policy.values import LEGAL

MESH = nj.make_mesh((4, 2), ("dp", "tp"))
ROWS, COLUMNS = ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 2, 4, 6), (1, 3, 5, 7))
X = jax.ShapeDtypeStruct((16, 16), jnp.bfloat16)
TARGET = "trn2.48xlarge"


def instructions(
    function: Callable[..., Any],
    *arguments: Any,
    mesh: Any = MESH,
    in_specs: Any = P("dp", "tp"),
    out_specs: Any = P("dp", "tp"),
    target: str = TARGET,
    policy: Any = None,
    **options: Any,
) -> InstructionProgram:
    """The program of a function of one device's arrays."""
    mapped = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        **{"check_vma": False, **options},
    )
    return lowered_function(mapped, arguments or (X,), target, policy)


def lowered_function(
    function: Callable[..., Any], arguments: Any, target: str, policy: Any
) -> InstructionProgram:
    paths, tree = jax.tree.flatten_with_path(tuple(arguments))
    names = tuple(jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in paths)

    def flat(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves)))

    program = capture(flat, tuple(leaf for _, leaf in paths), names).program
    policy = nj.Policy.resolve(policy)
    return lower(program, target=resolve_target(target), policy=policy)


def body(*arguments: Any, **options: Any) -> tuple:
    """The instructions of the only block of devices."""
    [spmd] = instructions(*arguments, **options).main.instructions
    return spmd.body.instructions


# -- structure -------------------------------------------------------------------------


def test_one_instruction_for_all_devices():
    program = instructions(
        lambda x, w, n: (x @ w, n + 1),
        *(X, X, jax.ShapeDtypeStruct((), jnp.float32)),
        in_specs=(P(("dp", "tp")), P(), P()),
        out_specs=(P(("dp", "tp")), P()),
    )
    [spmd] = program.main.instructions
    assert isinstance(spmd, Spmd)
    assert spmd.engine == "cc"
    assert spmd.mesh == DeviceMesh((("dp", 4), ("tp", 2)))
    assert spmd.splits == ((("dp", "tp"), ()), ((), ()), ())
    assert spmd.joins == ((("dp", "tp"), ()), ())
    assert [b.type.shape for b in spmd.body.arguments] == [(2, 16), (16, 16), ()]


def test_what_is_outside_stays_outside():
    def f(x):
        inside = jax.shard_map(
            lambda x: lax.psum(x, "dp"), mesh=MESH, in_specs=P("dp"), out_specs=P()
        )
        return inside(x * 2) + 1

    program = lowered_function(f, (X,), TARGET, None)
    kinds = [type(i).__name__ for i in program.main.instructions]
    assert kinds.count("Spmd") == 1
    assert kinds.index("Spmd") not in (0, len(kinds) - 1)


def test_the_body_captures_nothing():
    """Constants of main are not reused in it."""
    three = jnp.bfloat16(3)
    inside = jax.shard_map(
        lambda y: y * three, mesh=MESH, in_specs=P("dp"), out_specs=P("dp")
    )
    program = lowered_function(lambda x: inside(x * three), (X,), TARGET, None)
    [spmd] = [i for i in program.main.instructions if isinstance(i, Spmd)]
    known = {b.number for b in spmd.body.arguments}
    for i in spmd.body.instructions:
        assert {v.buffer.number for v in i.operands} <= known
        known |= {b.number for b in i.results}


def test_loops_and_calls_in_the_body():
    @jax.jit
    def inner(x):
        return lax.psum(x, "dp") * x

    def f(x):
        return lax.scan(lambda c, _: (inner(c), None), x, None, length=3)[0]

    program = instructions(f)
    names = {type(i) for i in program.walk()}
    assert {Spmd, Loop, Call, AllReduce} <= names


# -- collectives -----------------------------------------------------------------------


MOVES: dict[str, tuple[Callable[[Any], Any], type, dict[str, Any]]] = {
    "all_gather": (
        lambda x: lax.all_gather(x, "tp", axis=1, tiled=True),
        AllGather,
        {"dimension": 1, "groups": ROWS},
    ),
    "all_gather over both, the other way round": (
        lambda x: lax.all_gather(x, ("tp", "dp"), tiled=True),
        AllGather,
        {"dimension": 0, "groups": ((0, 2, 4, 6, 1, 3, 5, 7),)},
    ),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "dp", 1, 0, tiled=True),
        AllToAll,
        {"split_dimension": 1, "concat_dimension": 0, "groups": COLUMNS},
    ),
    "permute": (
        lambda x: lax.ppermute(x, "tp", [(0, 1)]),
        CollectivePermute,
        {"pairs": ((0, 1), (2, 3), (4, 5), (6, 7))},
    ),
    "axis_index": (lambda x: x + lax.axis_index("tp").astype(x.dtype), PartitionId, {}),
}


@pytest.mark.parametrize("name", MOVES)
def test_movement(name):
    function, cls, fields = MOVES[name]
    [found] = [i for i in body(function) if isinstance(i, cls)]
    assert found.engine == "cc"
    assert found.label == "exact"
    assert found.attributes() == fields


def test_reductions():
    sums = body(lambda x: lax.psum(x, "tp"))
    [sum_] = [i for i in sums if isinstance(i, AllReduce)]
    assert (sum_.op, sum_.groups, sum_.label) == ("add", ROWS, "modelled")
    largest = body(lambda x: lax.pmax(x, ("dp", "tp")))
    assert largest[0].op == "maximum"
    assert largest[0].groups == (tuple(range(8)),)
    scatter = body(lambda x: lax.psum_scatter(x, "dp", scatter_dimension=1, tiled=True))
    assert isinstance(scatter[0], ReduceScatter)
    assert (scatter[0].dimension, scatter[0].groups) == (1, COLUMNS)


def test_groups_keep_their_order():
    groups = [[3, 1], [0, 2]]
    [found] = body(
        lambda x: lax.psum(x, "dp", axis_index_groups=groups), out_specs=P("dp", "tp")
    )
    assert found.groups == ((6, 2), (0, 4), (7, 3), (1, 5))


# -- plans -----------------------------------------------------------------------------


def plan(policy: Any = None, *, columns: int = 16, **options: Any) -> AllReduce:
    x = jax.ShapeDtypeStruct((16, columns), jnp.bfloat16)
    [found] = body(
        lambda x: lax.psum(x, ("dp", "tp")), x, policy=policy, out_specs=P(), **options
    )
    return found


@pytest.mark.parametrize(
    ("columns", "algorithm", "roundings"),
    [(16, "single_step_mesh", 1), (32768, "mesh", 2), (524288, "rdh", 2)],
)
def test_size_decides(columns, algorithm, roundings):
    found = plan(columns=columns).plan
    assert (found.algorithm, found.roundings) == (algorithm, roundings)


def test_the_policy_decides():
    found = plan(nj.Policy(collective_algorithm="ring"))
    assert found.plan.algorithm == "ring"
    assert found.plan.roundings == 7


def test_a_rule_decides():
    rule = nj.Rule(op="stablehlo.all_reduce", collective_algorithm="kangaring")
    assert plan(nj.Policy(rules=(rule,))).plan.algorithm == "kangaring"


def test_an_impossible_algorithm_names_the_legal_ones():
    policy = nj.Policy(collective_algorithm="kangaring")
    with pytest.raises(InvalidProgramError, match="legal here: auto, ring") as error:
        body(lambda x: lax.psum(x, "tp"), policy=policy, out_specs=P("dp"))
    assert "4 ranks of a chip" in str(error.value)


def test_a_misspelt_algorithm():
    with pytest.raises(InvalidProgramError, match="did you mean 'ring'"):
        nj.Policy(collective_algorithm="rign")


def test_the_policy_knows_every_algorithm():
    assert set(LEGAL["collective_algorithm"]) == {"auto", *ALGORITHMS}


def test_logical_cores_of_the_policy():
    """With LNC 1 a chip has 8 ranks, with LNC 2 four."""
    ring = nj.Policy(collective_algorithm="mesh", lnc=1)
    assert str(plan(ring).plan) == "mesh(8/8)"
    assert str(plan(nj.Policy(collective_algorithm="mesh")).plan) == "mesh(4/4,2/2)"


def test_dtype_that_sums_travel_in():
    policy = nj.Policy(collective_reduce_dtype="float32", rounding="stochastic")
    assert plan(policy).reduce_dtype == "float32"
    assert plan(nj.Policy(collective_reduce_dtype="bfloat16")).reduce_dtype is None
    x = jax.ShapeDtypeStruct((8, 2), jnp.float32)
    wide = dict(policy=nj.Policy(collective_reduce_dtype="bfloat16"), out_specs=P())
    [sum_] = body(lambda x: lax.psum(x, ("dp", "tp")), x, **wide)
    [largest] = body(lambda x: lax.pmax(x, ("dp", "tp")), x, **wide)
    assert (sum_.reduce_dtype, largest.reduce_dtype) == ("bfloat16", None)


def test_rounding_of_the_policy():
    stochastic = nj.Policy(rounding="stochastic")
    found = plan(stochastic)
    assert found.rounding == "stochastic"
    assert found.ordinal > 0
    x = jax.ShapeDtypeStruct((8, 2), jnp.float32)
    [exact] = body(lambda x: lax.psum(x, "dp"), x, policy=stochastic)
    assert exact.rounding == "rne"
    through = nj.Policy(rounding="stochastic", collective_reduce_dtype="bfloat16")
    [rounded] = body(lambda x: lax.psum(x, "dp"), x, policy=through)
    assert rounded.rounding == "stochastic"


def test_integer_path_of_the_policy():
    x = jax.ShapeDtypeStruct((8, 2), jnp.int32)
    policy = nj.Policy(integer_path="fp32")
    [sum_] = body(lambda x: lax.psum(x, "dp"), x, policy=policy)
    assert sum_.integer_path == "fp32"


# -- provenance ------------------------------------------------------------------------


def test_a_parameter_keeps_its_name_through_a_gather():
    def f(params, x):
        w = lax.all_gather(params["w"], "dp", tiled=True)
        return x @ w, x @ params["v"]

    shapes = {name: jax.ShapeDtypeStruct((16, 16), jnp.float32) for name in "vw"}
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    rule = nj.Rule(param="0/w", auto_cast="matmult", auto_cast_type="bf16")
    program = instructions(
        f,
        *(shapes, x),
        in_specs=({"v": P(), "w": P("dp")}, P()),
        out_specs=P(),
        policy=nj.Policy(rules=(rule,)),
    )
    matmuls = [i for i in program.walk() if isinstance(i, NcMatmul)]
    kinds = [i.operands[0].type.dtype.name for i in matmuls]
    assert kinds == ["bfloat16", "float32"]


def test_gradients_inside_are_cotangents():
    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w))

    def f(w, x):
        return lax.psum(jax.grad(loss)(w, x), ("dp", "tp"))

    shapes = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 2
    options = dict(in_specs=(P(), P(("dp", "tp"))), out_specs=P(), policy="fp8")
    program = instructions(f, *shapes, **options)
    matmuls = [i for i in program.walk() if isinstance(i, NcMatmul)]
    kinds = {v.type.dtype.name for i in matmuls for v in i.operands}
    assert kinds == {"float8_e4m3", "float8_e5m2"}


# -- what is refused -------------------------------------------------------------------


def refused(category: type[NeuronJaxError], words: str) -> Any:
    return pytest.raises(category, match=words)


def test_more_devices_than_the_target_has():
    with refused(InvalidProgramError, "8 devices, but target trn2 has 4") as error:
        body(lambda x: x, target="trn2")
    assert "trn2.48xlarge (64)" in error.value.remedy
    assert __file__ in error.value.location
    big = nj.make_mesh((1024,), ("dp",))
    with refused(InvalidProgramError, "devices: .* is the largest target"):
        body(lambda x: x, jnp.zeros((1024,)), mesh=big, in_specs=P(), out_specs=P())


@pytest.mark.slow
def test_some_axes_left_to_the_partitioner():
    mapped = jax.shard_map(
        lambda x: lax.psum(x, "dp"),
        mesh=MESH,
        in_specs=P("dp"),
        out_specs=P(),
        axis_names={"dp"},
    )
    program = lowered_function(mapped, (X,), TARGET, None)
    [reduction] = [i for i in program.walk() if isinstance(i, AllReduce)]
    assert reduction.groups == ((0, 2, 4, 6), (1, 3, 5, 7))


@pytest.mark.slow
def test_axes_of_one_device_need_not_be_manual():
    mesh = nj.make_mesh((4, 1), ("dp", "tp"))
    options = dict(in_specs=P("dp"), out_specs=P("dp"), axis_names={"dp"})
    assert body(lambda x: x + x, mesh=mesh, check_vma=True, **options)


def test_groups_of_different_sizes():
    with refused(InvalidProgramError, "axis_index_groups"):
        body(lambda x: lax.psum(x, "dp", axis_index_groups=[[0, 1, 2], [3]]))


def test_explicit_axes():
    mesh = AbstractMesh((8,), ("dp",), axis_types=(AxisType.Explicit,))
    with refused(UnsupportedError, "Explicit axes") as error:
        body(lambda x: x, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"))
    assert "neuronjax.make_mesh" in error.value.remedy


def test_ragged_all_to_all():
    def f(x, sizes):
        return lax.ragged_all_to_all(x, x, sizes, sizes, sizes, sizes, axis_name="dp")

    shapes = (jax.ShapeDtypeStruct((16,), t) for t in (jnp.float32, jnp.int32))
    [found] = body(f, *shapes, in_specs=P("dp"), out_specs=P("dp"))
    assert isinstance(found, RaggedAllToAll)
    assert found.groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    wrong = (jax.ShapeDtypeStruct((n,), t) for n, t in ((16, X.dtype), (8, "int32")))
    with refused(InvalidProgramError, "a group has 4 devices"):
        body(f, *wrong, in_specs=P("dp"), out_specs=P("dp"))


MODULE = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @thin = <["x"=8, "z"=1]>
sdy.mesh @moved = <["x"=8], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {{
  {ops}
  return %0 : tensor<8xf32>
}}
"""
SPLIT, HANDLE = (
    '<@mesh, [{"x", "y"}]>',
    "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>",
)


def manual(op: str, split: str = SPLIT, local: int = 1, axes: str = '"x", "y"') -> str:
    """A manual computation of one op on %p, which defines %r."""
    return f"""
    %0 = sdy.manual_computation(%a) in_shardings=[{split}] out_shardings=[{split}]
        manual_axes={{{axes}}} (%p: tensor<{local}xf32>) {{
      {op}
      sdy.return %r : tensor<{local}xf32>
    }} : (tensor<8xf32>) -> tensor<8xf32>"""


def all_reduce(
    groups: str, flags: str = f", {HANDLE}, use_global_device_ids", op: str = "add"
) -> str:
    attributes = f"replica_groups = {groups}{flags}"
    return f"""%r = "stablehlo.all_reduce"(%p) <{{{attributes}}}> ({{
      ^bb0(%u: tensor<f32>, %v: tensor<f32>):
        %s = stablehlo.{op} %u, %v : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }}) : (tensor<1xf32>) -> tensor<1xf32>"""


def axes(name: str) -> str:
    reference = f"#stablehlo.axis_ref<name = {name}>"
    mesh = "mesh = @mesh"
    return f"#stablehlo.replica_group_mesh_axes<{mesh}, axes = [{reference}]>"


def permute(pairs: str) -> str:
    return f"""%r = "stablehlo.collective_permute"(%p) <{{{HANDLE},
        source_target_pairs = dense<{pairs}> : tensor<2x2xi64>}}>
        : (tensor<1xf32>) -> tensor<1xf32>"""


def broadcast(groups: str) -> str:
    return f"""%r = "stablehlo.collective_broadcast"(%p) <{{{HANDLE},
        replica_groups = dense<{groups}> : tensor<2x2xi64>}}>
        : (tensor<1xf32>) -> tensor<1xf32>"""


def lowered(ops: str) -> InstructionProgram:
    with make_ir_context():
        program = decode_module(ir.Module.parse(MODULE.format(ops=ops)))
    return lower(program, target=resolve_target(TARGET), policy=nj.Policy())


COPY = "%r = stablehlo.negate %p : tensor<{}xf32>"
FOUR = "dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>"
REFUSED = {
    "outside": (
        all_reduce(FOUR).replace("%r", "%0").replace("%p", "%a").replace("<1x", "<8x"),
        UnimplementedError,
        "outside of jax.shard_map",
    ),
    "a device missing": (
        manual(all_reduce("dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>")),
        InvalidProgramError,
        "of 8 devices",
    ),
    "replicas": (
        manual(all_reduce(FOUR, flags="")),
        UnsupportedError,
        "name replicas",
    ),
    "a reducer of its own": (
        manual(all_reduce(FOUR, op="subtract")),
        UnsupportedError,
        "a custom function",
    ),
    "an order of its own": (
        manual(COPY.format(1), split='<@moved, [{"x"}]>', axes='"x"'),
        UnimplementedError,
        "are not in order",
    ),
    "part of an axis": (
        manual(COPY.format(4), split='<@mesh, [{"x":(1)2}]>', local=4),
        UnimplementedError,
        r"part of an axis, x:\(1\)2",
    ),
    "no such device": (
        manual(permute("[[0, 1], [2, 8]]")),
        InvalidProgramError,
        "device 8 is not in the mesh of 8",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_modules(name):
    ops, category, words = REFUSED[name]
    with refused(category, words):
        lowered(ops)


NESTED = """
  %0 = sdy.manual_computation(%a) in_shardings=[<@thin, [{"x"}]>]
      out_shardings=[<@thin, [{"x"}]>] manual_axes={"x"} (%p: tensor<1xf32>) {
    %r = sdy.manual_computation(%p) in_shardings=[<@thin, [{}]>]
        out_shardings=[<@thin, [{}]>] manual_axes={"z"} (%q: tensor<1xf32>) {
      sdy.return %q : tensor<1xf32>
    } : (tensor<1xf32>) -> tensor<1xf32>
    sdy.return %r : tensor<1xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>"""


def test_nested_manual_computations():
    with refused(UnimplementedError, "inside another one"):
        lowered(NESTED)


def test_modules_that_jax_does_not_write():
    [spmd] = lowered(manual(broadcast("[[3, 1], [0, 2]]"))).main.instructions
    [found] = spmd.body.instructions
    assert isinstance(found, CollectiveBroadcast)
    assert found.groups == ((3, 1), (0, 2))
    inlined = manual(COPY.format(1)).replace("@mesh", 'mesh<["x"=4, "y"=2]>')
    assert isinstance(lowered(inlined).main.instructions[0], Spmd)
    named = lowered(manual(all_reduce(axes('"x"'))))
    assert named.main.instructions[0].body.instructions[0].groups == COLUMNS
