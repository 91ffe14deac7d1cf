"""The bits of emulated devices do not depend on the real ones that carry them.

One child process with four CPU devices runs every program on 1, 2 and 4 of them; two
processes run them on two devices each.
"""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import neuronjax as nj
from neuronjax.execution.device_sharding import (
    ALONE,
    carried_dimension,
    carrier,
    part_of,
    real_devices,
)
from neuronjax.execution.spmd import slices_of
from neuronjax.ir.collective_set import DeviceMesh
from tests.distributed import carried
from tests.distributed.children import children, free_port


def digests(folder, *options: str, processes: int = 1) -> dict[str, list[str]]:
    """What every process says of the programs: the same, or the test fails."""
    several = [f"--processes={processes}", f"--coordinator=localhost:{free_port()}"]
    commands = [
        ["-m", "tests.distributed.carried", *several, f"--process={n}", *options]
        for n in range(processes)
    ]
    with children(folder, commands) as (started, deadline):
        found = {child.finish(deadline)[-1] for child in started}
    assert len(found) == 1
    return json.loads(found.pop())


@pytest.mark.slow
def test_the_bits_of_everything_on_one_two_and_four(tmp_path):
    found = digests(tmp_path, "--counts=1,2,4", *carried.PROGRAMS)
    assert all(len(each) == 3 for each in found.values())
    different = [name for name, each in found.items() if len(set(each)) > 1]
    assert different == []


@pytest.mark.slow
def test_the_bits_of_everything_in_two_processes(tmp_path):
    alone = digests(tmp_path / "one", "--counts=1", *carried.PROGRAMS)
    assert (
        digests(tmp_path / "two", "--counts=4", *carried.PROGRAMS, processes=2) == alone
    )


@pytest.mark.slow
def test_where_results_lie_and_what_is_refused(tmp_path):
    with children(tmp_path, [["-m", "tests.distributed.refusals"]]) as (
        (child,),
        deadline,
    ):
        child.finish(deadline)


def test_a_mesh_of_one_device_changes_nothing():
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("chips",))
    step = nj.jit(lambda x: x + 1)
    with real_devices(mesh):
        inside = step(np.float32(1))
    assert inside.sharding == step(np.float32(1)).sharding
    x = np.arange(6.0)
    assert ALONE.own(x) is ALONE.everyone(x) is ALONE.first(x) is x


def test_explicit_axes_are_refused():
    mesh = jax.make_mesh((1,), ("chips",), axis_types=(AxisType.Explicit,))
    with pytest.raises(nj.InvalidProgramError, match="Auto"):
        with real_devices(mesh):
            pass


MESH = DeviceMesh((("one", 1), ("dp", 8), ("tp", 2)))


def test_parts_of_a_mesh():
    assert carrier(MESH, 4) == "dp"
    assert carrier(MESH, 16) is None
    assert part_of(MESH, 4) == DeviceMesh((("one", 1), ("dp", 2), ("tp", 2)))
    assert carried_dimension(((), ("one", "dp", "tp")), MESH, 2) == 1
    assert carried_dimension((("tp", "dp"), ()), MESH, 2) is None
    assert carried_dimension((("tp",), ()), MESH, 2) is None


@pytest.mark.parametrize(
    ("length", "megabytes", "slices"),
    [(1 << 20, 1, 1), (1 << 20, 64, 16), (90112, 22, 8), (8191, 64, 1)],
)
def test_slices_divide_the_elements(length, megabytes, slices):
    assert slices_of(length, megabytes << 20) == slices
