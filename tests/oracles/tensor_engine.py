"""TensorE beyond `contraction`: MX quads and sparse rows, and data that tell orders.

`contraction.dot_general` is the plain fold of 128 rows, the FP8 double row, the four
passes of FP32 and PSUM in BF16. Here are the cells of the MX modes (K tile 512) and the
4:16 family (128 compressed rows). All operands have K last, all results are FP32 of
shape [..., M, N], and every zero result is positive. Section 5 of the design; hardware
facts, sections 3.7, 5.1 and 6.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np

from tests.oracles import floats, microscaling

ROWS = 128
QUAD = 4
MX_TILE = ROWS * QUAD

Layout = Literal["consecutive", "interleaved"]
#: Lengths of K around every tile, block, quad and group of the array.
RAGGED = (1, 3, 31, 33, 127, 129, 255, 257, 383, 511, 513, 600, 1030)


# ---- PSUM.


def accumulate(tiles: Iterable[np.ndarray], psum: str) -> np.ndarray:
    """Tile results added in K order, zeros positive.

    A "bf16" PSUM rounds to nearest even whenever it is written, the first tile's result
    included; "fp32" only adds.
    """
    tiles = iter(tiles)
    total = _written(next(tiles), psum)
    for tile in tiles:
        total = _written(floats.add(total, tile), psum)
    return floats.positive_zeros(total)


def _written(x: np.ndarray, psum: str) -> np.ndarray:
    return floats.flush(x) if psum == "fp32" else floats.round_to(x, psum)


# ---- Microscaling.


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """An MX operand [..., rows, K], K being contracted.

    Attributes:
        codes: uint8 [..., rows, K], in the order of K whatever the layout.
        scales: uint8, E8M0. Consecutive: [..., rows, ceil(K / 32)], one for 32
            neighbours. Interleaved: [..., rows, 16 * ceil(K / 512)]; byte 16 t + b is
            that of the 32 elements k = 512 t + 128 j + p with p in [8 b, 8 b + 8) and
            j in [0, 4).
        format: A key of `microscaling.FORMATS`.
        layout: Which elements share a cell. Cell p of tile t holds, in order,
            consecutive 512 t + 4 p + j, interleaved 512 t + 128 j + p.
    """

    codes: np.ndarray
    scales: np.ndarray
    format: str
    layout: Layout = "consecutive"


def quantize(
    x: np.ndarray,
    format: str,
    *,
    rule: str = "ocp_floor",
    layout: Layout = "consecutive",
) -> Blocks:
    """An FP32, BF16 or FP16 operand [..., rows, K] as `Blocks`, scaled by a rule.

    The interleaved layout pads K with zeros to a multiple of 512 first.
    """
    if layout == "consecutive":
        codes, scales = microscaling.quantize(x, format, rule=rule)
    else:
        codes, scales = microscaling.quantize(_interleaved(x), format, rule=rule)
        codes = _in_order(codes)[..., : x.shape[-1]]
    return Blocks(codes=codes, scales=scales, format=format, layout=layout)


def dequantize(operand: Blocks) -> np.ndarray:
    """FP32 [..., rows, K] in the order of K: what the multipliers see."""
    if operand.layout == "consecutive":
        return microscaling.dequantize(operand.codes, operand.scales, operand.format)
    codes = _interleaved(operand.codes)
    values = microscaling.dequantize(codes, operand.scales, operand.format)
    return _in_order(values)[..., : operand.codes.shape[-1]]


def _padded(x: np.ndarray, multiple: int) -> np.ndarray:
    """x with zeros behind its last axis."""
    missing = np.zeros((*x.shape[:-1], -x.shape[-1] % multiple), x.dtype)
    return np.concatenate([x, missing], -1)


def _interleaved(x: np.ndarray) -> np.ndarray:
    """Padded to whole tiles and reordered so that a cell's four are neighbours."""
    x = _padded(x, MX_TILE)
    tiles = x.reshape(*x.shape[:-1], x.shape[-1] // MX_TILE, QUAD, ROWS)
    return tiles.swapaxes(-1, -2).reshape(x.shape)


def _in_order(x: np.ndarray) -> np.ndarray:
    """The inverse of `_interleaved`, but for the padding."""
    tiles = x.reshape(*x.shape[:-1], x.shape[-1] // MX_TILE, ROWS, QUAD)
    return tiles.swapaxes(-1, -2).reshape(x.shape)


def matmul_mx(lhs: Blocks, rhs: Blocks, *, psum: str = "fp32") -> np.ndarray:
    """[..., M, K] times [..., N, K]: quads of products, then rows, then tiles.

    Operands are dequantized to FP32 (exact, subnormals flushed), products rounded to
    FP32, the four of a cell summed left to right in FP32, and the sums of the cells of
    a tile added in order, from +0.

    Args:
        lhs: M rows; its format may differ from that of `rhs`, its layout may not.
        rhs: N rows.
        psum: "fp32" or "bf16".

    Returns:
        FP32 [..., M, N]; with a BF16 PSUM, numbers of BF16.
    """
    if lhs.layout != rhs.layout:
        raise ValueError(f"layouts {lhs.layout} and {rhs.layout} in one product")
    values = [_cells(operand) for operand in (lhs, rhs)]
    left, right = values[0][..., :, None, :, :, :], values[1][..., None, :, :, :, :]
    if not left.shape[-3]:
        return np.zeros((*values[0].shape[:-3], values[1].shape[-4]), np.float32)
    tiles = (
        _quad_fold(left[..., tile, :, :], right[..., tile, :, :])
        for tile in range(left.shape[-3])
    )
    return accumulate(tiles, psum)


def _cells(operand: Blocks) -> np.ndarray:
    """[..., rows, tiles, 128, 4]: what each cell of each tile holds."""
    values = dequantize(operand)
    if operand.layout == "interleaved":
        values = _interleaved(values)
    values = _padded(values, MX_TILE)
    return values.reshape(*values.shape[:-1], values.shape[-1] // MX_TILE, ROWS, QUAD)


def _quad_fold(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Broadcastable [..., 128, 4] to the FP32 sum of one tile."""
    products = floats.multiply(left, right)
    quads = floats.left_fold(products[..., j] for j in range(QUAD))
    total: np.ndarray = np.zeros(quads.shape[:-1], np.float32)
    for cell in range(ROWS):
        total = floats.add(total, quads[..., cell])
    return total


# ---- Structured sparsity.


def matmul_sparse(
    values: np.ndarray,
    tags: np.ndarray,
    moving: np.ndarray,
    n: int,
    m: int,
    *,
    psum: str = "fp32",
) -> np.ndarray:
    """A compressed stationary [..., M, Kc] times a dense moving [..., N, K].

    Row r of the array multiplies its value with element (r // n) m + tag of moving, and
    fuses the addition; 128 compressed rows make a tile. Elements that were not kept
    take no part, so that an Inf of moving there does no harm.

    Args:
        values: FP32 numbers of the array's format, Kc = n * ceil(K / m).
        tags: Integers in [0, m), of the shape of `values`; a tag may occur twice.
        moving: FP32 numbers of the array's format; padded with +0 to whole groups.
        n: Elements kept of each group.
        m: Neighbours in a group.
        psum: "fp32" or "bf16".

    Returns:
        FP32 [..., M, N].
    """
    moving = _padded(np.asarray(moving, np.float32), m)
    rows = np.arange(values.shape[-1]) // n * m + tags.astype(np.intp)
    at = rows[..., :, None, :]  # [..., M, 1, Kc]
    batch = (*moving.shape[:-2], rows.shape[-2], *moving.shape[-2:])
    spread = np.broadcast_to(moving[..., None, :, :], batch)
    met = np.take_along_axis(
        spread, np.broadcast_to(at, (*batch[:-1], rows.shape[-1])), -1
    )
    starts = range(0, max(values.shape[-1], 1), ROWS)
    stationary = values[..., :, None, :]
    tiles = (
        _row_fold(stationary[..., s : s + ROWS], met[..., s : s + ROWS]) for s in starts
    )
    return accumulate(tiles, psum)


def _row_fold(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Fused multiply-adds over the last axis, from +0."""
    total: np.ndarray = np.zeros(
        np.broadcast_shapes(left.shape[:-1], right.shape[:-1]), np.float32
    )
    for row in range(left.shape[-1]):
        total = floats.fma(left[..., row], right[..., row], total)
    return total


# ---- Data in which a wrong order, rounding or flush shows.


Shape = tuple[int, int, int]
Pair = tuple[np.ndarray, np.ndarray]


def adversarial(kind: str, shape: Shape, seed: int) -> Pair:
    """FP32 operands [M, K] and [N, K] of a kind of `KINDS`, for shape (M, N, K).

    The caller rounds them to the array's format; "overflow" and "subnormal" want one
    with the exponents of FP32.
    """
    return KINDS[kind](np.random.default_rng(seed), shape)


def _scaled(rng: np.random.Generator, shape: Shape, low: int, high: int) -> Pair:
    """Normal numbers times 2^low .. 2^high."""
    m, n, k = shape
    first, second = (
        rng.standard_normal(size) * np.exp2(rng.integers(low, high + 1, size))
        for size in ((m, k), (n, k))
    )
    return first.astype(np.float32), second.astype(np.float32)


def _normal(rng: np.random.Generator, shape: Shape) -> Pair:
    return _scaled(rng, shape, 0, 0)


def _cancelling(rng: np.random.Generator, shape: Shape) -> Pair:
    """Terms of very different sizes, each of which its negative follows somewhere."""
    return _cancelled(rng, *_scaled(rng, shape, -12, 12))


def _cancelled(rng: np.random.Generator, lhs: np.ndarray, rhs: np.ndarray) -> Pair:
    """The products of half of K are minus those of the other half, but for two."""
    order = rng.permutation(lhs.shape[-1])
    half = max(len(order) // 2 - 2, 0)
    one, other = order[:half], order[len(order) - half :]
    lhs[:, other], rhs[:, other] = -lhs[:, one], rhs[:, one]
    return lhs, rhs


def _overflow(rng: np.random.Generator, shape: Shape) -> Pair:
    """Products and sums around 2^128, that cancel in one order and not in another."""
    return _cancelled(rng, *_scaled(rng, shape, 61, 64))


def _subnormal(rng: np.random.Generator, shape: Shape) -> Pair:
    """Products and sums around 2^-126."""
    return _scaled(rng, shape, -66, -61)


def _some(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A mask with one true element for each four rows."""
    mask = np.zeros(shape, bool)
    for row in rng.permutation(shape[0])[: -(-shape[0] // 4)]:
        mask[row, rng.integers(shape[1])] = True
    return mask


def _sprinkled(value: float) -> Callable[[np.random.Generator, Shape], Pair]:
    """Zeros of both signs and ones, and in a quarter of the rows one +-`value`."""

    def make(rng: np.random.Generator, shape: Shape) -> Pair:
        lhs, rhs = (
            np.where(
                _some(rng, (rows, shape[2])),
                rng.choice(np.float32([value, -value]), (rows, shape[2])),
                rng.choice(np.float32([0.0, -0.0, 1.0, -1.0]), (rows, shape[2])),
            )
            for rows in shape[:2]
        )
        return lhs, rhs

    return make


def _signed_zeros(rng: np.random.Generator, shape: Shape) -> Pair:
    lhs, rhs = (
        rng.choice(np.float32([0.0, -0.0, 1.0]), (n, shape[2])) for n in shape[:2]
    )
    return np.where(rhs.any(0), np.copysign(0, lhs), lhs).astype(np.float32), rhs


KINDS: dict[str, Callable[[np.random.Generator, Shape], Pair]] = {
    "normal": _normal,
    "cancelling": _cancelling,
    "overflow": _overflow,
    "subnormal": _subnormal,
    "nan": _sprinkled(np.nan),
    "inf": _sprinkled(np.inf),
    "signed_zeros": _signed_zeros,
}


#: First and last scale byte of lhs and of rhs. What leaves FP32's range in
#: "dequantized_..." before any product would be in range after it.
_BYTES = {
    "normal": ((124, 130), (124, 130)),
    "cancelling": ((115, 139), (115, 139)),
    "overflow": ((184, 190), (184, 190)),
    "subnormal": ((58, 66), (58, 66)),
    "dequantized_overflow": ((244, 254), (67, 67)),
    "dequantized_subnormal": ((0, 10), (187, 187)),
    "nan": ((124, 130), (124, 130)),
    "inf": ((124, 130), (124, 130)),
    "signed_zeros": ((64, 190), (64, 190)),
}
BLOCK_KINDS = tuple(_BYTES)


def adversarial_blocks(
    kind: str,
    shape: Shape,
    seed: int,
    *,
    formats: tuple[str, str] = ("mxfp8_e4m3", "mxfp8_e4m3"),
    layout: Layout = "consecutive",
) -> tuple[Blocks, Blocks]:
    """MX operands [M, K] and [N, K] made of random codes, of a kind of `BLOCK_KINDS`.

    "nan" has scale bytes 0xFF too. A format without infinities takes its largest number
    for "inf", one without NaN only the scale's.
    """
    rng = np.random.default_rng(seed)
    m, n, k = shape
    lhs, rhs = (
        _random_blocks(rng, (rows, k), name, layout, span)
        for rows, name, span in zip((m, n), formats, _BYTES[kind], strict=True)
    )
    if kind in ("cancelling", "overflow"):
        _cancel_blocks(rng, lhs, rhs)
    if kind == "signed_zeros":
        lhs.codes[:] &= _sign(lhs)
    if kind in ("nan", "inf"):
        for operand in (lhs, rhs):
            _sprinkle_special(rng, operand, kind)
    return lhs, rhs


def _random_blocks(
    rng: np.random.Generator,
    shape: tuple[int, int],
    name: str,
    layout: Layout,
    span: tuple[int, int],
) -> Blocks:
    """Any finite codes, and scale bytes within `span`."""
    fmt = microscaling.FORMATS[name]
    codes = rng.integers(0, fmt.largest_code + 1, shape)
    codes |= rng.integers(0, 2, shape) << fmt.sign_bit
    rows, k = shape
    tile = microscaling.BLOCK if layout == "consecutive" else MX_TILE
    count = -(-k // tile) * tile // microscaling.BLOCK
    scales = rng.integers(span[0], span[1] + 1, (rows, count))
    return Blocks(
        codes=codes.astype(np.uint8),
        scales=scales.astype(np.uint8),
        format=name,
        layout=layout,
    )


def _sign(operand: Blocks) -> int:
    return 1 << microscaling.FORMATS[operand.format].sign_bit


def _cancel_blocks(rng: np.random.Generator, lhs: Blocks, rhs: Blocks) -> None:
    """The products of half of the blocks become minus those of another."""
    members = _members(lhs.codes.shape[-1], lhs.layout)
    order = rng.permutation(len(members))
    half = len(order) // 2
    for one, other in zip(order[:half], order[half : 2 * half], strict=True):
        for operand, flip in ((lhs, _sign(lhs)), (rhs, 0)):
            count = min(len(members[one]), len(members[other]))
            source, target = members[one][:count], members[other][:count]
            operand.codes[:, target] = operand.codes[:, source] ^ flip
            operand.scales[:, other] = operand.scales[:, one]


def _members(k: int, layout: Layout) -> list[np.ndarray]:
    """The positions in K of the elements of each block."""
    at = np.arange(k)
    if layout == "consecutive":
        block = at // microscaling.BLOCK
    else:
        block = at // MX_TILE * 16 + at % ROWS // 8
    return [np.flatnonzero(block == b) for b in range(block.max() + 1)]


def _sprinkle_special(rng: np.random.Generator, operand: Blocks, kind: str) -> None:
    """In a quarter of the rows an element becomes special; for "nan" also a block."""
    fmt = microscaling.FORMATS[operand.format]
    special = fmt.nan_code if kind == "nan" else fmt.infinity_code or fmt.largest_code
    if special is not None:
        chosen = _some(rng, operand.codes.shape)
        operand.codes[chosen] = special | operand.codes[chosen] & _sign(operand)
    if kind == "nan":
        operand.scales[_some(rng, operand.scales.shape)] = microscaling.NAN_SCALE
