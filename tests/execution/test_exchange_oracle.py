"""All-reduce and reduce-scatter of every algorithm against messages between ranks.

The oracle was written from the vendor's description without knowledge of the code: it
passes chunks between ranks and stores every partial sum. Bits must be equal on all
ranks, on data whose result differs from algorithm to algorithm.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from neuronjax.execution.exchange import exchange
from neuronjax.hardware import resolve_target
from neuronjax.ir.collective_set import AllReduce, ReduceScatter
from neuronjax.ir.collectives.algorithms import ALGORITHMS, fold_plan, legal_algorithms
from neuronjax.ir.collectives.placement import Placement
from neuronjax.numerics.exact import opaque_zero
from tests.oracles import collective_channels as channels, collectives as oracle

TRN2 = Placement.of(resolve_target("trn2.48xlarge"))
DTYPES = [
    np.dtype(d)
    for d in (
        np.float32,
        ml_dtypes.bfloat16,
        np.float16,
        ml_dtypes.float8_e4m3,
        ml_dtypes.float8_e5m2,
    )
]
#: Ours and the oracle's names; left_fold is in listed order, as all of ours are.
NAMES = {
    **{name: "ring" for name in ("ring", "ring:2", "ring:3", "ring:4")},
    "kangaring": "kangaring",
    "rdh": "rdh",
    "mesh": "mesh",
    "single_step_mesh": "single_step",
    "left_fold": "left_fold",
}
CHANNELS = {"ring": 1, "ring:2": 2, "ring:3": 3, "ring:4": 4, "kangaring": 2}
GROUPS = {
    "two ranks": [[1, 0], [2, 3]],
    "a chip": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "two chips": [[0, 1, 2, 3, 4, 5, 6, 7]],
    "another order": [[3, 1, 0, 2, 6, 4, 7, 5]],
    "three chips": [list(range(12))],
    "strided": [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]],
    "four chips": [list(range(16))],
    "eight chips": [list(range(32)), list(range(32, 64))],
    "one rank per chip": [list(range(k, 64, 4)) for k in range(4)],
    "two ranks per chip": [list(range(k, 64, 2)) for k in range(2)],
    "all chips": [list(range(64))],
}


#: Of other groups all.
DTYPES_OF = dict.fromkeys(
    ("another order", "strided", "four chips", "eight chips", "two ranks per chip"),
    DTYPES[:2],
)


def run(i, x, key=0):
    zero = jax.jit(opaque_zero)()
    body = jax.jit(lambda zero, x: exchange(i, (x,), len(x), zero, jnp.uint32(key)))
    return np.asarray(body(zero, x)[0])


def assert_same_bits(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    nan = np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    code = np.dtype(f"uint{got.dtype.itemsize * 8}")
    np.testing.assert_array_equal(got.view(code)[~nan], want.view(code)[~nan])


def around(name):
    """The paths of a ring's channels through a group."""

    def paths(group):
        every = channels.ring_paths(group, 4, by_chip=name == "kangaring")
        return every[: CHANNELS[name]]

    return paths


def expected(name, x, groups, how=oracle.DEFAULT):
    algorithm = oracle.Algorithm(name=NAMES[name], ranks_per_chip=4, listed=True)
    if name in CHANNELS:
        return channels.all_reduce_around(x, groups, algorithm, around(name), how)
    return oracle.all_reduce(x, groups, algorithm, how)


def expected_parts(name, x, groups, dimension, how=oracle.DEFAULT):
    algorithm = oracle.Algorithm(name=NAMES[name], ranks_per_chip=4, listed=True)
    if name in CHANNELS:
        return channels.reduce_scatter_around(
            x, groups, dimension, algorithm, around(name), how
        )
    return oracle.reduce_scatter(x, groups, dimension, algorithm, how)


def instruction(cls, name, groups, op="all_reduce", **fields):
    plan = fold_plan(name, op, TRN2.group(groups[0]))
    groups = tuple(map(tuple, groups))
    return cls(operands=(), results=(), op="add", groups=groups, plan=plan, **fields)


all_reduce = functools.partial(instruction, AllReduce)
reduce_scatter = functools.partial(instruction, ReduceScatter, op="reduce_scatter")


def generator(*what):
    return np.random.default_rng(zlib.crc32(repr(what).encode()))


def data(kind, name, groups, shape, dtype):
    kinds = {"float8_e5m2": "float8_e4m3"}
    like = kinds.get(dtype.name, dtype.name)
    random = generator(kind, name, groups, shape)
    if dtype.name in kinds and kind != "overflowing":
        return oracle.GENERATORS[kind](random, shape, like).astype(dtype)
    return oracle.GENERATORS[kind](random, shape, dtype.name)


def cases(*quick, groups=tuple(GROUPS), names=NAMES):
    """Names, groups and dtypes: those named with one dtype, and, slow, all with all."""
    some = [pytest.param(name, groups, DTYPES[1:2]) for name, groups in quick]
    return some + [
        pytest.param(name, g, DTYPES_OF.get(g, DTYPES), marks=pytest.mark.exhaustive)
        for name in names
        for g in groups
        if name in legal_algorithms("all_reduce", TRN2.group(GROUPS[g][0]))
    ]


CASE = ("name", "groups", "dtypes")


@pytest.mark.slow
@pytest.mark.parametrize(
    CASE, cases(("kangaring", "two chips"), ("rdh", "two chips"), ("ring:2", "a chip"))
)
def test_all_reduce(name, groups, dtypes):
    """Sizes that the chunks divide, that they do not, and one that is smaller."""
    groups = GROUPS[groups]
    ranks, i = sum(map(len, groups)), all_reduce(name, groups)
    sizes = (100, 4 * len(groups[0]), 5)
    for dtype in dtypes:
        for size in sizes if dtype == DTYPES[1] else sizes[:1]:
            x = data("telling", name, groups, (ranks, size), dtype)
            assert_same_bits(run(i, x), np.asarray(expected(name, x, groups)))


@pytest.mark.parametrize("kind", ["cancelling", "overflowing"])
@pytest.mark.parametrize(CASE, cases(groups=["two chips", "all chips"]))
def test_all_reduce_at_the_limits(name, groups, dtypes, kind):
    groups = GROUPS[groups]
    ranks, i = sum(map(len, groups)), all_reduce(name, groups)
    for dtype in dtypes:
        x = data(kind, name, groups, (ranks, 40), dtype)
        assert_same_bits(run(i, x), np.asarray(expected(name, x, groups)))


@pytest.mark.parametrize(
    CASE,
    cases(
        ("kangaring", "two chips"),
        groups=["a chip", "another order", "one rank per chip", "all chips"],
        # In this one every rank reduces the whole buffer: there is nothing to scatter.
        names=[name for name in NAMES if name != "single_step_mesh"],
    ),
)
def test_reduce_scatter(name, groups, dtypes):
    groups = GROUPS[groups]
    ranks, size = sum(map(len, groups)), len(groups[0])
    i = reduce_scatter(name, groups, dimension=1)
    for dtype in dtypes:
        # Parts of 15 elements, which two or four channels do not divide.
        x = data("telling", name, groups, (ranks, 15 * size), dtype)
        x = x.reshape(ranks, 3, size * 5)
        want = expected_parts(name, x, groups, 1)
        assert_same_bits(run(i, x), np.asarray(want))


@pytest.mark.parametrize(
    CASE, cases(("ring", "a chip"), groups=["three chips", "all chips"])
)
@pytest.mark.parametrize("path", ["exact", "fp32"])
def test_integers(name, groups, dtypes, path):
    groups = GROUPS[groups]
    ranks = sum(map(len, groups))
    x = data("telling", name, groups, (ranks, 30), np.dtype(np.int32))
    want = expected(name, x, groups, oracle.Arithmetic(integer_path=path))
    i = all_reduce(name, groups, integer_path=path)
    assert_same_bits(run(i, x), np.asarray(want))


@pytest.mark.parametrize(CASE, cases(groups=["a chip", "three chips"]))
def test_travel_in_fp32(name, groups, dtypes):
    """`reduce_dtype="float32"`: FP32 partial sums, and one rounding at the end."""
    groups = GROUPS[groups]
    ranks, i = sum(map(len, groups)), all_reduce(name, groups, reduce_dtype="float32")
    for dtype in dtypes[1:]:
        x = data("telling", name, groups, (ranks, 50), dtype)
        want = np.asarray(expected(name, x.astype(np.float32), groups))
        assert_same_bits(run(i, x), want.astype(dtype))


# -- over nodes ------------------------------------------------------------------------

#: Two chips of four ranks each make a node.
NODES = Placement(ranks_per_chip=4, chips_per_node=2)
PAIRS = [name for name in ALGORITHMS if "+" in name]


def hierarchical(name):
    inside, between = name.split("+")
    where = dict(ranks_per_chip=4, ranks_per_node=8)
    found = oracle.hierarchical(NAMES[inside], NAMES[between], **where)
    return dataclasses.replace(
        found,
        intra=dataclasses.replace(found.intra, listed=True),
        inter=dataclasses.replace(found.inter, listed=True),
    )


def through_nodes(name):
    """KangaRing's second channel goes backwards in every node."""

    def paths(group):
        nodes = [group[k : k + 8] for k in range(0, len(group), 8)]
        backwards = [rank for node in nodes for rank in node[::-1]]
        return [group, backwards][: 2 if "kangaring" in name else 1]

    return paths


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "nodes"),
    # Recursive doubling needs a power of two.
    [(p, n) for p in PAIRS for n in (2, 3, 4) if n != 3 or not p.endswith("rdh")],
)
def test_pairs(name, nodes):
    """An all-reduce is a reduce-scatter and a gather: chunk r is rank r's."""
    groups = [list(range(8 * nodes))]
    plan = fold_plan(name, "all_reduce", NODES.group(groups[0]))
    table = (tuple(groups[0]),)
    i = AllReduce(operands=(), results=(), op="add", groups=table, plan=plan)
    for dtype in DTYPES:
        x = data("telling", name, groups, (8 * nodes, 16 * nodes), dtype)
        parts = channels.reduce_scatter_around(
            x, groups, 0, hierarchical(name), through_nodes(name)
        )
        want = np.broadcast_to(parts.reshape(-1), x.shape)
        assert_same_bits(run(i, x), want)


# -- stochastic rounding ---------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["ring", "ring:2", "kangaring", "rdh", "mesh"])
def test_stochastic_rounding(name):
    """Op by op the same bits; on the average the sum."""
    groups = GROUPS["two chips"]
    i = all_reduce(name, groups, rounding="stochastic")
    x = data("telling", name, groups, (8, 64), DTYPES[1])
    zero = jax.jit(opaque_zero)()
    body = jax.jit(lambda key: exchange(i, (jnp.asarray(x),), 8, zero, key)[0][0])
    draws = [np.asarray(body(jnp.uint32(k))).astype(np.float64) for k in range(400)]
    with jax.disable_jit():
        for key in range(2):
            (eager,) = exchange(i, (jnp.asarray(x),), 8, zero, jnp.uint32(key))
            np.testing.assert_array_equal(np.asarray(eager[0]), draws[key])
    exact = x.astype(np.float64).sum(0)
    mean, error = np.mean(draws, 0), np.std(draws, 0) / np.sqrt(len(draws))
    # Five sigma, and what FP32 sums differ from the exact ones.
    assert (np.abs(mean - exact) <= 5 * error + 1e-4).all()
    assert (error > 0).any()
