"""lhs_t.T @ rhs in FP32, in tiles of 128 x 512."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(lhs_t, rhs):
    """Compute columns of tiles one after another; each loads its operands once."""
    (k, m), n = lhs_t.shape, rhs.shape[1]
    out = nl.ndarray((m, n), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for j in nl.affine_range(n // 512):
        columns = nl.ds(512 * j, 512)
        moving = nl.ndarray((128, k // 128, 512), dtype=rhs.dtype, buffer=nl.sbuf)
        for step in nl.affine_range(k // 128):
            nisa.dma_copy(moving[:, step], rhs[nl.ds(128 * step, 128), columns])
        for i in nl.affine_range(m // 128):
            rows = nl.ds(128 * i, 128)
            total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for step in nl.affine_range(k // 128):
                a = nl.ndarray((128, 128), dtype=lhs_t.dtype, buffer=nl.sbuf)
                nisa.dma_copy(a, lhs_t[nl.ds(128 * step, 128), rows])
                nisa.nc_matmul(total, a, moving[:, step])
            tile = nl.ndarray((128, 512), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(tile, total)
            nisa.dma_copy(out[rows, columns], tile)
    return out
