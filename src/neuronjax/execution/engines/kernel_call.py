"""A kernel inside a program: the loops into which its instructions were rolled.

Its random bits derive from its seed. If the policy rounds stochastically, they also
derive from the key of the instruction: from the call index, the device and the loop
counters.
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
    if i.joins_devices:  # arrays of all devices, which share one seed
        seed = seed[0]
    key = seed.astype(jnp.uint32)
    if i.rounding == "stochastic":
        key = fold(r.key, key)
    numerics = KernelNumerics(i.rounding, i.transcendentals)
    return tuple(i.kernel.run(arrays, key, numerics))
