"""What needs several real devices in the process: a script for `test_carried`."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import neuronjax as nj
from neuronjax.execution.device_sharding import real_devices
from tests.conformance import bits
from tests.distributed.carried import PROGRAMS


def main() -> None:
    """Raises where something is not as it should be."""
    jax.config.update("jax_num_cpu_devices", 4)
    mesh = Mesh(np.asarray(jax.devices()), ("chips",))
    results_lie_where_they_should(mesh)
    a_transformed_program_has_the_same_bits(mesh)
    a_program_without_an_emulated_mesh_runs_everywhere(mesh)
    op_by_op_is_refused(mesh)
    devices_that_cannot_be_shared_out_are_refused()


def results_lie_where_they_should(mesh: Mesh) -> None:
    step, arguments = PROGRAMS["sharded_state"].emulated(), PROGRAMS["sharded_state"][4]
    with real_devices(mesh):
        state = step(*arguments)
        assert state.sharding.is_equivalent_to(NamedSharding(mesh, P("chips")), 2)
        # A result is an argument again, and stays where it is.
        compiled = step.lower(state, arguments[1]).compile()
        assert compiled(state, arguments[1]).sharding == state.sharding
    everywhere = PROGRAMS["data_parallel"]
    with real_devices(mesh):
        params = everywhere.emulated()(*everywhere.arguments)
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(params))


def a_transformed_program_has_the_same_bits(mesh: Mesh) -> None:
    step, (x, w) = PROGRAMS["stochastic"].emulated(), PROGRAMS["stochastic"][4]

    def total(w: jax.Array) -> jax.Array:
        return step(x, w)[0].astype("float32").sum()

    alone = jax.jit(jax.grad(total))(w)
    with real_devices(mesh):
        carried = jax.jit(jax.grad(total))(w)
    bits.assert_same(carried, alone)


def a_program_without_an_emulated_mesh_runs_everywhere(mesh: Mesh) -> None:
    """Also where its argument is split, and XLA would like to split the sum."""
    step = nj.jit(lambda x: (x @ x.T).sum(0))
    x = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    with real_devices(mesh):
        carried = step(jax.device_put(x, NamedSharding(mesh, P(None, "chips"))))
    bits.assert_same(np.asarray(carried), np.asarray(step(x)))


def op_by_op_is_refused(mesh: Mesh) -> None:
    with real_devices(mesh), jax.disable_jit():
        with pytest.raises(nj.UnsupportedError, match="op by op"):
            nj.jit(lambda x: x + 1)(np.float32(1))


def devices_that_cannot_be_shared_out_are_refused() -> None:
    mesh = Mesh(np.asarray(jax.devices()[:3]), ("chips",))
    step, arguments = PROGRAMS["data_parallel"].emulated(), PROGRAMS["data_parallel"][4]
    with real_devices(mesh):
        with pytest.raises(
            nj.InvalidProgramError,
            match="8 emulated devices cannot be divided over 3",
        ):
            step(*arguments)


if __name__ == "__main__":
    main()
