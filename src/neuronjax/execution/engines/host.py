"""Functions that the host computes instead of the core because the policy says so.

The JAX primitive is bound in the surrounding trace: on a CPU it is LAPACK's routine, on
a GPU cuSOLVER's. Its bits may differ between hosts.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from neuronjax.execution.engines.dispatch import Arrays, Registers, execute
from neuronjax.execution.inputs_outputs import split_complex
from neuronjax.ir.algebra_set import HostCall


@execute.register
def host_call(i: HostCall, x: Sequence[jax.Array], r: Registers) -> Arrays:
    value = i.function.call(*_joined(x, i.complex_operands))
    results = value if isinstance(value, tuple | list) else (value,)
    return tuple(split_complex(results))


def _joined(x: Sequence[jax.Array], is_complex: Sequence[bool]) -> list[jax.Array]:
    parts = iter(x)
    if not is_complex:
        return list(parts)
    return [
        lax.complex(next(parts), next(parts)) if c else next(parts) for c in is_complex
    ]
