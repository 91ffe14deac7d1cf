"""Memory over time: what comes and goes is seen, wherever it is in the program."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.report.memory_samples import memory_samples, stage_edges, stages


def types(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def step(params, x):
    def loss(params):
        y = x
        for w in params:
            y = jax.nn.gelu(y @ w)
        return jnp.mean(y**2)

    return jax.grad(loss)(params)


def jitted(params, x):
    return jax.jit(step)(params, x)


def mapped():
    """Each of eight devices takes as much as one does alone."""
    mesh, spec = nj.make_mesh((8,), ("data",)), jax.sharding.PartitionSpec
    split = {"in_specs": (spec(), spec("data")), "out_specs": spec()}
    return jax.shard_map(step, mesh=mesh, check_vma=False, **split)


#: Of more activations than SBUF holds.
PARAMS, ROWS = [types(2048, 2048)] * 12, 8192


@functools.cache
def profiled(how):
    if how == "mapped":
        x = types(8 * ROWS, 2048)
        return nj.profile(mapped(), target="trn2.48xlarge", policy="bf16")(PARAMS, x)
    function = {"plain": step, "jitted": jitted}[how]
    return nj.profile(function, target="trn2", policy="bf16")(PARAMS, types(ROWS, 2048))


def held(how, name="HBM"):
    found = profiled(how)
    return [size for _, size in memory_samples(found.timeline, found.memory)[name]]


@pytest.mark.slow_cases("jitted")
@pytest.mark.parametrize("how", ["jitted", "mapped"])
def test_what_comes_and_goes_in_a_call_is_seen(how):
    found = profiled(how)
    assert len(found.memory.main.units) == 1
    assert max(held(how)) == found.memory.hbm.bytes
    assert len(set(held(how))) > 5
    assert held(how, "SBUF") == held("plain", "SBUF")


def test_activations_of_a_call_are_those_of_the_program():
    kinds = {
        how: {
            kind
            for stage in stages(profiled(how).memory)
            for kind, n in stage.held.items()
            if n
        }
        for how in ("plain", "jitted")
    }
    assert "activations" in kinds["jitted"]
    assert kinds["jitted"] == kinds["plain"]


def test_a_function_that_is_called_again_is_there_again():
    @jax.jit
    def layer(x, w):
        for _ in range(120):  # too much to become a part of its caller
            x = jnp.tanh(x @ w)
        return x

    def model(x, w):
        return layer(layer(layer(x, w), w), w)

    found = nj.profile(model, target="trn2")(types(512, 512), types(512, 512))
    shown = stages(found.memory)
    edges = stage_edges(found.timeline, found.memory, shown)
    first = [stage.unit.region.steps[0].instruction for stage in shown]
    again = [n for n, i in enumerate(first) if i is first[0]]
    assert len(again) == 3
    starts = edges[again] / found.timeline.scheduled_seconds
    assert np.allclose(starts, [0, 1 / 3, 2 / 3], atol=0.03)


def test_little_beside_what_is_always_there_is_not_flat():
    """The base is squeezed, and the axis says so."""

    def update(params, x):
        return jnp.tanh(jnp.tanh(x @ params[0]) @ params[1]).sum()

    params = [types(8192, 8192)] * 2
    found = nj.profile(update, target="trn2", policy="bf16")(params, types(512, 8192))
    least, most = np.min(held_of(found)), np.max(held_of(found))
    assert 0 < most - least < 0.3 * most
    (_, axes) = found.plot("memory").axes
    assert axes.get_ylabel() == "MiB, squeezed below 528"
    (bottom, top), (low, high) = axes.get_ylim(), axes.bbox.intervaly
    heights = axes.transData.transform([(0, least / 2**20), (0, most / 2**20)])[:, 1]
    assert bottom == 0
    assert (heights[1] - heights[0]) / (high - low) > 0.4
    assert top > most / 2**20


def held_of(found):
    return [size for _, size in memory_samples(found.timeline, found.memory)["HBM"]]


@pytest.mark.parametrize("how", ["plain", "jitted", "mapped"])
def test_labels_of_the_axis_do_not_overlap(how):
    drawn = profiled(how).plot("memory")
    drawn.draw_without_rendering()
    for axes in drawn.axes:
        boxes = [
            label.get_window_extent()
            for label, y in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
            if axes.get_ylim()[0] <= y <= axes.get_ylim()[1]
        ]
        for one, other in itertools.combinations(boxes, 2):
            assert not one.overlaps(other)


def test_little_of_sbuf_is_seen():
    found = nj.profile(lambda x: x @ x, target="trn2")(types(512, 512))
    (axes, _) = found.plot("memory").axes
    used = found.memory.sbuf_peak_bytes / 256 / 2**10
    assert used < 208 / 3
    assert axes.get_ylim()[1] == pytest.approx(1.2 * used)
    assert axes.get_title(loc="left") == f"SBUF: at most {used:.3g} of 208 KiB"
