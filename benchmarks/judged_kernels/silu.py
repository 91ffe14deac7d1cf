"""x * sigmoid(x) of [4096, 7168], in tiles of 128 rows."""

import nki
import nki.isa as nisa
import nki.language as nl

COLUMNS = 3584


@nki.jit
def kernel(x):
    """Load half a row, apply an activation and a product, and store it."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for row in nl.affine_range(x.shape[0] // 128):
        for half in nl.affine_range(x.shape[1] // COLUMNS):
            part = (nl.ds(128 * row, 128), nl.ds(COLUMNS * half, COLUMNS))
            tile = nl.ndarray((128, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
            gate = nl.ndarray((128, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[part])
            nisa.activation(dst=gate, op=nl.sigmoid, data=tile)
            nisa.tensor_tensor(dst=gate, data1=gate, data2=tile, op=nl.multiply)
            nisa.dma_copy(dst=out[part], src=gate)
    return out
