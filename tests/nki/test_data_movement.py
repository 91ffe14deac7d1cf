"""GpSimdE's gathers, the DMA's arithmetic and the random generators against NumPy."""

import jax
import ml_dtypes
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.nki import isa as nisa, language as nl
from tests.nki.test_vector_instructions import normal, run, same
from tests.oracles import nki_isa as oracle

BF16 = ml_dtypes.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize(("elements", "valid"), [(1, None), (4, 37)])
def test_local_gather(elements, valid):
    x = normal(32, 64, dtype=BF16)
    index = np.random.default_rng(0).integers(0, 60, (32, 3)).astype(np.uint16)
    count = (valid or 48) * elements

    def body(dst, tiles):
        nisa.local_gather(dst[0], tiles[0], tiles[1], elements, valid)

    [found] = run(body, x, index, outputs=[((32, count), nl.bfloat16)])
    expected = oracle.local_gather(x, index, elements, valid)
    np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))


@pytest.mark.slow
def test_gathers_within_a_partition_and_segments():
    x = normal(8, 6, 5)
    index = np.random.default_rng(1).integers(0, 30, (8, 4, 4)).astype(np.uint32)
    ids = np.array([[1, 1, 1, 2, 2, 0, 3, 3, 0, 0]], np.int32)

    def body(dst, tiles):
        nisa.nc_n_gather(dst[0], tiles[0], tiles[1])
        nisa.sequence_bounds(dst[1], tiles[2])

    shapes = [((8, 4, 4), nl.float32), ((1, 2, 10), nl.int32)]
    found = run(body, x, index, ids, outputs=shapes)
    np.testing.assert_array_equal(found[0], oracle.nc_n_gather(x, index))
    np.testing.assert_array_equal(found[1], oracle.sequence_bounds(ids))


@pytest.mark.slow
def test_nonzero_with_count_touches_one_partition_of_each_core():
    x = (np.random.default_rng(2).random((48, 8)) < 0.4).astype(np.int32)
    x[0] = [0, 1, 1, 0, 0, 1, 0, 0]
    old = np.full((48, 9), 77, np.int32)

    def body(dst, tiles):
        nisa.tensor_copy(dst[0], tiles[1])
        nisa.nonzero_with_count(dst[0], tiles[0], index_offset=16)

    [found] = run(body, x, old, outputs=[((48, 9), nl.int32)])
    np.testing.assert_array_equal(found, oracle.nonzero_with_count(old, x, 16))
    assert found[0].tolist() == [17, 18, 21, -1, -1, -1, -1, -1, 3]  # the reference's


@pytest.mark.slow
def test_topk_of_a_snake():
    x = normal(32, 3, dtype=BF16)

    def body(dst, tiles):
        nisa.topk(dst[0], dst[1], tiles[0], n=42)

    shapes = [((32, 8), nl.bfloat16), ((32, 8), nl.uint32)]
    values, index = run(body, x, outputs=shapes)
    expected, places = oracle.topk(x, 8, 42)
    same(values, expected, BF16)
    np.testing.assert_array_equal(index, places)


@pytest.mark.slow
def test_dma_transposes_and_adds():
    x, y = normal(16, 24, dtype=BF16), normal(4, 3, 8, 5)
    a, b = normal(16, 24, seed=1), normal(16, 24, seed=2, dtype=BF16)

    def body(dst, tiles):
        nisa.dma_transpose(dst[0], tiles[0], axes=(1, 0))
        nisa.dma_transpose(dst[1], tiles[1])
        nisa.dma_compute(dst[2], [tiles[2], tiles[3], tiles[2]], nl.add)

    shapes = [((24, 16), nl.bfloat16), ((5, 3, 8, 4), nl.float32)]
    found = run(body, x, y, a, b, outputs=[*shapes, ((16, 24), nl.bfloat16)])
    np.testing.assert_array_equal(found[0].view(np.uint16), x.T.view(np.uint16))
    np.testing.assert_array_equal(found[1], oracle.dma_transpose(y))
    same(found[2], oracle.dma_compute([a, b, a]), BF16)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_random_numbers_follow_their_seed(target):
    seeds = np.array([[7]], np.uint32)

    @nki.jit
    def kernel(seeds, again):
        results = []
        for source in (seeds, again):
            tile = nl.ndarray((1, 1), dtype=nl.uint32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=source)
            nisa.set_rng_seed(tile)
            for _ in range(2):
                drawn = nl.ndarray((32, 65), dtype=nl.uint16, buffer=nl.sbuf)
                nisa.rng(drawn)
                out = nl.ndarray((32, 65), dtype=nl.uint16, buffer=nl.shared_hbm)
                nisa.dma_copy(dst=out, src=drawn)
                results.append(out)
        return tuple(results)

    compiled = kernel.with_target(target)
    a, b, c, d = (np.asarray(v) for v in compiled(seeds, seeds))
    np.testing.assert_array_equal(a, c)
    np.testing.assert_array_equal(b, d)
    assert (a != b).mean() > 0.99
    assert abs(a.astype(float).mean() / 2**15 - 1) < 0.05
    with jax.disable_jit():
        eager = compiled(seeds, seeds)
    np.testing.assert_array_equal(a, np.asarray(eager[0]))


@pytest.mark.slow
def test_dropout_uniform_numbers_and_states():
    x = normal(64, 200)
    state = np.random.default_rng(0).integers(1, 2**32, (64, 24)).astype(np.uint32)

    def body(dst, tiles):
        nisa.rand_set_state(tiles[1], engine=nisa.engine.vector)
        nisa.rand_get_state(dst[2], engine=nisa.engine.vector)
        nisa.dropout(dst[0], tiles[0], 0.25)
        nisa.rand2(dst[1], -1.0, 3.0)

    tile = ((64, 200), nl.float32)
    found = run(body, x, state, outputs=[tile, tile, ((64, 24), nl.uint32)])
    kept = found[0] != 0
    np.testing.assert_array_equal(found[0][kept], x[kept])
    assert abs(kept.mean() - 0.75) < 0.02
    assert found[1].min() >= -1
    assert found[1].max() <= 3
    assert abs(found[1].mean() - 1) < 0.05
    np.testing.assert_array_equal(found[2], state)


WRONG = {
    "partitions": lambda d, t: nisa.local_gather(d[0], t[0], t[0]),
    "axes": lambda d, t: nisa.dma_transpose(d[0], t[0], axes=(0, 1)),
    "sources": lambda d, t: nisa.dma_compute(d[0], [t[0]] * 17, nl.add),
    "scales": lambda d, t: nisa.dma_compute(d[0], [t[0]], nl.add, scales=[2.0]),
    "bits": lambda d, t: nisa.rng(d[0]),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_instruction(case):
    with pytest.raises(InvalidProgramError, match=r"nisa\."):
        run(WRONG[case], normal(8, 16), outputs=[((8, 16), nl.float32)])
