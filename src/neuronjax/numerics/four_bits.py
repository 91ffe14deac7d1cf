"""Codes as arrays of their dtype, those of 4 bits too, which XLA is slow to write.

NumPy keeps an FP4 element in a byte, XLA two: on a CPU with kernels one of these packs
the codes, elsewhere XLA does, nibble by nibble, an order of magnitude slower.
"""

from __future__ import annotations

import jax

from neuronjax.numerics.float_format import FloatFormat
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.widening import narrowed


def from_codes(codes: jax.Array, fmt: FloatFormat) -> jax.Array:
    """Returns the elements that codes stand for, of `fmt.code_dtype` or a wider one;
    the inverse of `microscaling.to_codes`."""
    codes = codes.astype(fmt.code_dtype)
    if fmt.width != 4:
        return narrowed(codes, fmt)

    def packed(codes: jax.Array) -> jax.Array:
        from neuronjax.numerics.host_kernels import nibbles  # it needs llvmlite

        return nibbles.packed(codes, fmt.dtype)

    def converted(codes: jax.Array) -> jax.Array:
        return narrowed(codes, fmt)

    return choice.by_kernel(packed, converted, codes)
