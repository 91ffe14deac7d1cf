"""Functions that the host computes instead of the core because the policy says so.

The JAX primitive is bound in the surrounding trace: on a CPU it is LAPACK's routine, on
a GPU cuSOLVER's. Its bits may differ between hosts.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from neuronjax.execution.engines.dispatch import Arrays, Registers, execute
from neuronjax.execution.inputs_outputs import joined_complex, split_complex
from neuronjax.ir.algebra_set import HostCall


@execute.register
def host_call(i: HostCall, x: Sequence[jax.Array], r: Registers) -> Arrays:
    operands = joined_complex(x, i.complex_operands) if i.complex_operands else x
    value = i.function.call(*operands)
    results = value if isinstance(value, tuple | list) else (value,)
    return tuple(split_complex(results))
