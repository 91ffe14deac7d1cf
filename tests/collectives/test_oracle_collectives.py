"""All-reduce and reduce-scatter of every algorithm against messages between ranks.

The oracle was written from the vendor's description without knowledge of the code: it
passes chunks between ranks and stores every partial sum. Bits must be equal on all
ranks, on data whose result differs from algorithm to algorithm.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from neuronjax.collectives.algorithms import fold_plan
from neuronjax.collectives.exchange import exchange
from neuronjax.collectives.placement import Placement
from neuronjax.hardware import resolve_target
from neuronjax.ir.collective_set import AllReduce, ReduceScatter
from neuronjax.numerics.exact import opaque_zero
from tests.oracles import collectives as oracle

TRN2 = Placement.of(resolve_target("trn2.48xlarge"))
DTYPES = [
    np.dtype(d)
    for d in (np.float32, ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3)
]
#: Ours and the oracle's names; left_fold is in listed order, as all of ours are.
NAMES = {
    "ring": "ring",
    "kangaring": "kangaring",
    "rdh": "rdh",
    "mesh": "mesh",
    "single_step_mesh": "single_step",
    "left_fold": "left_fold",
}
GROUPS = {
    "a chip": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "two chips": [[0, 1, 2, 3, 4, 5, 6, 7]],
    "strided": [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]],
    "all chips": [list(range(64))],
}


def run(i, x):
    zero = jax.jit(opaque_zero)()
    body = jax.jit(lambda zero, x: exchange(i, (x,), len(x), zero, jnp.uint32(0)))
    return np.asarray(body(zero, x)[0])


def assert_same_bits(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    nan = np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    code = np.dtype(f"uint{got.dtype.itemsize * 8}")
    np.testing.assert_array_equal(got.view(code)[~nan], want.view(code)[~nan])


def algorithm_of(name):
    return oracle.Algorithm(name=NAMES[name], ranks_per_chip=4, listed=True)


def is_legal(name, group):
    full = len(group) == 4 * len({rank // 4 for rank in group})
    return name != "kangaring" or full


#: In `make test` eight ranks on two chips; the others differ in the plan alone.
CASES = [
    pytest.param(name, groups, marks=[] if groups == "two chips" else pytest.mark.slow)
    for name in NAMES
    for groups in GROUPS
    if is_legal(name, GROUPS[groups][0])
]
KINDS = [
    "telling",
    pytest.param("cancelling", marks=pytest.mark.slow),
    pytest.param("overflowing", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "groups"), CASES)
def test_all_reduce(name, groups, kind):
    groups = GROUPS[groups]
    ranks, rng = sum(map(len, groups)), np.random.default_rng(1)
    plan = fold_plan(name, "all_reduce", TRN2.group(groups[0]))
    i = AllReduce(
        operands=(), results=(), op="add", groups=tuple(map(tuple, groups)), plan=plan
    )
    for dtype in DTYPES:
        x = oracle.GENERATORS[kind](rng, (ranks, 100), dtype.name)
        want = oracle.all_reduce(x, groups, algorithm_of(name), oracle.DEFAULT)
        assert_same_bits(run(i, x), np.asarray(want))


@pytest.mark.parametrize(("name", "groups"), CASES)
def test_reduce_scatter(name, groups):
    if name == "single_step_mesh":
        return  # every rank reduces the whole buffer: there is nothing to scatter
    groups = GROUPS[groups]
    ranks, rng = sum(map(len, groups)), np.random.default_rng(2)
    plan = fold_plan(name, "reduce_scatter", TRN2.group(groups[0]))
    i = ReduceScatter(
        operands=(),
        results=(),
        op="add",
        groups=tuple(map(tuple, groups)),
        plan=plan,
        dimension=1,
    )
    size = len(groups[0])
    for dtype in DTYPES:
        x = oracle.GENERATORS["telling"](rng, (ranks, 3 * size * 2), dtype.name)
        x = x.reshape(ranks, 3, size * 2)
        want = oracle.reduce_scatter(x, groups, 1, algorithm_of(name), oracle.DEFAULT)
        assert_same_bits(run(i, x), np.asarray(want))
