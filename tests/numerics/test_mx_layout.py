"""Layouts of MX operands: index maps, x4 words, placed scales, tiles.

Words are checked against NumPy's own views of little-endian memory, tiles against
loops over (partition, slot) written from the vendor's description.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from neuronjax.errors import InvalidProgramError
from neuronjax.numerics.float_format import (
    BFLOAT16,
    FLOAT4_E2M1FN,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
)
from neuronjax.numerics.microscaling import (
    MX_FORMATS,
    MXArray,
    from_codes,
    quantize_mx,
    to_codes,
)
from neuronjax.numerics.mx_layout import (
    SCALE_OFFSETS,
    KLayout,
    from_positions,
    from_tile,
    k_layout,
    pack_x4,
    place_scales,
    scale_partition,
    take_scales,
    to_positions,
    to_tile,
    unpack_x4,
)

LAYOUTS = ("consecutive", "interleaved")
each_layout = pytest.mark.parametrize("name", LAYOUTS)

pytestmark = pytest.mark.usefixtures("strict_promotion")


def codes(x: jax.Array) -> np.ndarray:
    return np.asarray(x).view(f"uint{8 * x.dtype.itemsize}")


def normal(*shape: int) -> np.ndarray:
    """Ordinary float32 data."""
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def assert_same(found: MXArray, expected: MXArray) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        np.testing.assert_array_equal(codes(left), codes(right))


# ---- Index maps.


def test_where_k_lies() -> None:
    consecutive, interleaved = k_layout("consecutive"), k_layout("interleaved")
    # (tile, partition, slot): a cell holds 4p..4p+3, or 4 values 128 apart.
    assert [consecutive.cell(k) for k in (0, 3, 4, 511)] == [
        *((0, 0, 0), (0, 0, 3), (0, 1, 0), (0, 127, 3))
    ]
    assert [interleaved.cell(k) for k in (0, 3, 128, 384, 511)] == [
        *((0, 0, 0), (0, 3, 0), (0, 0, 1), (0, 0, 3), (0, 127, 3))
    ]
    assert consecutive.cell(512) == interleaved.cell(512) == (1, 0, 0)


def test_what_a_block_is() -> None:
    """Consecutive: 32 k in a row; interleaved: 8 partitions x 4 packed values."""
    assert [k_layout("consecutive").k_at(i) for i in range(32, 64)] == [*range(32, 64)]
    block = {k_layout("interleaved").k_at(i) for i in range(32, 64)}
    assert block == {128 * slot + p for slot in range(4) for p in range(8, 16)}


@each_layout
@pytest.mark.parametrize("partitions", [32, 64, 96, 128])
def test_index_maps_are_inverses(name: str, partitions: int) -> None:
    layout = k_layout(name, partitions)
    k = np.arange(3 * layout.depth)
    tile, partition, slot = layout.cell(k)
    assert partition.max() == partitions - 1
    assert slot.max() == 3
    np.testing.assert_array_equal(layout.k(tile, partition, slot), k)
    np.testing.assert_array_equal(layout.k_at(layout.position(k)), k)
    assert sorted(layout.position(k)) == k.tolist()


@each_layout
@pytest.mark.parametrize(
    ("shape", "axis"), [((600, 3), 0), ((2, 512), 1), ((2, 1, 5), -1)]
)
def test_order_of_position(name: str, shape: tuple[int, ...], axis: int) -> None:
    x, layout = normal(*shape), k_layout(name)
    ordered = to_positions(x, layout, axis)
    assert ordered.shape[axis] % 512 == 0
    rows, found = (np.moveaxis(np.asarray(a), axis, 0) for a in (x, ordered))
    for position in range(0, len(found), 37):
        k = layout.k_at(position)
        expected = rows[k] if k < len(rows) else np.zeros_like(found[0])
        np.testing.assert_array_equal(found[position], expected)
    restored = from_positions(ordered, layout, shape[axis], axis)
    np.testing.assert_array_equal(restored, x)


# ---- Words.


@pytest.mark.parametrize("fmt", [FLOAT8_E4M3FN, FLOAT8_E5M2], ids=lambda f: f.name)
def test_fp8_words_are_little_endian(fmt: Any) -> None:
    codes = np.random.default_rng(0).permutation(256).astype(np.uint8).reshape(2, 128)
    words = pack_x4(jnp.asarray(codes.view(fmt.dtype)))
    assert words.dtype == jnp.uint32
    np.testing.assert_array_equal(words, codes.view("<u4"))
    np.testing.assert_array_equal(to_codes(unpack_x4(words, fmt)), codes)


def test_fp4_words_have_the_first_in_the_low_nibble() -> None:
    codes = jnp.array([[1, 2, 3, 4, 15, 0, 8, 7]], jnp.uint8)
    words = pack_x4(from_codes(codes, FLOAT4_E2M1FN))
    assert words.dtype == jnp.uint16
    assert words.tolist() == [[0x4321, 0x780F]]
    np.testing.assert_array_equal(to_codes(unpack_x4(words, FLOAT4_E2M1FN)), codes)


# ---- Scales.


def test_where_scales_lie() -> None:
    assert [scale_partition(g) for g in range(6)] == [0, 1, 2, 3, 32, 33]
    assert [scale_partition(g, 12) for g in (0, 3, 15)] == [12, 15, 111]
    scales = jnp.arange(1, 33, dtype=jnp.uint8).reshape(16, 2)
    for offset in SCALE_OFFSETS:
        placed = np.asarray(place_scales(scales, offset))
        at = scale_partition(np.arange(16), offset)
        assert placed.shape == (128, 2)
        np.testing.assert_array_equal(placed[at], scales)
        assert not np.delete(placed, at, axis=0).any()
        np.testing.assert_array_equal(take_scales(jnp.asarray(placed), offset), scales)


def test_four_operands_share_a_tile() -> None:
    parts = [jnp.full((4, 3), 10 + i, jnp.uint8) for i in range(4)]
    shared = sum(place_scales(p, o) for p, o in zip(parts, SCALE_OFFSETS))
    for part, offset in zip(parts, SCALE_OFFSETS):
        np.testing.assert_array_equal(take_scales(shared, offset), part)


# ---- Tiles.


@pytest.mark.parametrize("name", MX_FORMATS)
def test_a_tile_cell_by_cell(name: str) -> None:
    array = quantize_mx(normal(520, 3), name, axis=0)
    tile, width = to_tile(array, scale_offset=8), array.format.element.width
    elements, scales = (codes(a) for a in (array.elements, array.scales))
    assert tile.words.shape == tile.scales.shape == (2, 128, 3)
    for k in (0, 1, 7, 130, 511, 512, 519):
        word = int(tile.words[k // 512, k % 512 // 4, 1])
        assert word >> k % 4 * width & (1 << width) - 1 == elements[k, 1]
        group = k % 512 // 32
        at = group // 4 * 32 + 8 + group % 4
        assert tile.scales[k // 512, at, 1] == scales[k // 32, 1]
    assert not tile.words[1, 2:].any()
    assert not tile.scales[1, 9:].any()


def test_the_short_form_of_scales() -> None:
    array = quantize_mx(normal(96, 8), axis=0)
    tile = to_tile(array, partitions=32, scale_offset=None)
    assert tile.scales.shape == (1, 4, 8)
    np.testing.assert_array_equal(tile.scales[0, :3], codes(array.scales))
    assert_same(from_tile(tile), array)


@settings(max_examples=8)
@given(
    length=st.integers(1, 1100),
    free=st.integers(1, 3),
    axis=st.sampled_from([-2, -1]),
    name=st.sampled_from([*MX_FORMATS]),
    partitions=st.sampled_from([32, 64, 96, 128]),
    offset=st.sampled_from(SCALE_OFFSETS),
    seed=st.integers(0, 1000),
)
def test_tiles_are_inverses(
    length: int,
    free: int,
    axis: int,
    name: str,
    partitions: int,
    offset: int,
    seed: int,
) -> None:
    """Whatever the codes are, NaNs included."""
    rng, fmt = np.random.default_rng(seed), MX_FORMATS[name]
    codes = rng.integers(0, 1 << fmt.element.width, (length, free)).astype(np.uint8)
    scales = rng.integers(0, 256, (-(-length // 32), free)).astype(np.uint8)
    if axis == -1:
        codes, scales = codes.T, scales.T
    array = MXArray(
        elements=jnp.asarray(codes.view(fmt.element.dtype)),
        scales=jnp.asarray(scales.view(ml_dtypes.float8_e8m0fnu)),
        axis=axis,
        format=fmt,
    )
    tile = to_tile(array, partitions=partitions, scale_offset=offset)
    assert_same(from_tile(tile), array)


def test_interleaved_blocks() -> None:
    """The vendor's layout from quantization to values and back to the order of k."""
    x, layout = normal(512, 4), k_layout("interleaved")
    x = np.ldexp(x, np.arange(512)[:, None] // 64)
    ordered = quantize_mx(to_positions(x, layout), axis=0)
    tile = to_tile(ordered)
    values = from_positions(from_tile(tile).dequantize(), layout, 512)
    block = np.asarray([128 * slot + p for slot in range(4) for p in range(8, 16)])
    alone = quantize_mx(x[block], axis=0).dequantize()
    np.testing.assert_array_equal(np.asarray(values)[block], alone)
    assert (values != quantize_mx(x, axis=0).dequantize()).any()


def test_tiles_under_transformations() -> None:
    x = normal(3, 40, 8)
    array = quantize_mx(x, "mxfp4_e2m1", axis=1)
    back = jax.jit(jax.vmap(lambda a: from_tile(to_tile(a))))(array)
    assert_same(back, array)


# ---- Errors.

ELEMENTS = from_codes(jnp.zeros((8, 6), jnp.uint8), FLOAT8_E4M3FN)
SCALES = jnp.zeros((6, 2), jnp.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: k_layout("blocked"), "use one of: consecutive, interleaved"),
        (lambda: k_layout("consecutive", 48), "48 partitions"),
        (lambda: k_layout("consecutive", 160), "at most 128"),
        (lambda: pack_x4(ELEMENTS), "pad it to 8"),
        (lambda: pack_x4(jnp.zeros((4,), BFLOAT16.dtype)), "words of bfloat16"),
        (lambda: unpack_x4(SCALES, FLOAT8_E4M3FN), "they are uint32"),
        (lambda: place_scales(SCALES), "pad to 8"),
        (lambda: place_scales(SCALES, 2), "offset 2"),
        (lambda: take_scales(SCALES), "6 partitions"),
        (lambda: to_tile(quantize_mx(np.ones(32, np.float32))), "rank 2"),
        (
            lambda: to_tile(quantize_mx(np.ones((2, 32), np.float32), block_size=16)),
            "blocks of 32",
        ),
        (
            lambda: to_tile(
                quantize_mx(np.ones((2, 32), np.float32)), scale_offset=None
            ),
            "short form",
        ),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(InvalidProgramError, match=message):
        call()


def test_a_layout_is_data() -> None:
    expected = KLayout(partitions=128, partition_stride=1, slot_stride=128)
    assert k_layout("interleaved") == expected
