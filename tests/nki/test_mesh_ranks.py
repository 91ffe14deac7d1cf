"""Kernels with `nki.collectives` inside `jax.shard_map`: devices are the ranks."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import neuronjax as nj
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.errors import UnsupportedError
from neuronjax.nki import collectives as ncc
from tests.nki.test_collectives import copied, equal, hbm, telling


@nki.jit(target="trn2")
def pair_sums(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    total = hbm(x.shape, x)
    pairs = ncc.ReplicaGroup([[0, 1], [3, 2]])
    ncc.all_reduce([copied(x)], [total], pairs, op=nl.add)
    nisa.dma_copy(dst=out, src=total)
    return out


MESH = nj.make_mesh((2, 2), ("a", "b"))
SPLIT = jax.sharding.PartitionSpec(("a", "b"))


def on_mesh(function, mesh=MESH):
    """Every device with its row."""
    local = lambda x: function(x[0])[None]  # noqa: E731
    return jax.shard_map(local, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)


def in_pairs(x):
    """[4, ...] summed by hand: of two values in FP32, rounded once."""
    wide = np.asarray(x, np.float32)
    sums = (wide[0::2] + wide[1::2]).astype(x.dtype)
    return np.repeat(sums, 2, axis=0)


@pytest.mark.slow
def test_devices_of_a_mesh_are_the_ranks():
    x = telling(4, 8, 4)
    step = nj.jit(on_mesh(lambda x: pair_sums(x * 2)), target="trn2")
    equal(np.asarray(step(x)), in_pairs(x * 2))
    with jax.disable_jit():
        equal(np.asarray(step(x)), in_pairs(x * 2))


@pytest.mark.slow
def test_devices_of_pmap_are_the_ranks():
    x = telling(4, 2, 4)
    step = nj.jit(nj.pmap(pair_sums, axis_name="i"), target="trn2")
    equal(np.asarray(step(x)), in_pairs(x))


@pytest.mark.slow
def test_devices_join_in_loops_and_for_every_example():
    x = telling(4, 4, 2)

    def both_ways(x):
        twice = jax.lax.fori_loop(0, 2, lambda _, c: pair_sums(c), x)
        return jax.numpy.stack([twice, *jax.vmap(pair_sums)(x[None])])

    found = np.asarray(nj.jit(on_mesh(both_ways), target="trn2")(x))
    equal(found[:, 0].copy(), in_pairs(in_pairs(x)))
    equal(found[:, 1].copy(), in_pairs(x))


def test_a_mesh_around_a_kernel_without_collectives_changes_nothing():
    @nki.jit(target="trn2")
    def alone(x):
        return copied(x)

    x = telling(4, 2, 2)
    equal(np.asarray(nj.jit(on_mesh(alone), target="trn2")(x)), x)
    assert not any(found.plan.ranks for found in alone._specialised.values())


def test_devices_of_a_mesh_take_the_time_of_a_collective():
    x = jax.ShapeDtypeStruct((4, 128, 512), jax.numpy.bfloat16)
    found = nj.profile(on_mesh(pair_sums), target="trn2")(x)
    alone = nj.profile(pair_sums.with_ranks(4))(x)
    for name in ("cc_op_active_time", "hbm_read_bytes"):
        assert found.metrics[name] == pytest.approx(alone.metrics[name])
        assert found.metrics[name] > 0


def test_a_mesh_of_one_device():
    @nki.jit(target="trn2")
    def own(x):
        out = hbm(x.shape, x)
        ncc.all_reduce([copied(x)], [out], ncc.ReplicaGroup([[0]]), op=nl.add)
        return out

    x = telling(1, 2, 3)
    one = on_mesh(own, nj.make_mesh((1, 1), ("a", "b")))
    equal(np.asarray(nj.jit(one, target="trn2")(x)), x)


def test_a_mesh_outside_of_neuronjax_is_refused():
    mesh = jax.make_mesh((1, 1), ("a", "b"), devices=jax.devices()[:1])
    group = ncc.ReplicaGroup([[0]])

    @nki.jit(target="trn2")
    def own(x):
        out = hbm(x.shape, x)
        ncc.all_reduce([copied(x)], [out], group, op=nl.add)
        return out

    with pytest.raises(UnsupportedError, match=r"neuronjax\.jit.*with_ranks\(1\)"):
        jax.jit(jax.shard_map(own, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT))(
            jax.device_put(
                np.ones((2, 2), np.float32), jax.sharding.NamedSharding(mesh, SPLIT)
            )
        )
