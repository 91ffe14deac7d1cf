"""`t[...] = value`: a copy into a view."""

from __future__ import annotations

from typing import Any

from neuronjax.nki.isa import dma_copy, memset, tensor_copy
from neuronjax.nki.tensor import NkiTensor


def assign(dst: NkiTensor, value: Any) -> None:
    """Copy a tensor or a number into a view, unless `value` is the view itself.

    The copy is a `tensor_copy` within SBUF and PSUM, and a `dma_copy` to or from HBM.
    """
    if not isinstance(value, NkiTensor):
        memset(dst, value)
    elif value.storage is dst.storage and value.access() == dst.access():
        return
    elif dst.storage.on_chip and value.storage.on_chip:
        tensor_copy(dst, value)
    else:
        dma_copy(dst, value)
