"""Programs made of collectives alone: the bits of XLA on as many host devices.

XLA's CPU backend adds FP32 from left to right in the listed order of a group, which is
our `left_fold`. Data are arbitrary, so any other order would show. JAX's results come
from one child process with eight devices. It has no pbroadcast and no
ragged_all_to_all; those are compared with NumPy elsewhere.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

import neuronjax as nj

pytestmark = pytest.mark.slow

DEVICES, SHAPE, AXES = 8, (4, 2), ("x", "y")
SWAPPED = [[3, 1], [0, 2]]


class Program(NamedTuple):
    """A function of one device's [8, 8] part of an array."""

    function: Callable[..., Any]
    out_specs: Any = P("x", "y")
    dtype: Any = np.float32


def chain(x: Any) -> Any:
    """What a transformer's blocks do, without their matmuls."""
    whole = lax.all_gather(x, "y", axis=1, tiled=True)
    part = lax.psum_scatter(whole, "y", scatter_dimension=1, tiled=True)
    moved = lax.all_to_all(part, "x", 0, 1, tiled=True)
    moved = lax.ppermute(moved, "y", [(0, 1), (1, 0)])
    back = lax.all_to_all(moved, "x", 1, 0, tiled=True)
    return lax.pmean(back, AXES) + lax.pmax(back, "x")


def scanned(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = lax.ppermute(carry, "x", [(i, (i + 1) % 4) for i in range(4)])
        return lax.psum(carry, "y"), lax.pmin(row, "x")

    carry, rows = lax.scan(step, x, x)
    return carry, rows


PROGRAMS: dict[str, Program] = {
    "psum": Program(lambda x: lax.psum(x, "x")),
    "psum over all": Program(lambda x: lax.psum(x, AXES)),
    "psum, the other order": Program(lambda x: lax.psum(x, AXES[::-1])),
    "psum in groups": Program(lambda x: lax.psum(x, "x", axis_index_groups=SWAPPED)),
    "psum of a tree": Program(lambda x: lax.psum((x, x[0], x[1, 1]), AXES), P()),
    "psum of int32": Program(lambda x: lax.psum(x, AXES), dtype=np.int32),
    "pmean": Program(lambda x: (lax.pmean(x, "x"), lax.pmean(x, AXES))),
    "pmax, pmin": Program(lambda x: (lax.pmax(x, "x"), lax.pmin(x, AXES))),
    "all_gather": Program(lambda x: lax.all_gather(x, "x"), P(None, "x", "y")),
    "all_gather, tiled": Program(lambda x: lax.all_gather(x, AXES, tiled=True)),
    "all_gather in groups": Program(
        lambda x: lax.all_gather(x, "x", axis=1, axis_index_groups=SWAPPED, tiled=True)
    ),
    "psum_scatter": Program(lambda x: lax.psum_scatter(x, AXES), P("x")),
    "psum_scatter, tiled": Program(
        lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True)
    ),
    "psum_scatter in groups": Program(
        lambda x: lax.psum_scatter(x, "x", axis_index_groups=SWAPPED, tiled=True)
    ),
    "all_to_all": Program(
        lambda x: lax.all_to_all(x.reshape(4, 2, 8), "x", 0, 2), P("x", "y", None)
    ),
    "all_to_all, tiled": Program(lambda x: lax.all_to_all(x, AXES, 1, 0, tiled=True)),
    "ppermute of some": Program(lambda x: lax.ppermute(x, "x", [(0, 1), (3, 0)])),
    "axis_index": Program(
        lambda x: jnp.full((1, 1), 10 * lax.axis_index("x") + lax.axis_index("y"))
    ),
    "a chain": Program(chain),
    "a loop": Program(scanned),
}


def data(dtype: Any) -> np.ndarray:
    random = np.random.default_rng(0)
    x = random.standard_normal((32, 16)) * 2.0 ** random.integers(-9, 9, (32, 16))
    return (x * (2**20 if dtype == np.int32 else 1)).astype(dtype)


def run(name: str, mesh: Any, jit: Callable[..., Any]) -> list[np.ndarray]:
    program = PROGRAMS[name]
    mapped = jax.shard_map(
        program.function,
        mesh=mesh,
        in_specs=P("x", "y"),
        out_specs=program.out_specs,
        check_vma=False,
    )
    found = jit(mapped)(data(program.dtype))
    return [np.asarray(x) for x in jax.tree.leaves(found)]


def write_references() -> None:
    """What the child process does."""
    mesh = jax.make_mesh(SHAPE, AXES, axis_types=(AxisType.Auto,) * 2)
    found = {name: run(name, mesh, jax.jit) for name in PROGRAMS}
    sys.stdout.buffer.write(pickle.dumps(found))


@pytest.fixture(scope="module")
def references() -> dict[str, list[np.ndarray]]:
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    root = Path(__file__).parents[2]
    module = "tests.execution.test_spmd_host_devices"
    code = f"import {module} as t; t.write_references()"
    path = os.pathsep.join([str(root), *filter(None, sys.path)])
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return pickle.loads(done.stdout)


def emulated(name: str, algorithm: str = "left_fold") -> list[np.ndarray]:
    policy = nj.Policy(collective_algorithm=algorithm)

    def jit(function: Callable[..., Any]) -> Any:
        return nj.jit(function, target="trn2.48xlarge", policy=policy)

    return run(name, nj.make_mesh(SHAPE, AXES), jit)


def assert_same_bits(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for x, e in zip(found, expected, strict=True):
        assert (x.dtype, x.shape) == (e.dtype, e.shape)
        assert x.tobytes() == e.tobytes()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_bits_of_xla(name, references):
    assert_same_bits(emulated(name), references[name])


@pytest.mark.parametrize("name", ["a chain", "a loop", "psum in groups"])
def test_op_by_op(name, references):
    with jax.disable_jit():
        assert_same_bits(emulated(name), references[name])


def test_the_data_tell_orders_apart(references):
    (ring,) = emulated("psum over all", "ring")
    assert (ring != references["psum over all"][0]).any()
