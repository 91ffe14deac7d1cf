"""`quantize_mx` and `nc_matmul_mx`, compiled and op by op, against NumPy."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.nki import isa as nisa, language as nl
from tests.arrays import bits
from tests.oracles import nki_isa as oracle

E4M3, E5M2, E2M1 = (
    getattr(ml_dtypes, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
)
BF16 = ml_dtypes.bfloat16


def x4(element):
    return getattr(nl, f"{np.dtype(element).name}_x4")


def same(found, expected):
    """Equal bits, all NaNs being one."""
    found, expected = np.asarray(found), np.asarray(expected)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    fixed = [np.where(np.isnan(x), 0, x).astype(x.dtype) for x in (found, expected)]
    np.testing.assert_array_equal(bits(fixed[0]), bits(fixed[1]))


def both(kernel, *arguments):
    """The results of a compiled run, which are those of an op by op run."""
    kernel = nki.jit(kernel) if not isinstance(kernel, nki.Kernel) else kernel
    found = kernel(*arguments)
    with jax.disable_jit():
        again = kernel(*arguments)
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))
    return [np.asarray(a) for a in found]


def stored(tile, dtype=None):
    tile = tile if dtype is None else tile.view(dtype)
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def loaded(array, dtype=None):
    """In SBUF, words read as x4."""
    tile = nl.ndarray(array.shape, array.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=array)
    return tile if dtype is None else tile.view(dtype)


def wild(partitions, free, dtype, seed=0):
    """Groups of many magnitudes; zeros, NaN, Inf and subnormals among them."""
    generator = np.random.default_rng(seed)
    spread = 30 if dtype == BF16 else 4
    scale = np.exp2(generator.integers(-spread, spread, (partitions // 8, free // 4)))
    x = generator.standard_normal((partitions, free))
    x *= np.repeat(np.repeat(scale, 8, axis=0), 4, axis=1)
    x[8:16, 4:8] = 0
    x[9, 5] = -0.0
    x[0, 0] = np.nan
    x[16, 8:10] = [np.inf, 1]
    x[24:32, 0:4] *= 2.0**-140  # subnormal, or zero
    return x.astype(np.float32).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("element", "dtype"), [(E4M3, BF16), (E5M2, np.float16)], ids=["e4m3", "e5m2"]
)
def test_quantize_mx(element, dtype):
    """Three dimensions, a short and a spread scale tensor, both dtypes of scales."""

    def kernel(a, b):
        results = []
        for src, scales, rows in ((a, nl.uint8, 4), (b, nl.float8_e8m0fnu, 96)):
            free = src.shape[1] // 4
            tile = loaded(src).reshape((src.shape[0], 2, free * 2))
            dst = nl.ndarray((src.shape[0], 2, free // 2), x4(element), nl.sbuf)
            scale = nl.ndarray((rows, free), scales, nl.sbuf)
            nisa.memset(scale.view(nl.uint8), 0)
            nisa.quantize_mx(dst, tile, scale)
            words = dst.reshape((src.shape[0], free))
            results += [stored(words, nl.uint32), stored(scale, nl.uint8)]
        return tuple(results)

    a, b = wild(32, 16, dtype), wild(96, 24, dtype, seed=1)
    found = both(kernel, a, b)
    for x, words, scale in ((a, *found[:2]), (b, *found[2:])):
        elements, expected = oracle.quantize_mx(x, np.dtype(element).name)
        np.testing.assert_array_equal(words, oracle.pack_x4(elements))
        if scale.shape[0] > expected.shape[0]:
            expected = oracle.place_scales(expected)
        np.testing.assert_array_equal(scale, expected)


@pytest.mark.slow
def test_four_operands_share_a_tile_of_scales():
    """Scales start at partition 0, 4, 8 or 12 of a quadrant; the rest is left alone."""

    def kernel(a, b, c):
        scales = nl.ndarray((64, 8), nl.uint8, nl.sbuf)
        nisa.memset(scales, 7)
        results = []
        for x, at in ((a, 0), (b, 4), (c, 12)):
            words = nl.ndarray((64, x.shape[1] // 4), nl.float8_e5m2_x4, nl.sbuf)
            where = scales[at:, : x.shape[1] // 4]
            nisa.quantize_mx(words, loaded(x), where)
            results.append((words, where))
        out = nl.ndarray((8, 6), nl.float32, nl.psum)
        (left, left_scale), (right, right_scale) = results[1:]
        nisa.nc_matmul_mx(out, left, right, left_scale, right_scale)
        return stored(scales), stored(out)

    sizes = (16, 32, 24)
    data = [wild(64, f, BF16, seed=f)[:, :f] for f in sizes]
    for x in data:
        x[~np.isfinite(x.astype(np.float32))] = 1
    scales, product = both(kernel, *data)
    expected = np.full((64, 8), 7, np.uint8)
    operands = []
    for x, at in zip(data, (0, 4, 12), strict=True):
        elements, codes = oracle.quantize_mx(x, "float8_e5m2")
        for group in range(8):
            row = group // 4 * 32 + at + group % 4
            expected[row, : x.shape[1] // 4] = codes[group]
        operands.append(oracle.dequantize_mx(elements, codes))
    np.testing.assert_array_equal(scales, expected)
    same(product, oracle.nc_matmul_mx(*operands[1:]))


def operand(partitions, free, element, seed):
    """Random codes without NaN, and scales from 2^-12 to 2^12, some far out."""
    generator = np.random.default_rng(seed)
    size = 4 if element == E2M1 else 8
    codes = generator.integers(0, 2**size, (partitions, 4 * free)).astype(np.uint8)
    elements = codes.view(element)
    wide = elements.astype(np.float32)
    elements = np.where(np.isfinite(wide), wide, 1).astype(element)
    scales = generator.integers(115, 140, (partitions // 8, free)).astype(np.uint8)
    scales[0, :2] = [20, 230]
    return elements, scales


@pytest.mark.slow
@pytest.mark.parametrize(
    ("formats", "partitions"),
    [((E4M3, E5M2), 96), ((E2M1, E4M3), 32)],
    ids=["fp8-spread", "fp4-short"],
)
def test_nc_matmul_mx(formats, partitions):
    """FP32 and BF16 PSUM, overwritten and accumulated, mixed formats, NaN scales."""
    m, n = 16, 12
    a, a_scale = operand(partitions, m, formats[0], seed=0)
    b, b_scale = operand(partitions, n, formats[1], seed=1)
    a_scale[1, 3] = 255
    short = partitions == 32

    def kernel(a, a_scale, b, b_scale):
        left, right = loaded(a, x4(formats[0])), loaded(b, x4(formats[1]))
        scales = loaded(a_scale), loaded(b_scale, nl.float8_e8m0fnu)
        results = []
        for dtype in (nl.float32, nl.bfloat16):
            out = nl.ndarray((m, n), dtype, nl.psum)
            for _ in range(2):
                nisa.nc_matmul_mx(out, left, right, *scales)
            results.append(stored(out))
            nisa.nc_matmul_mx(out, left, right, *scales, accumulate=False)
            results.append(stored(out))
        return tuple(results)

    placed = [s if short else oracle.place_scales(s) for s in (a_scale, b_scale)]
    arguments = (oracle.pack_x4(a), placed[0], oracle.pack_x4(b), placed[1])
    found = both(kernel, *arguments)
    values = [oracle.dequantize_mx(*x) for x in ((a, a_scale), (b, b_scale))]
    with np.errstate(all="ignore"):
        part = oracle.nc_matmul_mx(*values)
        assert np.isnan(part[3]).all()
        assert np.isfinite(part[4]).any()
        same(found[0], part + part)
        same(found[1], part)
        once = part.astype(BF16)
        same(found[2], (once.astype(np.float32) + part).astype(BF16))
        same(found[3], once)


@pytest.mark.slow
def test_interleaved_layout_and_row_tiles():
    """Elements 128 apart in K share a word (the vendor's guide); PE rows 64 to 127."""
    k, m, n = 256, 8, 10
    generator = np.random.default_rng(3)
    a, b = (generator.standard_normal((k, f)).astype(BF16) for f in (m, n))

    @nki.jit(target="trn3")
    def kernel(a, b):
        operands, scales = [], []
        for x in (a, b):
            rows, free = k // 4, x.shape[1]
            tile = nl.ndarray((rows, free, 4), x.dtype, nl.sbuf)
            pattern = [[free, rows], [1, free], [rows * free, 4]]
            nisa.dma_copy(dst=tile, src=x.ap(pattern=pattern, offset=0))
            words = nl.ndarray((rows, free), nl.float8_e4m3fn_x4, nl.sbuf)
            scale = nl.ndarray((rows, free), nl.uint8, nl.sbuf)
            nisa.quantize_mx(words, tile.reshape((rows, 4 * free)), scale)
            operands.append(words)
            scales.append(scale)
        out = nl.ndarray((m, n), nl.float32, nl.psum)
        where = dict(tile_position=(64, 0), tile_size=(64, 128))
        nisa.nc_matmul_mx(out, *operands, *scales, **where)
        return (stored(out),)

    [found] = both(kernel, a, b)
    values = []
    for x in (a, b):
        tile = x.reshape(4, k // 4, -1).transpose(1, 2, 0).reshape(k // 4, -1)
        values.append(oracle.dequantize_mx(*oracle.quantize_mx(tile, "float8_e4m3fn")))
    same(found, oracle.nc_matmul_mx(*values))
    exact = a.astype(np.float64).T @ b.astype(np.float64)
    assert np.abs(found - exact).max() < 0.1 * np.abs(exact).max()


def attempt(target="trn3", partitions=64, m=8, n=8, **how):
    """A matmul with something changed."""

    def kernel(a):
        words = {}
        for name, free in (("stationary", m), ("moving", n)):
            dtype = how.get("dtype", nl.float8_e4m3fn_x4)
            words[name] = nl.ndarray((partitions, free), dtype, nl.sbuf)
            rows = how.get("rows", partitions)
            scale = nl.ndarray((128, free), nl.uint8, nl.sbuf)
            for tile in (words[name].view(nl.uint8), scale):
                nisa.memset(tile, 0)
            at = how.get("at", 0)
            words[f"{name}_scale"] = scale[at : at + rows]
        out = nl.ndarray((m, n), how.get("out", nl.float32), nl.psum)
        tiling = {k: v for k, v in how.items() if k.startswith("tile")}
        nisa.nc_matmul_mx(out, **words, **tiling)
        return a

    nki.jit(kernel, target=target).trace(np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(target="trn2"), "no such instruction"),
        (dict(partitions=48), "48 partitions.*multiple of 32"),
        (dict(m=7), "7 free elements.*even"),
        (dict(n=5000), "at most 4096"),
        (dict(dtype=nl.float8_e4m3fn), "stationary is float8_e4m3fn"),
        (dict(out=nl.float16), "dst is float16"),
        (dict(at=3), "partition 3 of a quadrant.*0, 4, 8, 12"),
        (dict(rows=33), r"scale has shape \(33, 8\)"),
        (dict(tile_position=(64, 0)), "both"),
        (dict(tile_position=(32, 0), tile_size=(64, 128)), "64 start at one of 0, 64"),
        (
            dict(tile_position=(0, 0), tile_size=(32, 128)),
            "at most 32, the rows",
        ),
        (dict(tile_position=(0, 0), tile_size=(64, 64)), "tile_size"),
    ],
)
def test_limits_of_nc_matmul_mx(changed, message):
    attempt()
    with pytest.raises(InvalidProgramError, match=f"(?s){message}"):
        attempt(**changed)


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        (((64, 16), nl.float32), nl.float8_e4m3fn_x4, "src is float32"),
        (((64, 16), nl.bfloat16), nl.float4_e2m1fn_x4, "dst is float4_e2m1fn_x4"),
        (((40, 16), nl.bfloat16), nl.float8_e4m3fn_x4, "40 partitions"),
        (((64, 12), nl.bfloat16), nl.float8_e4m3fn_x4, "1/4 as many"),
    ],
)
def test_limits_of_quantize_mx(src, dst, message):
    @nki.jit(target="trn3")
    def kernel(a):
        shape, dtype = src
        tile = nl.ndarray(shape, dtype, nl.sbuf)
        words = nl.ndarray((tile.shape[0], 4), dst, nl.sbuf)
        scale = nl.ndarray((tile.shape[0], 4), nl.uint8, nl.sbuf)
        nisa.quantize_mx(words, tile, scale)
        return a

    with pytest.raises(InvalidProgramError, match=message):
        kernel.trace(np.zeros(4, np.float32))
