"""Instructions that came with a later core.

Source: nki.isa ("Supported arch versions", "NeuronCore-v4+" and the like); where it is
silent, as of `topk`, every core has the instruction here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from neuronjax.ir.kernel import KernelInstruction
from neuronjax.nki.limits.registry import limit, missing

if TYPE_CHECKING:
    from neuronjax.nki.trace import Trace

NEEDS: Mapping[str, str] = MappingProxyType(
    {
        "activate2": "activate2",
        "exponential": "vector_exponential",
        "quantize_mx": "quantize_mx",
        "nc_matmul_mx": "mx_matmul",
        "rand2": "xorwow",
        "range_select": "range_select",
        "core_barrier": "core_barrier",
        "sendrecv": "core_barrier",
        "nonzero_with_count": "nonzero_with_count",
        "rand_set_state": "gpsimd_random",
        "rand_get_state": "gpsimd_random",
    }
)
INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "activate2": "nisa.activation after nisa.tensor_scalar",
        "exponential": "nisa.activation with op=nl.exp",
        "rand2": "nisa.rng",
        "range_select": "nisa.affine_select",
        "quantize_mx": "a cast to float8_e4m3",
        "nc_matmul_mx": "nisa.nc_matmul",
    }
)


@limit(*NEEDS)
def instruction_exists(i: KernelInstruction, trace: Trace) -> None:
    """The core has the instruction."""
    if NEEDS[i.name] not in trace.core.capabilities:
        raise missing(
            i, trace, "the instruction", NEEDS[i.name], INSTEAD.get(i.name, "")
        )
