"""What no devices can run, named: groups, pairs, algorithms, meshes.

JAX and MLIR refuse some of it themselves; what passes them is refused here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from neuronjax.errors import InvalidProgramError, NeuronJaxError
from neuronjax.ir.collective_set import fault_of_groups, fault_of_pairs
from neuronjax.policy.scopes import collective_algorithm

X = np.ones((16, 4), np.float32)


def mapped(
    function: Callable[..., Any], devices: int = 4, target: str = "trn2.48xlarge"
) -> Any:
    mesh = nj.make_mesh((devices,), ("x",))
    specs: dict[str, Any] = dict(in_specs=P("x"), out_specs=P("x"), check_vma=False)
    sharded = jax.shard_map(function, mesh=mesh, **specs)
    return nj.jit(sharded, target=target)


def psum(x: Any, groups: Any = None) -> Any:
    return lax.psum(x, "x", axis_index_groups=groups)


CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "groups of different sizes": (
        lambda x: psum(x, [[0, 1, 2], [3]]),
        "groups of unequal size, 1 and 3 devices",
    ),
    "devices in no group": (
        lambda x: lax.all_gather(x, "x", axis_index_groups=[[0, 1]]),
        r"of 4 devices, \[2, 3\] are in no group",
    ),
    "a target twice": (
        lambda x: lax.ppermute(x, "x", [(0, 1), (2, 1)]),
        "ppermute: device 1 is a target twice",
    ),
    "a source twice": (
        lambda x: lax.ppermute(x, "x", [(0, 1), (0, 2)]),
        "ppermute: device 0 is a source twice",
    ),
    "a target that is not there": (
        lambda x: lax.ppermute(x, "x", [(0, 4)]),
        "ppermute: device 4 is not in the mesh of 4 devices",
    ),
    "a source that is not there": (
        lambda x: lax.ppermute(x, "x", [(9, 0)]),
        "ppermute: device 9 is not in the mesh of 4 devices",
    ),
    "no groups": (lambda x: psum(x, []), "psum: no groups"),
    "no such axis": (lambda x: lax.psum(x, "rows"), "no mesh .* its axis 'rows'"),
    "the index along no such axis": (
        lambda x: x + lax.axis_index("rows"),
        "no mesh .* its axis 'rows'",
    ),
    "an algorithm for other groups": (
        collective_algorithm("kangaring")(lambda x: psum(x, [[0, 1], [2, 3]])),
        "this call asks for kangaring, which 2 ranks cannot run: .*lacks some",
    ),
    "more channels than there are wires": (
        collective_algorithm("ring:4")(psum),
        "4 x 4 torus: 2 channels are possible",
    ),
    "an algorithm that scatters nothing": (
        collective_algorithm("single_step_mesh")(
            lambda x: lax.psum_scatter(x, "x", tiled=True)
        ),
        "this algorithm can run all_reduce only",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_unsupported_collectives_are_refused_with_a_remedy(name):
    function, words = CALLS[name]
    with pytest.raises(NeuronJaxError, match=words) as caught:
        mapped(function).lower(X)
    assert "remedy: " in str(caught.value)
    if caught.value.location:
        assert "test_spmd_refusals.py:" in caught.value.location


def test_a_name_error_of_the_users_own_is_theirs():
    with pytest.raises(NameError, match="undefined_name"):
        mapped(lambda x: x + undefined_name).lower(X)  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("reduce", [lax.psum, lax.pmax, lax.pmean])
def test_nothing_to_reduce_is_nothing(reduce):
    """As in JAX."""
    got = mapped(lambda x: reduce(x, "x"))(np.ones((4, 0), np.float32))
    assert got.shape == (4, 0)
    scattered = mapped(lambda x: lax.psum_scatter(x, "x", tiled=True))
    assert scattered(np.ones((16, 0), np.float32)).shape == (4, 0)


def test_no_such_algorithm():
    with pytest.raises(InvalidProgramError, match="did you mean 'ring'"):
        with collective_algorithm("rings"):
            pass


def test_more_devices_than_the_target_has():
    with pytest.raises(InvalidProgramError, match=r"128 devices, but target trn2\.48"):
        mapped(psum, 128).lower(np.ones((128, 2), np.float32))


#: On two nodes of 64: the first two groups have other cores on one than on the other.
ASYMMETRIC = [[0, 1, 64, 66], [2, 3, 65, 67]]
ASYMMETRIC += [[k, k + 1, k + 64, k + 65] for k in range(4, 64, 2)]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (psum, "no algorithm can run over 4 ranks: the group uses different"),
        (
            lambda x, g: lax.all_gather(x, "x", axis_index_groups=g),
            "different logical cores on",
        ),
        (
            lambda x, g: lax.all_to_all(x, "x", 0, 0, axis_index_groups=g),
            "different logical cores on different nodes",
        ),
    ],
    ids=["psum", "all_gather", "all_to_all"],
)
def test_groups_that_no_network_joins(function, words):
    program = mapped(lambda x: function(x, ASYMMETRIC), 128, "trn2.48xlarge:2")
    with pytest.raises(InvalidProgramError, match=words) as caught:
        program.lower(np.ones((4 * 128, 2), np.float32))
    assert "the same logical cores on every node" in str(caught.value)


# -- programs that JAX would not write -------------------------------------------------

TEXT = """
module @m attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%arg0: tensor<16xf32>) -> tensor<16xf32> {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}]>]
        out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%arg1: tensor<4xf32>) {
      %1 = "stablehlo.OP"(%arg1) <{FIELDS,
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>
      }> : (tensor<4xf32>) -> tensor<4xf32>
      sdy.return %1 : tensor<4xf32>
    } : (tensor<16xf32>) -> tensor<16xf32>
    return %0 : tensor<16xf32>
  }
}
"""
ALL_TO_ALL = (
    "all_to_all",
    "split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, "
    "replica_groups = dense<{}> : tensor<{}x2xi64>",
)
BROADCAST = ("collective_broadcast", "replica_groups = dense<{}> : tensor<{}x2xi64>")
PERMUTE = ("collective_permute", "source_target_pairs = dense<{}> : tensor<{}x2xi64>")
TEXTS = [
    (PERMUTE, [[0, 4]], "device 4 is not in the mesh of 4 devices"),
    (PERMUTE, [[0, 1], [2, 1]], "duplicate targets"),
    (PERMUTE, [[0, 1], [0, 2]], "duplicate sources"),
    (ALL_TO_ALL, [[0, 1]], r"of 4 devices, \[2, 3\] are in no group"),
    (ALL_TO_ALL, [[0, 1], [1, 2]], "seen more than once"),
    (BROADCAST, [[0, 5]], "device 5 is not in the mesh of 4"),
    (BROADCAST, [[0, 1], [1, 2]], "seen more than once"),
]


@pytest.mark.parametrize(("op", "table", "words"), TEXTS)
def test_loaded_programs_with_illegal_groups_are_refused(op, table, words, tmp_path):
    name, fields = op
    text = TEXT.replace("OP", name)
    text = text.replace("FIELDS", fields.format(table, len(table)))
    path = tmp_path / "program.mlir"
    path.write_text(text)
    with pytest.raises(InvalidProgramError, match=words):
        nj.load(path, target="trn2")


# -- the one place where they are checked ----------------------------------------------


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        (((0, 1), (3, 2)), ""),
        (((0, 1, 2, 3),), ""),
        (((0, 1), (1, 2)), "device 1 is named twice"),
        (((0, 0, 1, 2, 3),), "device 0 is named twice"),
        (((0, 1), (2, 4)), "device 4 is not in the mesh of 4"),
        (((0, 1), (2, -1)), "device -1 is not in the mesh of 4"),
        (((0, 1),), "of 4 devices, [2, 3] are in no group"),
        (((0,), (1, 2, 3)), "groups of unequal size, 1 and 3 devices"),
        ((), "of 4 devices, [0, 1, 2, 3]"),
    ],
)
def test_faults_of_groups(groups, fault):
    found = fault_of_groups(groups, 4)
    assert found.startswith(fault)
    assert bool(found) == bool(fault)
    some = fault_of_groups(groups, 4, complete=False)
    assert bool(some) == ("named twice" in fault or "not in the mesh" in fault)


@pytest.mark.parametrize(
    ("pairs", "fault"),
    [
        (((0, 1), (1, 0)), ""),
        ((), ""),
        (((0, 1), (0, 2)), "device 0 is a source twice"),
        (((0, 1), (2, 1)), "device 1 is a target twice"),
        (((9, 1),), "device 9 is not in the mesh of 4"),
    ],
)
def test_faults_of_pairs(pairs, fault):
    found = fault_of_pairs(pairs, 4)
    assert found.startswith(fault)
    assert bool(found) == bool(fault)
