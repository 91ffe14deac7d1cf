"""Whether a kernel of this processor does the work, or XLA: the bits are the same."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

from jax import lax

from neuronjax.numerics.portable import is_exportable

# False compares whole programs with and without these kernels.
enabled = os.environ.get("NEURONJAX_HOST_KERNELS", "1") != "0"


def usable() -> bool:
    """Whether programs traced now may have kernels, where they run on a CPU."""
    return enabled and not is_exportable() and _has_kernels()


@functools.cache
def _has_kernels() -> bool:
    if importlib.util.find_spec("llvmlite") is None:
        return False
    from neuronjax.numerics.host_kernels import compiled

    return compiled.lanes() > 0


def by_kernel(
    kernel: Callable[..., Any], otherwise: Callable[..., Any], *arrays: Any
) -> Any:
    """What a kernel makes of arrays, or the same by XLA.

    Which of the two is decided when a program is lowered, for what it is lowered for:
    a program that is captured has XLA's operations.
    """
    if not usable():
        return otherwise(*arrays)
    return lax.platform_dependent(*arrays, cpu=kernel, default=otherwise)
