"""Whether a kernel of this processor does the work, or XLA: the bits are the same.

Kernels are calls of addresses in this process, so a program for another machine, such
as `jax.export` writes, has none. Inside `exportable` they are left out. Outside, an
identity stands in front of them, which `jax.export` finds when it lowers
(`capture.host_calls`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

# Part of JAX's cache key: what was traced outside is traced anew inside.
_EXPORTABLE = jax.make_user_context(default_value=None)


@contextlib.contextmanager
def exportable() -> Iterator[None]:
    """What is traced inside, emulated or cast by `nj.cast` and `nj.quantize_mx`, is for
    `jax.export`: plain StableHLO, the same bits, slower.

        with nj.exportable():
            exported = jax.export.export(jax.jit(jax.grad(nj.jit(loss))))(params)

    `jax.export.export(nj.jit(f))` needs none.
    """
    with _EXPORTABLE("exportable"):
        yield


def is_exportable() -> bool:
    """Whether what is traced now is for another machine."""
    return _EXPORTABLE.value is not None


def of_this_host(x: jax.Array) -> jax.Array:
    """Return x, for a fast path of this host; `jax.export` meets a named error here."""
    importlib.import_module(_LOWERED_IN)
    return host_p.bind(x)


#: Where `host_p` is lowered: the room of all that knows MLIR.
_LOWERED_IN = "neuronjax.capture.host_calls"
host_p = Primitive("of_this_host")
host_p.def_impl(lambda x: x)
host_p.def_abstract_eval(lambda x: x)
batching.defvectorized(host_p)
ad.deflinear2(host_p, lambda cotangent, _: [cotangent])


# False compares whole programs with and without these kernels.
enabled = os.environ.get("NEURONJAX_HOST_KERNELS", "1") != "0"


def usable() -> bool:
    """Whether programs traced now may have kernels, where they run on a CPU."""
    return enabled and not is_exportable() and _has_kernels()


def described() -> str:
    """Return for which processor kernels are compiled, or why there are none."""
    if not _has_kernels():
        return f"none for {platform.machine()}, XLA does their work"
    from neuronjax.numerics.host_kernels import compiled

    return f"{compiled.processor().name}, vectors of {compiled.lanes()} floats"


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
