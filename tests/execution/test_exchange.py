"""Collectives on arrays, against loops in NumPy that pass messages between ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from neuronjax.errors import InternalError, InvalidProgramError
from neuronjax.execution.exchange import exchange, is_same_for_all
from neuronjax.hardware import resolve_target
from neuronjax.ir.collective_set import (
    AllGather,
    AllReduce,
    Collective,
    PartitionId,
    ReduceScatter,
)
from neuronjax.ir.collectives.algorithms import fold_plan
from neuronjax.ir.collectives.placement import Placement
from neuronjax.numerics.exact import opaque_zero
from neuronjax.numerics.random_bits import fold, random_bits

TRN2 = Placement.of(resolve_target("trn2.48xlarge"))
BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
F32, FP8 = np.dtype(np.float32), np.dtype(ml_dtypes.float8_e4m3)
ALGORITHMS = ("ring", "kangaring", "rdh", "mesh", "single_step_mesh")


@functools.cache
def negative_zero() -> jax.Array:
    return jax.jit(opaque_zero)()


def run(i: Collective, *arrays: np.ndarray, key: int = 0) -> list[np.ndarray]:
    """The instruction, compiled, on arrays of all devices."""

    def body(zero: jax.Array, key: jax.Array, *arrays: jax.Array) -> tuple:
        return exchange(i, arrays, len(arrays[0]), zero, key)

    results = jax.jit(body)(negative_zero(), jnp.uint32(key), *arrays)
    return [np.asarray(x) for x in results]


def reduction(name, groups, cls=AllReduce, op="add", plan_for="all_reduce", **fields):
    """An instruction whose plan is that of its first group."""
    plan = fold_plan(name, plan_for, TRN2.group(groups[0]))
    groups = tuple(map(tuple, groups))
    return cls(operands=(), results=(), op=op, groups=groups, plan=plan, **fields)


def data(shape, dtype, seed=0):
    """Normal numbers of different sizes, no subnormals."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * 2.0 ** rng.integers(-3, 4, shape)
    return x.astype(np.float32).astype(dtype)


def same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


# -- algorithms as messages ------------------------------------------------------------

Store = Callable[[np.ndarray], np.ndarray]


def stored_as(dtype) -> Store:
    """FP32 numbers as a rank has them after storing them."""
    return lambda x: x.astype(dtype).astype(np.float32)


def added(rows) -> np.ndarray:
    total = rows[0]
    for row in rows[1:]:
        total = (total + row).astype(np.float32)
    return total


def ring(x: np.ndarray, store: Store) -> np.ndarray:
    """Every rank sends on what it received, plus its own; x: [ranks, chunks, m]."""
    n = len(x)
    sent = {r: x[r, (r - 1) % n] for r in range(n)}
    for step in range(1, n):
        sent = {
            r: store(sent[(r - 1) % n] + x[r, (r - 1 - step) % n]) for r in range(n)
        }
    return np.stack([sent[c] for c in range(n)])


def kangaring(x: np.ndarray, store: Store) -> np.ndarray:
    """A ring of pairs, twice: the second halves of the chunks go around backwards."""
    n = len(x)
    result = np.empty_like(x[0])
    for half, ranks in enumerate((range(n), range(n)[::-1])):
        pairs = [ranks[k : k + 2] for k in range(0, n, 2)]
        for place, rank in enumerate(ranks):
            chunk, sum_ = 2 * rank + half, []
            for step in range(1, len(pairs) + 1):
                p, s = pairs[(place // 2 + step) % len(pairs)]
                sum_ = [store(added([*sum_, x[p, chunk], x[s, chunk]]))]
            result[chunk] = sum_[0]
    return result


def on_chips(x: np.ndarray, store: Store) -> np.ndarray:
    """[chips, ...] of [ranks, ...]: four ranks in one step."""
    return np.stack([store(added(x[k : k + 4])) for k in range(0, len(x), 4)])


def rdh(x: np.ndarray, store: Store) -> np.ndarray:
    """All chips exchange with the partner across a bit, highest bit first."""
    have = on_chips(x, store)
    bit = len(have) // 2
    while bit:
        have = np.stack([store(have[c] + have[c ^ bit]) for c in range(len(have))])
        bit //= 2
    assert all((have == have[0]).ravel())
    return have[0]


def mesh(x: np.ndarray, store: Store) -> np.ndarray:
    return store(added(on_chips(x, store)))


def single_step_mesh(x: np.ndarray, store: Store) -> np.ndarray:
    return store(added(x))


MESSAGES = dict(
    ring=ring,
    kangaring=kangaring,
    rdh=rdh,
    mesh=mesh,
    single_step_mesh=single_step_mesh,
)


#: Pieces of a rank's chunk, where there are several.
CHANNELS = {"kangaring": 2}


def all_reduced(name, x, groups) -> np.ndarray:
    """[devices, *local]: the flattened tensor in chunks, passed around."""
    out = np.empty_like(x)
    for group in groups:
        flat = x[list(group)].astype(np.float32).reshape(len(group), -1)
        n, length = flat.shape
        count = n * CHANNELS.get(name, 1)
        m = -(-length // count)
        chunks = np.zeros((n, count * m), np.float32)
        chunks[:, :length] = flat
        total = MESSAGES[name](chunks.reshape(n, count, m), stored_as(x.dtype))
        out[list(group)] = total.reshape(-1)[:length].reshape(x.shape[1:])
    return out


@pytest.mark.slow_except(
    "bfloat16-ring", "float32-rdh", "float32-mesh", "float32-single_step_mesh"
)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_all_reduce(name, dtype):
    groups = (tuple(range(16)),)
    x = data((16, 5, 9), dtype)  # 45 elements in 16 chunks
    (found,) = run(reduction(name, groups), x)
    same_bits(found, all_reduced(name, x, groups))


@pytest.mark.slow_cases("rdh-float8_e4m3")
@pytest.mark.parametrize(("name", "dtype"), [("ring", F16), ("rdh", FP8)], ids=str)
def test_narrow_dtypes(name, dtype):
    groups = (tuple(range(8)),)
    x = data((8, 19), dtype)
    (found,) = run(reduction(name, groups), x)
    same_bits(found, all_reduced(name, x, groups))


@pytest.mark.slow_cases("mesh")
@pytest.mark.parametrize("name", ["ring", "kangaring", "mesh"])
def test_groups_in_any_order(name):
    groups = ((3, 1, 0, 2, 6, 4, 7, 5), (8, 9, 10, 11, 12, 13, 14, 15))
    x = data((16, 40), BF16)
    (found,) = run(reduction(name, groups), x)
    same_bits(found, all_reduced(name, x, groups))


def test_strided_groups():
    groups = tuple(tuple(range(k, 16, 4)) for k in range(4))  # one rank per chip
    x = data((16, 7), BF16)
    (found,) = run(reduction("ring", groups), x)
    same_bits(found, all_reduced("ring", x, groups))


@pytest.mark.slow
def test_every_count_of_roundings_gives_other_bits():
    x = data((64, 256), BF16)
    groups = (tuple(range(64)),)
    results = {}
    for name in ALGORITHMS:
        (found,) = run(reduction(name, groups), x)
        assert (found == found[0]).all()
        results[name] = found[0].tobytes()
    assert len(set(results.values())) == len(ALGORITHMS)


@pytest.mark.slow
def test_roundings_can_be_counted():
    """1 + 2^-9 + 2^-9 + ...: in bfloat16 each rounding drops what was added to it."""
    x = np.full((64, 64), 2.0**-9, np.float32).astype(BF16)
    x[0] = 1
    groups = (tuple(range(64)),)
    (once,) = run(reduction("single_step_mesh", groups), x)
    assert (once == np.float32(1 + 63 * 2.0**-9).astype(BF16)).all()
    (ring_,) = run(reduction("ring", groups), x)
    # Chunk 0 begins at rank 1 and meets the 1 last; that of rank 7, the last one on
    # chip 1, which precedes chip 0 on the cycle, begins with it.
    assert ring_[0, 0] == once[0, 0]
    assert ring_[0, 7] == 1


@pytest.mark.slow_cases("kangaring-1")
@pytest.mark.parametrize(
    ("name", "dimension"), [("ring", 0), ("kangaring", 1), ("rdh", 1), ("mesh", 0)]
)
def test_reduce_scatter(name, dimension):
    groups = ((0, 1, 2, 3, 4, 5, 6, 7),)
    x = data((8, 16, 24), BF16)
    i = reduction(name, groups, ReduceScatter, dimension=dimension)
    (found,) = run(i, x)
    # Part r of the plan is part r along the dimension.
    parts = np.stack(np.split(x.astype(np.float32), 8, axis=dimension + 1), axis=1)
    chunks = parts.reshape(8, 8 * CHANNELS.get(name, 1), -1)
    expected = MESSAGES[name](chunks, stored_as(BF16)).reshape(8, *parts.shape[2:])
    same_bits(found, expected.astype(BF16))


def test_reduce_scatter_in_several_groups():
    groups = ((1, 0, 3, 2), (4, 5, 6, 7))
    x = data((8, 8), F32)
    (found,) = run(reduction("ring", groups, ReduceScatter, dimension=0), x)
    for group in groups:
        chunks = x[list(group)].reshape(4, 4, 2)
        same_bits(found[list(group)], ring(chunks, stored_as(F32)))


def test_over_nodes_the_node_comes_first():
    groups = ((0, 1, 2, 3, 64, 65, 66, 67),)
    plan = fold_plan("mesh+rdh", "all_reduce", TRN2.group(groups[0]))
    local = (tuple(range(8)),)
    i = AllReduce(operands=(), results=(), op="add", groups=local, plan=plan)
    x = data((8, 33), BF16)
    store = stored_as(BF16)
    node = on_chips(x.astype(np.float32), store)
    expected = store(node[0] + node[1]).astype(BF16)
    (found,) = run(i, x)
    same_bits(found, np.broadcast_to(expected, x.shape))


# -- dtypes ----------------------------------------------------------------------------


def test_reduce_dtype_wider():
    groups = (tuple(range(8)),)
    x = data((8, 16), BF16)
    (found,) = run(reduction("ring", groups, reduce_dtype="float32"), x)
    total = all_reduced("ring", x.astype(np.float32), groups)
    same_bits(found, total.astype(BF16))


def test_reduce_dtype_narrower():
    groups = (tuple(range(8)),)
    x = data((8, 16), F32)
    (found,) = run(reduction("ring", groups, reduce_dtype="bfloat16"), x)
    total = all_reduced("ring", x.astype(BF16), groups)
    same_bits(found, total.astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int8])
def test_integers_are_exact(dtype):
    info = np.iinfo(dtype)
    x = np.random.default_rng(1).integers(info.min, info.max, (4, 6), dtype)
    for op, ufunc in {
        "add": np.add,
        "multiply": np.multiply,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "minimum": np.minimum,
        "maximum": np.maximum,
    }.items():
        i = reduction("ring", ((2, 0, 1, 3),), op=op)
        (found,) = exchange(i, [jnp.asarray(x)], 4, negative_zero(), jnp.uint32(0))
        expected = np.broadcast_to(ufunc.reduce(x, dtype=dtype), x.shape)
        same_bits(np.asarray(found), expected)


@pytest.mark.slow
def test_integers_through_fp32():
    x = np.full((8, 3), 2**24 + 1, np.int32)
    groups = (tuple(range(8)),)
    assert run(reduction("ring", groups), x)[0][0, 0] == 8 * (2**24 + 1)
    for name in ("ring", "rdh"):
        (found,) = run(reduction(name, groups, integer_path="fp32"), x)
        assert (found == 8 * 2**24).all()
    extreme = reduction("ring", groups, op="maximum", integer_path="fp32")
    assert run(extreme, x)[0][0, 0] == 2**24


def test_booleans_are_or_and_and():
    x = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], bool)
    for op, expected in {
        "add": x.any(0),
        "maximum": x.any(0),
        "multiply": x.all(0),
        "xor": x[0] ^ x[1],
    }.items():
        (found,) = run(reduction("ring", ((0, 1),), op=op, integer_path="fp32"), x)
        same_bits(found, np.stack([expected] * 2))


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_extremes(dtype):
    x = np.array([[1, -0.0, np.nan, -3], [2, 0.0, 5, -4]], np.float32).astype(dtype)
    (largest,) = run(reduction("ring", ((0, 1),), op="maximum"), x)
    (smallest,) = run(reduction("ring", ((0, 1),), op="minimum"), x)
    assert largest[0].astype(np.float32)[[0, 3]].tolist() == [2, -3]
    assert smallest[1].astype(np.float32)[[0, 3]].tolist() == [1, -4]
    assert np.isnan([largest[:, 2], smallest[:, 2]]).all()
    assert not np.signbit(largest[:, 1]).any()
    assert np.signbit(smallest[:, 1]).all()


def test_products():
    x = data((8, 24), BF16)
    groups = (tuple(range(8)),)
    (found,) = run(reduction("ring", groups, op="multiply"), x)
    store, wide = stored_as(BF16), x.astype(np.float32)
    chunks = wide.reshape(8, 8, 3)
    for chunk in range(8):
        total = chunks[(chunk + 1) % 8, chunk]
        for step in range(2, 9):
            total = store(total * chunks[(chunk + step) % 8, chunk])
        same_bits(found[0].reshape(8, 3)[chunk], total.astype(BF16))


@pytest.mark.slow
def test_overflow_of_partial_sums():
    x = np.full((8, 8), 200, np.float32).astype(FP8)  # the largest is 240
    groups = (tuple(range(8)),)
    (ieee,) = run(reduction("ring", groups), x)
    (largest,) = run(reduction("ring", groups, overflow="saturate"), x)
    assert np.isinf(ieee.astype(np.float32)).all()
    assert (largest.astype(np.float32) == 240).all()


def test_one_rank_copies():
    x = data((2, 3), BF16)
    same_bits(run(reduction("ring", ((0,), (1,))), x)[0], x)
    i = reduction("ring", ((0,), (1,)), ReduceScatter, dimension=0)
    same_bits(run(i, x)[0], x)


def test_nothing_to_reduce():
    x = np.zeros((8, 0, 3), np.float32)
    assert run(reduction("ring", (tuple(range(8)),)), x)[0].shape == (8, 0, 3)


def test_scalars_and_several_operands():
    x, y = data((8,), BF16), data((8, 3), F32)
    groups = (tuple(range(8)),)
    a, b = run(reduction("mesh", groups), x, y)
    same_bits(a, all_reduced("mesh", x, groups))
    same_bits(b, all_reduced("mesh", y, groups))


# -- stochastic rounding ---------------------------------------------------------------


def stochastic(name, x, key):
    groups = (tuple(range(len(x))),)
    return run(reduction(name, groups, rounding="stochastic"), x, key=key)[0]


@pytest.mark.slow_cases("rdh")
@pytest.mark.parametrize("name", ["ring", "rdh"])
def test_stochastic_results_are_the_same_on_all_ranks(name):
    x = data((8, 100), BF16)
    first = stochastic(name, x, 1)
    assert (first == first[0]).all()
    same_bits(first, stochastic(name, x, 1))
    assert (first != stochastic(name, x, 2)).any()


def test_stochastic_rounding_is_unbiased():
    x = np.full((4, 4096), 2.0**-10, np.float32).astype(BF16)
    x[0] = 1  # 3 * 2^-10 above it: 3/8 of a step
    found = stochastic("single_step_mesh", x, 3)[0].astype(np.float32)
    assert set(found) == {1.0, 1 + 2.0**-7}
    assert abs((found > 1).mean() - 3 / 8) < 0.03


@pytest.mark.slow
def test_stochastic_bits_are_keyed_by_stage_and_hop():
    x = data((4, 8), BF16)
    (found,) = run(reduction("ring", ((0, 1, 2, 3),), rounding="stochastic"), x, key=9)
    chunks = x.astype(np.float32).reshape(4, 4, 2)
    order = [[(c + 1 + p) % 4 for c in range(4)] for p in range(4)]
    total = chunks[order[0], range(4)]
    operand = fold(jnp.uint32(9), jnp.uint32(0))
    for hop in range(1, 4):
        total = total + chunks[order[hop], range(4)]
        stage = fold(operand, jnp.uint32(0))
        bits = np.asarray(random_bits((1, 1, 4, 2), fold(stage, jnp.uint32(hop))))
        raised = total.view(np.uint32) + (bits.reshape(4, 2) >> 16)
        total = (raised & np.uint32(0xFFFF0000)).view(np.float32)
    same_bits(found[0], total.reshape(8).astype(BF16))


# -- inside programs -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kangaring", "rdh"])
def test_compiled_is_eager(name):
    x = data((16, 50), F32)
    i = reduction(name, (tuple(range(16)),))
    (eager,) = exchange(i, [jnp.asarray(x)], 16, negative_zero(), jnp.uint32(0))
    same_bits(np.asarray(eager), run(i, x)[0])


def test_products_are_not_contracted_into_sums():
    x, y = data((8, 64), F32), data((8, 64), F32, seed=1)
    i = reduction("mesh", (tuple(range(8)),))

    def composed(x: jax.Array, y: jax.Array) -> jax.Array:
        (total,) = exchange(i, [x * y], 8, opaque_zero(), jnp.uint32(0))
        return total * y

    found = np.asarray(jax.jit(composed)(x, y))
    same_bits(found, all_reduced("mesh", x * y, i.groups) * y)


def test_constants_and_scans():
    x = data((8, 24), BF16)
    i = reduction("ring", (tuple(range(8)),))

    @jax.jit
    def program() -> tuple[jax.Array, jax.Array]:
        zero = opaque_zero()

        def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return exchange(i, [carry], 8, zero, jnp.uint32(0))[0], None

        constant = jnp.asarray(x)
        return (
            exchange(i, [constant], 8, zero, jnp.uint32(0))[0],
            lax.scan(step, constant, length=2)[0],
        )

    once, twice = map(np.asarray, program())
    expected = all_reduced("ring", x, i.groups)
    same_bits(once, expected)
    same_bits(twice, all_reduced("ring", expected, i.groups))


def test_what_is_the_same_for_all():
    whole, halves = ((1, 0, 2, 3),), ((0, 1), (2, 3))
    gather = AllGather(operands=(), results=(), dimension=0, groups=whole)
    assert is_same_for_all(gather, 4)
    assert not is_same_for_all(gather, 8)
    assert is_same_for_all(reduction("ring", whole), 4)
    assert not is_same_for_all(reduction("ring", halves), 4)
    scatter = reduction("ring", whole, ReduceScatter, dimension=0)
    assert not is_same_for_all(scatter, 4)
    assert not is_same_for_all(PartitionId(operands=(), results=()), 1)


# -- errors ----------------------------------------------------------------------------


def test_a_dimension_that_does_not_divide():
    i = reduction("ring", ((0, 1, 2),), ReduceScatter, dimension=0)
    with pytest.raises(InvalidProgramError, match="multiple of 3"):
        run(i, data((3, 4), F32))


def test_bitwise_ops_are_for_integers():
    with pytest.raises(InvalidProgramError, match="float32 by xor"):
        run(reduction("ring", ((0, 1),), op="xor"), data((2, 4), F32))


def test_a_plan_for_another_group():
    plan = fold_plan("ring", "all_reduce", TRN2.group(range(3)))
    i = AllReduce(operands=(), results=(), op="add", groups=((0, 1),), plan=plan)
    with pytest.raises(InternalError, match="3/1"):
        run(i, data((2, 4), F32))
