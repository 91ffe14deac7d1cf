"""`jax.export` of a program that is fast on this host alone: a named error.

JAX says of such a program only that it may not write custom calls or layouts. That it
is for another machine is known when it is lowered, not when it is traced.
"""

from __future__ import annotations

from typing import Any

from jax.interpreters import mlir

from neuronjax.errors import UnsupportedError, program_line
from neuronjax.numerics.portable import host_p


def _lowered(context: Any, x: Any) -> list[Any]:
    if context.module_context.lowering_parameters.for_export:
        raise UnsupportedError(
            "jax.export of a function in which something is emulated or cast: what "
            "makes it fast is for this machine alone",
            location=program_line(),
            remedy='export it under "with nj.exportable():", the same bits as plain '
            "StableHLO; jax.export.export(nj.jit(f)) needs none",
        )
    return [x]


mlir.register_lowering(host_p, _lowered)
