"""Programs for another machine, which `jax.export` can write.

What is fast is this host's alone: kernels compiled for its processor are calls of
addresses in this process. Inside `exportable` they are left out; the bits are the same.
Outside, an identity stands in front of them, which `jax.export` finds when it lowers
(`capture.host_calls`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
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
    """What a fast path of this host's is given; a named error for `jax.export`."""
    return host_p.bind(x)


def host_call(target: str, results: Any) -> Callable[..., Any]:
    """`jax.ffi.ffi_call` of a kernel of this host's."""
    call = jax.ffi.ffi_call(target, results)
    return lambda x, *others, **told: call(of_this_host(x), *others, **told)


host_p = Primitive("of_this_host")
host_p.def_impl(lambda x: x)
host_p.def_abstract_eval(lambda x: x)
batching.defvectorized(host_p)
ad.deflinear2(host_p, lambda cotangent, _: [cotangent])
