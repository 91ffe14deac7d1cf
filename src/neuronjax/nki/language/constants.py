"""The part of `nki.language.constants` that public kernels use."""

from __future__ import annotations

from typing import Any

from neuronjax.ir import nki_dtypes as dtypes


def sizeinbytes(dtype: Any) -> int:
    """Return the bytes of one element of a type of nki.language."""
    return dtypes.itemsize(dtypes.as_dtype(dtype))
