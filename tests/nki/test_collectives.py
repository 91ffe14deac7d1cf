"""`nki.collectives`: ranks of a kernel, compiled and op by op, against NumPy."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import neuronjax as nj
from neuronjax import nki
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.nki import collectives as ncc, isa as nisa, language as nl
from tests.arrays import bits
from tests.oracles import collectives as oracle

BF16 = ml_dtypes.bfloat16
PAIRS = ((0, 2), (3, 1))


def equal(found, expected):
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(bits(found), bits(expected))


def both(kernel, *arguments):
    """The results of a compiled run, which are those of an op by op run."""
    found = kernel(*arguments)
    with jax.disable_jit():
        again = kernel(*arguments)
    for a, b in zip(found, again, strict=True):
        equal(np.asarray(a), np.asarray(b))
    return [np.asarray(a) for a in found]


def telling(ranks, *shape, dtype="bfloat16", seed=0):
    """Data of which every order of addition has a sum of its own."""
    size = (ranks, int(np.prod(shape)))
    made = oracle.telling(np.random.default_rng(seed), size, dtype)
    return made.reshape(ranks, *shape)


def hbm(shape, like):
    return nl.ndarray(shape, like.dtype, buffer=nl.shared_hbm)


def copied(x):
    """Kernels do not join their arguments: a copy in HBM."""
    out = hbm(x.shape, x)
    nisa.dma_copy(dst=out, src=x)
    return out


# ---- Reductions.

TWO_CHIPS = "trn2.48xlarge"


@nki.jit(target=TWO_CHIPS)
def reductions(x, groups):
    """Everything reduced once in HBM, then in SBUF, with arithmetic between."""
    src = copied(x)
    everywhere, part = hbm(x.shape, x), hbm((x.shape[0] // 8, x.shape[1]), x)
    ncc.all_reduce([src], [everywhere], groups, op=nl.add)
    ncc.reduce_scatter([src], [part], groups, collective_dim=0, op=nl.add)
    tile = nl.load(everywhere)
    nisa.tensor_tensor(tile, tile, nl.load(x), nl.multiply)
    largest = nl.ndarray(tile.shape, tile.dtype, nl.sbuf)
    ncc.all_reduce([tile], [largest], groups, op=nl.maximum)
    nl.store(maxima := hbm(x.shape, x), largest)
    return everywhere, part, maxima


@pytest.mark.slow
def test_reductions_fold_as_the_algorithm_does():
    x, group, name = telling(8, 16, 6), tuple(range(8)), "rdh"
    with nj.collective_algorithm(name):
        found = both(reductions.with_ranks(8), x, ncc.ReplicaGroup([list(group)]))
    how = oracle.Algorithm(name=name, ranks_per_chip=4, listed=True)
    want = oracle.all_reduce(x, [group], how)
    equal(found[0], want)
    equal(found[1], oracle.reduce_scatter(x, [group], 0, how))
    product = (want.astype(np.float32) * x.astype(np.float32)).astype(BF16)
    equal(found[2], np.broadcast_to(product.max(axis=0), x.shape))


@nki.jit(target=TWO_CHIPS)
def sums(x, groups):
    src, out = copied(x), hbm(x.shape, x)
    ncc.all_reduce([src], [out], groups, nl.add)
    return (out,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["auto", "kangaring"])
def test_a_kernel_reduces_as_a_program_does(name):
    """The bits of `jax.lax.psum` in `nj.jit`, whoever chooses the algorithm."""
    x = telling(8, 4, 24)
    groups = [list(range(8))]
    function = jax.shard_map(
        lambda a: jax.lax.psum(a, "x"),
        mesh=nj.make_mesh((8,), ("x",)),
        in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec("x"),
        check_vma=False,
    )
    with nj.collective_algorithm(name):
        expected = nj.jit(function, target=TWO_CHIPS)(x)
        [found] = sums.with_ranks(8)(x, ncc.ReplicaGroup(groups))
    equal(found, np.asarray(expected))


@pytest.mark.slow
def test_the_algorithm_is_part_of_what_a_kernel_is_compiled_for():
    x, groups = telling(8, 2, 16), ncc.ReplicaGroup([range(8)])
    found = []
    for name in ("mesh", "ring", "mesh"):
        with nj.collective_algorithm(name):
            found.append(sums.with_ranks(8)(x, groups)[0])
    assert (bits(found[0]) != bits(found[1])).any()
    equal(found[0], found[2])


# ---- Movement.


@nki.jit(target="trn2")
def movement(x, y):
    pairs = ncc.ReplicaGroup(PAIRS)
    src, other = copied(x), copied(y)
    gathered = [hbm((2 * t.shape[0], *t.shape[1:]), t) for t in (x, y)]
    ncc.all_gather([src, other], gathered, pairs, collective_dim=0)
    swapped, sent = hbm(x.shape, x), hbm(x.shape, x)
    ncc.all_to_all([src], [swapped], pairs, collective_dim=0)
    nisa.dma_copy(dst=sent, src=swapped)
    ncc.collective_permute([src], [sent], [(0, 1), (1, 3)])
    tile = nl.load(x)
    wide = nl.ndarray((x.shape[0], 4 * x.shape[1]), x.dtype, nl.sbuf)
    ncc.all_gather([tile], [wide], ncc.ReplicaGroup([[0, 1, 2, 3]]), collective_dim=1)
    nl.store(joined := hbm(wide.shape, x), wide)
    # A row of the gathered tensor that the rank's own number selects.
    mine = hbm((1, x.shape[1]), x)
    rows = joined.reshape((x.shape[0], 4, x.shape[1]))
    nisa.dma_copy(dst=mine, src=rows[0:1].select(1, ncc.rank_id()))
    return (*gathered, swapped, sent, joined, mine)


@pytest.mark.slow
def test_movement():
    x, y = telling(4, 6, 5), np.arange(4 * 3, dtype=np.int32).reshape(4, 3, 1)
    found = both(movement.with_ranks(4), x, y)
    equal(found[0], oracle.all_gather(x, PAIRS, 0))
    equal(found[1], oracle.all_gather(y, PAIRS, 0))
    swapped = oracle.all_to_all(x, PAIRS, 0, 0)
    equal(found[2], swapped)
    sent = swapped.copy()  # ranks that receive nothing keep what they had
    sent[1], sent[3] = x[0], x[1]
    equal(found[3], sent)
    equal(found[4], oracle.all_gather(x, [range(4)], 1))
    equal(found[5], x[:, 0:1])


# ---- Rings.


@nki.jit(target="trn2")
def gathered_around_rings(x):
    """As fine-grained all-gathers do: each step places what it received."""
    group, ranks, channels = ncc.ReplicaGroup([[1, 0, 2]]), 3, 2
    out = hbm((channels, ranks, *x.shape[1:]), x)
    buffers = [[copied(x[c]) for c in range(channels)]]
    for step in range(ranks):
        for channel in range(channels):
            whose = ncc.collective_permute_implicit_current_processing_rank_id(
                iteration_id=step, channel_id=channel, replica_group=group
            )
            target = out[channel].select(0, whose)
            nisa.dma_copy(dst=target, src=buffers[-1][channel])
        buffers.append([hbm(x.shape[1:], x) for _ in range(channels)])
        ncc.collective_permute_implicit(
            [[b] for b in buffers[-2]],
            [[b] for b in buffers[-1]],
            replica_group=group,
            channel_ids=[0, 1],
        )
    return (out,)


@pytest.mark.slow
def test_a_ring_brings_every_rank_what_all_had():
    x = telling(3, 2, 3, 8)
    [found] = both(gathered_around_rings.with_ranks(3), x)
    expected = np.moveaxis(x, 0, 1)  # [channel, rank, ...]
    equal(found, np.broadcast_to(expected, found.shape).copy())


@nki.jit(target="trn2")
def reduced_around_a_ring(x, y):
    group, total = ncc.ReplicaGroup([range(4)]), copied(x)
    for _ in range(3):
        received = hbm(x.shape, x)
        ncc.collective_permute_implicit_reduce(
            [[total]], [[copied(y)]], [[received]], group, op=nl.add
        )
        total = received
    return (total,)


@pytest.mark.slow
def test_a_ring_stores_every_partial_sum():
    x, y = telling(4, 2, 16), telling(4, 2, 16, seed=1)
    [found] = both(reduced_around_a_ring.with_ranks(4), x, y)
    total = x
    for _ in range(3):
        sums = total.astype(np.float32) + y.astype(np.float32)
        total = np.roll(sums.astype(BF16), 1, axis=0)
    equal(found, total)


# ---- Lengths that the run knows.


@nki.jit(target="trn2")
def of_any_length(x, metadata, placed):
    group = ncc.ReplicaGroup([[2, 0, 1, 3]])
    table = copied(metadata)
    out = hbm((4, 6), x)
    nl.store(out, nl.zeros(out.shape, x.dtype))
    ncc.all_to_all_v([copied(x)], [out], group, table, has_rdispls=placed)
    return out, table


@pytest.mark.slow
@pytest.mark.parametrize("placed", [False, True])
def test_all_to_all_v(placed):
    """Every chunk by hand; columns are members in the group's order."""
    members, generator = (2, 0, 1, 3), np.random.default_rng(5)
    x = generator.integers(1, 1000, (4, 5, 6)).astype(np.int32)
    counts = generator.integers(0, 7, (4, 4))
    starts = generator.integers(0, 24, (4, 4))
    metadata = np.full((4, 4 if placed else 3, 4), 99, np.uint32)
    metadata[:, 0], metadata[:, 1] = counts, starts
    expected, table = np.zeros((4, 24), np.int32), metadata.copy()
    for place, rank in enumerate(members):
        received = [counts[sender, place] for sender in members]
        table[rank, 2] = received
        targets = np.array([0, 6, 12, 18])
        if placed:
            targets = np.concatenate([[0], np.cumsum(received)[:-1]])
            metadata[rank, 3] = table[rank, 3] = targets
        for sender, count, at in zip(members, received, targets, strict=True):
            start = starts[sender, place]
            chunk = x[sender].reshape(-1)[start : start + count]
            expected[rank, at : at + count] = chunk
    found = both(of_any_length.with_ranks(4), x, metadata, placed)
    equal(found[0], expected.reshape(4, 4, 6))
    equal(found[1], table)


@nki.jit(target="trn2")
def chunks_for_all(x, metadata):
    out = hbm((4, 3), x)
    table = nl.load(metadata)
    if nl.program_id(0) == 0:
        nl.store(out, nl.zeros(out.shape, x.dtype))
    nisa.core_barrier(out, (0, 1))
    group = ncc.ReplicaGroup([range(4)])
    ncc.all_gather_v([copied(x)], [out], group, table.reshape((1, 3, 4)))
    received = hbm(metadata.shape, metadata)
    nl.store(received, table)
    return out, received


@pytest.mark.slow
def test_all_gather_v_with_two_cores_per_rank():
    x = np.arange(4 * 5, dtype=np.float32).reshape(4, 1, 5)
    metadata = np.full((4, 1, 12), 7, np.uint32)
    sent, first = np.array([3, 0, 1, 2]), np.array([2, 0, 4, 1])
    metadata[:, 0, 0], metadata[:, 0, 4] = sent, first
    expected = np.zeros((4, 3), np.float32)
    for rank in range(4):
        chunk = x[rank, 0, first[rank] : first[rank] + sent[rank]]
        expected[rank, : sent[rank]] = chunk
    found = both(chunks_for_all[2].with_ranks(4), x, metadata)
    for rank in range(4):
        equal(found[0][rank], expected)
        np.testing.assert_array_equal(found[1][rank, 0, 8:], sent)
        np.testing.assert_array_equal(found[1][rank, 0, :8], metadata[rank, 0, :8])


# ---- Launches.


@nki.jit(target="trn2")
def summed_by_two_cores(x):
    """Each core writes its half; the sum, of all, replaces it at once."""
    half, group = x.shape[0] // 2, ncc.ReplicaGroup([[0, 1]])
    core, shared = nl.program_id(0), hbm(x.shape, x)
    rows = slice(core * half, (core + 1) * half)
    nl.store(shared[rows], nl.load(x[rows]))
    ncc.all_reduce([shared], [shared], group, nl.add)
    other = nl.load(shared[half - core * half : (2 - core) * half])
    total = nl.ndarray(other.shape, x.dtype, nl.sbuf)
    ncc.all_reduce([other], [total], group, nl.maximum)
    out = hbm((2, half, x.shape[1]), x)
    nl.store(out[core], total)
    return shared, out


@pytest.mark.slow
def test_cores_of_a_rank_act_together_in_shared_memory():
    x = np.random.default_rng(0).standard_normal((2, 8, 3)).astype(np.float32)
    launched = summed_by_two_cores[2].with_ranks(2)
    found = both(launched, x)
    total = x[0] + x[1]
    equal(found[0], np.stack([total, total]))
    swapped = np.stack([total[4:], total[:4]])
    equal(found[1], np.stack([swapped, swapped]))
    names = [i.name for i in launched.trace(x).body.walk()]
    assert names.count("all_reduce") == 3


@pytest.mark.slow
def test_ranks_differ_in_what_a_device_loop_does():
    """Between collectives every rank goes its own way, compiled."""

    @nki.jit(target="trn2")
    def kernel(x):
        tile = nl.load(x)
        for _ in nl.dynamic_range(ncc.rank_id()):
            nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nl.store(src := hbm(x.shape, x), tile)
        ncc.all_reduce([src], [out := hbm(x.shape, x)], everyone, nl.add)
        return (out,)

    everyone = ncc.ReplicaGroup([range(3)])
    x = np.ones((3, 2, 4), np.float32)
    [found] = kernel.with_ranks(3)(x)
    np.testing.assert_array_equal(found, np.full((3, 2, 4), 7, np.float32))
    with (
        jax.disable_jit(),
        pytest.raises(UnsupportedError, match="differ between ranks"),
    ):
        kernel.with_ranks(3)(x)


@pytest.mark.slow
def test_ranks_inside_an_outer_jit_and_written_arguments():
    @nki.jit(target="trn2")
    def kernel(x, y):
        nisa.dma_copy(dst=y, src=x)
        ncc.all_gather([copied(x)], [out := hbm((4, 3), x)], ReplicaPair, 0)
        return out

    ReplicaPair = ncc.ReplicaGroup([[1, 0]])
    x, y = telling(2, 2, 3), np.zeros((2, 2, 3), BF16)
    expected = np.stack([np.concatenate([x[1], x[0]])] * 2)
    equal(np.asarray(kernel.with_ranks(2)(x, y)), expected)
    equal(y, x)
    again = jax.jit(kernel.with_ranks(2))(x, y)
    equal(np.asarray(again), expected)


def attempt(body, ranks=4, target="trn2"):
    @nki.jit(target=target)
    def kernel(x):
        body(x, hbm(x.shape, x))
        return x

    launched = kernel.with_ranks(ranks) if ranks else kernel
    return launched.trace(np.zeros((ranks, 8, 4) if ranks else (8, 4), np.float32))


FOUR = ncc.ReplicaGroup([[0, 1, 2, 3]])


def reduce_by(x, out, group=FOUR, op=nl.add, **how):
    ncc.all_reduce([x], [out], group, op, **how)


def in_a_loop(x, out):
    for _ in nl.dynamic_range(2):
        reduce_by(x, out)


def tiles(x, out, **how):
    a, b = (nl.ndarray(x.shape, x.dtype, nl.sbuf) for _ in range(2))
    nisa.dma_copy(dst=a, src=x)
    return a, b


WRONG = {
    "alone": (lambda x, o: reduce_by(x, o), "with_ranks", dict(ranks=0)),
    "rank_id alone": (lambda x, o: ncc.rank_id(), "with_ranks", dict(ranks=0)),
    "no group": (lambda x, o: reduce_by(x, o, [[0, 1]]), "ReplicaGroup", {}),
    "missing rank": (
        lambda x, o: reduce_by(x, o, ncc.ReplicaGroup([[0, 1, 2]])),
        "in no group",
        {},
    ),
    "overlap": (
        lambda x, o: reduce_by(x, o, ncc.ReplicaGroup([[0, 1], [1, 2]])),
        "named twice",
        {},
    ),
    "operator": (lambda x, o: reduce_by(x, o, op=nl.multiply), "nl.maximum", {}),
    "priority": (lambda x, o: reduce_by(x, o, priority=1), "trn3", {}),
    "loop": (in_a_loop, "loop of the device", {}),
    "shape": (lambda x, o: reduce_by(x, o[0:4]), r"\(8, 4\)", {}),
    "mixed memories": (
        lambda x, o: reduce_by(tiles(x, o)[0], o),
        "put all tensors in HBM, or one src and one dst in SBUF",
        {},
    ),
    "two in SBUF": (
        lambda x, o: ncc.all_reduce([*tiles(x, o)], [*tiles(x, o)], FOUR, nl.add),
        "2 srcs in sbuf",
        {},
    ),
    "scatter": (
        lambda x, o: ncc.reduce_scatter([x[0:6]], [o], FOUR, 0, nl.add),
        "multiple of 4",
        {},
    ),
    "dimension": (
        lambda x, o: ncc.all_gather([x], [o], FOUR, 1),
        "collective_dim=1.*use 0",
        {},
    ),
    "pairs": (
        lambda x, o: ncc.collective_permute([x], [o], [(0, 1), (2, 1)]),
        "target twice",
        {},
    ),
    "channels": (
        lambda x, o: ncc.collective_permute_implicit([[x]], [[o]], FOUR, [1]),
        "at most 2 channels",
        {},
    ),
    "metadata": (
        lambda x, o: ncc.all_to_all_v([x], [o], FOUR, x),
        r"uint32\[3, 4\]",
        {},
    ),
    "lnc": (
        lambda x, o: ncc.all_gather_v([x], [o], FOUR, x),
        r"kernel\[2\]",
        {},
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_named(case):
    body, message, how = WRONG[case]
    error = (InvalidProgramError, UnsupportedError)
    with pytest.raises(error, match=f"(?s){message}") as raised:
        attempt(body, **how)
    assert "test_collectives.py" in str(raised.value)


def test_arrays_without_an_axis_of_ranks_are_refused():
    with pytest.raises(InvalidProgramError, match=r"\[4, \.\.\.\]"):
        sums.with_ranks(4)(np.zeros((3, 2), np.float32), FOUR)
    with pytest.raises(InvalidProgramError, match="positive int"):
        sums.with_ranks(0)
    with pytest.raises(
        InvalidProgramError, match=r"(?s)4 logical.*trn2\.48xlarge \(64\)"
    ):
        movement.with_ranks(5).trace(*[np.zeros((5, 4, 2), np.float32)] * 2)
