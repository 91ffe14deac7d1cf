"""The choice between a kernel of this processor and XLA, which give the same bits.

Kernels are calls of addresses in this process, so a program for another machine, such
as one from `jax.export`, cannot contain kernels. Inside `exportable` they are left out.
Outside, an identity op precedes each kernel; lowering this op for `jax.export` is an
error (`capture.host_calls`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

# This context is part of JAX's cache key: a cached trace from outside is not reused.
_EXPORTABLE = jax.make_user_context(default_value=None)


@contextlib.contextmanager
def exportable() -> Iterator[None]:
    """Leave kernels out of what is traced in this block, so that JAX can export it.

    The program gets slower but has the same bits. The block concerns emulated
    functions, `nj.cast` and `nj.quantize_mx`.

        with nj.exportable():
            exported = jax.export.export(jax.jit(jax.grad(nj.jit(loss))))(params)

    `jax.export.export(nj.jit(f))` does not need it.
    """
    with _EXPORTABLE("exportable"):
        yield


def is_exportable() -> bool:
    """Return whether the program traced now is for another machine."""
    return _EXPORTABLE.value is not None


def of_this_host(x: jax.Array) -> jax.Array:
    """Return x, through an op that makes `jax.export` refuse the program: the program
    calls code of this host."""
    importlib.import_module(_LOWERED_IN)
    return host_p.bind(x)


#: The module that lowers `host_p`; only `capture` knows MLIR.
_LOWERED_IN = "neuronjax.capture.host_calls"
host_p = Primitive("of_this_host")
host_p.def_impl(lambda x: x)
host_p.def_abstract_eval(lambda x: x)
batching.defvectorized(host_p)
ad.deflinear2(host_p, lambda cotangent, _: [cotangent])


# NEURONJAX_HOST_KERNELS=0 makes programs without kernels, for comparisons.
enabled = os.environ.get("NEURONJAX_HOST_KERNELS", "1") != "0"


def usable() -> bool:
    """Return whether programs traced now may have kernels, if they run on a CPU."""
    return enabled and not is_exportable() and _has_kernels()


def described() -> str:
    """Return the processor for which kernels are compiled, or why there are none."""
    if not _has_kernels():
        return f"no kernels for {platform.machine()}: XLA computes in their place"
    from neuronjax.numerics.host_kernels import compiled

    return f"{compiled.processor().name}, vectors of {compiled.lanes()} floats"


@functools.cache
def _has_kernels() -> bool:
    if importlib.util.find_spec("llvmlite") is None:
        return False
    from neuronjax.numerics.host_kernels import compiled

    return compiled.lanes() > 0


@functools.cache
def on_arrays(kernel: str, *about: Any) -> Callable[..., None]:
    """Return a kernel as a function of contiguous arrays. The first is an array of
    NumPy, the others may be arrays of `ctypes`. `kernel` names a module of this
    package; its `write` gets `about`."""
    package = __package__ or ""
    compiled = importlib.import_module(f"{package}.compiled")  # slow to import
    module = importlib.import_module(f"{package}.{kernel}")
    lanes = compiled.lanes() // (2 if module.IS_WIDE else 1)
    name = "_".join(["neuronjax", kernel, *map(str, about)])
    where = compiled.address(name, lambda m: module.write(m, lanes, *about))
    kinds = [ctypes.c_void_p] * module.ARRAYS
    run = ctypes.CFUNCTYPE(None, *kinds, ctypes.c_int64)(where)

    def call(*arrays: Any) -> None:
        places = (x.ctypes.data if isinstance(x, np.ndarray) else x for x in arrays)
        run(*places, arrays[0].size)

    return call


def by_kernel(
    kernel: Callable[..., Any], otherwise: Callable[..., Any], *arrays: Any
) -> Any:
    """Return `kernel(*arrays)` on a CPU, else `otherwise(*arrays)`, with the same bits.
    JAX chooses when it lowers a program; captured programs have `otherwise`."""
    if not usable():
        return otherwise(*arrays)
    return lax.platform_dependent(*arrays, cpu=kernel, default=otherwise)
