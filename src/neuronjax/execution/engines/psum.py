"""PSUM: the memory that adds up the results of K tiles, in K order.

In FP32; on NeuronCore-v4 also in BF16: the sum so far is read as FP32, the tile's
result added in FP32, and the new sum rounded to BF16, to nearest or stochastically
(hardware facts, section 3.7). The first result is written, and rounded, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronjax.execution.engines.dispatch import Registers
from neuronjax.ir.instruction import Instruction
from neuronjax.numerics.exact import own_kernel
from neuronjax.numerics.float_format import FloatFormat, get_format
from neuronjax.numerics.random_bits import fold, random_bits
from neuronjax.numerics.rounding import cast, round_to_format


class Psum(NamedTuple):
    """How one instruction's results are added up.

    Attributes:
        zero: the opaque -0.0.
        key: of stochastic rounding.
        rounding: of sums in a format narrower than FP32.
        format: of the sums, None for FP32.
        overflow: of sums in such a format.
    """

    zero: jax.Array
    key: jax.Array
    rounding: str
    format: FloatFormat | None
    overflow: str = "ieee"

    @classmethod
    def of(cls, i: Instruction, r: Registers) -> Psum:
        """As the dtype of the instruction's result says."""
        dtype = i.results[0].type.dtype
        narrow = dtype.kind not in "iu" and dtype != np.float32
        fmt = get_format(dtype) if narrow else None
        return cls(r.zero, r.key, i.rounding, fmt, i.overflow)

    def add(
        self, passes: list[jax.Array], total: jax.Array | None = None, tile: Any = 0
    ) -> jax.Array:
        """Return the sum so far and a tile's results, pass by pass.

        Args:
            passes: each [batch, M, N] float32.
            total: the sum so far, [batch, M, N] float32.
            tile: the tile's number, for the rounding keys.
        """
        add = _adder(self.format, self.rounding, self.overflow)
        add = add if len(passes) == 1 and total is None else own_kernel(add)
        return add(passes, total, jnp.uint32(tile), self.zero, self.key)


@functools.cache
def _adder(
    format: FloatFormat | None, rounding: str, overflow: str
) -> Callable[..., jax.Array]:
    """One function object per kind, so that it is traced once per shape."""
    if format is None:
        return functools.partial(_add_passes, rounded=None)
    options: dict[str, Any] = dict(rounding=rounding, overflow=overflow)
    rounded = functools.partial(_rounded, format=format, **options)
    return functools.partial(_add_passes, rounded=rounded)


def _add_passes(
    passes: list[jax.Array],
    total: jax.Array | None,
    tile: jax.Array,
    zero: jax.Array,
    key: jax.Array,
    *,
    rounded: Callable[..., jax.Array] | None,
) -> jax.Array:
    """Plain additions of stored results: nothing to contract or to reassociate."""
    for n, stored in enumerate(passes):
        total = stored if total is None else total + stored
        if rounded is not None:
            write = tile * jnp.uint32(len(passes)) + jnp.uint32(n)
            total = rounded(total, fold(key, write))
    assert total is not None
    return settled(total, zero)


def settled(total: jax.Array, zero: jax.Array) -> jax.Array:
    """A sum as it leaves TensorE: zeros are +0, NaNs have one bit pattern.

    Hosts differ in whether a sum of -0 starts from +0, and in whose NaN they keep.
    """
    total = total + lax.neg(zero)  # +0 to the chip, and to the compiler unknown
    return jnp.where(total != total, jnp.float32(np.nan), total)


def _rounded(
    total: jax.Array,
    key: jax.Array,
    *,
    format: FloatFormat,
    rounding: Any,
    overflow: Any,
) -> jax.Array:
    drawn = random_bits(total.shape, key) if rounding == "stochastic" else None
    return round_to_format(
        total, format, rounding=rounding, overflow=overflow, random_bits=drawn
    )


def as_psum(total: jax.Array, i: Instruction) -> jax.Array:
    """A sum, which the result's dtype holds exactly, in that dtype."""
    dtype = i.results[0].type.dtype
    if dtype == np.float32:
        return total
    overflow: Any = i.overflow
    return cast(total, get_format(dtype), overflow=overflow)
