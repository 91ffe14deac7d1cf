"""Programs for another machine, which `jax.export` can write.

What is fast is this host's alone: kernels compiled for its processor are calls of
addresses in this process, and whether XLA's dot adds in order was tried here. Inside
`exportable` both are left out; the bits are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax

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
