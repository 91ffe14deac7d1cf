"""The oracles themselves, on hand-computed values and a model in Fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.oracles import contraction, floats, microscaling, sparsity, tensor_engine

ELEMENTS = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp4_e2m1": ml_dtypes.float4_e2m1fn,
}
LARGEST = float(np.finfo(np.float32).max)

# ---- Microscaling.


@pytest.mark.parametrize("name", ELEMENTS)
def test_every_code_means_what_ml_dtypes_says(name):
    codes = np.arange(2 << microscaling.FORMATS[name].sign_bit, dtype=np.uint8)
    numbers = [microscaling.decode(code, name) for code in codes.tolist()]
    expected = codes.view(ELEMENTS[name]).astype(np.float64)
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(np.signbit(numbers), np.signbit(expected))


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_number_of_the_format_is_its_own_code(name):
    fmt = microscaling.FORMATS[name]
    for code in range(fmt.largest_code + 1):
        number = microscaling.decode(code, name)
        (bits,) = microscaling.to_bits(np.float32([number])).tolist()
        assert microscaling.encode(bits, 0, fmt) == code
        assert microscaling.encode(bits | 1 << 31, 0, fmt) == code | 1 << fmt.sign_bit


BLOCKS = [
    # (format, rule, values, byte, codes)
    # The example of hardware facts, section 5.3: 504 saturates; 252 becomes 256.
    ("mxfp8_e4m3", "ocp_floor", [1.96875], 119, [0x7E]),
    ("mxfp8_e4m3", "nki_golden", [1.96875], 119, [0x7E]),
    ("mxfp8_e4m3", "neuron", [1.96875], 120, [0x78]),
    ("mxfp8_e5m2", "ocp_floor", [1.0, -0.5], 112, [0x78, 0xF4]),
    ("mxfp8_e5m2", "neuron", [1.0, -0.5], 113, [0x74, 0xF0]),
    ("mxfp4_e2m1", "ocp_floor", [1.0, 0.5, 0.25, -1.5], 125, [6, 4, 2, 15]),
    ("mxfp4_e2m1", "neuron", [1.0, 0.5, 0.25, -1.5], 126, [4, 2, 1, 13]),
    # ceil is exact for a power of two, and goes up for anything above.
    ("mxfp4_e2m1", "ceil", [1.0], 125, [6]),
    ("mxfp4_e2m1", "ceil", [1.0 + 2.0**-23], 126, [4]),
    # rceil goes up only beyond the largest number: 6 and 448 times a power of two.
    ("mxfp4_e2m1", "rceil", [1.5], 125, [7]),
    ("mxfp4_e2m1", "rceil", [1.5 + 2.0**-23], 126, [5]),
    ("mxfp8_e4m3", "rceil", [1.75], 119, [0x7E]),
    ("mxfp8_e4m3", "rceil", [1.75 + 2.0**-23], 120, [0x76]),
    # even goes up from where the element's digits would round amax to 2; 3.5 -> 4.
    ("mxfp4_e2m1", "even", [1.75], 126, [6]),
    ("mxfp4_e2m1", "even", [1.75 - 2.0**-23], 125, [7]),
    ("mxfp8_e4m3", "even", [1.9375], 120, [0x78]),
    ("mxfp8_e4m3", "even", [1.9375 - 2.0**-23], 119, [0x7E]),
    ("mxfp8_e5m2", "even", [1.875], 113, [0x78]),
    ("mxfp8_e5m2", "even", [1.875 - 2.0**-23], 112, [0x7B]),
    # The ends of FP32.
    ("mxfp8_e4m3", "ocp_floor", [LARGEST], 246, [0x7E]),
    ("mxfp8_e4m3", "even", [LARGEST], 247, [0x78]),
    ("mxfp4_e2m1", "ceil", [LARGEST], 253, [6]),
    ("mxfp8_e4m3", "ocp_floor", [2.0**-126], 0, [0x40]),
    ("mxfp8_e4m3", "ocp_floor", [2.0**-118, 2.0**-119], 1, [0x78, 0x70]),
    ("mxfp8_e4m3", "ocp_floor", [2.0**-127, -(2.0**-130)], 0, [0, 0x80]),
    ("mxfp8_e4m3", "ocp_floor", [2.0**-118, 2.0**-128], 1, [0x78, 0]),
    ("mxfp8_e4m3", "nki_golden", [2.0**-118, 2.0**-128], 1, [0x78, 0x28]),
    # Subnormals of the element format, and ties to even there.
    ("mxfp8_e4m3", "ocp_floor", [256.0, 2.0**-9, 2.0**-10, 3 * 2.0**-10], 127, None),
    # Zeros and what is not finite.
    ("mxfp8_e4m3", "ocp_floor", [0.0, -0.0], 0, [0, 0x80]),
    ("mxfp4_e2m1", "rceil", [0.0, -0.0], 0, [0, 8]),
    ("mxfp8_e4m3", "nki_golden", [0.0, -0.0], 248, [0, 0x80]),
    ("mxfp8_e5m2", "nki_golden", [0.0], 241, [0]),
    ("mxfp4_e2m1", "nki_golden", [0.0], 254, [0]),
    ("mxfp8_e4m3", "ocp_floor", [math.nan, -1.0, 0.0], 255, [0, 0, 0]),
    ("mxfp8_e5m2", "even", [-1.0, -math.inf], 255, [0, 0]),
    ("mxfp8_e4m3", "nki_golden", [-math.inf, -1.0], 247, [0xFE, 0x80]),
    ("mxfp8_e5m2", "nki_golden", [math.inf], 240, [0x7B]),
    ("mxfp8_e4m3", "nki_golden", [math.nan, 1.0], 247, [0x7F, 0]),
    # A field of 6 less 8 wraps around to 254, and 7 to the byte of NaN.
    ("mxfp8_e4m3", "nki_golden", [-(2.0**-121)], 254, [0x80]),
    ("mxfp8_e4m3", "nki_golden", [2.0**-120], 255, [0]),
]


@pytest.mark.parametrize(("name", "rule", "values", "byte", "codes"), BLOCKS, ids=str)
def test_blocks_by_hand(name, rule, values, byte, codes):
    bits = microscaling.to_bits(np.float32(values)).tolist()
    codes = [0x78, 1, 0, 2] if codes is None else codes
    assert microscaling.quantize_block(bits, name, rule) == (codes, byte)


def random_blocks(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    exponents = np.exp2(rng.integers(-40, 41, (*shape[:-1], 1)))
    return (rng.standard_normal(shape) * exponents).astype(np.float32)


@pytest.mark.parametrize("name", ELEMENTS)
def test_the_vendors_golden_is_what_float64_gives(name):
    """Field arithmetic in uint8, exact quotients, `numpy.clip`, ml_dtypes' cast."""
    rng = np.random.default_rng(0)
    fmt = microscaling.FORMATS[name]
    x = random_blocks(rng, (400, 32))
    fields = (x.view(np.uint32) >> 23 & 0xFF).astype(np.uint8)
    bytes_ = fields.max(-1, keepdims=True) - np.uint8(fmt.emax)
    quotients = x / 2.0 ** (bytes_.astype(np.int32) - 127)
    clipped = np.clip(quotients, -fmt.largest, fmt.largest)
    expected = clipped.astype(ELEMENTS[name]).view(np.uint8)
    codes, scales = microscaling.quantize(x, name, rule="nki_golden")
    np.testing.assert_array_equal(scales, bytes_)
    np.testing.assert_array_equal(codes, expected)
    floor = microscaling.quantize(x, name, rule="ocp_floor")
    np.testing.assert_array_equal(codes, floor[0])


@pytest.mark.parametrize("rule", ["ceil", "rceil"])
@pytest.mark.parametrize("name", ELEMENTS)
def test_scales_that_round_up_never_saturate(name, rule):
    x = random_blocks(np.random.default_rng(1), (200, 32))
    codes, scales = microscaling.quantize(x, name, rule=rule)
    largest = microscaling.FORMATS[name].largest
    spread = np.repeat(np.exp2(scales.astype(np.float64) - 127), 32, -1)
    assert np.all(np.abs(x / spread) <= largest)
    error = np.abs(microscaling.dequantize(codes, scales, name) - x.astype(np.float64))
    step = np.maximum(np.abs(x), spread * 2.0 ** microscaling.FORMATS[name].emin)
    assert np.all(
        error <= step * 2.0 ** -(microscaling.FORMATS[name].mantissa_bits + 1)
    )


@pytest.mark.parametrize(
    ("code", "byte", "number"),
    [
        (0x38, 127, 1.0),
        (0x40, 0, 2.0**-126),
        (0x38, 0, 0.0),
        (0xB8, 0, -0.0),
        (0x3F, 0, 0.0),
        (0x01, 10, 2.0**-126),
        (0x01, 9, 0.0),
        (0x7E, 246, 1.75 * 2.0**127),
        (0x7E, 247, math.inf),
        (0xFE, 254, -math.inf),
        (0x80, 254, -0.0),
        (0x7F, 0, math.nan),
        (0x00, 255, math.nan),
    ],
)
def test_elements_times_scales_by_hand(code, byte, number):
    got = microscaling.dequantize_element(code, byte, "mxfp8_e4m3")
    floats.same_bits(np.float32([got]), np.float32([number]))


@pytest.mark.parametrize("length", [1, 31, 32, 33, 95])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_blocks_lie_along_the_axis(length, axis):
    shape = [3, 2, 4]
    shape[axis] = length
    x = random_blocks(np.random.default_rng(2), tuple(shape))
    codes, scales = microscaling.quantize(x, "mxfp4_e2m1", axis=axis)
    assert codes.shape == x.shape
    shape[axis] = math.ceil(length / 32)
    assert scales.shape == tuple(shape)
    line = np.moveaxis(x, axis, -1)[1, 1][-(length % 32 or 32) :]
    bits = microscaling.to_bits(line).tolist()
    block = microscaling.quantize_block(bits, "mxfp4_e2m1")
    assert np.moveaxis(codes, axis, -1)[1, 1].tolist()[-len(line) :] == block[0]
    assert np.moveaxis(scales, axis, -1)[1, 1, -1] == block[1]
    again = microscaling.dequantize(codes, scales, "mxfp4_e2m1", axis=axis)
    assert again.shape == x.shape
    assert np.all(np.sign(again) * np.sign(x) >= 0)


def test_half_precision_inputs_are_exact():
    half = np.float16([2.0**-24, -(2.0**-24)])
    codes, scales = microscaling.quantize(half, "mxfp8_e4m3")
    assert (codes.tolist(), scales.tolist()) == ([0x78, 0xF8], [95])
    brain = np.array([2.0**-126, 2.0**-133], ml_dtypes.bfloat16)
    codes, scales = microscaling.quantize(brain, "mxfp8_e4m3")
    assert (codes.tolist(), scales.tolist()) == ([0x40, 0], [0])


# ---- TensorE.

ONE, BIG = 0x3C, 0x6C  # e5m2: 1 and 4096; 4096 squared is 2^24
LAYOUTS: tuple[tensor_engine.Layout, ...] = ("consecutive", "interleaved")


def blocks(rows: list[dict[int, int]], k: int, layout: tensor_engine.Layout):
    codes = np.zeros((len(rows), k), np.uint8)
    for row, entries in enumerate(rows):
        codes[row, list(entries)] = list(entries.values())
    count = -(-k // 32) if layout == "consecutive" else 16 * -(-k // 512)
    scales = np.full((len(rows), count), 127, np.uint8)
    return tensor_engine.Blocks(
        codes=codes, scales=scales, format="mxfp8_e5m2", layout=layout
    )


QUADS = {
    # layout: (the four positions of cell 0, one of each of the cells 0 to 3)
    "consecutive": ((0, 1, 2, 3), (0, 4, 8, 12)),
    "interleaved": ((0, 128, 256, 384), (0, 1, 2, 3)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cell_sums_its_four_products_first(layout):
    cell, cells = QUADS[layout]
    minus = BIG | 0x80
    # ((2^24 + 1) - 2^24) + 1: the first 1 is lost.
    inside = blocks([dict(zip(cell, (BIG, ONE, minus, ONE)))], 512, layout)
    other = blocks([dict(zip(cell, (BIG, ONE, BIG, ONE)))], 512, layout)
    assert tensor_engine.matmul_mx(inside, other) == 1
    # 2^24, and then a quad of 1 + 1; in cells of their own both are lost.
    second = [k + (4 if layout == "consecutive" else 1) for k in cell[:2]]
    pair = {cells[0]: BIG, **dict.fromkeys(second, ONE)}
    two = blocks([pair], 512, layout)
    assert tensor_engine.matmul_mx(two, two) == 2**24 + 2
    lone = blocks([{cells[0]: BIG, cells[1]: ONE, cells[2]: ONE}], 512, layout)
    assert tensor_engine.matmul_mx(lone, lone) == 2**24
    # The next tile has a sum of its own, which PSUM adds.
    next_tile = blocks([{0: BIG, 512: ONE, 513: ONE}], 514, layout)
    assert tensor_engine.matmul_mx(next_tile, next_tile) == 2**24 + 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_share_the_scales_of_their_layout(layout):
    ones = blocks([dict.fromkeys(range(600), ONE)], 600, layout)
    for block in range(ones.scales.shape[1]):
        scales = ones.scales.copy()
        scales[0, block] = 128
        doubled = tensor_engine.Blocks(
            codes=ones.codes, scales=scales, format=ones.format, layout=layout
        )
        found = np.flatnonzero(tensor_engine.dequantize(doubled)[0] == 2).tolist()
        if layout == "consecutive":
            expected = range(32 * block, min(32 * block + 32, 600))
        else:
            tile, group = divmod(block, 16)
            expected = sorted(
                k
                for p, j in itertools.product(range(8 * group, 8 * group + 8), range(4))
                if (k := 512 * tile + 128 * j + p) < 600
            )
        assert found == list(expected)


def test_quantizing_to_the_interleaved_layout():
    x = random_blocks(np.random.default_rng(3), (2, 600))
    operand = tensor_engine.quantize(x, "mxfp8_e4m3", layout="interleaved")
    assert operand.codes.shape == (2, 600)
    assert operand.scales.shape == (2, 32)
    members = x[1, [128 * j + p for p in range(8, 16) for j in range(4)]]
    bits = microscaling.to_bits(members).tolist()
    codes, byte = microscaling.quantize_block(bits, "mxfp8_e4m3")
    assert operand.scales[1, 1] == byte
    assert operand.codes[1, 8:16].tolist() == codes[::4]
    assert operand.scales[1, 31] == 0  # padding alone


def test_psum_in_bf16_rounds_every_tile():
    # Tiles of 257, 1 and 1: 257 becomes 256, and so do 257 and 257 again.
    entries = {0: 0x5C, 4: ONE, 512: ONE, 1024: ONE}
    lhs = blocks([entries], 1025, "consecutive")
    rhs = blocks([dict.fromkeys(entries, ONE)], 1025, "consecutive")
    assert tensor_engine.matmul_mx(lhs, rhs) == 259
    assert tensor_engine.matmul_mx(lhs, rhs, psum="bf16") == 256


def test_special_values_in_a_quad():
    nan_scale = blocks([{0: ONE}], 32, "consecutive")
    nan_scale.scales[:] = 0xFF
    ones = blocks([{0: ONE}, {}], 32, "consecutive")
    assert np.isnan(tensor_engine.matmul_mx(ones, nan_scale)).all()
    inf = blocks([{0: 0x7C}], 32, "consecutive")
    got = tensor_engine.matmul_mx(ones, inf)
    np.testing.assert_array_equal(got, [[np.inf], [np.nan]])
    # Products round to FP32 before the sum: Inf - Inf, where exact terms would cancel.
    huge = blocks([{0: BIG, 1: BIG | 0x80}], 32, "consecutive")
    huge.scales[:] = 127 + 60
    other = blocks([{0: BIG, 1: BIG}], 32, "consecutive")
    other.scales[:] = 127 + 60
    assert np.isnan(tensor_engine.matmul_mx(huge, other))


def round_fp32(exact: Fraction) -> Fraction:
    """Nearest FP32 number, ties to even, subnormal results zero."""
    if not exact:
        return exact
    quantum = Fraction(2) ** (microscaling.floor_log2(abs(exact)) - 23)
    rounded = round(exact / quantum) * quantum
    return rounded if abs(rounded) >= Fraction(2) ** -126 else Fraction(0)


def chunks(items: list, size: int) -> list[list]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def quads_in_fractions(lhs: list[Fraction], rhs: list[Fraction]) -> Fraction:
    """One element of `matmul_mx`, cells being neighbours."""
    total = Fraction(0)
    products = [round_fp32(a * b) for a, b in zip(lhs, rhs, strict=True)]
    for tile in chunks(products, 512):
        row = Fraction(0)
        for cell in chunks(tile, 4):
            quad = Fraction(0)
            for product in cell:
                quad = round_fp32(quad + product)
            row = round_fp32(row + quad)
        total = round_fp32(total + row)
    return total


def fractions(x: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(value) for value in row] for row in x.tolist()]


@pytest.mark.parametrize("k", [5, 130, 513])
@pytest.mark.parametrize("kind", ["normal", "cancelling", "subnormal"])
def test_quads_equal_the_model_in_fractions(kind, k):
    lhs, rhs = tensor_engine.adversarial_blocks(kind, (3, 2, k), k)
    got = tensor_engine.matmul_mx(lhs, rhs)
    a, b = (fractions(tensor_engine.dequantize(x)) for x in (lhs, rhs))
    expected = [[float(quads_in_fractions(row, col)) for col in b] for row in a]
    np.testing.assert_array_equal(got, np.float32(expected))


@pytest.mark.parametrize("formats", [*itertools.product(ELEMENTS, repeat=2)], ids=str)
def test_layouts_agree_on_reordered_operands(formats):
    """An interleaved product is a consecutive one of the reordered K."""
    order = np.arange(1024).reshape(2, 4, 128).swapaxes(1, 2).ravel()
    lhs, rhs = tensor_engine.adversarial_blocks(
        "cancelling", (3, 2, 1024), 4, formats=formats, layout="interleaved"
    )
    moved = [
        tensor_engine.Blocks(codes=x.codes[:, order], scales=x.scales, format=x.format)
        for x in (lhs, rhs)
    ]
    floats.same_bits(tensor_engine.matmul_mx(lhs, rhs), tensor_engine.matmul_mx(*moved))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", tensor_engine.BLOCK_KINDS)
def test_adversarial_blocks_do_what_they_say(kind, layout):
    formats = ("mxfp8_e5m2", "mxfp8_e4m3")
    lhs, rhs = tensor_engine.adversarial_blocks(
        kind, (6, 7, 1030), 5, formats=formats, layout=layout
    )
    out = tensor_engine.matmul_mx(lhs, rhs)
    reverse = floats.left_fold(
        floats.multiply(a[:, None], b[None])
        for a, b in zip(
            tensor_engine.dequantize(lhs).T[::-1],
            tensor_engine.dequantize(rhs).T[::-1],
            strict=True,
        )
    )
    finite = np.isfinite(out)
    shown = {
        "normal": finite.all() and np.mean(out != reverse) > 0.3,
        "cancelling": finite.all() and np.mean(out != reverse) > 0.3,
        "overflow": not finite.all(),
        "subnormal": finite.all() and np.any(out != 0),
        "dequantized_overflow": not finite.all(),
        "dequantized_subnormal": finite.all() and np.any(out != 0),
        "nan": np.isnan(out).any() and finite.any(),
        "inf": np.isinf(out).any(),
        "signed_zeros": np.all(out == 0) and not np.signbit(out).any(),
    }
    assert shown[kind]


# ---- Structured sparsity.


@pytest.mark.parametrize(
    ("group", "positions"),
    [
        ([1, -3, 2, 0], [1, 2]),
        ([1, 1, -1, 1], [0, 1]),
        ([0.0, -0.0, 0.0, 0.0], [0, 1]),
        ([5, math.nan, -math.inf, math.inf], [1, 2]),
        ([LARGEST, math.inf, math.nan, -math.nan], [2, 3]),
        ([LARGEST, -math.inf, LARGEST, LARGEST], [0, 1]),
    ],
)
def test_two_of_four_by_hand(group, positions):
    assert sparsity.kept(group, 2) == positions


@pytest.mark.parametrize(("n", "m"), [(4, 16), (4, 12), (4, 8), (2, 4), (1, 2)])
@pytest.mark.parametrize("axis", [0, 1])
def test_pruned_arrays_expand_again(n, m, axis):
    rng = np.random.default_rng(6)
    x = rng.standard_normal((33, 50)).astype(np.float32)
    values, tags = sparsity.sparsify(x, n, m, axis=axis)
    length = x.shape[axis]
    assert values.shape[axis] == tags.shape[axis] == n * math.ceil(length / m)
    dense = sparsity.densify(values, tags, n, m, length=length, axis=axis)
    assert np.all((dense == x) | (dense == 0))
    rows = np.moveaxis(dense, axis, -1)
    for start in range(0, length - m + 1, m):
        assert np.all(np.count_nonzero(rows[:, start : start + m], -1) == n)


@pytest.mark.parametrize("psum", ["fp32", "bf16"])
def test_one_tile_of_sparse_rows_is_the_dense_fold(psum):
    lhs, rhs = tensor_engine.adversarial("cancelling", (4, 5, 512), 7)
    lhs, rhs = (floats.round_to(x, "bf16") for x in (lhs, rhs))
    values, tags = sparsity.sparsify(lhs, 4, 16)
    dense = sparsity.densify(values, tags, 4, 16, length=512)
    got = tensor_engine.matmul_sparse(values, tags, rhs, 4, 16, psum=psum)
    dimensions = (((1,), (1,)), ((), ()))
    array = contraction.Array(lhs="bf16", rhs="bf16", psum=psum)
    tiles = contraction.dot_general(dense, rhs, dimensions, array)
    assert np.any(got != tiles)  # four dense tiles, one of compressed rows
    fold = np.zeros((4, 5), np.float32)
    for k in range(512):
        fold = floats.fma(dense[:, None, k], rhs[None, :, k], fold)
    expected = fold if psum == "fp32" else floats.round_to(fold, psum)
    floats.same_bits(got, floats.positive_zeros(expected))


def test_sparse_rows_make_tiles_of_128_and_skip_what_was_pruned():
    values = np.ones((1, 129), np.float32)
    tags = np.full((1, 129), 1, np.uint8)  # of 1:2, the odd elements
    moving = np.full((1, 258), np.nan, np.float32)
    moving[0, 1::2] = 0
    # Within one fold both ones would be lost; the last row is another tile.
    moving[0, [1, 3, 257]] = 2.0**24, 1, 2
    assert tensor_engine.matmul_sparse(values, tags, moving, 1, 2) == 2**24 + 2
    moving[0, [253, 255, 257]] = 1, 0, 1
    assert tensor_engine.matmul_sparse(values, tags, moving, 1, 2) == 2**24
    both = tensor_engine.matmul_sparse(
        np.ones((1, 2), np.float32), np.uint8([[3, 3]]), np.float32([[9, 9, 9]]), 2, 4
    )
    assert both == 0  # beyond the end of moving


@pytest.mark.parametrize("kind", tensor_engine.KINDS)
def test_adversarial_data_do_what_they_say(kind):
    lhs, rhs = tensor_engine.adversarial(kind, (6, 7, 300), 8)
    dimensions = (((1,), (1,)), ((), ()))
    array = contraction.Array(lhs="bf16", rhs="bf16")
    out = contraction.dot_general(lhs, rhs, dimensions, array)
    reverse = contraction.dot_general(lhs[:, ::-1], rhs[:, ::-1], dimensions, array)
    shown = {
        "normal": np.mean(out != reverse) > 0.3,
        "cancelling": np.mean(out != reverse) > 0.3,
        "overflow": not np.isfinite(out).all(),
        "subnormal": np.any(out != 0) and np.all(np.abs(out) < 2.0**-100),
        "nan": np.isnan(out).any() and np.isfinite(out).any(),
        "inf": np.isinf(out).any(),
        "signed_zeros": np.all(out == 0) and not np.signbit(out).any(),
    }
    assert shown[kind]
