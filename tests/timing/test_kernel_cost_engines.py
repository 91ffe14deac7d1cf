"""Who executes what a kernel leaves open."""

from collections import Counter

import numpy as np
import pytest

import neuronjax as nj
from neuronjax.hardware import resolve_target
from neuronjax.nki import legacy as nki
from neuronjax.nki.legacy import isa as nisa, language as nl
from neuronjax.timing.kernel_cost import Prices, on_engines, with_held_tiles
from neuronjax.timing.kernel_schedule import schedule_kernel
from neuronjax.timing.work import Core

X = np.ones((128, 512), np.float32)
SBUF = resolve_target("trn2").chip.core.sbuf_usable_bytes_per_partition


def queues(body, turns=8, target="trn2"):
    """Queues of VectorE's and ScalarE's instructions, by name, of so many turns."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray((turns, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        for turn in nl.affine_range(turns):
            nl.store(out[turn], value=body(tile))
        return out

    entries = list(kernel.with_target(target).trace(X).body.walk())
    prices = Prices(Core(resolve_target(target).chip, 1))
    priced = on_engines(entries, [1] * len(entries), prices)
    found = [(i.name, p.work.queue) for i, p in zip(entries, priced, strict=True)]
    return Counter(pair for pair in found if pair[1] in ("vector", "scalar"))


@pytest.mark.parametrize(("target", "of_vector"), [("trn1", 0), ("trn2", 4)])
def test_copies_are_shared_from_trn2_on(target, of_vector):
    found = queues(lambda t: nl.copy(t), target=target)
    assert found["tensor_copy", "vector"] == of_vector
    assert found["tensor_copy", "scalar"] == 8 - of_vector


def test_what_is_bound_counts_first():
    """Eight activations keep ScalarE busy for most of what eight copies take."""
    found = queues(lambda t: nl.copy(nisa.activation(op=nl.exp, data=t)))
    assert found["activation", "scalar"] == 8
    assert found["tensor_copy", "vector"] >= 7


def test_an_engine_that_is_given_stays():
    copy = lambda t: nisa.tensor_copy(t, engine=nisa.vector_engine)  # noqa: E731
    assert queues(copy) == {("tensor_copy", "vector"): 8}


@pytest.mark.parametrize(("op", "moves"), [(np.multiply, True), (np.maximum, False)])
def test_scalar_engine_has_products_and_sums(op, moves):
    found = queues(lambda t: nisa.tensor_scalar(t, op, 2.0))
    assert (found["tensor_scalar", "scalar"] > 0) == moves


def test_a_row_over_partitions_is_of_the_tensor_engine():
    """1.73 us for 512 columns of FP32 (mamba v1 and v2 of [KDA]): four passes of one
    row, at which TensorE's throttle never lets go."""

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=nl.load(x[0:1, :]).broadcast_to(x.shape))
        return out

    np.testing.assert_array_equal(kernel(X), X)
    engines = nj.profile(kernel, target="trn2", lnc=1)(X).by_engine()
    spent = engines["tensor"].seconds["tensor"]
    assert spent == pytest.approx(1.73e-6, rel=0.05)
    assert engines["dma"].counts["dma"] == 2


@pytest.mark.parametrize("read_before", [False, True])
def test_zeros_that_products_are_added_to_cost_nothing(read_before):
    """Unless another engine reads them first."""

    @nki.jit
    def kernel(a, b):
        out = nl.ndarray((128, 512), dtype=np.float32, buffer=nl.shared_hbm)
        held, moved = nl.load(a), nl.load(b)
        total = nl.zeros((128, 512), dtype=np.float32, buffer=nl.psum)
        if read_before:
            nl.store(out, value=nl.copy(total))
        for _ in nl.affine_range(4):
            total += nisa.nc_matmul(held, moved)
        nl.store(out, value=nl.copy(total))
        return out

    found = kernel.with_target("trn2").trace(np.ones((128, 128), np.float32), X)
    entries = list(found.body.walk())
    prices = Prices(Core(resolve_target("trn2").chip, 1))
    for older in (True, False):
        priced = on_engines(entries, [1] * len(entries), prices, older=older)
        (zeros,) = (
            p for i, p in zip(entries, priced, strict=True) if i.name == "memset"
        )
        assert (zeros.work.seconds == 0) == (older and not read_before)
    assert found.older


def products_priced(order, columns, older=True):
    """How many of the products of two tiles, one in each of 2 x 4 turns, cost time.

    `order` says which loop is the inner one: the tiles change with "tile" alone."""
    x = np.ones((2, 128, columns), np.float32)

    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 4, 128, columns), dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = [nl.load(x[n]) for n in range(2)]
        for outer in nl.affine_range(4 if order[0] == "turn" else 2):
            for inner in nl.affine_range(2 if order[0] == "turn" else 4):
                turn, n = (outer, inner) if order[0] == "turn" else (inner, outer)
                product = nisa.tensor_tensor(tiles[n], tiles[n], op=np.multiply)
                changed = nisa.activation(op=nl.exp, data=product, scale=float(turn))
                nl.store(out[n, turn], value=changed)
        return out

    entries = list(kernel.with_target("trn2").trace(x).body.walk())
    if older:
        entries = with_held_tiles(entries, SBUF)
    prices = Prices(Core(resolve_target("trn2").chip, 1))
    priced = on_engines(entries, [1] * len(entries), prices, older=older)
    kept = Counter(
        i.name for i, p in zip(entries, priced, strict=True) if p.work.seconds
    )
    assert kept["activation"] == 8
    assert kept["dma_copy"] == 2 + 8
    return kept["tensor_tensor"]


def test_the_older_compiler_moves_out_what_an_inner_loop_repeats():
    """VectorE's counters of mamba v2, v3 and v1 [KDA]."""
    assert products_priced(("tile", "turn"), 512) == 2
    assert products_priced(("turn", "tile"), 512) == 8, "it changes with the inner loop"
    assert products_priced(("tile", "turn"), 18_000) == 8, "no room for its result"
    assert products_priced(("tile", "turn"), 512, older=False) == 8


def test_a_sum_that_goes_on_stays_in_its_loop():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile, total = nl.load(x), nl.zeros(x.shape, dtype=x.dtype)
        for _ in nl.affine_range(4):
            total += nisa.tensor_tensor(tile, tile, op=np.multiply)
        nl.store(out, value=total)
        return out

    entries = list(kernel.with_target("trn2").trace(X).body.walk())
    entries = with_held_tiles(entries, SBUF)
    prices = Prices(Core(resolve_target("trn2").chip, 1))
    priced = on_engines(entries, [1] * len(entries), prices, older=True)
    found = Counter(
        (i.attributes["op"], p.work.seconds > 0)
        for i, p in zip(entries, priced, strict=True)
        if i.name == "tensor_tensor"
    )
    assert found == {
        ("multiply", True): 1,
        ("add", True): 4,
    }


def loads_of_turns(kernel, *arguments):
    """The bytes read of HBM, as written and as the older compiler leaves them."""
    program = kernel.with_target("trn2").trace(*arguments)
    entries = list(program.body.walk())
    prices = Prices(Core(resolve_target("trn2").chip, 1))

    def read(found):
        moves = [m for i in found for m in prices.price(i).moves]
        return sum(m.bytes for m in moves if m.is_read)

    return read(entries), read(with_held_tiles(entries, SBUF))


def repeating(columns, changes=False):
    @nki.jit
    def kernel(x):
        out = nl.ndarray((4, 2, *x.shape[1:]), dtype=x.dtype, buffer=nl.shared_hbm)
        for turn in nl.affine_range(4):
            for part in nl.affine_range(2):
                tile = nl.load(x[part])
                if changes:
                    tile[...] = nl.exp(tile)
                nl.store(out[turn, part], value=nl.copy(tile))
        return out

    return kernel, np.ones((2, 128, columns), np.float32)


def test_the_older_compiler_does_not_repeat_loads_of_what_sbuf_holds():
    kernel, x = repeating(512)
    assert loads_of_turns(kernel, x) == (4 * x.nbytes, x.nbytes)


def test_loads_are_repeated_where_tiles_do_not_fit():
    kernel, x = repeating(20_000)
    assert loads_of_turns(kernel, x) == (4 * x.nbytes, 4 * x.nbytes)


def test_loads_of_tiles_that_change_are_repeated():
    kernel, x = repeating(512, changes=True)
    assert loads_of_turns(kernel, x) == (4 * x.nbytes, 4 * x.nbytes)


def test_what_is_held_takes_its_room_all_the_time():
    """The schedule reads the first tile in every turn, and transfers it once."""
    kernel, x = repeating(512)
    found = schedule_kernel(
        kernel.with_target("trn2").trace(x), resolve_target("trn2"), lnc=1
    )
    loaded = [
        i.outputs[0].storage
        for i, p in zip(found.stream.entries, found.priced, strict=True)
        if any(m.is_read for m in p.moves)
    ]
    lives = {s: (first, last) for s, first, last, _ in found.found.lives}
    assert len(loaded) == 2
    assert all(lives[s][1] > len(found.stream.entries) // 2 for s in loaded)
