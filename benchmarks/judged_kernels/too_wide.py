"""A tile of more partitions than SBUF has."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    """Violate a limit in the first line."""
    tile = nl.ndarray((256, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x[0:256])
    nisa.dma_copy(dst=out[0:256], src=tile)
    return out
