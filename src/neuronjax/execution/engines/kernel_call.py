"""A kernel inside a program: the loops that its instructions were rolled into.

Its random bits start from its seed; where the policy rounds stochastically also from
the key of the instruction, and so from the call index, the device and the loop turns.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from neuronjax.execution.engines.dispatch import Arrays, Registers, execute
from neuronjax.ir.kernel_call import NkiKernel
from neuronjax.ir.kernel_numerics import KernelNumerics
from neuronjax.numerics.random_bits import fold


@execute.register
def nki_kernel(i: NkiKernel, x: Sequence[jax.Array], r: Registers) -> Arrays:
    *arrays, seed = x
    if i.joins_devices:  # arrays are those of all devices, whose seeds are one
        seed = seed[0]
    key = seed.astype(jnp.uint32)
    if i.rounding == "stochastic":
        key = fold(r.key, key)
    numerics = KernelNumerics(i.rounding, i.transcendentals)
    return tuple(i.kernel.run(arrays, key, numerics))
