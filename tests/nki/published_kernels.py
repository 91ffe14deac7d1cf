"""NKI kernels whose times are published, written from the tutorials' descriptions.

Matrix multiplication in the four stages of the tutorials (v2.26.1 on Trainium1, the
later one on Trainium2), and the selective scan of Mamba in two. Arguments as there: the
left matrix is given transposed, [K, M]; channels of Mamba are on the partitions.
"""

from __future__ import annotations

from typing import Any

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki

ROWS, WIDE = 128, 512  # of a tile: contracted or stationary, and moving


def _tile(shape: tuple[int, ...], dtype: Any, buffer: Any = nl.sbuf) -> Any:
    return nl.ndarray(shape, dtype, buffer=buffer)


def _loaded(matrix: Any, row: int, column: int, width: int) -> Any:
    """A tile of 128 rows: numbers of the tile row, the first column, its columns."""
    tile = _tile((ROWS, width), matrix.dtype)
    rows = slice(row * ROWS, (row + 1) * ROWS)
    nisa.dma_copy(dst=tile, src=matrix[rows, column : column + width])
    return tile


def _stored(result: Any, m: int, n: int, sums: Any) -> None:
    """PSUM to SBUF to HBM."""
    tile = _tile((ROWS, WIDE), result.dtype)
    nisa.tensor_copy(dst=tile, src=sums)
    rows, columns = slice(m * ROWS, (m + 1) * ROWS), slice(n * WIDE, (n + 1) * WIDE)
    nisa.dma_copy(dst=result[rows, columns], src=tile)


def _contracted(left: Any, right: Any) -> Any:
    """The sum over the tiles of K, in PSUM."""
    sums = _tile((ROWS, WIDE), nl.float32, nl.psum)
    for a, b in zip(left, right, strict=True):
        nisa.nc_matmul(dst=sums, stationary=a, moving=b)
    return sums


@nki.jit
def matmul_tiled(lhsT: Any, rhs: Any) -> Any:
    """Both tiles are loaded for every matmul."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    result = nl.ndarray((m, n), lhsT.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // ROWS):
        for j in nl.affine_range(n // WIDE):
            sums = _tile((ROWS, WIDE), nl.float32, nl.psum)
            for p in nl.affine_range(k // ROWS):
                a = _loaded(lhsT, p, i * ROWS, ROWS)
                b = _loaded(rhs, p, j * WIDE, WIDE)
                nisa.nc_matmul(dst=sums, stationary=a, moving=b)
            _stored(result, i, j, sums)
    return result


@nki.jit
def matmul_hoisted(lhsT: Any, rhs: Any) -> Any:
    """A row of left tiles is loaded once, a column of right tiles once per row."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    steps = k // ROWS
    result = nl.ndarray((m, n), lhsT.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // ROWS):
        left = [_loaded(lhsT, p, i * ROWS, ROWS) for p in range(steps)]
        for j in nl.affine_range(n // WIDE):
            right = [_loaded(rhs, p, j * WIDE, WIDE) for p in range(steps)]
            _stored(result, i, j, _contracted(left, right))
    return result


@nki.jit
def matmul_block_free(lhsT: Any, rhs: Any, tiles: int = 2) -> Any:
    """Blocks of `tiles` x `tiles` results share their loads; K is not blocked."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    steps = k // ROWS
    result = nl.ndarray((m, n), lhsT.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // (ROWS * tiles)):
        left = [
            [_loaded(lhsT, p, (i * tiles + t) * ROWS, ROWS) for p in range(steps)]
            for t in range(tiles)
        ]
        for j in nl.affine_range(n // (WIDE * tiles)):
            right = [
                [_loaded(rhs, p, (j * tiles + t) * WIDE, WIDE) for p in range(steps)]
                for t in range(tiles)
            ]
            for a in range(tiles):
                for b in range(tiles):
                    sums = _contracted(left[a], right[b])
                    _stored(result, i * tiles + a, j * tiles + b, sums)
    return result


@nki.jit
def matmul_block_all(
    lhsT: Any, rhs: Any, in_m: int = 16, in_n: int = 2, in_k: int = 8
) -> Any:
    """All dimensions in blocks: partial sums over K are added up in SBUF."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    wide = in_n * WIDE
    result = nl.ndarray((m, n), lhsT.dtype, buffer=nl.shared_hbm)
    for j in nl.affine_range(n // wide):
        totals = [
            [_tile((ROWS, WIDE), lhsT.dtype) for _ in range(in_n)]
            for _ in range(m // ROWS)
        ]
        for total in (t for row in totals for t in row):
            nisa.memset(dst=total, value=0.0)
        for p in nl.sequential_range(k // (ROWS * in_k)):
            right = [_loaded(rhs, p * in_k + t, j * wide, wide) for t in range(in_k)]
            for i in nl.affine_range(m // (ROWS * in_m)):
                first = i * in_m * ROWS
                left = [
                    _loaded(lhsT, p * in_k + t, first, in_m * ROWS) for t in range(in_k)
                ]
                _add_block(totals, left, right, i * in_m, in_m, in_n)
        _store_block(result, totals, j, in_n)
    return result


# -- 2048 x 2048 x 2048, always 1,024 matmuls: what overlaps decides ------------------


def _result_row(result: Any, m: int, sums: Any) -> None:
    """A row of tiles, PSUM to SBUF to HBM."""
    tile = _tile(sums.shape, result.dtype)
    nisa.tensor_copy(dst=tile, src=sums, engine=nisa.vector_engine)
    nisa.dma_copy(dst=result[m * ROWS : (m + 1) * ROWS, :], src=tile)


@nki.jit
def ladder_single_buffers(lhsT: Any, rhs: Any) -> Any:
    """Every matmul loads both of its tiles, into the one buffer that each has."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    result = nl.ndarray((m, n), lhsT.dtype, buffer=nl.shared_hbm)
    left, right = _tile((ROWS, ROWS), lhsT.dtype), _tile((ROWS, WIDE), rhs.dtype)
    made = _tile((ROWS, n), result.dtype)
    sums = _tile((ROWS, WIDE), nl.float32, nl.psum)
    for i in nl.affine_range(m // ROWS):
        columns = slice(i * ROWS, (i + 1) * ROWS)
        for j in nl.affine_range(n // WIDE):
            wide = slice(j * WIDE, (j + 1) * WIDE)
            nisa.memset(dst=sums, value=0.0)
            for p in nl.affine_range(k // ROWS):
                rows = slice(p * ROWS, (p + 1) * ROWS)
                nisa.dma_copy(dst=left, src=lhsT[rows, columns])
                nisa.dma_copy(dst=right, src=rhs[rows, wide])
                nisa.nc_matmul(dst=sums, stationary=left, moving=right)
            nisa.tensor_copy(dst=made[:, wide], src=sums, engine=nisa.vector_engine)
        nisa.dma_copy(dst=result[columns, :], src=made)
    return result


@nki.jit
def ladder_resident(lhsT: Any, rhs: Any, accumulators: int = 1) -> Any:
    """Both operands in SBUF; sums of 128 x 2048, in one or more places by turns."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    result = nl.ndarray((m, n), lhsT.dtype, buffer=nl.shared_hbm)
    left = [_loaded(lhsT, p, 0, m) for p in range(k // ROWS)]
    right = [_loaded(rhs, p, 0, n) for p in range(k // ROWS)]
    sums = [_tile((ROWS, n), nl.float32, nl.psum) for _ in range(accumulators)]
    for i in nl.affine_range(m // ROWS):
        total = sums[i % accumulators]
        nisa.memset(dst=total, value=0.0, engine=nisa.vector_engine)
        for a, b in zip(left, right, strict=True):
            for j in range(n // WIDE):
                wide = slice(j * WIDE, (j + 1) * WIDE)
                held = a[:, i * ROWS : (i + 1) * ROWS]
                nisa.nc_matmul(dst=total[:, wide], stationary=held, moving=b[:, wide])
        _result_row(result, i, total)
    return result


@nki.jit
def ladder_sunk_loads(lhsT: Any, rhs: Any) -> Any:
    """A column of left tiles is loaded when its row of results needs it, the right
    operand with the first; two accumulators by turns."""
    (k, m), n = lhsT.shape, rhs.shape[1]
    result = nl.ndarray((m, n), lhsT.dtype, buffer=nl.shared_hbm)
    right: list[Any] = []
    sums = [_tile((ROWS, n), nl.float32, nl.psum) for _ in range(2)]
    for i in nl.affine_range(m // ROWS):
        total = sums[i % 2]
        nisa.memset(dst=total, value=0.0, engine=nisa.vector_engine)
        for p in range(k // ROWS):
            held = _loaded(lhsT, p, i * ROWS, ROWS)
            if not i:
                right.append(_loaded(rhs, p, 0, n))
            for j in range(n // WIDE):
                wide = slice(j * WIDE, (j + 1) * WIDE)
                moving = right[p][:, wide]
                nisa.nc_matmul(dst=total[:, wide], stationary=held, moving=moving)
        _result_row(result, i, total)
    return result


def _add_block(
    totals: Any, left: Any, right: Any, first: int, in_m: int, in_n: int
) -> None:
    for b in range(in_n):
        columns = slice(b * WIDE, (b + 1) * WIDE)
        for a in range(in_m):
            rows = slice(a * ROWS, (a + 1) * ROWS)
            sums = _contracted(
                [tile[:, rows] for tile in left], [tile[:, columns] for tile in right]
            )
            total = totals[first + a][b]
            nisa.tensor_tensor(dst=total, data1=total, data2=sums, op=nl.add)


def _store_block(result: Any, totals: Any, j: int, in_n: int) -> None:
    """Tiles side by side in one row make longer transfers."""
    wide = in_n * WIDE
    for i, row in enumerate(totals):
        packed = _tile((ROWS, wide), result.dtype)
        for b, total in enumerate(row):
            nisa.tensor_copy(dst=packed[:, b * WIDE : (b + 1) * WIDE], src=total)
        rows = slice(i * ROWS, (i + 1) * ROWS)
        nisa.dma_copy(dst=result[rows, j * wide : (j + 1) * wide], src=packed)


# -- Mamba -----------------------------------------------------------------------------


def _on_all_partitions(matrix: Any, row: int) -> Any:
    """One row of [states, tokens] in every partition, by DMA."""
    tokens = matrix.shape[1]
    tile = _tile((ROWS, tokens), matrix.dtype)
    nisa.dma_copy(dst=tile, src=matrix.ap([[0, ROWS], [1, tokens]], row * tokens))
    return tile


def _channels(matrix: Any, tile: int, columns: slice) -> Any:
    rows = slice(tile * ROWS, (tile + 1) * ROWS)
    source = matrix[rows, columns]
    out = _tile(tuple(source.shape), matrix.dtype)
    nisa.dma_copy(dst=out, src=source)
    return out


def _state(delta: Any, u: Any, a: Any, b: Any, c: Any, total: Any) -> None:
    """One state of 128 channels: exp, two products, the scan, a product, the sum."""
    shape, dtype = tuple(delta.shape), delta.dtype
    decay, scaled, driven, scan, seen = (_tile(shape, dtype) for _ in range(5))
    nisa.activation(dst=decay, op=nl.exp, data=delta, scale=a)
    nisa.tensor_tensor(dst=scaled, data1=delta, data2=u, op=nl.multiply)
    nisa.tensor_tensor(dst=driven, data1=scaled, data2=b, op=nl.multiply)
    nisa.tensor_tensor_scan(
        dst=scan, data0=decay, data1=driven, initial=0.0, op0=nl.multiply, op1=nl.add
    )
    nisa.tensor_tensor(dst=seen, data1=scan, data2=c, op=nl.multiply)
    nisa.tensor_tensor(dst=total, data1=total, data2=seen, op=nl.add)


@nki.jit
def mamba_v1(delta: Any, u: Any, A: Any, B: Any, C: Any) -> Any:
    """States outside, channels inside: delta and u are loaded for every state."""
    channels, tokens = delta.shape
    states, tiles = A.shape[1], channels // ROWS
    out = nl.ndarray((channels, tokens), delta.dtype, buffer=nl.shared_hbm)
    totals = [_tile((ROWS, tokens), delta.dtype) for _ in range(tiles)]
    for total in totals:
        nisa.memset(dst=total, value=0.0)
    for s in nl.affine_range(states):
        for t in nl.affine_range(tiles):
            everything = slice(0, tokens)
            _state(
                _channels(delta, t, everything),
                _channels(u, t, everything),
                _channels(A, t, slice(s, s + 1)),
                _on_all_partitions(B, s),
                _on_all_partitions(C, s),
                totals[t],
            )
    for t, total in enumerate(totals):
        nisa.dma_copy(dst=out[t * ROWS : (t + 1) * ROWS, 0:tokens], src=total)
    return out


@nki.jit
def mamba_v2(delta: Any, u: Any, A: Any, B: Any, C: Any) -> Any:
    """Channels outside: delta and u are loaded once."""
    channels, tokens = delta.shape
    out = nl.ndarray((channels, tokens), delta.dtype, buffer=nl.shared_hbm)
    for t in nl.affine_range(channels // ROWS):
        total = _tile((ROWS, tokens), delta.dtype)
        nisa.memset(dst=total, value=0.0)
        d, v = (_channels(x, t, slice(0, tokens)) for x in (delta, u))
        for s in nl.affine_range(A.shape[1]):
            a = _channels(A, t, slice(s, s + 1))
            b, c = _on_all_partitions(B, s), _on_all_partitions(C, s)
            _state(d, v, a, b, c, total)
        nisa.dma_copy(dst=out[t * ROWS : (t + 1) * ROWS, 0:tokens], src=total)
    return out
