"""Kernels compiled, op by op and under an outer jit: the same bits, and NumPy's."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from tests.arrays import bits

BF16 = ml_dtypes.bfloat16


def check(kernel, *args):
    """Runs a kernel in every way; returns its results as NumPy arrays."""
    compiled = jax.tree.leaves(kernel(*args))
    with jax.disable_jit():
        eager = jax.tree.leaves(kernel(*args))
    arrays = [jnp.asarray(a) if isinstance(a, np.ndarray) else a for a in args]
    dynamic = [n for n, a in enumerate(arrays) if isinstance(a, jax.Array)]
    static = [n for n in range(len(arrays)) if n not in dynamic]
    outer = jax.tree.leaves(jax.jit(kernel.__call__, static_argnums=static)(*arrays))
    for a, b, c in zip(compiled, eager, outer, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))
        np.testing.assert_array_equal(bits(a), bits(c))
    return [np.asarray(a) for a in compiled]


def data(*shape, dtype=np.float32, seed=0):
    generator = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return generator.integers(0, 100, shape).astype(dtype)
    return generator.standard_normal(shape).astype(np.float32).astype(dtype)


# ---- Elementary instructions.


@nki.jit
def scale_bias(a, b, bias):
    """Every turn writes other columns of the result."""
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    for n in range(a.shape[1] // 64):
        x, y = nl.load(a[:, nl.ds(64 * n, 64)]), nl.load(b[:, 64 * n : 64 * n + 64])
        lane = nl.load(bias)
        t = nl.ndarray(x.shape, nl.float32)
        nisa.tensor_tensor(t, x, y, nl.multiply)
        nisa.tensor_scalar(
            t, t, nl.multiply, 0.3 + n, op1=nl.add, operand1=lane, reverse0=True
        )
        u = nl.ndarray(x.shape, a.dtype)
        nisa.tensor_tensor(u, t, x, nl.add)
        nl.store(out[:, 64 * n : 64 * n + 64], u)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_products_and_sums_are_rounded_apart(dtype):
    """An FMA anywhere would differ from NumPy's separate operations."""
    a, b = (data(128, 512, dtype=dtype, seed=s) for s in (0, 1))
    bias = data(128, 1, seed=2)
    [found] = check(scale_bias, a, b, bias)
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    factor = np.repeat((0.3 + np.arange(8)).astype(np.float32), 64)
    expected = ((wide_a * wide_b) * factor + bias) + wide_a
    np.testing.assert_array_equal(bits(found), bits(expected.astype(dtype)))


@nki.jit
def copies(a):
    """Copies between every memory and through several dtypes."""
    s = nl.load(a)
    p = nl.ndarray(a.shape, nl.float32, buffer=nl.psum)
    nisa.tensor_copy(p, s)
    i = nl.ndarray(a.shape, nl.int8)
    nisa.tensor_copy(i, p)
    f = nl.ndarray(a.shape, nl.float8_e5m2)
    nisa.tensor_copy(f, p)
    outs = []
    for tile in (i, f, p):
        out = nl.ndarray(a.shape, tile.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        outs.append(out)
    narrowed = nl.ndarray(a.shape, nl.bfloat16, buffer=nl.shared_hbm)
    nisa.dma_copy(narrowed, a)
    return {"copies": outs, "narrowed": narrowed}


@pytest.mark.slow
def test_copies_round_to_nearest_even_and_saturate():
    a = data(64, 96) * 60
    a[0, :4] = [np.nan, np.inf, -0.0, 1e-40]
    result = copies(a)
    assert set(result) == {"copies", "narrowed"}
    integers, halves, same, narrowed = check(copies, a)
    whole = np.clip(np.rint(np.nan_to_num(a, nan=0.0)), -128, 127).astype(np.int8)
    np.testing.assert_array_equal(integers, whole)
    flushed = np.where(np.abs(a) < 1e-38, np.copysign(0, a), a).astype(np.float32)
    np.testing.assert_array_equal(
        bits(halves), bits(flushed.astype(ml_dtypes.float8_e5m2))
    )
    np.testing.assert_array_equal(bits(same), bits(a))  # bits, subnormals included
    np.testing.assert_array_equal(bits(narrowed), bits(flushed.astype(BF16)))


@nki.jit
def integers(a, b):
    x, y = nl.load(a), nl.load(b)
    outs = []
    for op in (nl.add, nl.multiply, nl.bitwise_xor, nl.maximum):
        t = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_tensor(t, x, y, op)
        outs.append(t)
    shifted = nl.ndarray(x.shape, x.dtype)
    nisa.tensor_scalar(shifted, x, nl.left_shift, 3, op1=nl.bitwise_and, operand1=0xFF)
    ramp = nl.ndarray((x.shape[0], 4, 6), nl.int32)
    nisa.iota(ramp, [[100, 4], [-1, 6]], offset=7, channel_multiplier=1000)
    filled = nl.ndarray(x.shape, nl.int32)
    nisa.memset(filled, 123456789)
    results = []
    for t in (*outs, shifted, ramp, filled):
        out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        results.append(out)
    return tuple(results)


@pytest.mark.slow
def test_integers_are_exact():
    a: np.ndarray = data(32, 40, dtype=np.int32) * 10_000_001
    b: np.ndarray = data(32, 40, dtype=np.int32, seed=1) * -7_654_321
    found = check(integers, a, b)
    expected = [a + b, a * b, a ^ b, np.maximum(a, b), (a << 3) & 0xFF]
    p, y, x = np.ogrid[:32, :4, :6]
    expected += [7 + 1000 * p + 100 * y - x, np.full((32, 40), 123456789)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other.astype(np.int32))


@nki.jit
def activations(a, bias, scale):
    x, b, s = nl.load(a), nl.load(bias), nl.load(scale)
    relu = nl.ndarray(x.shape, nl.float32)
    total = nl.ndarray((x.shape[0], 1), nl.float32)
    half = x.shape[1] // 2
    command = nisa.reduce_cmd
    for part, how in ((0, command.reset_reduce), (1, command.reduce)):
        columns = slice(part * half, (part + 1) * half)
        nisa.activation(
            relu[:, columns],
            nl.relu,
            x[:, columns],
            bias=b,
            scale=s,
            reduce_op=nl.add,
            reduce_cmd=how,
            reduce_res=total if part else None,
        )
    gate = nl.ndarray(x.shape, a.dtype)
    nisa.activation(gate, nl.sigmoid, x, scale=0.5)
    outs = [nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm) for t in (relu, total)]
    nl.store(outs[0], relu)
    nl.store(outs[1], total)
    out = nl.ndarray(x.shape, a.dtype, buffer=nl.shared_hbm)
    nl.store(out, gate)
    return (*outs, out)


@pytest.mark.slow
def test_activation_accumulates():
    a, bias, scale = data(128, 300), data(128, 1, seed=1), data(128, 1, seed=2)
    relu, total, gate = check(activations, a, bias, scale)
    expected = np.maximum(a * scale + bias, np.float32(0))
    np.testing.assert_array_equal(relu, expected)
    sums = functools.reduce(np.add, list(expected.T), np.zeros(128, np.float32))
    np.testing.assert_array_equal(total[:, 0], sums)
    np.testing.assert_allclose(gate, 1 / (1 + np.exp(-0.5 * a.astype(float))), 1e-6)


# ---- Views as operands.


@nki.jit
def shuffle(a):
    """Reads and writes through permuted, strided, broadcast and cast views."""
    t = nl.load(a)  # [32, 24]
    u = nl.ndarray((32, 6, 4), nl.float32)
    nisa.tensor_copy(u.permute((0, 2, 1)), t.reshape((32, 4, 6)))
    v = nl.ndarray((32, 24), nl.float32)
    nisa.tensor_copy(v[:, 1::2], u.reshape((32, 24))[:, 0:12])
    nisa.tensor_copy(v[:, 0::2], t[:, 0:1].broadcast(1, 12))
    odd = nl.ndarray((32, 25), nl.float32)
    nisa.memset(odd, 0.5)
    nisa.tensor_copy(odd[:, 1::3], v[:, 0:8])
    words = nl.ndarray((32, 48), nl.uint16)
    nisa.tensor_copy(words, v.view(nl.uint16))
    nisa.tensor_copy(words.view(nl.uint8)[:, 1:5], words.view(nl.uint8)[:, 0:4])
    window = nl.ndarray((32, 5, 3), nl.float32)
    nisa.tensor_copy(window, t.ap([[24, 32], [2, 5], [1, 3]], offset=1))
    outs = []
    for tile in (u, v, odd, words, window):
        out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        outs.append(out)
    return outs


@pytest.mark.slow
def test_views_as_operands():
    a = data(32, 24)
    found = check(shuffle, a)
    u = a.reshape(32, 4, 6).transpose(0, 2, 1)
    v = np.empty_like(a)
    v[:, 1::2], v[:, 0::2] = u.reshape(32, 24)[:, :12], a[:, :1]
    odd = np.full((32, 25), 0.5, np.float32)
    odd[:, 1::3] = v[:, :8]
    words = v.view(np.uint16).copy()
    octets = words.view(np.uint8)
    octets[:, 1:5] = octets[:, 0:4].copy()
    window = np.stack([a[:, 1 + 2 * i : 4 + 2 * i] for i in range(5)], 1)
    for one, other in zip(found, (u, v, odd, words, window), strict=True):
        np.testing.assert_array_equal(bits(one), bits(other))


# ---- Runtime addresses and loops.


@nki.jit
def gather(table, rows):
    """Selects rows by a vector, and one by a scalar."""
    index = nl.load(rows)
    tile = nl.ndarray((rows.shape[0], table.shape[1]), table.dtype)
    nisa.dma_copy(tile, table.vector_select(0, index))
    out = nl.ndarray(table.shape, table.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out.vector_select(0, index[0:4]), tile[4:8])
    one = nl.ndarray((1, table.shape[1]), table.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(one, table.ap([[1, table.shape[1]]], 0, scalar_offset=index[2:3]))
    lanes = nl.ndarray((rows.shape[0], 3), table.dtype)
    nisa.tensor_copy(lanes, tile[:, nl.ds(index[0:1], 3)])
    inner = nl.ndarray(lanes.shape, table.dtype, buffer=nl.shared_hbm)
    nl.store(inner, lanes)
    return tile_out(tile), out, one, inner


def tile_out(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


@pytest.mark.slow
def test_runtime_addresses():
    table = data(16, 20)
    rows = np.array([[3], [1], [15], [0], [2], [2], [9], [4]], np.int32)
    gathered, scattered, one, inner = check(gather, table, rows)
    np.testing.assert_array_equal(gathered, table[rows[:, 0]])
    np.testing.assert_array_equal(scattered[rows[:4, 0]], gathered[4:])
    assert np.isnan(np.delete(scattered, rows[:4, 0], axis=0)).all()  # not written
    np.testing.assert_array_equal(one[0], table[15])
    np.testing.assert_array_equal(inner, gathered[:, 3:6])


@nki.jit
def triangular(a, count):
    """A device loop with a bound the run knows, in an unrolled loop; a while loop."""
    bound = nisa.register_alloc()
    tile = nl.load(count)
    nisa.register_load(bound, tile[0:1, 0:1])
    total = nl.zeros((1, 8), nl.float32)
    row = nl.ndarray((1, 8), nl.float32)
    for scale in range(1, 6):
        for i in nl.dynamic_range(bound):
            nisa.dma_copy(row, a.select(0, i).expand_dim(0))
            nisa.tensor_scalar(row, row, nl.multiply, float(scale))
            nisa.tensor_tensor(total, total, row, nl.add)
    left = nisa.register_alloc(1)
    nisa.register_load(left, tile[0:1, 1:2])
    while left:
        nisa.tensor_scalar(total, total, nl.multiply, 1.5)
        nisa.tensor_scalar(tile[0:1, 1:2], tile[0:1, 1:2], nl.subtract, 1.0)
        nisa.register_load(left, tile[0:1, 1:2])
    return tile_out(total)


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "turns"), [(3, 2), (0, 0), (8, 1)])
def test_device_loops(bound, turns):
    a, count = data(8, 8), np.array([[bound, turns]], np.int32)
    [found] = check(triangular, a, count)
    total = np.zeros(8, np.float32)
    for scale in range(1, 6):
        for i in range(bound):
            total = total + a[i] * np.float32(scale)
    for _ in range(turns):
        total = total * np.float32(1.5)
    np.testing.assert_array_equal(found[0], total)


@nki.jit
def structured(a, count):
    tile = nl.load(count)
    upper, left = nisa.register_alloc(), nisa.register_alloc()
    nisa.register_load(upper, tile[0:1, 0:1])
    nisa.register_load(left, tile[0:1, 1:2])
    total = nl.zeros((1, 8), nl.float32)
    row = nl.ndarray((1, 8), nl.float32)

    def add(i):
        nisa.dma_copy(row, a.ap([[8, 1], [1, 8]], scalar_offset=i))
        nisa.tensor_tensor(total, total, row, nl.add)

    nl.fori_loop(1, upper, add, step=2)

    def halve(r):
        nisa.tensor_scalar(total, total, nl.multiply, 0.5)
        nisa.tensor_scalar(tile[0:1, 1:2], tile[0:1, 1:2], nl.subtract, 1.0)
        nisa.register_load(r, tile[0:1, 1:2])
        return r

    nl.while_loop(left, halve)
    seen = nl.ndarray((1, 1), nl.int32)
    nisa.register_store(seen, left)
    return tile_out(total), tile_out(seen)


@pytest.mark.slow
def test_structured_loops():
    a, count = data(8, 8), np.array([[6, 3]], np.int32)
    total, seen = check(structured, a, count)
    np.testing.assert_array_equal(total[0], (a[1] + a[3] + a[5]) * np.float32(0.125))
    assert seen == 3


def test_a_register_in_python_is_refused():
    @nki.jit
    def branch(a):
        register = nisa.register_alloc(1)
        for _ in range(2):
            if register:
                nl.load(a)

    @nki.jit
    def leave(a):
        for _ in nl.dynamic_range(4):
            nl.load(a)
            break

    @nki.jit
    def count(a):
        range(nisa.register_alloc(1))

    with pytest.raises(TypeError, match="while reg"):
        branch(data(4, 4))
    with pytest.raises(TypeError, match="fori_loop"):
        count(data(4, 4))
    with pytest.raises(InvalidProgramError, match="before the loop's end"):
        leave(data(4, 4))


# ---- The interface.


@nki.jit
def increment(a, step=1.0):
    """Changes its argument in place; returns nothing."""
    tile = nl.load(a)
    nisa.tensor_scalar(tile, tile, nl.add, step)
    nl.store(a, tile)


@pytest.mark.slow
def test_numpy_arguments_change_in_place():
    a = data(16, 8)
    expected = a + np.float32(2)
    assert increment(a, step=2.0) is None
    np.testing.assert_array_equal(a, expected)
    with jax.disable_jit():
        increment(a, step=2.0)
    np.testing.assert_array_equal(a, expected + np.float32(2))


@pytest.mark.slow
def test_a_kernel_is_specialised_once():
    calls = []

    @nki.jit
    def kernel(tensors, flag, options):
        calls.append(flag)
        out = nl.ndarray(tensors["x"].shape, tensors["x"].dtype, buffer=nl.shared_hbm)
        tile = nl.load(tensors["x"])
        if flag:
            nisa.tensor_scalar(tile, tile, nl.multiply, options.factor)
        nl.store(out, tile)
        return {"y": out, "factor": options.factor}

    class Options(nki.NKIObject):
        def __init__(self, factor):
            self.factor = factor

    a = data(8, 8)
    kernel({"x": a}, True, Options(3.0))
    result = kernel({"x": a}, True, Options(3.0))
    assert result["factor"] == 3.0
    np.testing.assert_array_equal(result["y"], a * np.float32(3))
    kernel({"x": a}, True, Options(4.0))
    kernel({"x": a}, False, Options(4.0))
    kernel({"x": a.astype(BF16)}, 0, Options(4.0))
    assert calls == [True, True, False, 0]


@pytest.mark.slow
def test_jax_in_jax_out_and_vmap_is_one_after_another():
    a, b, bias = (jnp.asarray(data(128, 64, seed=s)) for s in range(3))
    bias = bias[:, :1]
    alone = scale_bias(a, b, bias)
    assert isinstance(alone, jax.Array)
    batch = jax.vmap(scale_bias, in_axes=(0, None, None))(jnp.stack([a, -a]), b, bias)
    np.testing.assert_array_equal(bits(batch[0]), bits(alone))
    np.testing.assert_array_equal(bits(batch[1]), bits(scale_bias(-a, b, bias)))


@pytest.mark.slow
def test_programs_of_a_grid_share_their_arguments():
    @nki.jit
    def kernel(a):
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        me, all_of_us = nl.program_id(0), nl.num_programs(0)
        rows = a.shape[0] // all_of_us
        tile = nl.load(a[me * rows : (me + 1) * rows])
        nisa.tensor_scalar(tile, tile, nl.add, float(me))
        nl.store(out[me * rows : (me + 1) * rows], tile)
        return out

    a = data(32, 8)
    [found] = check(kernel[2], a)
    half = np.repeat(np.float32([0, 1]), 16)[:, None]
    np.testing.assert_array_equal(found, a + half)
    np.testing.assert_array_equal(kernel(a), a)


def test_values_are_seen_op_by_op(capsys):
    @nki.jit
    def kernel(a):
        tile = nl.load(a)
        print(tile)
        return tile_out(tile)

    a = np.full((1, 2), 1.25, np.float32)
    kernel(a)
    assert "1.25" not in capsys.readouterr().out
    with jax.disable_jit():
        kernel(a)
    assert "1.25" in repr(capsys.readouterr().out)


def test_targets(monkeypatch):
    @nki.jit
    def kernel(a):
        return tile_out(nl.load(a)), nisa.get_nc_version().name

    a = data(2, 2)
    assert kernel(a)[1] == "gen4"
    assert kernel.with_target("trn1")(a)[1] == "gen2"
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "gen3")
    assert kernel(a)[1] == "gen3"
    assert nki.simulate(kernel)(a)[1] == "gen3"


def test_errors_name_the_line():
    @nki.jit
    def kernel(a):
        nl.ndarray((256, 4), nl.float32)

    with pytest.raises(InvalidProgramError, match=r"test_kernels\.py:\d+") as error:
        kernel(data(2, 2))
    assert "128" in str(error.value)
    with pytest.raises(InvalidProgramError, match="outside a kernel"):
        nl.ndarray((2, 2), nl.float32)
